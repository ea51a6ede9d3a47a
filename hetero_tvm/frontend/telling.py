"""Sizes of open dimensions that tell what a model is at all sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from hetero_tvm.frontend.signature import Symbol

LEAST_TELLING = 5
"""Least of the largest sizes that tell: below, too many numbers of a model are the same by accident."""


def telling_sizes(symbols: Sequence[Symbol]) -> tuple[dict[str, int], ...]:
    """Sizes to import at: the largest, another one for each symbol, and others of all to confirm.

    They lie in the upper part of the range, where no part of a model is a special case, and are primes where
    there are some: no other number of a model is likely to be one of them, or a multiple.
    """
    chosen = {s.name: tuple(s.step * n for n in _three(s.low // s.step, s.high // s.step)) for s in symbols}
    top = {name: sizes[0] for name, sizes in chosen.items()}
    changed = [{**top, name: sizes[1]} for name, sizes in chosen.items()]
    return (top, *changed, {name: sizes[2] for name, sizes in chosen.items()})


def _three(low: int, high: int) -> tuple[int, int, int]:
    top, low = max(high, LEAST_TELLING), max(2, low)
    kinds: tuple[tuple[int, Callable[[int], bool]], ...] = (
        (low, lambda n: top % n > 0 and _is_prime(n)),
        (low, lambda n: top % n > 0),
        (2, _is_prime),
        (2, lambda n: True),
    )
    for least, fits in kinds:
        second = next(filter(fits, _around(0.83 * top, least, top)), None)
        third = next((n for n in _around(0.64 * top, least, top) if n != second and fits(n)), None)
        if second is not None and third is not None:
            return top, second, third
    raise AssertionError(f"there are no sizes below {top}")


def _around(place: float, low: int, high: int) -> Iterator[int]:
    """Whole numbers from ``low`` to below ``high``, those near ``place`` first."""
    below = min(math.floor(place), high - 1)
    above = max(below + 1, low)
    while below >= low or above < high:
        if above >= high or (below >= low and place - below <= above - place):
            yield below
            below -= 1
        else:
            yield above
            above += 1


def _is_prime(number: int) -> bool:
    return all(number % divisor for divisor in range(2, math.isqrt(number) + 1))
