"""Reductions along axes, over windows, and back into windows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import helper

from hetero_tvm.frontend.nodes import Untranslatable, onnx_type
from hetero_tvm.frontend.onnx.graph.rounds import OPEN
from hetero_tvm.frontend.stablehlo.op import Op, dtype_of, reshaped, turned
from hetero_tvm.frontend.stablehlo.open.functions import REVERSE, RUNNING

_REDUCTIONS = {
    "stablehlo.add": "ReduceSum",
    "stablehlo.maximum": "ReduceMax",
    "stablehlo.minimum": "ReduceMin",
    "stablehlo.multiply": "ReduceProd",
}
_WITH_INITIAL = {"ReduceSum": "Add", "ReduceMax": "Max", "ReduceMin": "Min", "ReduceProd": "Mul"}
_MOST_TAPS = 256
"""Largest number of elements of a window that is reduced element by element."""


def _body_of(op: Op) -> str:
    """The one operator in the body of a reduction; nothing where there are more."""
    inside = [str(one.operation.name) for one in op.raw.regions[0].blocks[0].operations]
    return inside[0] if len(inside) == 2 else ""


def reduce(op: Op) -> Sequence[str]:
    """``reduce``: ONNX's reductions, or any other one by pairs."""
    if (found := _arg_extremum(op)) is not None:
        return found
    body, dimensions = _body_of(op), op.ints("dimensions")
    if len(op.raw.results) != 1 or not dimensions:
        return _by_pairs(op)
    axes = op.const(dimensions)
    if op.dtype() == "bool":
        kind = {"stablehlo.and": "ReduceMin", "stablehlo.or": "ReduceMax"}.get(body)
        if kind is None:
            return _by_pairs(op)
        wide = [op.emit("Cast", x, to=onnx_type("int32")) for x in op.inputs]
        reduced = op.emit(kind, wide[0], axes, keepdims=0)
        return [op.emit("Cast", op.emit(_WITH_INITIAL[kind], reduced, wide[1]), to=onnx_type("bool"))]
    if body not in _REDUCTIONS:
        return _by_pairs(op)
    kind = _REDUCTIONS[body]
    return [op.emit(_WITH_INITIAL[kind], op.emit(kind, op.inputs[0], axes, keepdims=0), op.inputs[1])]


def _by_pairs(op: Op) -> Sequence[str]:
    """A reduction by any body: neighbours are combined, in their order, until one is left."""
    count = len(op.raw.results)
    values, initial = list(op.inputs[:count]), op.inputs[count:]
    shape = list(op.shape())
    for axis in op.ints("dimensions"):
        if not shape[axis]:
            raise Untranslatable("a reduction of nothing")
        while shape[axis] > 1:
            half = shape[axis] // 2
            parts = [_cut(op, values, axis, n, 2 * half, 2) for n in (0, 1)]
            rest = _cut(op, values, axis, 2 * half, shape[axis]) if shape[axis] % 2 else []
            values = list(op.combined([*parts[0], *parts[1]]))
            if rest:
                values = [op.emit("Concat", v, r, axis=axis) for v, r in zip(values, rest, strict=True)]
            shape[axis] = half + len(rest[:1])
    values = list(op.combined([*initial, *values]))
    return [reshaped(op, value, op.result) for value in values]


def _cut(op: Op, values: Sequence[str], axis: int, begin: int, end: int, step: int = 1) -> list[str]:
    ends = [op.const([number]) for number in (begin, end, axis, step)]
    return [op.emit("Slice", value, *ends) for value in values]


