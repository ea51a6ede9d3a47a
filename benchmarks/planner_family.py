"""Tight planning problems with a known plan, of the kinds and sizes of MiniMalloc's benchmark set.

    python benchmarks/planner_family.py [--kinds NAME ...] [--buffers N ...] [--full SHARE ...] [--seeds N]
                                        [--seconds S] [--files FILE.csv ... --capacity BYTES]

A rectangle of time by memory is cut in pieces by one of several rules (``KINDS``), or filled with bricks;
then pieces lose a part of their size or life, or are left out (``DROPPED``), until a share ``--full`` of the
rectangle is taken.  The pieces where they were cut are a plan within the capacity, so each problem can be
solved at it.  The "slender" kinds have the sizes and lives of the public set: buffers of much the same area,
long and small or short and large, which cuts in a direction by chance give.  The table shows, per
kind and fullness, how many are solved, the seconds of each, and the decisions of the exact search, which do
not depend on the machine.  Every plan goes through the independent checker.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hetero_tvm.host.terminal import Column, console, table
from hetero_tvm.memory import Buffer, Problem, check_plan, plan, read_csv

GRID = 1024
"""Steps of time and of memory in the rectangle; as in the public set, all values are multiples of a step."""
CAPACITY = GRID * GRID

Piece = tuple[int, int, int, int]
"""First and last step of time, first and last of memory."""


def cut(rng: random.Random, count: int, *, evenness: float, flatness: float = 1.0) -> list[Piece]:
    """Cut the rectangle by straight cuts through single pieces.

    ``evenness``: exponent of the area in a piece's chance to be cut next (0: any, 1: by area).
    ``flatness``: below 1 more cuts go across time, above 1 more across memory.
    """
    pieces = [(0, GRID, 0, GRID)]
    while len(pieces) < count:
        index = rng.choices(range(len(pieces)), [_area(piece) ** evenness for piece in pieces])[0]
        _split(rng, pieces, index, flatness)
    return pieces


def slender(rng: random.Random, count: int, *, across: float) -> list[Piece]:
    """Cut pieces in a direction by chance, whatever their shape; ``across``: share of cuts across time."""
    pieces = [(0, GRID, 0, GRID)]
    while len(pieces) < count:
        index = rng.choices(range(len(pieces)), [_area(piece) ** 2 for piece in pieces])[0]
        left, right, low, high = pieces[index]
        if rng.random() < across and right - left >= 2:
            at = rng.randrange(left + 1, right)
            pieces[index : index + 1] = [(left, at, low, high), (at, right, low, high)]
        elif high - low >= 2:
            at = rng.randrange(low + 1, high)
            pieces[index : index + 1] = [(left, right, low, at), (left, right, at, high)]
    return pieces


def pinwheels(rng: random.Random, count: int) -> list[Piece]:
    """Cut pieces in five, four around one in the middle, half of the time: no straight cut parts those."""
    pieces = [(0, GRID, 0, GRID)]
    while len(pieces) < count:
        index = rng.choices(range(len(pieces)), [_area(piece) for piece in pieces])[0]
        left, right, low, high = pieces[index]
        if min(right - left, high - low) < 4 or rng.random() < 0.5:
            _split(rng, pieces, index, 1.0)
            continue
        a, b = sorted(rng.sample(range(left + 1, right), 2))
        c, d = sorted(rng.sample(range(low + 1, high), 2))
        middle = (a, b, c, d)
        if rng.random() < 0.5:
            around = [(left, b, low, c), (b, right, low, d), (a, right, d, high), (left, a, c, high)]
        else:
            around = [(left, a, low, d), (a, right, low, c), (b, right, c, high), (left, b, d, high)]
        pieces[index : index + 1] = [*around, middle]
    return pieces


def bricks(rng: random.Random, count: int) -> list[Piece]:
    """Stack pieces of much the same life and size wherever they leave the smallest gap under them."""
    tops, pieces, misses = [0] * GRID, [], 0
    while len(pieces) < count and misses < 1000:
        life = max(2, int(rng.gauss(0.035, 0.01) * GRID))
        size = max(2, int(rng.gauss(0.066, 0.02) * GRID))
        starts = [rng.randrange(GRID - life) for _ in range(30)]
        bases = [(max(tops[start : start + life]), start) for start in starts]
        fitting = [
            (life * base - sum(tops[at : at + life]), at, base) for base, at in bases if base + size <= GRID
        ]
        if not fitting:
            misses += 1
            continue
        _, at, base = min(fitting)
        pieces.append((at, at + life, base, base + size))
        tops[at : at + life] = [base + size] * life
    return pieces


KINDS: dict[str, Callable[[random.Random, int], list[Piece]]] = {
    "by area": lambda rng, count: cut(rng, count, evenness=1.0),
    "mixed": lambda rng, count: cut(rng, count, evenness=0.5),
    "even": lambda rng, count: cut(rng, count, evenness=4.0),
    "any": lambda rng, count: cut(rng, count, evenness=0.0),
    "long lives": lambda rng, count: cut(rng, count, evenness=0.5, flatness=3.0),
    "short lives": lambda rng, count: cut(rng, count, evenness=0.5, flatness=1 / 3),
    "pinwheels": pinwheels,
    "bricks": bricks,
    "slender": lambda rng, count: slender(rng, count, across=0.5),
    "slender, long": lambda rng, count: slender(rng, count, across=0.35),
    "slender, short": lambda rng, count: slender(rng, count, across=0.65),
}
DROPPED = ("slender", "slender, long", "slender, short")
"""Kinds that come to their fullness by leaving out pieces."""


def shrunk(rng: random.Random, pieces: Sequence[Piece], full: float) -> list[Piece]:
    """Take up to a quarter of the size or life of pieces, until ``full`` of the rectangle is left at most."""
    pieces = list(pieces)
    spare = sum(map(_area, pieces)) - full * GRID * GRID
    while spare > 0:
        index = rng.randrange(len(pieces))
        left, right, low, high = old = pieces[index]
        side = rng.choice(("top", "top", "left", "right"))
        extent = high - low if side == "top" else right - left
        if extent < 2:
            continue
        loss = rng.randint(1, max(1, extent // 4))
        pieces[index] = {
            "top": (left, right, low, high - loss),
            "left": (left + loss, right, low, high),
            "right": (left, right - loss, low, high),
        }[side]
        spare -= _area(old) - _area(pieces[index])
    return pieces


def dropped(rng: random.Random, pieces: Sequence[Piece], full: float) -> list[Piece]:
    """Leave out pieces that are not too large for it, by chance, until ``full`` of the rectangle is left."""
    kept, taken = [], sum(map(_area, pieces))
    for piece in rng.sample(pieces, len(pieces)):
        if taken - _area(piece) >= full * GRID * GRID:
            taken -= _area(piece)
        else:
            kept.append(piece)
    return kept


def make(kind: str, count: int, full: float, seed: int) -> tuple[Problem, dict[str, int]]:
    """A problem of about ``count`` buffers, and the offsets of a plan within ``CAPACITY``."""
    rng = random.Random(f"{kind} {count} {full} {seed}")
    lose = dropped if kind in DROPPED else shrunk
    pieces = lose(rng, KINDS[kind](rng, count), full)
    rng.shuffle(pieces)
    buffers = [
        Buffer(str(number), left * GRID, right * GRID, (high - low) * GRID)
        for number, (left, right, low, high) in enumerate(pieces)
    ]
    return Problem(buffers), {str(number): piece[2] * GRID for number, piece in enumerate(pieces)}


def _area(piece: Piece) -> int:
    return (piece[1] - piece[0]) * (piece[3] - piece[2])


def _split(rng: random.Random, pieces: list[Piece], index: int, flatness: float) -> None:
    """Cut a piece in two, across time or across memory; leaves it when that side is one step long."""
    left, right, low, high = pieces[index]
    long, tall = right - left, flatness * (high - low)
    if rng.random() < long / (long + tall):
        if right - left >= 2:
            at = rng.randrange(left + 1, right)
            pieces[index : index + 1] = [(left, at, low, high), (at, right, low, high)]
    elif high - low >= 2:
        at = rng.randrange(low + 1, high)
        pieces[index : index + 1] = [(left, right, low, at), (left, right, at, high)]


def groups(options: argparse.Namespace) -> Iterator[tuple[tuple[str, str, str], list[Problem], int]]:
    """Problems that share a row of the table: (kind, buffers, fullness), the problems, the capacity."""
    for path in options.files:
        problem, _ = read_csv(path)
        yield (path.name, str(len(problem)), ""), [problem] * options.seeds, options.capacity
    if options.files:
        return
    for kind in options.kinds:
        for count in options.buffers:
            for full in options.full:
                made = []
                for seed in range(options.seeds):
                    problem, offsets = make(kind, count, full, seed)
                    check_plan(problem, offsets, capacity=CAPACITY)
                    made.append(problem)
                yield (kind, str(count), f"{full:.0%}"), made, CAPACITY


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--files", nargs="+", type=Path, default=[], help="instead of made-up problems")
    parser.add_argument("--capacity", type=int, default=CAPACITY, help="of the files")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--buffers", nargs="+", type=int, default=[150, 300, 410])
    parser.add_argument("--full", nargs="+", type=float, default=[1.0, 0.99, 0.98, 0.95])
    parser.add_argument("--seeds", type=int, default=2, help="problems a row; of a file, seeds")
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    rows = []
    solved = tried = 0
    for names, problems, capacity in groups(options):
        results = []
        for seed, problem in enumerate(problems):
            found = plan(problem, capacity=capacity, seconds=options.seconds, seed=seed)
            check_plan(problem, found.offsets, capacity=found.peak)
            results.append(found)
        solved += sum(r.fits for r in results)
        tried += len(results)
        times = " ".join(f"{r.seconds:.2f}" if r.fits else f"- {r.peak / capacity:.3f}" for r in results)
        decisions = f"{statistics.median(r.decisions for r in results):,.0f}"
        rows.append((*names, f"{sum(r.fits for r in results)}/{len(results)}", decisions, times))
    numbers = map(Column, ("buffers", "full", "solved", "decisions (median)"))
    columns = [Column("kind", text=True), *numbers, Column("seconds (- peak / capacity)", text=True)]
    printer = console()
    title = f"solved at the capacity within {options.seconds:g} s"
    printer.print(table(title, columns, rows, printer.width))
    print(f"{solved} of {tried} solved")


if __name__ == "__main__":
    main()
