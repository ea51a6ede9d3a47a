"""TensorFlow Lite operators that put values at places as ONNX nodes: segments, diagonals, sparse rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hetero_tvm.frontend.tflite.op import Op

_FIRST: dict[str, Callable[[str], float]] = {
    "add": lambda dtype: 0,
    "mul": lambda dtype: 1,
    "max": lambda dtype: _limits(dtype).min,
    "min": lambda dtype: _limits(dtype).max,
}
"""First value of a segment, by how its rows are taken together."""


def _limits(dtype: str) -> np.finfo | np.iinfo:
    return (np.finfo if dtype.startswith("float") else np.iinfo)(dtype)


def _gathered_segments(kind: str) -> Callable[[Op], None]:
    """``SEGMENT_SUM`` and ``UNSORTED_SEGMENT_*``: rows of one number together; below 0 they are left."""

    def translate(op: Op) -> None:
        shape, dtype = op.result().shape, op.result().dtype
        places = op.cast(op.raw(1), "int64")
        outside = op.emit("Less", places, op.const(0))
        places = op.emit("Where", outside, op.const(shape[0]), places)
        base = op.const(np.full((shape[0] + 1, *shape[1:]), _FIRST[kind](dtype)), dtype)
        rank = len(op.shape(1))
        places = op.emit("Unsqueeze", places, op.const([rank]))
        made = op.emit("ScatterND", base, places, op.raw(), reduction=kind)
        op.give_raw(op.emit("Slice", made, op.const([0]), op.const([shape[0]]), op.const([0])))

    return translate


def _diagonal(op: Op) -> None:
    """``MATRIX_DIAG``: square matrices of diagonals."""
    *_, extent = op.shape()
    zero = op.const(0, op.tensor().dtype)
    columns = op.emit("Unsqueeze", op.raw(), op.const([-1]))
    op.give_raw(op.emit("Where", op.const(np.eye(extent), "bool"), columns, zero))


def _diagonal_set(op: Op) -> None:
    """``MATRIX_SET_DIAG``: matrices, and what their diagonals are to be."""
    *_, rows, columns = op.shape()
    shown = op.emit("Unsqueeze", op.raw(1), op.const([-1 if rows <= columns else -2]))
    op.give_raw(op.emit("Where", op.const(np.eye(rows, columns), "bool"), shown, op.raw()))


def _dense(op: Op) -> None:
    """``SPARSE_TO_DENSE``: places, the shape of the result, numbers, the number elsewhere."""
    shape = op.result().shape
    count = int(np.prod(op.shape()[:1])) if op.shape() else 1
    places = op.reshaped(op.cast(op.raw(), "int64"), [count, len(shape)])
    base = op.emit("Expand", op.reshaped(op.raw(3), []), op.const(list(shape)))
    numbers = op.emit("Expand", op.raw(2), op.const([count]))
    op.give_raw(op.emit("ScatterND", base, places, numbers))


SEGMENTS: dict[str, Callable[[Op], None]] = {
    "SEGMENT_SUM": _gathered_segments("add"),
    "UNSORTED_SEGMENT_SUM": _gathered_segments("add"),
    "UNSORTED_SEGMENT_PROD": _gathered_segments("mul"),
    "UNSORTED_SEGMENT_MAX": _gathered_segments("max"),
    "UNSORTED_SEGMENT_MIN": _gathered_segments("min"),
    "MATRIX_DIAG": _diagonal,
    "MATRIX_SET_DIAG": _diagonal_set,
    "SPARSE_TO_DENSE": _dense,
}
"""Translations of operators that put values at computed places."""
