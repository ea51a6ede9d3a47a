"""Reads and writes of parts of tensors at places that are known at run time.

A tensor is seen as rows: the last axes, of which all is taken, are one row; the others count the rows.
Places become numbers of rows, whatever axes they are given for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_tvm.frontend.nodes import Untranslatable, onnx_type
from hetero_tvm.frontend.stablehlo.op import Op, Written, reshaped, turned


@dataclass(frozen=True)
class _Rows:
    """Windows into a tensor, as rows.

    Parameters
    ----------
    shape : of the tensor.
    sizes : extents of a window.
    open_axes : axes of the tensor that windows keep, in order.
    placed : axes that places are given for, in the order of their numbers.
    """

    shape: Sequence[int]
    sizes: Sequence[int]
    open_axes: Sequence[int]
    placed: Sequence[int]

    @property
    def first(self) -> int:
        """First axis of a row."""
        axis = len(self.shape)
        while axis and (
            axis - 1 in self.open_axes
            and axis - 1 not in self.placed
            and self.sizes[axis - 1] == self.shape[axis - 1]
        ):
            axis -= 1
        return axis

    @property
    def count(self) -> int:
        return math.prod(self.shape[: self.first])

    @property
    def row(self) -> list[int]:
        return list(self.shape[self.first :])

    @property
    def steps(self) -> list[int]:
        """Rows from one element of an axis to the next."""
        return [math.prod(self.shape[axis + 1 : self.first]) for axis in range(self.first)]

    @property
    def window(self) -> list[int]:
        """Extents of the part of a window that counts rows."""
        return [self.sizes[axis] for axis in self.open_axes if axis < self.first]

    @property
    def most(self) -> list[int]:
        """Last place of a window, for each axis that has places."""
        return [self.shape[axis] - self.sizes[axis] for axis in self.placed]

    def inside(self) -> np.ndarray:
        """Rows of a window, from its first."""
        rows = np.zeros([1] * len(self.window), np.int64)
        for n, axis in enumerate(a for a in self.open_axes if a < self.first):
            along = [-1 if m == n else 1 for m in range(len(self.window))]
            rows = rows + (np.arange(self.sizes[axis]) * self.steps[axis]).reshape(along)
        return rows


@dataclass(frozen=True)
class _Places:
    """Places where windows begin: an operand of places, one axis of which counts the axes of the tensor."""

    op: Op
    operand: int
    axis: int

    @property
    def batch(self) -> list[int]:
        """Shape of the windows' numbers."""
        shape = list(self.op.shape(self.operand))
        return shape[: self.axis] + shape[self.axis + 1 :]

    def along(self, values: Sequence[int]) -> str:
        """One number for each axis of the tensor, to be met with places."""
        rank = len(self.op.shape(self.operand))
        shape = [len(values) if axis == self.axis else 1 for axis in range(rank)]
        return self.op.const(np.asarray(values, np.int64).reshape(shape if self.axis < rank else [1]))

    def rows(self, places: str, rows: _Rows, batches: Sequence[tuple[int, int]]) -> str:
        """Number of the first row of every window; ``batches`` are axes that tensor and windows share."""
        op = self.op
        number = op.emit("Mul", places, self.along([rows.steps[axis] for axis in rows.placed]))
        if self.axis < len(op.shape(self.operand)):
            number = op.emit("ReduceSum", number, op.const([self.axis]), keepdims=0)
        for axis, index_axis in batches:
            mine = index_axis - (index_axis > self.axis)
            along = [-1 if n == mine else 1 for n in range(len(self.batch))]
            count = (np.arange(rows.shape[axis]) * rows.steps[axis]).reshape(along)
            number = op.emit("Add", number, op.const(count))
        return number

    def of_windows(self, number: str, rows: _Rows) -> str:
        """Numbers of all rows of every window, from that of its first."""
        if not rows.window:
            return number
        first = reshaped(self.op, number, [*self.batch, *[1] * len(rows.window)])
        return self.op.emit("Add", first, self.op.const(rows.inside()))


def _between(op: Op, value: str, most: str) -> str:
    return op.emit("Min", op.emit("Max", value, op.const(0)), most)


