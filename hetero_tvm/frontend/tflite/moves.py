"""TensorFlow Lite operators that move values as ONNX nodes: shapes, slices, indices, padding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hetero_tvm.frontend.nodes import Untranslatable
from hetero_tvm.frontend.tflite.op import Op, channels_first

_LAST = np.iinfo(np.int64).max


def _reshaped(op: Op) -> None:
    """``RESHAPE``, ``SQUEEZE`` and ``EXPAND_DIMS``: what the file says of the result's shape is enough."""
    if op.is_constant(0) and op.tensor().quantization == op.result().quantization:
        op.give_constant(op.constant(0).reshape(op.result().shape))
    else:
        pair = [2] if op.result().dtype == "complex64" else []
        op.moved([0], lambda x: [op.reshaped(x, [*op.result().shape, *pair])])


def _transposed(op: Op) -> None:
    op.moved([0], lambda x: [op.emit("Transpose", x, perm=op.ints(1))])


def _place(axis: int, first: bool) -> int:
    """An axis of an image as it is kept."""
    return channels_first(4).index(axis) if first else axis


def _joined(op: Op) -> None:
    """``CONCATENATION``."""
    first = op.first
    axis = _place(int(op.option("Axis")) % len(op.result().shape), first)
    operands = [i for i in range(op.count) if not op.is_constant(i) or op.constant(i).size]
    if op.option("FusedActivationFunction", 0):
        made = op.emit("Concat", *(op.value(i, first) for i in operands), axis=axis)
        op.give(op.activated(made), first=first)
    else:
        op.moved(operands, lambda *parts: [op.emit("Concat", *parts, axis=axis)], first)


def _packed(op: Op) -> None:
    """``PACK``: operands side by side along a new axis."""
    rank = len(op.result().shape)
    axis = int(op.option("Axis")) % rank
    wide = [*op.result().shape[:axis], 1, *op.result().shape[axis + 1 :]]

    def move(*parts: str) -> list[str]:
        return [op.emit("Concat", *(op.reshaped(x, wide) for x in parts), axis=axis)]

    op.moved(range(op.count), move)


def _unpacked(op: Op) -> None:
    """``UNPACK``."""
    axis = int(op.option("Axis")) % len(op.shape())
    op.moved([0], lambda x: [op.emit("Gather", x, op.const(i), axis=axis) for i in range(op.results)])


def _split(operand: int, axis_at: int) -> Callable[[Op], None]:
    """``SPLIT`` and ``SPLIT_V``."""

    def translate(op: Op) -> None:
        axis = op.axes(axis_at, len(op.shape(operand)))[0]
        ends = np.cumsum([0, *(op.result(i).shape[axis] for i in range(op.results))])

        def move(x: str) -> list[str]:
            pairs = zip(ends[:-1], ends[1:], strict=True)
            return [op.emit("Slice", x, op.const([a]), op.const([b]), op.const([axis])) for a, b in pairs]

        op.moved([operand], move)

    return translate


def _sliced(op: Op) -> None:
    """``SLICE``: begin and size, where -1 means all that is left; the begin may come at run time."""
    rank = len(op.shape())
    if op.is_constant(1) and op.is_constant(2):
        begin, sizes = op.ints(1), op.ints(2)
        if 0 in sizes:
            op.give_constant(np.zeros([max(size, 0) for size in sizes], op.result().dtype))
            return
        ends = op.const([_LAST if size < 0 else b + size for b, size in zip(begin, sizes, strict=True)])
        op.moved([0], lambda x: [op.emit("Slice", x, op.const(begin), ends, op.const(list(range(rank))))])
        return
    sizes = list(op.result().shape)
    starts = op.cast(op.raw(1), "int64")

    def move(x: str) -> list[str]:
        for axis, size in enumerate(sizes):
            if size != op.shape()[axis]:
                start = op.emit("Gather", starts, op.const([axis]))
                x = op.emit("Gather", x, op.emit("Add", op.const(np.arange(size)), start), axis=axis)
        return [x]

    op.moved([0], move)