def _arg_extremum(op: Op) -> list[str] | None:
    """Extremum and its index, of the reduction that JAX writes for argmax and argmin; None for any other."""
    if len(op.raw.results) != 2 or len(op.ints("dimensions")) != 1:
        return None
    (axis,) = op.ints("dimensions")
    counted = getattr(op.raw.operands[1].owner, "opview", None)
    name = "" if counted is None else str(counted.operation.name)
    if name != "stablehlo.iota" or int(counted.attributes["iota_dimension"]) != axis:
        return None
    block = op.raw.regions[0].blocks[0]
    compared = [one for one in block.operations if "comparison_direction" in one.attributes]
    directions = " ".join(str(one.attributes["comparison_direction"]) for one in compared)
    kind = "Max" if "GT" in directions else "Min" if "LT" in directions else None
    if kind is None or "EQ" not in directions:
        return None
    is_truth = op.dtype() == "bool"  # ONNX has places of numbers alone
    x = op.emit("Cast", op.inputs[0], to=onnx_type("uint8")) if is_truth else op.inputs[0]
    extremum = op.emit(f"Reduce{kind}", x, op.const([axis]), keepdims=0)
    if is_truth:
        extremum = op.emit("Cast", extremum, to=onnx_type("bool"))
    index = op.emit(f"Arg{kind}", x, axis=axis, keepdims=0)
    return [extremum, op.emit("Cast", index, to=onnx_type(dtype_of(op.raw.results[1].type)))]


@dataclass(frozen=True)
class _Windows:
    """Windows over a tensor: one extent, stride, dilation, and pair of paddings per axis."""

    shape: Sequence[int]
    sizes: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]
    pads: np.ndarray

    @classmethod
    def of(cls, op: Op) -> _Windows:
        rank = len(op.shape())
        ones = [1] * rank
        pads = np.asarray(op.ints("padding", [0] * 2 * rank)).reshape(rank, 2)
        strides, dilations = op.ints("window_strides", ones), op.ints("window_dilations", ones)
        return cls(op.shape(), op.ints("window_dimensions"), strides, dilations, pads)

    @property
    def axes(self) -> list[int]:
        """Axes along which windows differ from single elements."""
        axes = range(len(self.shape))
        return [a for a in axes if self.sizes[a] != 1 or self.strides[a] != 1 or self.pads[a].any()]

    @property
    def padded(self) -> list[int]:
        return [extent + int(sum(pads)) for extent, pads in zip(self.shape, self.pads, strict=True)]

    @property
    def counts(self) -> list[int]:
        """Number of windows along each axis."""
        steps = zip(self.padded, self.sizes, self.strides, self.dilations, strict=True)
        return [
            (extent - (size - 1) * dilation - 1) // stride + 1 for extent, size, stride, dilation in steps
        ]

    def taps(self) -> Iterator[tuple[int, ...]]:
        """Place of each element of a window, from the window's first."""
        for place in itertools.product(*map(range, self.sizes)):
            yield tuple(p * d for p, d in zip(place, self.dilations, strict=True))

    def bordered(self, op: Op, value: str, border: str) -> str:
        """A tensor with its padding."""
        if (self.pads < 0).any():
            raise Untranslatable("a window that begins inside")
        edges = [int(n) for n in (*self.pads[:, 0], *self.pads[:, 1])]
        return op.emit("Pad", value, op.const(edges), border) if any(edges) else value

    def tap(self, op: Op, value: str, place: Sequence[int]) -> str:
        """One element of each window, of a tensor with its padding."""
        steps = zip(place, self.counts, self.strides, strict=True)
        ends = [first + (count - 1) * stride + 1 for first, count, stride in steps]
        axes = list(range(len(place)))
        return op.emit("Slice", value, *map(op.const, (list(place), ends, axes, list(self.strides))))