def gather(op: Op) -> str:
    """``gather``: one window for each place, which is moved inside the tensor."""
    numbers = op.dialects.GatherDimensionNumbers(op.raw.attributes["dimension_numbers"])
    batching = list(numbers.operand_batching_dims)
    gone = [*numbers.collapsed_slice_dims, *batching]
    shape, sizes = op.shape(0), op.ints("slice_sizes")
    placed = list(numbers.start_index_map)
    places = _Places(op, 1, int(numbers.index_vector_dim))
    offsets = list(numbers.offset_dims)
    batch_axes = [axis for axis in range(len(op.result)) if axis not in offsets]
    kept = [axis for axis in range(len(shape)) if axis not in gone]
    most = [shape[axis] - sizes[axis] for axis in placed]
    index = _between(op, op.whole(op.inputs[1]), places.along(most))
    if len(placed) == 1 and gone == placed and all(sizes[a] == shape[a] for a in kept):
        (axis,) = placed  # what ``take`` becomes
        gathered = op.emit("Gather", op.inputs[0], reshaped(op, index, places.batch), axis=axis)
        made = [*offsets[:axis], *batch_axes, *offsets[axis:]]
    else:
        rows = _Rows(shape, sizes, kept, placed)
        batches = zip(batching, numbers.start_indices_batching_dims, strict=True)
        number = places.of_windows(places.rows(index, rows, list(batches)), rows)
        data = reshaped(op, op.inputs[0], [rows.count, *rows.row])
        gathered = op.emit("Gather", data, number, axis=0)
        made = [*batch_axes, *offsets]
    return turned(op, gathered, [made.index(axis) for axis in range(len(made))])


_COMBINED = {"add": "add", "multiply": "mul", "maximum": "max", "minimum": "min"}


def scatter(op: Op) -> str:
    """``scatter``: windows are written, or combined with what is there; none that is partly outside."""
    if len(op.raw.results) != 1:
        raise Untranslatable("a scatter of several tensors at once")
    numbers = op.dialects.ScatterDimensionNumbers(op.raw.attributes["scatter_dimension_numbers"])
    batching = list(numbers.input_batching_dims)
    gone = [*numbers.inserted_window_dims, *batching]
    shape, windows = op.shape(0), list(numbers.update_window_dims)
    kept = [axis for axis in range(len(shape)) if axis not in gone]
    sizes = [1] * len(shape)
    for axis, window in zip(kept, windows, strict=True):
        sizes[axis] = op.shape(2)[window]
    placed = list(numbers.scattered_dims_to_operand_dims)
    rows = _Rows(shape, sizes, kept, placed)
    places = _Places(op, 1, int(numbers.index_vector_dim))
    index = op.whole(op.inputs[1])
    clamped = _between(op, index, places.along(rows.most))
    is_inside = op.emit("Equal", index, clamped)
    if places.axis < len(op.shape(1)):
        counted = op.emit("ReduceMin", op.whole(is_inside), op.const([places.axis]), keepdims=0)
        is_inside = op.emit("Cast", counted, to=onnx_type("bool"))
    batches = zip(batching, numbers.scatter_indices_batching_dims, strict=True)
    number = places.of_windows(places.rows(clamped, rows, list(batches)), rows)
    is_inside = reshaped(op, is_inside, [*places.batch, *[1] * len(rows.window)])
    is_inside = op.emit("Expand", is_inside, op.const([*places.batch, *rows.window]))
    batch_axes = [axis for axis in range(len(op.shape(2))) if axis not in windows]
    updates = turned(op, op.inputs[2], [*batch_axes, *windows])
    total = math.prod([*places.batch, *rows.window])
    flat = [total, *[1] * len(rows.row)]
    number, updates = reshaped(op, number, [total]), reshaped(op, updates, [total, *rows.row])
    how = _combination(op)
    if how is None:
        updates, how = _computed(op, rows, number, updates, math.prod(places.batch)), "none"
    return _written(op, rows, number, updates, how, reshaped(op, is_inside, flat))