def _strided(op: Op) -> None:
    """``STRIDED_SLICE`` with its masks."""
    given = zip(op.ints(1), op.ints(2), op.ints(3), strict=True)
    masks = {
        name: op.option(f"{name}Mask", 0) for name in ("Begin", "End", "Ellipsis", "NewAxis", "ShrinkAxis")
    }
    parts = [
        (*part, {name: bool(mask >> place & 1) for name, mask in masks.items()})
        for place, part in enumerate(given)
    ]
    named = sum(not (on["Ellipsis"] or on["NewAxis"]) for *_, on in parts)
    begins, ends, axes, strides = [], [], [], []
    axis = 0
    for begin, end, step, on in parts:
        if on["Ellipsis"]:
            axis += len(op.shape()) - named
        if on["Ellipsis"] or on["NewAxis"]:  # the result's shape has the new axes
            continue
        back, extent = step < 0, op.shape()[axis]
        if op.option("Offset", False):
            end += begin
        if on["Begin"]:
            begin = extent - 1 if back else 0
        if on["End"]:
            end = -_LAST if back else _LAST
        if on["ShrinkAxis"]:
            begin += extent if begin < 0 else 0
            end, step = begin + 1, 1
        for found, value in zip((begins, ends, axes, strides), (begin, end, axis, step), strict=True):
            found.append(value)
        axis += 1
    bounds = [op.const(np.array(part, np.int64)) for part in (begins, ends, axes, strides)]
    op.moved([0], lambda x: [op.reshaped(op.emit("Slice", x, *bounds), op.result().shape)])


def _gathered(op: Op) -> None:
    """``GATHER``."""
    axis = int(op.option("Axis", 0)) % len(op.shape())
    if batch := op.option("BatchDims", 0) % max(len(op.shape(1)), 1):
        if batch != axis:
            raise Untranslatable("by batch, of axes behind others")
        places = op.reshaped(op.cast(op.raw(1), "int64"), [*op.shape(1), 1])
        op.moved([0], lambda x: [op.emit("GatherND", x, places, batch_dims=batch)])
        return
    op.moved([0], lambda x: [op.emit("Gather", x, op.cast(op.raw(1), "int64"), axis=axis)])


def _looked_up(op: Op) -> None:
    """``EMBEDDING_LOOKUP``: ids, then the table."""
    op.moved([1], lambda table: [op.emit("Gather", table, op.cast(op.raw(0), "int64"))])


def _gathered_nd(op: Op) -> None:
    op.moved([0], lambda x: [op.emit("GatherND", x, op.cast(op.raw(1), "int64"))])


def _padded(op: Op) -> None:
    """``PAD`` (with zeros) and ``PADV2`` (with its third operand)."""
    first = op.first_operand(0)
    ends = op.constant(1).astype(np.int64)
    ends = ends[channels_first(4)] if first else ends
    pads = op.const(ends.T.reshape(-1))
    tensor = op.tensor()
    if op.has(2):
        op.moved([0, 2], lambda x, fill: [op.emit("Pad", x, pads, op.reshaped(fill, []))], first)
        return
    zero = 0 if tensor.zero is None else int(tensor.zero[0])
    alike = tensor.quantization == op.result().quantization
    fill = op.const(zero, tensor.dtype) if alike else op.const(0, "float32")
    op.moved([0], lambda x: [op.emit("Pad", x, pads, fill)], first)


def _mirrored(op: Op) -> None:
    """``MIRROR_PAD``: with the edge (``SYMMETRIC``) or without it (``REFLECT``)."""
    mode = "symmetric" if op.option("Mode") else "reflect"
    ends = op.constant(1).reshape(-1, 2)

    def move(x: str) -> list[str]:
        for axis, (before, behind) in enumerate(ends.tolist()):
            if before or behind:
                places = np.pad(np.arange(op.shape()[axis]), (before, behind), mode=mode)
                x = op.emit("Gather", x, op.const(places), axis=axis)
        return [x]

    op.moved([0], move)


def _tiled(op: Op) -> None:
    op.moved([0], lambda x: [op.emit("Tile", x, op.const(op.ints(1)))])


def _widened(op: Op) -> None:
    """``BROADCAST_TO``."""
    op.moved([0], lambda x: [op.emit("Expand", x, op.const(op.result().shape))])


def _filled(op: Op) -> None:
    """``FILL``: a shape and a number."""
    op.moved([1], lambda x: [op.emit("Expand", x, op.const(op.result().shape))])


def _zeros(op: Op) -> None:
    op.give_constant(np.zeros(op.result().shape, op.result().dtype))


def _shape(op: Op) -> None:
    op.give_constant(np.array(op.shape(), op.result().dtype))


