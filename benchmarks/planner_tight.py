"""Tight problems that the memory planner solves: files and changed forms of them, each with a known plan.

    python benchmarks/planner_tight.py FILE.csv ... --capacity BYTES [--seconds S] [--forms NAME ...]

Each file is solved first; from its plan other problems are made that have a plan within the same
capacity as well: time reversed, a window of time, buffers cut in two, shrunk, or grown into free memory,
and two files joined in the middle.  ``cut``: rectangles cut in pieces, of which some lose a bit.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import planner_problems
from hetero_tvm.host.terminal import Column, console, table
from hetero_tvm.memory import Buffer, Problem, check_plan, plan, read_csv

Box = tuple[int, int, int, int]
"""Lower, upper, offset, size."""


def reversed_(boxes: Sequence[Box], _rng: random.Random) -> list[Box]:
    return [(-upper, -lower, offset, size) for lower, upper, offset, size in boxes]


def window(boxes: Sequence[Box], rng: random.Random) -> list[Box]:
    begin, end = min(b[0] for b in boxes), max(b[1] for b in boxes)
    low = begin + int((end - begin) * rng.uniform(0, 0.4))
    high = low + int((end - begin) * 0.6)
    return [(max(a, low), min(b, high), o, s) for a, b, o, s in boxes if a < high and low < b]


def halves(boxes: Sequence[Box], rng: random.Random) -> list[Box]:
    """Boxes of which three in ten are cut in two, across time or across memory."""
    found = []
    for a, b, o, s in boxes:
        if rng.random() >= 0.3 or min(b - a, s) < 2:
            found.append((a, b, o, s))
        elif rng.random() < 0.5:
            middle = rng.randrange(a + 1, b)
            found += [(a, middle, o, s), (middle, b, o, s)]
        else:
            part = rng.randrange(1, s)
            found += [(a, b, o, part), (a, b, o + part, s - part)]
    return found


def shrunk(boxes: Sequence[Box], rng: random.Random) -> list[Box]:
    """Boxes of which three in ten lose up to a fifth of their size or life."""
    found = []
    for a, b, o, s in boxes:
        share = 0.2 * rng.random()
        if rng.random() < 0.3:
            a, s = (a, s - int(s * share)) if rng.random() < 0.5 else (a + int((b - a) * share), s)
        found.append((a, b, o, s))
    return found


def grown(boxes: Sequence[Box], rng: random.Random, capacity: int) -> list[Box]:
    """Boxes of which three in ten take all free memory under and over them."""
    found = list(boxes)
    for i in rng.sample(range(len(found)), 3 * len(found) // 10):
        a, b, o, s = found[i]
        beside = [x for j, x in enumerate(found) if j != i and x[0] < b and a < x[1]]
        low = max((x[2] + x[3] for x in beside if x[2] + x[3] <= o), default=0)
        high = min((x[2] for x in beside if x[2] >= o + s), default=capacity)
        found[i] = (a, b, low, high - low)
    return found


def joined(first: Sequence[Box], second: Sequence[Box]) -> list[Box]:
    """Boxes of the first half of the time of one problem, then of the second half of the other."""
    middle = max(b[1] for b in first) // 2
    left = [(a, min(b, middle), o, s) for a, b, o, s in first if a < middle]
    return left + [(max(a, middle), b, o, s) for a, b, o, s in second if b > middle]


FORMS = ("file", "reversed", "window", "halves", "shrunk", "grown", "joined", "cut")


def problems(form: str, solved: Sequence[Sequence[Box]], capacity: int) -> list[Problem]:
    made: list[list[Box]] = []
    for number, boxes in enumerate(solved):
        rng = random.Random(f"{form}{number}")
        if form in ("file", "reversed"):
            made.append(list(boxes) if form == "file" else reversed_(boxes, rng))
        elif form in ("window", "halves", "shrunk"):
            made.append({"window": window, "halves": halves, "shrunk": shrunk}[form](boxes, rng))
        elif form == "grown":
            made.append(grown(boxes, rng, capacity))
        elif form == "joined":
            made.append(joined(boxes, solved[(number + 1) % len(solved)]))
    if form == "cut":
        return [planner_problems.perfect(100 + 40 * i, i, capacity=capacity) for i in range(6)]
    found = []
    for boxes in made:
        found.append(Problem(Buffer(f"{i}", a, b, s) for i, (a, b, _, s) in enumerate(boxes)))
        check_plan(found[-1], {f"{i}": box[2] for i, box in enumerate(boxes)}, capacity=capacity)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--capacity", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS)
    options = parser.parse_args()
    limits = {"capacity": options.capacity, "seconds": options.seconds, "seed": options.seed}
    solved = []
    for path in options.files:
        problem, _ = read_csv(path)
        result = plan(problem, **limits)
        if not result.fits:
            parser.error(f"{path} was not solved: nothing can be made of it")
        solved.append([(b.lower, b.upper, result.offsets[b.id], b.size) for b in problem.buffers])
    headings = ("form", "solved", "seconds of each (- not solved)")
    rows = []
    for form in options.forms:
        results = []
        for problem in problems(form, solved, options.capacity):
            results.append(plan(problem, **limits))
            check_plan(problem, results[-1].offsets, capacity=results[-1].peak)
        times = " ".join(f"{r.seconds:.2f}" if r.fits else "-" for r in results)
        rows.append((form, f"{sum(r.fits for r in results)} of {len(results)}", times))
    printer = console()
    columns = [Column(heading, text=True) for heading in headings]
    printer.print(table(f"solved within {options.seconds:g} s", columns, rows, printer.width))


if __name__ == "__main__":
    main()
