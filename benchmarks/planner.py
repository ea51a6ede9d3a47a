"""Peaks of the memory planner against greedy-by-size and the lower bound.

    python benchmarks/planner.py [FILE.csv ...] [--capacity BYTES] [--seconds S]

Without files: generated problems (full rectangles cut in pieces, random lives, training steps).
With ``--capacity`` the planner stops at the first plan within it and ratios are to the capacity;
otherwise they are to the lower bound (most bytes live at once).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import planner_problems
from hetero_tvm.host.terminal import Column, console, table
from hetero_tvm.memory import Problem, check_plan, plan, read_csv


def generated() -> Iterator[tuple[str, Problem]]:
    for count in (100, 200, 300):
        yield f"cut rectangle {count}", planner_problems.perfect(count, count)
    for count in (100, 300, 3000, 18_692):
        yield f"random lives {count}", planner_problems.scattered(count, count)
    for count in (2000, 20_000):
        yield f"training step {count}", planner_problems.training(count)


def greedy_ratio(problem: Problem, unit: int) -> float | None:
    """Peak of greedy by size, as a multiple of ``unit``; None of problems that it takes too long for."""
    return planner_problems.greedy_by_size(problem) / unit if len(problem) <= 4000 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--capacity", type=int)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    rows = []
    problems = ((path.name, read_csv(path)[0]) for path in options.files) if options.files else generated()
    for name, problem in problems:
        result = plan(problem, capacity=options.capacity, seconds=options.seconds)
        check_plan(problem, result.offsets, capacity=result.peak)
        unit = options.capacity or result.lower_bound or 1
        greedy = greedy_ratio(problem, unit)
        rows.append(
            (
                name,
                f"{len(problem):,}",
                f"{result.lower_bound:,}",
                "-" if greedy is None else f"{greedy:.3f}",
                f"{result.peak:,} ({result.peak / unit:.4f})",
                f"{result.seconds:.3f} s",
                result.method,
            )
        )
    numbers = map(Column, ("buffers", "lower bound", "greedy by size", "ours", "time"))
    columns = [Column("problem", text=True), *numbers, Column("method", text=True)]
    printer = console()
    printer.print(table("memory planner (peaks in bytes)", columns, rows, printer.width))


if __name__ == "__main__":
    main()
