"""StableHLO operators as ONNX nodes (https://openxla.org/stablehlo/spec)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hetero_tvm.frontend.nodes import Untranslatable, onnx_type
from hetero_tvm.frontend.stablehlo.convolutions import convolution
from hetero_tvm.frontend.stablehlo.op import Op, dtype_of, reshaped, turned


def _same(kind: str) -> Callable[[Op], str]:
    return lambda op: op.emit(kind, *op.inputs)


def _boolean(plain: str, logical: str) -> Callable[[Op], str]:
    """An operator of bits, which ONNX calls otherwise for booleans."""
    return lambda op: op.emit(logical if op.dtype() == "bool" else plain, *op.inputs)


def _one(op: Op) -> str:
    return op.const(1, op.dtype())


def _compare(op: Op) -> str:
    direction = op.text("comparison_direction")
    for word, kind in {"GE": "GreaterOrEqual", "GT": "Greater", "LE": "LessOrEqual", "LT": "Less"}.items():
        if word in direction:
            return op.emit(kind, *_ordered(op))
    equal = op.emit("Equal", *op.inputs)
    return op.emit("Not", equal) if "NE" in direction else equal


def _ordered(op: Op) -> Sequence[str]:
    """Operands of a comparison: ONNX orders no booleans."""
    return (
        [op.emit("Cast", x, to=onnx_type("int32")) for x in op.inputs] if op.dtype() == "bool" else op.inputs
    )


def _broadcast(op: Op) -> str:
    """``broadcast_in_dim``: dimensions of the operand go to given ones of the result, the others are new."""
    places, shape = op.ints("broadcast_dimensions"), [1] * len(op.result)
    order = sorted(range(len(places)), key=places.__getitem__)
    for place, extent in zip(places, op.shape(), strict=True):
        shape[place] = extent
    name = turned(op, op.inputs[0], order)
    if tuple(shape) != op.shape():
        name = reshaped(op, name, shape)
    return name if tuple(shape) == op.result else op.emit("Expand", name, op.const(op.result))


def _dot(op: Op) -> str:
    """``dot_general`` as a batched product of matrices, between views of the operands."""
    numbers = op.dialects.DotDimensionNumbers(op.raw.attributes["dot_dimension_numbers"])
    batch = [list(numbers.lhs_batching_dimensions), list(numbers.rhs_batching_dimensions)]
    inner = [list(numbers.lhs_contracting_dimensions), list(numbers.rhs_contracting_dimensions)]
    operands, free_shapes = [], []
    for side in (0, 1):
        shape = op.shape(side)
        free = [axis for axis in range(len(shape)) if axis not in batch[side] + inner[side]]
        order = batch[side] + (free + inner[side] if side == 0 else inner[side] + free)
        lead = [shape[axis] for axis in batch[side]]
        sizes = [math.prod(shape[axis] for axis in axes) for axes in (free, inner[side])]
        wanted = [*lead, *(sizes if side == 0 else sizes[::-1])]
        name = turned(op, op.inputs[side], order)
        found = [shape[axis] for axis in order]
        operands.append(name if wanted == found else reshaped(op, name, wanted))
        free_shapes.append([shape[axis] for axis in free])
    product = op.emit("MatMul", *operands)
    lead = [op.shape(0)[axis] for axis in batch[0]]
    got = [*lead, math.prod(free_shapes[0]), math.prod(free_shapes[1])]
    return product if tuple(got) == op.result else reshaped(op, product, op.result)


_REDUCTIONS = {
    "stablehlo.add": "ReduceSum",
    "stablehlo.maximum": "ReduceMax",
    "stablehlo.minimum": "ReduceMin",
    "stablehlo.multiply": "ReduceProd",
}
_WITH_INITIAL = {"ReduceSum": "Add", "ReduceMax": "Max", "ReduceMin": "Min", "ReduceProd": "Mul"}


def _body_of(op: Op) -> str:
    """The one operator in the body of a reduction."""
    inside = [str(one.operation.name) for one in op.raw.regions[0].blocks[0].operations]
    if len(inside) != 2:
        raise Untranslatable(f"a body of {', '.join(inside[:-1])}")
    return inside[0]


def _reduce(op: Op) -> str:
    if len(op.raw.results) == 2:
        raise Untranslatable("a reduction of two tensors at once that is no argmax or argmin")
    body, axes = _body_of(op), op.const(op.ints("dimensions"))
    if op.dtype() == "bool":
        kind = {"stablehlo.and": "ReduceMin", "stablehlo.or": "ReduceMax"}.get(body)
        if kind is None:
            raise Untranslatable(f"a reduction of booleans by {body}")
        wide = [op.emit("Cast", x, to=onnx_type("int32")) for x in op.inputs]
        reduced = op.emit(kind, wide[0], axes, keepdims=0)
        return op.emit("Cast", op.emit(_WITH_INITIAL[kind], reduced, wide[1]), to=onnx_type("bool"))
    if body not in _REDUCTIONS:
        raise Untranslatable(f"a reduction by {body}")
    kind = _REDUCTIONS[body]
    return op.emit(_WITH_INITIAL[kind], op.emit(kind, op.inputs[0], axes, keepdims=0), op.inputs[1])


def arg_extremum(op: Op) -> list[str] | None:
    """Extremum and its index, of the reduction that JAX writes for argmax and argmin; None for any other."""
    if op.name != "stablehlo.reduce" or len(op.raw.results) != 2 or len(op.ints("dimensions")) != 1:
        return None
    block = op.raw.regions[0].blocks[0]
    compared = [one for one in block.operations if "comparison_direction" in one.attributes]
    directions = " ".join(str(one.attributes["comparison_direction"]) for one in compared)
    kind = "Max" if "GT" in directions else "Min" if "LT" in directions else None
    if kind is None or "EQ" not in directions:
        return None
    (axis,) = op.ints("dimensions")
    extremum = op.emit(f"Reduce{kind}", op.inputs[0], op.const([axis]), keepdims=0)
    index = op.emit(f"Arg{kind}", op.inputs[0], axis=axis, keepdims=0)
    return [extremum, op.emit("Cast", index, to=onnx_type(dtype_of(op.raw.results[1].type)))]


def _window(op: Op) -> str:
    """``reduce_window``: pooling by maximum, by sum, and running sums along an axis."""
    rank, body = len(op.shape()), _body_of(op)
    window = op.ints("window_dimensions")
    strides, base = op.ints("window_strides", [1] * rank), op.ints("base_dilations", [1] * rank)
    dilation = op.ints("window_dilations", [1] * rank)
    pads = np.asarray(op.ints("padding", [0] * 2 * rank)).reshape(rank, 2)
    if any(x != 1 for x in base) or len(op.raw.results) != 1:
        raise Untranslatable("a window over zeros between elements, or over two tensors")
    axes = [a for a in range(rank) if window[a] != 1 or strides[a] != 1 or pads[a].any()]
    if body == "stablehlo.add" and len(axes) == 1 and _is_running_sum(op, axes[0], window, pads, strides):
        reverse = int(pads[axes[0]][1] > 0)
        return op.emit("CumSum", op.inputs[0], op.const(axes[0]), reverse=reverse)
    if body not in ("stablehlo.maximum", "stablehlo.add"):
        raise Untranslatable(f"a window reduced by {body}")
    rest = [a for a in range(rank) if a not in axes]
    order = [*rest, *axes]
    image = turned(op, op.inputs[0], order)
    sizes = [op.shape()[a] for a in axes]
    image = reshaped(op, image, [math.prod(op.shape()[a] for a in rest), 1, *sizes])
    options: dict[str, Any] = {
        "kernel_shape": [window[a] for a in axes],
        "strides": [strides[a] for a in axes],
        "dilations": [dilation[a] for a in axes],
        "pads": [int(pads[a][0]) for a in axes] + [int(pads[a][1]) for a in axes],
    }
    if body == "stablehlo.maximum":
        pooled = op.emit("MaxPool", image, **options)
    else:
        mean = op.emit("AveragePool", image, count_include_pad=1, **options)
        pooled = op.emit("Mul", mean, op.const(math.prod(options["kernel_shape"]), op.dtype()))
    pooled = reshaped(op, pooled, [op.result[a] for a in order])
    return turned(op, pooled, [order.index(a) for a in range(rank)])


def _is_running_sum(
    op: Op, axis: int, window: Sequence[int], pads: np.ndarray, strides: Sequence[int]
) -> bool:
    extent = op.shape()[axis]
    return window[axis] == extent and strides[axis] == 1 and sorted(pads[axis]) == [0, extent - 1]


def _pad(op: Op) -> str:
    low, high = op.ints("edge_padding_low"), op.ints("edge_padding_high")
    if any(op.ints("interior_padding")):
        raise Untranslatable("padding between elements")
    return op.emit("Pad", op.inputs[0], op.const([*low, *high]), op.inputs[1])


def _slice(op: Op) -> str:
    parts = [op.ints(name) for name in ("start_indices", "limit_indices", "strides")]
    begin, end, steps = map(op.const, parts)
    return op.emit("Slice", op.inputs[0], begin, end, op.const(list(range(len(parts[0])))), steps)


def _reverse(op: Op) -> str:
    axes = op.ints("dimensions")
    ends = [-1] * len(axes), [np.iinfo(np.int64).min] * len(axes), axes, [-1] * len(axes)
    return op.emit("Slice", op.inputs[0], *(op.const(part) for part in ends))


def _iota(op: Op) -> str:
    axis, shape = int(op.raw.attributes["iota_dimension"]), op.result
    along = [extent if i == axis else 1 for i, extent in enumerate(shape)]
    numbers = np.arange(shape[axis]).astype(op.result_dtype).reshape(along)
    return op.emit("Expand", op.const(numbers, op.result_dtype), op.const(shape))


def _gather(op: Op) -> str:
    """``gather`` of whole slices along one axis: what ``take`` and indexing by an array become."""
    numbers = op.dialects.GatherDimensionNumbers(op.raw.attributes["dimension_numbers"])
    data, places, sizes = op.shape(0), op.shape(1), op.ints("slice_sizes")
    starts = list(numbers.start_index_map)
    last = numbers.index_vector_dim
    if len(starts) != 1 or list(numbers.operand_batching_dims) or last not in (len(places), len(places) - 1):
        raise Untranslatable("a gather by several indices at once")
    (axis,) = starts
    whole = all(size == extent for a, (size, extent) in enumerate(zip(sizes, data, strict=True)) if a != axis)
    if not whole or sizes[axis] != 1 or list(numbers.collapsed_slice_dims) != [axis]:
        raise Untranslatable("a gather of parts of slices")
    index = op.inputs[1]
    if last == len(places) - 1:
        index, places = reshaped(op, index, places[:-1]), places[:-1]
    least, most = op.const(0, op.dtype(1)), op.const(data[axis] - 1, op.dtype(1))
    index = op.emit("Min", op.emit("Max", index, least), most)  # the specification clamps
    gathered = op.emit("Gather", op.inputs[0], index, axis=axis)
    offsets = list(numbers.offset_dims)
    # Gather leaves the axes of the slice around those of the indices.
    batch = [a for a in range(len(op.result)) if a not in offsets]
    made = [*offsets[:axis], *batch, *offsets[axis:]]
    return turned(op, gathered, [made.index(a) for a in range(len(made))])


def _dynamic_slice(op: Op) -> str:
    sizes, starts = op.ints("slice_sizes"), []
    for axis, name in enumerate(op.inputs[1:]):
        index = op.emit("Cast", name, to=onnx_type("int64"))
        most = op.shape()[axis] - sizes[axis]
        index = op.emit("Min", op.emit("Max", index, op.const(0)), op.const(most))
        starts.append(reshaped(op, index, [1]))
    data = op.inputs[0]
    for axis, start in enumerate(starts):
        if sizes[axis] == op.shape()[axis]:
            continue
        places = op.emit("Add", op.const(np.arange(sizes[axis])), start)
        data = op.emit("Gather", data, places, axis=axis)
    return data


def _convert(op: Op) -> str:
    return op.emit("Cast", op.inputs[0], to=onnx_type(op.result_dtype))


def _remainder(op: Op) -> str:
    return op.emit("Mod", *op.inputs, fmod=1)


def _clamp(op: Op) -> str:
    low, value, high = op.inputs
    return op.emit("Min", op.emit("Max", value, low), high)


def _log1p(op: Op) -> str:
    return op.emit("Log", op.emit("Add", op.inputs[0], _one(op)))


def _expm1(op: Op) -> str:
    return op.emit("Sub", op.emit("Exp", op.inputs[0]), _one(op))


def _is_finite(op: Op) -> str:
    bad = op.emit("Or", op.emit("IsNaN", op.inputs[0]), op.emit("IsInf", op.inputs[0]))
    return op.emit("Not", bad)


def _cbrt(op: Op) -> str:
    power = op.emit("Pow", op.emit("Abs", op.inputs[0]), op.const(1 / 3, op.dtype()))
    return op.emit("Mul", op.emit("Sign", op.inputs[0]), power)


_PLAIN = {
    **{n: n.capitalize() for n in ("abs", "add", "ceil", "floor", "log", "sign", "sqrt", "tan", "tanh")},
    "cosine": "Cos",
    "divide": "Div",
    "exponential": "Exp",
    "logistic": "Sigmoid",
    "maximum": "Max",
    "minimum": "Min",
    "multiply": "Mul",
    "negate": "Neg",
    "power": "Pow",
    "round_nearest_even": "Round",
    "select": "Where",
    "sine": "Sin",
    "subtract": "Sub",
}

TRANSLATIONS: Mapping[str, Callable[[Op], str]] = {
    **{f"stablehlo.{name}": _same(kind) for name, kind in _PLAIN.items()},
    "stablehlo.and": _boolean("BitwiseAnd", "And"),
    "stablehlo.or": _boolean("BitwiseOr", "Or"),
    "stablehlo.xor": _boolean("BitwiseXor", "Xor"),
    "stablehlo.not": _boolean("BitwiseNot", "Not"),
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.cbrt": _cbrt,
    "stablehlo.clamp": _clamp,
    "stablehlo.compare": _compare,
    "stablehlo.concatenate": lambda op: op.emit(
        "Concat", *op.inputs, axis=int(op.raw.attributes["dimension"])
    ),
    "stablehlo.convert": _convert,
    "stablehlo.convolution": convolution,
    "stablehlo.dot_general": _dot,
    "stablehlo.dynamic_slice": _dynamic_slice,
    "stablehlo.exponential_minus_one": _expm1,
    "stablehlo.gather": _gather,
    "stablehlo.iota": _iota,
    "stablehlo.is_finite": _is_finite,
    "stablehlo.log_plus_one": _log1p,
    "stablehlo.pad": _pad,
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_window": _window,
    "stablehlo.remainder": _remainder,
    "stablehlo.reshape": lambda op: reshaped(op, op.inputs[0], op.result),
    "stablehlo.reverse": _reverse,
    "stablehlo.rsqrt": lambda op: op.emit("Reciprocal", op.emit("Sqrt", op.inputs[0])),
    "stablehlo.slice": _slice,
    "stablehlo.transpose": lambda op: turned(op, op.inputs[0], op.ints("permutation")),
    "chlo.erf": _same("Erf"),
    "chlo.square": lambda op: op.emit("Mul", op.inputs[0], op.inputs[0]),
}
"""Translations of operators with one result."""
