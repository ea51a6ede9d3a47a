"""Constants that depend on the sizes by a rule: positions and masks, which a kernel writes at each call.

Importers fold what follows from sizes alone, so that a decoder's causal mask is a constant at each size.  Two
rules cover what models have: whole numbers that are affine in their indices (positions, places in a flattened
tensor), and matrices whose elements depend on ``column - row`` in a few steps (causal masks, windows).  What
follows neither may be a window of a table for all positions (sines and cosines of rotary embeddings).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from hetero_tvm.host.tvm import Expr, PrimFunc, te, tirx

Element = Callable[..., Expr]
"""Value of an element from its indices."""
Operands = Sequence[tuple[tuple[int, ...], str]]
"""Shape and dtype of operands that only tell sizes."""
_MOST_STEPS = 4
"""Steps of a band; a table of other values has more."""


def table_kernels(arrays: Sequence[np.ndarray], operands: Sequence[Operands]) -> Iterator[list[PrimFunc]]:
    """Kernels that write each of ``arrays``, by each rule that all follow.

    Parameters
    ----------
    arrays : the constant at each of the sizes.
    operands : shape and dtype, at each of the sizes, of operands that only tell sizes.
    """
    for rule in (_affine, _band):
        elements = [rule(array) for array in arrays]
        found = [element for element in elements if element is not None]
        if len(found) == len(arrays):
            yield [
                _kernel([], array.shape, element, telling)
                for array, element, telling in zip(arrays, found, operands, strict=True)
            ]


def window_kernels(
    wide: np.ndarray, arrays: Sequence[np.ndarray], operands: Sequence[Operands]
) -> list[PrimFunc] | None:
    """Kernels that copy each of ``arrays`` from ``wide``, where all are windows along one of its axes; None
    where they are not.  ``wide`` is their first operand, ``operands`` the others."""
    if any(array.ndim != wide.ndim or array.dtype != wide.dtype or not array.size for array in arrays):
        return None
    for axis in range(wide.ndim):
        starts = [_start(wide, array, axis) for array in arrays]
        found = [start for start in starts if start is not None]
        if len(found) == len(arrays):
            return [
                _window(wide, array.shape, axis, start, telling)
                for array, start, telling in zip(arrays, found, operands, strict=True)
            ]
    return None


def front_kernels(
    array: np.ndarray, shapes: Sequence[tuple[int, ...]], operands: Sequence[Operands]
) -> list[PrimFunc]:
    """Kernels that copy the front of ``array``, their first operand; an axis of one element is repeated."""

    def kernel(shape: tuple[int, ...], telling: Operands) -> PrimFunc:
        source = te.placeholder(array.shape, str(array.dtype), name="source")

        def element(*index: Expr) -> Expr:
            return source(*(0 if array.shape[n] == 1 else i for n, i in enumerate(index)))

        return _kernel([source], shape, element, telling)

    return [kernel(shape, telling) for shape, telling in zip(shapes, operands, strict=True)]


def shrunk(array: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    """The array with one slice along each of ``axes`` where all are equal."""
    for axis in axes:
        one = np.take(array, [0], axis)
        if np.array_equal(np.broadcast_to(one, array.shape), array):
            array = one
    return np.ascontiguousarray(array)


def _window(wide: np.ndarray, shape: tuple[int, ...], axis: int, start: int, telling: Operands) -> PrimFunc:
    source = te.placeholder(wide.shape, str(wide.dtype), name="source")

    def element(*index: Expr) -> Expr:
        return source(*(i + start if n == axis else i for n, i in enumerate(index)))

    return _kernel([source], shape, element, telling)


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