def reduce_window(op: Op) -> Sequence[str]:
    """``reduce_window``: pooling, running reductions along an axis, and any other one by its elements."""
    body, windows = _body_of(op), _Windows.of(op)
    if any(x != 1 for x in op.ints("base_dilations", [1] * len(windows.shape))):
        raise Untranslatable("a window over zeros between elements")
    axes = windows.axes
    if op.has(RUNNING) and not axes:  # an open axis of one element
        axes = [int(op.raw.attributes[RUNNING])]
    if len(axes) == 1 and _is_running(windows, axes[0]):
        is_reverse = int(op.has(REVERSE) or windows.pads[axes[0]][1] > 0)
        if body == "stablehlo.add" and op.dtype() != "bool" and _is_zero(op, op.inputs[1]):
            return [op.emit("CumSum", op.inputs[0], op.const(axes[0]), reverse=is_reverse)]
        along = _one_by_one if op.has(RUNNING) else _running
        return along(op, axes[0], bool(is_reverse))
    is_float = op.dtype().startswith(("float", "bfloat"))
    if len(op.raw.results) == 1 and is_float and axes and (windows.pads >= 0).all():
        if body == "stablehlo.maximum" and _is(op, op.inputs[1], -math.inf):
            return [_pooled(op, windows, "MaxPool")]
        if body == "stablehlo.add" and _is_zero(op, op.inputs[1]):
            return [_pooled(op, windows, "AveragePool")]
    if math.prod(windows.sizes) > _MOST_TAPS:
        raise Untranslatable(f"windows of {math.prod(windows.sizes)} elements, reduced in this way")
    count = len(op.raw.results)
    initial = op.inputs[count:]
    bordered = [windows.bordered(op, *pair) for pair in zip(op.inputs, initial, strict=False)]
    found: Sequence[str] = initial
    for place in windows.taps():
        found = op.combined([*found, *(windows.tap(op, value, place) for value in bordered)])
    return found


def _is(op: Op, name: str, number: float) -> bool:
    value = op.nodes.value(name)
    return value is not None and value.size > 0 and bool((value == number).all())


def _is_zero(op: Op, name: str) -> bool:
    return _is(op, name, 0)


def _pooled(op: Op, windows: _Windows, kind: str) -> str:
    axes, rank = windows.axes, len(windows.shape)
    rest = [a for a in range(rank) if a not in axes]
    order = [*rest, *axes]
    image = turned(op, op.inputs[0], order)
    sizes = [op.shape()[a] for a in axes]
    image = reshaped(op, image, [math.prod(op.shape()[a] for a in rest), 1, *sizes])
    options: dict[str, Any] = {
        "kernel_shape": [windows.sizes[a] for a in axes],
        "strides": [windows.strides[a] for a in axes],
        "dilations": [windows.dilations[a] for a in axes],
        "pads": [int(windows.pads[a][side]) for side in (0, 1) for a in axes],
    }
    if kind == "MaxPool":
        pooled = op.emit("MaxPool", image, **options)
    else:
        mean = op.emit("AveragePool", image, count_include_pad=1, **options)
        pooled = op.emit("Mul", mean, op.const(math.prod(options["kernel_shape"]), op.dtype()))
    pooled = reshaped(op, pooled, [op.result[a] for a in order])
    return turned(op, pooled, [order.index(a) for a in range(rank)])


def _is_running(windows: _Windows, axis: int) -> bool:
    """Whether each window holds all elements up to its place, or from there on."""
    extent = windows.shape[axis]
    is_whole = windows.sizes[axis] == extent and windows.strides[axis] == 1 and windows.dilations[axis] == 1
    return is_whole and sorted(windows.pads[axis]) == [0, extent - 1]


def _running(op: Op, axis: int, is_reverse: bool) -> Sequence[str]:
    """Running reduction: windows of 1, 2, 4, ... elements, each of two of the former."""
    count, extent = len(op.raw.results), op.shape()[axis]
    values, initial = list(op.inputs[:count]), op.inputs[count:]
    reach = 1
    while reach < extent:
        edges = [reach if n == axis else 0 for n in range(len(op.shape()))]
        none = [0] * len(edges)
        pads = op.const([*none, *edges] if is_reverse else [*edges, *none])
        first = reach if is_reverse else 0
        moved = [op.emit("Pad", value, pads, border) for value, border in zip(values, initial, strict=True)]
        moved = _cut(op, moved, axis, first, first + extent)
        values = list(op.combined([*moved, *values]))
        reach *= 2
    return op.combined([*initial, *values])