def _computed(op: Op, rows: _Rows, number: str, updates: str, windows: int) -> str:
    """Updates of a combination without a word in ONNX: what is there is read and computed with.

    Windows that meet would have to be combined one after the other.
    """
    if windows > 1 and op.text("unique_indices") != "true":
        raise Untranslatable(
            "a scatter at places that may be equal, combined in another way than by sum, product, maximum, or"
            " minimum; where no two are equal, say unique_indices=True"
        )
    data = reshaped(op, op.inputs[0], [rows.count, *rows.row])
    return op.combined([op.emit("Gather", data, number, axis=0), updates])[0]


def _combination(op: Op) -> str | None:
    """ONNX's word for the way that updates meet what is there; None where it has none."""
    block = op.raw.regions[0].blocks[0]
    inside = list(block.operations)
    returned = inside[-1].operands[0]
    if returned == block.arguments[1]:
        return "none"
    kind = str(inside[0].operation.name).removeprefix("stablehlo.")
    if len(inside) == 2 and kind in _COMBINED and set(inside[0].operands) == set(block.arguments):
        return _COMBINED[kind]
    return None


def _written(op: Op, rows: _Rows, number: str, updates: str, how: str, is_inside: str) -> str:
    dtype = op.dtype()
    data = reshaped(op, op.inputs[0], [rows.count, *rows.row])
    if how == "none":  # a row behind the last takes what is left out
        data = op.emit("Concat", data, op.const(np.zeros([1, *rows.row]), dtype), axis=0)
        number = op.emit("Where", reshaped(op, is_inside, [-1]), number, op.const(rows.count))
    else:
        updates = op.emit("Where", is_inside, updates, op.const(_neutral(how, dtype), dtype))
    places = reshaped(op, number, [-1, 1])
    written = op.emit("ScatterND", data, places, updates, reduction=how)
    if how == "none":
        written = op.emit("Slice", written, op.const([0]), op.const([rows.count]), op.const([0]))
    return reshaped(op, written, op.result)


def _neutral(how: str, dtype: str) -> Any:
    """Update that changes nothing."""
    if how in ("add", "mul"):
        return int(how == "mul")
    if dtype == "bool":
        return how == "min"
    if np.dtype(dtype if dtype != "bfloat16" else "float32").kind == "f":
        return math.inf if how == "min" else -math.inf
    limits = np.iinfo(dtype)
    return limits.max if how == "min" else limits.min


def dynamic_slice(op: Op) -> str:
    sizes, starts = op.ints("slice_sizes"), _starts(op, op.inputs[1:], op.ints("slice_sizes"))
    data = op.inputs[0]
    for axis, start in enumerate(starts):
        if sizes[axis] == op.shape()[axis]:
            continue
        places = op.emit("Add", op.const(np.arange(sizes[axis])), reshaped(op, start, [1]))
        data = op.emit("Gather", data, places, axis=axis)
    return data


def dynamic_update_slice(op: Op) -> str:
    """``dynamic_update_slice``: one window is written at a place that is moved inside."""
    shape, sizes = op.shape(0), op.shape(1)
    if shape == sizes:
        return op.inputs[1]
    axes = range(len(shape))
    rows = _Rows(shape, sizes, list(axes), [axis for axis in axes if sizes[axis] != shape[axis]])
    starts = _starts(op, op.inputs[2:], sizes)
    number = op.const(rows.inside())
    for axis in rows.placed:
        number = op.emit("Add", number, op.emit("Mul", starts[axis], op.const(rows.steps[axis])))
    total = math.prod(rows.window)
    data = reshaped(op, op.inputs[0], [rows.count, *rows.row])
    updates = reshaped(op, op.inputs[1], [total, *rows.row])
    result = reshaped(op, op.emit("ScatterND", data, reshaped(op, number, [total, 1]), updates), shape)
    kind = op.raw.operands[1].type
    op.written[result] = Written(op.inputs[0], data, op.inputs[1], kind, sizes, op.inputs[2:])
    return result


def _starts(op: Op, names: Sequence[str], sizes: Sequence[int]) -> list[str]:
    """Places of one window, moved inside."""
    most = [extent - size for extent, size in zip(op.shape(), sizes, strict=True)]
    return [_between(op, op.whole(name), op.const(m)) for name, m in zip(names, most, strict=True)]
