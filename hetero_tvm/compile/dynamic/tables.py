"""Constants that depend on the sizes by a rule: positions and masks, which a kernel writes at each call.

Importers fold what follows from sizes alone, so that a decoder's causal mask is a constant at each size.
Six rules cover what models have: whole numbers that are affine in their indices (positions, places in a
flattened tensor), a few whole numbers (a shape), one number, matrices whose elements depend on
``column - row`` in a few steps (causal masks, windows), elements that change along one axis in a few steps
(halves of the rows), and lists of the points of grids (``grids.py``).
What follows none of them may be a window of a table for all positions (sines and cosines of rotary
embeddings).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hetero_tvm.compile.dynamic.constants_at import changes_along
from hetero_tvm.compile.dynamic.grids import grids
from hetero_tvm.host.tvm import Expr, PrimFunc, te, tirx
from hetero_tvm.schedules.extents import Unfit

Element = Callable[..., Expr]
"""Value of an element from its indices."""
Operands = Sequence[tuple[tuple[int, ...], str]]
"""Shape and dtype of operands that only tell sizes."""
Rule = Callable[[np.ndarray, Operands], PrimFunc]
"""Kernel of a constant at one size; :class:`Unfit` where it follows another rule."""
_ROUNDING = 4e-6
"""Rounding of sums of some hundred float32 products, beside the largest of them."""
_MOST_EXACT = 1 << 24
"""Whole numbers below are float32 numbers."""
_MOST_STEPS = 4
"""Steps of a band; a table of other values has more."""
_MOST_ELEMENTS = 16
"""Elements of a list of which each follows a rule of its own; a table has more."""


def table_kernel(rule: Callable[[np.ndarray], Element | None], array: np.ndarray, told: Operands) -> PrimFunc:
    """Kernel that writes ``array`` by one of :data:`RULES`.

    Parameters
    ----------
    told : operands that only tell sizes.

    Raises
    ------
    Unfit : the values do not follow the rule.
    """
    if (element := rule(array)) is None:
        raise Unfit("the values follow another rule")
    return _kernel([], array.shape, element, told)


def window_kernel(wide: np.ndarray, axis: int, array: np.ndarray, told: Operands) -> PrimFunc:
    """Kernel that copies ``array`` from ``wide``, its first operand, where it is a window along ``axis``; of
    other axes that have one element there, it is repeated.

    Raises
    ------
    Unfit : it is none.
    """
    alike = (wide.ndim, wide.dtype) == (array.ndim, array.dtype) and array.size > 0
    start = _start(wide, array, axis) if alike else None
    if start is None:
        raise Unfit("it is no window")
    source = te.placeholder(wide.shape, str(wide.dtype), name="source")
    return _kernel([source], array.shape, _window(source, axis, start), told)


def _window(source: Any, axis: int, start: int) -> Element:
    once = [extent == 1 for extent in source.shape]

    def element(*index: Expr) -> Expr:
        return source(*(i + start if n == axis else 0 if once[n] else i for n, i in enumerate(index)))

    return element


def front_kernel(source: np.ndarray, shape: tuple[int, ...], told: Operands) -> PrimFunc:
    """Kernel that copies the front of ``source``, its first operand; an axis of one element is repeated."""
    given = te.placeholder(source.shape, str(source.dtype), name="source")

    def element(*index: Expr) -> Expr:
        return given(*(0 if source.shape[n] == 1 else i for n, i in enumerate(index)))

    return _kernel([given], shape, element, told)


def shrunk(array: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    """The array with one slice along each of ``axes`` where all are equal."""
    for axis in axes:
        one = np.take(array, [0], axis)
        if _near(array, one, _rooms(array)[-1]).all():
            array = one
    return np.ascontiguousarray(array)


def shifted(wide: np.ndarray, axis: int) -> np.ndarray:
    """The array behind one more slice along ``axis``, which equals none: a window that begins with the array
    begins at 1 then, as a place of 0 is no number in a kernel that could be another one at other sizes."""
    first = np.take(wide, [0], axis)
    other = np.full_like(first, np.nan) if wide.dtype.kind == "f" else ~first
    return np.concatenate([other, wide], axis)


def _kernel(sources: list[Any], shape: tuple[int, ...], element: Element, telling: Operands) -> PrimFunc:
    """A kernel that writes every element; operands behind ``sources`` tell sizes only."""
    given = [te.placeholder(extents, dtype, name=f"t{n}") for n, (extents, dtype) in enumerate(telling)]
    made = te.compute(shape, element, name="written")
    return te.create_prim_func([*sources, *given, made]).without_attr("global_symbol")


def _start(wide: np.ndarray, array: np.ndarray, axis: int) -> int | None:
    """Place along ``axis`` of ``wide`` where ``array`` begins; None where it is none of its windows."""
    if wide.dtype.kind == "b":
        wide, array = wide.view(np.int8), array.view(np.int8)
    others = [n for n in range(wide.ndim) if n != axis]
    length = array.shape[axis]
    if any(wide.shape[n] not in (1, array.shape[n]) for n in others) or length > wide.shape[axis]:
        return None
    repeated = [n for n in others if wide.shape[n] != array.shape[n]]
    one = array[tuple(slice(0, 1) if n in repeated else slice(None) for n in range(array.ndim))]
    rows = np.moveaxis(wide, axis, 0).reshape(wide.shape[axis], -1)
    wanted = np.ascontiguousarray(np.moveaxis(one, axis, 0).reshape(length, -1))
    for room in _rooms(wide):
        if not _near(array, one, room).all():
            continue
        for start in np.flatnonzero(_near(rows, wanted[0], room).all(1)):
            if start + length <= len(rows) and _near(rows[start : start + length], wanted, room).all():
                return int(start)
    return None


def _near(array: np.ndarray, other: np.ndarray, room: float) -> np.ndarray:
    """Places at which elements are equal but for ``room``; equal infinities are too."""
    if array.dtype.kind != "f":
        return array == other
    with np.errstate(invalid="ignore"):
        return (array == other) | (np.abs(array - other) <= room)


def _rooms(wide: np.ndarray) -> tuple[float, ...]:
    """Differences at which elements count as equal, the least first: what an importer computed for one length
    may have been added up in another order for another."""
    if wide.dtype.kind != "f":
        return (0,)
    largest = np.abs(wide).max(initial=0, where=np.isfinite(wide))
    return (0.0, float(_ROUNDING * largest))


def _steps(array: np.ndarray) -> Element | None:
    """Elements that change along one axis only, in a few steps (the first half of the rows, say); None where
    they change otherwise, or not."""
    if not array.size or (found := changes_along(array)) is None:
        return None
    axis, line, changes = found
    if len(changes) > _MOST_STEPS:
        return None
    return _stepwise(lambda *index: index[axis].astype("int64"), line, changes, changes)


def _stepwise(place: Element, line: np.ndarray, changes: Sequence[int], places: Sequence[int]) -> Element:
    """Elements by their ``place``: the first of ``line``, and from each of ``places`` on the one at the next
    of ``changes``."""
    dtype = str(line.dtype)
    values = [line[0], *line[list(changes)]]

    def element(*index: Expr) -> Expr:
        result = tirx.const(values[0].item(), dtype)
        for begin, value in zip(places, values[1:], strict=True):
            later = place(*index) >= tirx.const(int(begin), "int64")
            result = tirx.Select(later, tirx.const(value.item(), dtype), result)
        return result

    return element


def _affine(array: np.ndarray) -> Element | None:
    """Elements that are ``start + sum(step * index)``; None where they are not, or of another type.

    Floats are where they are whole numbers or halves: sums of these are exact, and are made of integers.
    """
    if (found := _whole(array)) is None:
        return None
    array, made = found
    origin = (0,) * array.ndim
    start = int(array[origin])
    steps = [
        int(array[tuple(int(n == axis) for n in range(array.ndim))]) - start if extent > 1 else 0
        for axis, extent in enumerate(array.shape)
    ]
    if not np.array_equal(
        array, start + sum(s * i for s, i in zip(steps, np.indices(array.shape), strict=True))
    ):
        return None
    whole = str(array.dtype)

    def element(*index: Expr) -> Expr:
        total = tirx.const(start, whole)
        for step, i in zip(steps, index, strict=True):
            total = total + i.astype(whole) * tirx.const(step, whole) if step else total
        return made(total)

    return element


def _few(array: np.ndarray) -> Element | None:
    """Elements of a list, a row or a column of at most :data:`_MOST_ELEMENTS`, of which each is a whole
    number (an extent, say) that follows from the sizes by itself; None where they are others."""
    axes = [axis for axis, extent in enumerate(array.shape) if extent > 1] or [0]
    if not array.ndim or len(axes) > 1 or array.size > _MOST_ELEMENTS or (found := _whole(array)) is None:
        return None
    array, made = found

    def element(*index: Expr) -> Expr:
        *before, last = (tirx.const(int(value), str(array.dtype)) for value in array.reshape(-1))
        for n, value in reversed(list(enumerate(before))):
            last = tirx.Select(index[axes[0]].equal(n), value, last)
        return made(last)

    return element


def _one(array: np.ndarray) -> Element | None:
    """A number as it is, of which the lifting finds what it is of the sizes (a root that products of vectors
    are scaled by, say); None where there are several."""
    if array.size != 1 or str(array.dtype) not in ("float32", "float64"):
        return None
    return lambda *index: tirx.const(float(array.reshape(())), str(array.dtype))


def _whole(array: np.ndarray) -> tuple[np.ndarray, Callable[[Expr], Expr]] | None:
    """Whole numbers, and what makes the elements of them; None where elements are no multiples of them."""
    dtype = str(array.dtype)
    if not array.size or dtype not in ("int32", "int64", "float32", "float64"):
        return None
    if array.dtype.kind == "i":
        return array, lambda number: number
    twice = array.astype(np.float64) * 2
    if not (np.abs(twice) < _MOST_EXACT).all() or (twice != np.rint(twice)).any():
        return None
    return twice.astype(np.int64), lambda number: number.astype(dtype) * tirx.const(0.5, dtype)


def _band(array: np.ndarray) -> Element | None:
    """Elements that depend on ``column - row`` in a few steps; None where they do not."""
    if array.ndim < 2 or min(array.shape[-2:], default=0) < 2 or not array.size:
        return None
    rows, columns = array.shape[-2:]
    matrix = array.reshape(-1, rows, columns)[0]
    if not np.array_equal(np.broadcast_to(matrix, array.shape), array):
        return None
    distance = np.arange(columns) - np.arange(rows)[:, None]
    by_distance = np.concatenate([matrix[:0:-1, 0], matrix[0]])  # from 1 - rows on
    if not np.array_equal(by_distance[distance + rows - 1], matrix):
        return None
    changes = np.flatnonzero(by_distance[1:] != by_distance[:-1]) + 1
    if len(changes) > _MOST_STEPS:
        return None
    places = [int(change) - (rows - 1) for change in changes]
    return _stepwise(
        lambda *index: index[-1].astype("int64") - index[-2].astype("int64"), by_distance, changes, places
    )


RULES = (_affine, _few, _one, _band, _steps, grids)
"""Rules that values follow: from a constant to its elements, None where it does not."""
