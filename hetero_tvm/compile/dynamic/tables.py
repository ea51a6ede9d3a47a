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
from hetero_tvm.schedules.symbolic import Unfit

Element = Callable[..., Expr]
"""Value of an element from its indices."""
Shape = tuple[int, ...]
_MOST_STEPS = 8
"""Steps of a band; a table of other values has more."""


def table_kernels(
    arrays: Sequence[np.ndarray], operands: Sequence[Sequence[tuple[Shape, str]]]
) -> list[PrimFunc]:
    """Kernels that write each of ``arrays``, alike but for numbers.

    Parameters
    ----------
    arrays : the constant at each of the sizes.
    operands : shape and dtype, at each of the sizes, of operands that only tell sizes.

    Raises
    ------
    Unfit : the values follow neither rule.
    """
    for rule in (_affine, _band):
        elements = [rule(array) for array in arrays]
        found = [element for element in elements if element is not None]
        if len(found) < len(arrays):
            continue
        kernels = []
        for array, element, telling in zip(arrays, found, operands, strict=True):
            given = [te.placeholder(shape, dtype, name=f"t{n}") for n, (shape, dtype) in enumerate(telling)]
            made = te.compute(array.shape, element, name="table")
            kernels.append(te.create_prim_func([*given, made]).without_attr("global_symbol"))
        return kernels
    raise Unfit("a constant has other values at other sizes")


def window_kernels(
    wide: np.ndarray, arrays: Sequence[np.ndarray], operands: Sequence[Sequence[tuple[Shape, str]]]
) -> list[PrimFunc] | None:
    """Kernels that copy each of ``arrays`` from ``wide``, where all are windows along one of its axes; None
    where they are not.  ``wide`` is their first operand, ``operands`` the others."""
    if any(array.ndim != wide.ndim or array.dtype != wide.dtype or not array.size for array in arrays):
        return None
    for axis in range(wide.ndim):
        starts = [_start(wide, array, axis) for array in arrays]
        found = [start for start in starts if start is not None]
        if len(found) == len(arrays):
            kernels = []
            for array, start, telling in zip(arrays, found, operands, strict=True):
                source = te.placeholder(wide.shape, str(wide.dtype), name="source")
                given = [
                    te.placeholder(shape, dtype, name=f"t{n}") for n, (shape, dtype) in enumerate(telling)
                ]
                made = te.compute(array.shape, _window(source, axis, start), name="window")
                kernels.append(te.create_prim_func([source, *given, made]).without_attr("global_symbol"))
            return kernels
    return None


def _window(source: Any, axis: int, start: int) -> Element:
    def element(*index: Expr) -> Expr:
        return source(*(i + start if n == axis else i for n, i in enumerate(index)))

    return element


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
    if array.ndim < 2 or not array.size:
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
