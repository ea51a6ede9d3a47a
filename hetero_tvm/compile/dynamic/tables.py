"""Constants that depend on the sizes by a rule: positions and masks, which a kernel writes at each call.

Importers fold what follows from sizes alone, so that a decoder's causal mask is a constant at each size.  Two
rules cover what models have: whole numbers that are affine in their indices (positions, places in a flattened
tensor), and matrices whose elements depend on ``column - row`` in a few steps (causal masks, windows).  What
follows neither may be a window of a table for all positions (sines and cosines of rotary embeddings).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hetero_tvm.host.tvm import Expr, PrimFunc, te, tirx
from hetero_tvm.schedules.extents import Unfit

Element = Callable[..., Expr]
"""Value of an element from its indices."""
Operands = Sequence[tuple[tuple[int, ...], str]]
"""Shape and dtype of operands that only tell sizes."""
Rule = Callable[[np.ndarray, Operands], PrimFunc]
"""Kernel of a constant at one size; :class:`Unfit` where it follows another rule."""
_MOST_STEPS = 4
"""Steps of a band; a table of other values has more."""


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


def window_kernel(wide: np.ndarray, array: np.ndarray, told: Operands) -> PrimFunc:
    """Kernel that copies ``array`` from ``wide``, its first operand, where it is a window along one axis.

    Raises
    ------
    Unfit : it is none.
    """
    alike = (wide.ndim, wide.dtype) == (array.ndim, array.dtype) and array.size > 0
    source = te.placeholder(wide.shape, str(wide.dtype), name="source")
    for axis in range(wide.ndim if alike else 0):
        if (start := _start(wide, array, axis)) is not None:
            return _kernel([source], array.shape, _window(source, axis, start), told)
    raise Unfit("it is no window")


def _window(source: Any, axis: int, start: int) -> Element:
    def element(*index: Expr) -> Expr:
        return source(*(i + start if n == axis else i for n, i in enumerate(index)))

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
        if np.array_equal(np.broadcast_to(one, array.shape), array):
            array = one
    return np.ascontiguousarray(array)


def _kernel(sources: list[Any], shape: tuple[int, ...], element: Element, telling: Operands) -> PrimFunc:
    """A kernel that writes every element; operands behind ``sources`` tell sizes only."""
    given = [te.placeholder(extents, dtype, name=f"t{n}") for n, (extents, dtype) in enumerate(telling)]
    made = te.compute(shape, element, name="written")
    return te.create_prim_func([*sources, *given, made]).without_attr("global_symbol")


def _start(wide: np.ndarray, array: np.ndarray, axis: int) -> int | None:
    """Place along ``axis`` of ``wide`` where ``array`` begins; None where it is none of its windows."""
    others = [n for n in range(wide.ndim) if n != axis]
    length = array.shape[axis]
    if any(wide.shape[n] != array.shape[n] for n in others) or length >= wide.shape[axis]:
        return None
    rows = np.moveaxis(wide, axis, 0).reshape(wide.shape[axis], -1)
    wanted = np.ascontiguousarray(np.moveaxis(array, axis, 0).reshape(length, -1))
    for start in np.flatnonzero((rows == wanted[0]).all(1)):
        if np.array_equal(rows[start : start + length], wanted):
            return int(start)
    return None


def _affine(array: np.ndarray) -> Element | None:
    """Elements that are ``start + sum(step * index)``; None where they are not, or of another type."""
    if str(array.dtype) not in ("int32", "int64") or not array.size:
        return None
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
    dtype = str(array.dtype)

    def element(*index: Expr) -> Expr:
        total = tirx.const(start, dtype)
        for step, i in zip(steps, index, strict=True):
            total = total + i.astype(dtype) * tirx.const(step, dtype) if step else total
        return total

    return element


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
    values = [by_distance[0], *by_distance[changes]]
    dtype = str(array.dtype)

    def element(*index: Expr) -> Expr:
        apart = index[-1].astype("int64") - index[-2].astype("int64")
        result = tirx.const(values[0].item(), dtype)
        for place, value in zip(places, values[1:], strict=True):
            result = tirx.Select(apart >= tirx.const(place, "int64"), tirx.const(value.item(), dtype), result)
        return result

    return element


RULES = (_affine, _band)
"""Rules that values follow: from a constant to its elements, None where it does not."""
