"""Constants that list the points of grids, level by level: anchors and strides of a detector.

Along one axis they are a few stretches, each the rows of a grid one after the other:
``start + across * (n % width) + down * (n // width)``.  A stretch of one row has no width.  Each point
may have several elements in turn, as the boxes of an anchor.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hetero_tvm.host.tvm import Expr, tirx

_MOST_STRETCHES = 6
_LEAST = 8
"""Points of a stretch on average: any few numbers are short stretches."""
_MOST_IN_TURN = 9
_MOST_BESIDE = 36
"""Elements that one point of a grid has at most, in turn and in all other axes."""


class _Stretch(NamedTuple):
    """Points from ``at`` on; ``width`` is None of one row.  Numbers are vectors over the other axes."""

    at: int
    width: int | None
    start: np.ndarray
    across: np.ndarray
    down: np.ndarray


class Grids:
    """Elements of a constant, from their indices."""

    def __init__(self, axis: int, turns: int, beside: tuple[int, ...], dtype: str, stretches: list[_Stretch]):
        self._axis, self._turns, self._beside = axis, turns, beside
        self._dtype, self._stretches = dtype, stretches

    def __call__(self, *index: Expr) -> Expr:
        n = index[self._axis].astype("int64")
        place: Expr | None = None
        if self._turns > 1:
            turns = tirx.const(self._turns, "int64")
            place, n = tirx.truncmod(n, turns), tirx.truncdiv(n, turns)
        for extent, i in zip(self._beside, [*index[: self._axis], *index[self._axis + 1 :]], strict=True):
            if extent > 1:
                step = i.astype("int64")
                place = step if place is None else place * tirx.const(extent, "int64") + step
        result: Expr | None = None
        for stretch in self._stretches:
            value = self._value(stretch, n - tirx.const(stretch.at, "int64") if stretch.at else n, place)
            after = n >= tirx.const(stretch.at, "int64")
            result = value if result is None else tirx.Select(after, value, result)
        assert result is not None
        return result

    def _value(self, stretch: _Stretch, n: Expr, place: Expr | None) -> Expr:
        total = self._of(stretch.start, place)
        across, down = n, None
        if stretch.width is not None:
            width = tirx.const(stretch.width, "int64")
            across, down = tirx.truncmod(n, width), tirx.truncdiv(n, width)
        for steps, count in ((stretch.across, across), (stretch.down, down)):
            if count is not None and steps.any():
                total = total + count.astype(self._dtype) * self._of(steps, place)
        return total

    def _of(self, numbers: np.ndarray, place: Expr | None) -> Expr:
        """The number of a place in the other axes."""
        values = [tirx.const(number, self._dtype) for number in numbers.tolist()]
        result = values[0]
        for n, value in enumerate(values):
            if numbers[n] != numbers[0]:
                assert place is not None
                result = tirx.Select(tirx.EQ(place, tirx.const(n, "int64")), value, result)
        return result


def grids(array: np.ndarray) -> Grids | None:
    """Elements of a constant that lists the points of grids along one axis; None where none does."""
    if str(array.dtype) not in ("float32", "float64", "int32", "int64"):
        return None
    axis = int(np.argmax(array.shape)) if array.ndim else 0
    beside = (*array.shape[:axis], *array.shape[axis + 1 :])
    if not array.ndim or not 0 < math.prod(beside) <= _MOST_BESIDE:
        return None
    if not np.isfinite(array).all():
        return None
    rows = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
    rows = rows.astype(np.float64 if array.dtype.kind == "f" else np.int64)
    for turns in range(1, _MOST_IN_TURN + 1):
        if len(rows) % turns or turns * rows.shape[1] > _MOST_BESIDE:
            continue
        if (stretches := _stretches(rows.reshape(len(rows) // turns, -1))) is not None:
            return Grids(axis, turns, beside, str(array.dtype), stretches)
    return None


def _stretches(rows: np.ndarray) -> list[_Stretch] | None:
    """The stretches of points [n, elements], each as long as it can be; None of too many."""
    found: list[_Stretch] = []
    at = 0
    while at < len(rows):
        if len(found) == _MOST_STRETCHES or len(rows) < _LEAST * (len(found) + 1):
            return None
        rest = rows[at:]
        start, none = rest[0], np.zeros_like(rest[0])
        across = rest[1] - start if len(rest) > 1 else none
        other = np.flatnonzero((np.diff(rest, axis=0) != across).any(1))
        width = int(other[0]) + 1 if len(other) else len(rest)
        down = rest[width] - start if width < len(rest) else none
        n = np.arange(len(rest))[:, None]
        wrong = np.flatnonzero((start + n % width * across + n // width * down != rest).any(1))
        length = (int(wrong[0]) if len(wrong) else len(rest)) // width * width
        if length > width:
            found.append(_Stretch(at, width, start, across, down))
        else:
            found.append(_Stretch(at, None, start, across, none))
        at += length
    return found
