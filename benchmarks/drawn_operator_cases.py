"""Operators of every kind with extents and attributes that are drawn: what nobody picked for being fast.

A case is named after its kind and a number, which say all of it: the same name is the same case everywhere.
Extents are those of real models, and odd ones among them; a case moves at most about 16 MB and multiplies at
most about a thousand million times, so that a call takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from benchmarks.operator_cases import Net

CHANNELS = (3, 16, 20, 24, 32, 40, 48, 64, 72, 80, 96, 100, 112, 128, 160, 192, 240, 256, 320, 384, 512, 768)
PIXELS = (
    7, 8, 10, 13, 14, 16, 19, 20, 24, 26, 28, 32, 33, 38, 40, 48, 52, 56, 64, 65, 75, 80, 96, 104, 112,
    128,
)  # fmt: skip
ROWS = (
    1, 2, 3, 4, 7, 8, 13, 16, 32, 49, 50, 64, 77, 100, 128, 196, 197, 256, 300, 384, 512, 577, 1000,
    1024,
)  # fmt: skip
WIDTHS = (
    10, 32, 48, 64, 80, 96, 100, 128, 192, 256, 300, 384, 512, 640, 768, 1000, 1024, 1280, 1536, 2048,
    3072,
)  # fmt: skip
ELEMENTS = 3_000_000
PRODUCTS = 1_000_000_000

Kind = Callable[[Net], Any]
KINDS: dict[str, Kind] = {}


def kind(make: Kind) -> Kind:
    """Add a kind of case, under its function's name."""
    KINDS[make.__name__.strip("_").replace("_", " ")] = make
    return make


def drawn_cases(first: int, last: int) -> dict[str, Kind]:
    """Cases ``first`` to ``last`` of every kind."""
    numbers = range(first, last + 1)
    return {f"{kind} #{number}": make for number in numbers for kind, make in KINDS.items()}


def pick(n: Net, *choices: Any) -> Any:
    """One of the choices."""
    return choices[n.random.integers(len(choices))]


def fitting(n: Net, draw: Callable[[], tuple[Any, ...]], cost: Callable[..., float], most: float) -> tuple:
    """What ``draw`` gives the first time that it does not cost more than ``most``, nor next to nothing."""
    while True:
        drawn = draw()
        if most / 100 <= cost(*drawn) <= most:
            return drawn


def shape_of(n: Net, rank: int, most: int = ELEMENTS) -> tuple[int, ...]:
    """A tensor's shape: the last extents are larger than those of the first ones."""

    def draw() -> tuple[tuple[int, ...]]:
        first = [pick(n, 1, 2, 3, 4, 6, 8, 12, 16) for _ in range(rank - 2)]
        last = [int(pick(n, *ROWS, *WIDTHS)) for _ in range(min(rank, 2))]
        return ((*first, *last),)

    return fitting(n, draw, lambda shape: prod(shape), most)[0]


def axis_of(n: Net, rank: int) -> int:
    """One of the axes."""
    return int(n.random.integers(rank))


def bytes_of(n: Net, *shape: int) -> str:
    """An input of bytes."""
    return n.given(n.random.integers(0, 255, shape).astype(np.uint8))