def _one_by_one(op: Op, axis: int, is_reverse: bool) -> Sequence[str]:
    """Running reduction along an open axis, one element in each round: the steps of the other way would be as
    many as the size asks for."""
    count, nodes = len(op.raw.results), op.nodes
    rest = [extent for n, extent in enumerate(op.shape()) if n != axis]
    kinds = [onnx_type(op.dtype(n)) for n in range(count)]
    initial = [op.emit("Expand", value, op.const(rest)) for value in op.inputs[count:]]
    with nodes.inside() as inside:
        given = [nodes.fresh() for _ in range(2 * count)]  # sums so far, and the next elements
        found = op.combined(given)
        ends = [nodes.several("Identity", name, count=1)[0] for name in (*found, *found)]
    infos = [
        [helper.make_tensor_value_info(name, kind, rest) for name, kind in zip(names, kinds * 2, strict=True)]
        for names in (given, ends)
    ]
    results = nodes.several(
        "Scan",
        *initial,
        *op.inputs[:count],
        count=2 * count,
        body=helper.make_graph(inside, "body", *infos),
        num_scan_inputs=count,
        scan_input_axes=[axis] * count,
        scan_output_axes=[axis] * count,
        scan_input_directions=[int(is_reverse)] * count,
        scan_output_directions=[int(is_reverse)] * count,
    )
    nodes.nodes[-1].doc_string = OPEN
    return results[count:]


def select_and_scatter(op: Op) -> str:
    """``select_and_scatter``: what a window gets goes to its element that the first region selects."""
    windows = _Windows.of(op)
    if math.prod(windows.sizes) > _MOST_TAPS:
        raise Untranslatable(f"windows of {math.prod(windows.sizes)} elements")
    block = op.raw.regions[1].blocks[0]
    if [str(one.operation.name) for one in block.operations][0] != "stablehlo.add" or op.dtype() == "bool":
        raise Untranslatable("a scatter that does not add")
    data, source, initial = op.inputs
    strides = [math.prod(windows.padded[axis + 1 :]) for axis in range(len(windows.shape))]
    numbers = op.const(np.arange(math.prod(windows.padded)).reshape(windows.padded))
    border = op.const(_below(op.dtype()), op.dtype())
    bordered = windows.bordered(op, data, border)
    taps = list(windows.taps())
    best, places = windows.tap(op, bordered, taps[0]), windows.tap(op, numbers, taps[0])
    for place in taps[1:]:
        other = windows.tap(op, bordered, place)
        (keeps,) = op.combined([best, other])
        best = op.emit("Where", keeps, best, other)
        first = windows.tap(op, numbers, taps[0])
        step = op.const(int(np.dot(place, strides)))
        places = op.emit("Where", keeps, places, op.emit("Add", first, step))
    total = math.prod(windows.counts)
    zeros = op.emit("Expand", op.const(0, op.dtype()), op.const([math.prod(windows.padded)]))
    places, source = reshaped(op, places, [total]), reshaped(op, source, [total])
    added = op.emit("ScatterElements", zeros, places, source, axis=0, reduction="add")
    added = reshaped(op, added, windows.padded)
    begin = [int(pad) for pad in windows.pads[:, 0]]
    ends = [first + extent for first, extent in zip(begin, windows.shape, strict=True)]
    axes = list(range(len(begin)))
    return op.emit("Add", op.emit("Slice", added, *map(op.const, (begin, ends, axes))), initial)


def _below(dtype: str) -> float:
    """A number that no other is below."""
    if dtype.startswith(("float", "bfloat")):
        return -math.inf
    return int(np.iinfo(dtype).min)
