"""Integer arithmetic on the axes of a box: affine forms with exact division and remainder.

What is not affine on the whole box may be on parts of it, or with an axis cut in two.  Then a request is
raised, and whoever asked starts again with the box that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


class NotAffineError(Exception):
    """No cut of the box makes an index affine or a condition constant; the text says which."""


class CutError(Exception):
    """The box must be cut at ``points`` of ``axis``."""

    def __init__(self, axis: int, points: Sequence[int]):
        super().__init__(f"cut axis {axis} at {points}")
        self.axis, self.points = axis, tuple(points)


class FactorError(Exception):
    """``axis`` must become two: (extent / inner, inner)."""

    def __init__(self, axis: int, inner: int):
        super().__init__(f"factor axis {axis} by {inner}")
        self.axis, self.inner = axis, inner


_MOST_CUTS = 12
"""Most cuts of one axis at a time."""


@dataclass(frozen=True)
class Affine:
    """``base + sum of coefficients * axes``; axes run from 0."""

    base: int
    terms: Mapping[int, int] = field(default_factory=dict)
    """Coefficient by axis, none of them 0."""

    @staticmethod
    def axis(n: int) -> Affine:
        """The number of the step along an axis."""
        return Affine(0, {n: 1})

    def __add__(self, other: Affine) -> Affine:
        terms = dict(self.terms)
        for axis, value in other.terms.items():
            terms[axis] = terms.get(axis, 0) + value
        return Affine(self.base + other.base, {a: c for a, c in terms.items() if c})

    def scaled(self, factor: int) -> Affine:
        """The form times a constant."""
        return Affine(self.base * factor, {a: c * factor for a, c in self.terms.items() if factor})

    def __sub__(self, other: Affine) -> Affine:
        return self + other.scaled(-1)

    def range(self, extents: Sequence[int]) -> tuple[int, int]:
        """Least and greatest value in the box."""
        low = self.base + sum(min(0, c * (extents[a] - 1)) for a, c in self.terms.items())
        high = self.base + sum(max(0, c * (extents[a] - 1)) for a, c in self.terms.items())
        return low, high

    def strides(self, rank: int) -> tuple[int, ...]:
        """Coefficients of all axes."""
        return tuple(self.terms.get(axis, 0) for axis in range(rank))


def divided(x: Affine, by: int, extents: Sequence[int]) -> tuple[Affine, Affine]:
    """Quotient (rounded down) and remainder of ``x`` by a positive constant."""
    base, rest = divmod(x.base, by)
    quotient = Affine(base, {a: c // by for a, c in x.terms.items() if c % by == 0})
    remainder = Affine(rest, {a: c for a, c in x.terms.items() if c % by})
    low, high = remainder.range(extents)
    shift = low // by
    if shift == high // by:
        return quotient + Affine(shift), remainder - Affine(shift * by)
    for axis, c in sorted(remainder.terms.items(), key=lambda entry: -abs(entry[1])):
        if c > 0 and by % c == 0 and extents[axis] * c > by and extents[axis] % (by // c) == 0:
            raise FactorError(axis, by // c)
    _cut(remainder, extents, lambda low, high: low // by if low // by == high // by else None)
    raise NotAffineError(f"a quotient by {by} mixes axes")


def _cut(x: Affine, extents: Sequence[int], decided: Callable[[int, int], object]) -> None:
    """Ask for cuts of the axis that moves ``x`` most, where what its range decides changes."""
    if not x.terms:
        return
    axis = max(x.terms, key=lambda a: abs(x.terms[a]))
    c = x.terms[axis]
    low, high = Affine(x.base, {a: v for a, v in x.terms.items() if a != axis}).range(extents)
    points = _changes([decided(low + c * i, high + c * i) for i in range(extents[axis])])
    if points:
        raise CutError(axis, points)


def _changes(values: Sequence[object]) -> list[int]:
    """Places at which a value differs from the one before."""
    points = [i for i in range(1, len(values)) if values[i] != values[i - 1]]
    if len(points) > _MOST_CUTS:
        raise NotAffineError("an index or condition changes from element to element")
    return points


def holds(kind: str, x: Affine, extents: Sequence[int]) -> bool:
    """Whether ``x < 0`` (``LT``), ``x <= 0`` (``LE``) or ``x == 0`` (``EQ``): the same in all of the box."""
    low, high = x.range(extents)
    test = {"LT": lambda v: v < 0, "LE": lambda v: v <= 0, "EQ": lambda v: v == 0}[kind]
    if kind == "EQ" and (low > 0 or high < 0):
        return False
    if test(low) and test(high) and (kind != "EQ" or low == high):
        return True
    if kind != "EQ" and not test(low) and not test(high):
        return False

    def decided(low: int, high: int) -> bool | None:
        if kind == "EQ" and (low > 0 or high < 0):
            return False
        if kind == "EQ":
            return True if low == high == 0 else None
        return test(low) if test(low) == test(high) else None

    _cut(x, extents, decided)
    raise NotAffineError("a condition mixes axes")