def _rank(op: Op) -> None:
    op.give_constant(np.array(len(op.shape()), np.int32))


def _range(op: Op) -> None:
    start, limit, step = (op.constant(i).reshape(()) for i in range(3))
    op.give_constant(np.arange(start, limit, step, op.result().dtype))


def _largest(op: Op) -> None:
    """``TOPK_V2`` over the last axis."""
    x, k = op.value(), op.const(op.ints(1))
    values, places = op.several("TopK", x, k, count=2, axis=-1)
    op.give(values)
    op.give_raw(op.cast(places, op.result(1).dtype), 1)


def _one_hot(op: Op) -> None:
    """``ONE_HOT``: places, depth, the number at a place, the number elsewhere."""
    values = op.emit("Concat", op.reshaped(op.raw(3), [1]), op.reshaped(op.raw(2), [1]), axis=0)
    op.give_raw(op.emit("OneHot", op.raw(), op.const(op.ints(1)[0]), values, axis=int(op.option("Axis", -1))))


def _reversed(op: Op) -> None:
    """``REVERSE_V2``."""
    axes = op.axes(1, len(op.shape()))
    ends = [[-1] * len(axes), [-_LAST] * len(axes), axes, [-1] * len(axes)]
    op.moved([0], lambda x: [op.emit("Slice", x, *(op.const(part) for part in ends))])


def _reversed_in_part(op: Op) -> None:
    """``REVERSE_SEQUENCE``: the first few of each row."""
    time, batch = int(op.option("SeqDim")), int(op.option("BatchDim"))
    rank = len(op.shape())
    order = [batch, time, *(axis for axis in range(rank) if axis not in (batch, time))]
    back = np.argsort(order).tolist()
    lengths = op.cast(op.raw(1), "int64")

    def move(x: str) -> list[str]:
        turned = op.emit("Transpose", x, perm=order)
        found = op.emit("ReverseSequence", turned, lengths, batch_axis=0, time_axis=1)
        return [op.emit("Transpose", found, perm=back)]

    op.moved([0], move)


def _scattered(op: Op) -> None:
    """``SCATTER_ND``: places, numbers, shape; numbers for one place are added."""
    base = op.const(np.zeros(op.result().shape), op.result().dtype)
    op.give_raw(op.emit("ScatterND", base, op.cast(op.raw(0), "int64"), op.raw(1), reduction="add"))


def _updated(op: Op) -> None:
    """``DYNAMIC_UPDATE_SLICE``: a tensor, what is written into it, where."""
    shape, inner = op.shape(0), op.shape(1)
    grids = np.meshgrid(*(np.arange(extent) for extent in inner), indexing="ij")
    places = op.const(np.stack(grids, -1))
    room = op.const(np.subtract(shape, inner))
    start = op.emit("Min", op.emit("Max", op.cast(op.raw(2), "int64"), op.const(0)), room)
    op.moved([0, 1], lambda x, y: [op.emit("ScatterND", x, op.emit("Add", places, start), y)])


MOVES: dict[str, Callable[[Op], None]] = {
    "RESHAPE": _reshaped,
    "SQUEEZE": _reshaped,
    "EXPAND_DIMS": _reshaped,
    "TRANSPOSE": _transposed,
    "CONCATENATION": _joined,
    "PACK": _packed,
    "UNPACK": _unpacked,
    "SPLIT": _split(1, 0),
    "SPLIT_V": _split(0, 2),
    "SLICE": _sliced,
    "STRIDED_SLICE": _strided,
    "GATHER": _gathered,
    "GATHER_ND": _gathered_nd,
    "EMBEDDING_LOOKUP": _looked_up,
    "PAD": _padded,
    "PADV2": _padded,
    "MIRROR_PAD": _mirrored,
    "TILE": _tiled,
    "BROADCAST_TO": _widened,
    "FILL": _filled,
    "ZEROS_LIKE": _zeros,
    "SHAPE": _shape,
    "RANK": _rank,
    "RANGE": _range,
    "TOPK_V2": _largest,
    "ONE_HOT": _one_hot,
    "REVERSE_V2": _reversed,
    "REVERSE_SEQUENCE": _reversed_in_part,
    "SCATTER_ND": _scattered,
    "DYNAMIC_UPDATE_SLICE": _updated,
}
"""Translations of operators that move values."""
