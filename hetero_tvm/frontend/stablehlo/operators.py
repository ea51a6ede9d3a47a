"""StableHLO operators as ONNX nodes (https://openxla.org/stablehlo/spec)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hetero_tvm.frontend.nodes import onnx_type
from hetero_tvm.frontend.stablehlo import bits, calls, indexing, narrow, sorting, windows
from hetero_tvm.frontend.stablehlo.convolutions import (
    convolution,
    cropped,
    reversed_along,
    with_zeros_between,
)
from hetero_tvm.frontend.stablehlo.op import Op, reshaped, turned


def _same(kind: str) -> Callable[[Op], str]:
    return lambda op: op.emit(kind, *op.inputs)


def _boolean(plain: str, logical: str) -> Callable[[Op], str]:
    """An operator that ONNX calls otherwise for booleans."""
    return lambda op: op.emit(logical if op.dtype() == "bool" else plain, *op.inputs)


def _one(op: Op) -> str:
    return op.const(1, op.dtype())


def _zero(op: Op) -> str:
    return op.const(0, op.dtype())


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
    whole = op.result_dtype == "int32" and all(op.dtype(side) in ("int8", "uint8") for side in (0, 1))
    for side in (0, 1):
        shape = op.shape(side)
        free = [axis for axis in range(len(shape)) if axis not in batch[side] + inner[side]]
        order = batch[side] + (free + inner[side] if side == 0 else inner[side] + free)
        lead = [shape[axis] for axis in batch[side]]
        sizes = [math.prod(shape[axis] for axis in axes) for axes in (free, inner[side])]
        wanted = [*lead, *(sizes if side == 0 else sizes[::-1])]
        name = turned(op, op.inputs[side], order)
        found = [shape[axis] for axis in order]
        name = name if wanted == found else reshaped(op, name, wanted)
        if op.dtype(side) != op.result_dtype and not whole:
            name = op.emit("Cast", name, to=onnx_type(op.result_dtype))
        operands.append(name)
        free_shapes.append([shape[axis] for axis in free])
    product = op.emit("MatMulInteger" if whole else "MatMul", *operands)
    lead = [op.shape(0)[axis] for axis in batch[0]]
    got = [*lead, math.prod(free_shapes[0]), math.prod(free_shapes[1])]
    return product if tuple(got) == op.result else reshaped(op, product, op.result)


def _pad(op: Op) -> str:
    """``pad``: elements between those of the operand, and around them, or fewer at the ends."""
    low, high = op.ints("edge_padding_low"), op.ints("edge_padding_high")
    value = op.inputs[1]
    data, shape = with_zeros_between(op, op.inputs[0], op.shape(), op.ints("interior_padding"), value)
    data = cropped(op, data, shape, low, high)
    edges = [max(0, n) for n in (*low, *high)]
    return op.emit("Pad", data, op.const(edges), value) if any(edges) else data


def _slice(op: Op) -> str:
    parts = [op.ints(name) for name in ("start_indices", "limit_indices", "strides")]
    begin, end, steps = map(op.const, parts)
    return op.emit("Slice", op.inputs[0], begin, end, op.const(list(range(len(parts[0])))), steps)


def _reverse(op: Op) -> str:
    return reversed_along(op, op.inputs[0], op.ints("dimensions"))


def _iota(op: Op) -> str:
    axis, shape = int(op.raw.attributes["iota_dimension"]), op.result
    along = [extent if i == axis else 1 for i, extent in enumerate(shape)]
    numbers = np.arange(shape[axis]).astype(op.result_dtype).reshape(along)
    return op.emit("Expand", op.const(numbers, op.result_dtype), op.const(shape))


def _remainder(op: Op) -> str:
    return op.emit("Mod", *op.inputs, fmod=1)


def _clamp(op: Op) -> str:
    low, value, high = op.inputs
    return op.emit("Min", op.emit("Max", value, low), high)


def _log1p(op: Op) -> str:
    return op.emit("Log", op.emit("Add", op.inputs[0], _one(op)))


def _expm1(op: Op) -> str:
    """exp(x) - 1, by the hyperbolic tangent near zero, where the difference would lose its digits."""
    (x,), dtype = op.inputs, op.dtype()
    tangent = op.emit("Tanh", op.emit("Mul", x, op.const(0.5, dtype)))
    small = op.emit("Div", op.emit("Add", tangent, tangent), op.emit("Sub", _one(op), tangent))
    is_small = op.emit("Less", op.emit("Abs", x), op.const(0.5, dtype))
    return op.emit("Where", is_small, small, op.emit("Sub", op.emit("Exp", x), _one(op)))


def _is_finite(op: Op) -> str:
    bad = op.emit("Or", op.emit("IsNaN", op.inputs[0]), op.emit("IsInf", op.inputs[0]))
    return op.emit("Not", bad)


def _round_away(op: Op) -> str:
    """Rounding to the nearest, halves away from zero."""
    size = op.emit("Abs", op.inputs[0])
    whole = op.emit("Floor", size)
    rest = op.emit("Sub", size, whole)
    up = op.emit("Where", op.emit("GreaterOrEqual", rest, op.const(0.5, op.dtype())), _one(op), _zero(op))
    return op.emit("Mul", op.emit("Sign", op.inputs[0]), op.emit("Add", whole, up))


def _atan2(op: Op) -> str:
    """Angle of a point, with signed zeros and infinities: a quotient's, half a turn on for negative x."""
    y, x = op.inputs
    dtype, zero = op.dtype(), _zero(op)
    angle = op.emit("Atan", op.emit("Div", y, x))
    if (known := op.nodes.value(x)) is not None and known.min() > 0:
        return angle
    half, quarter = op.const(math.pi, dtype), op.const(math.pi / 2, dtype)
    y_below = op.emit("Or", op.emit("Less", y, zero), _is_negative_zero(op, y))
    x_below = op.emit("Or", op.emit("Less", x, zero), _is_negative_zero(op, x))
    sides = op.emit("Where", y_below, op.emit("Neg", half), half)
    turned = op.emit("Where", x_below, op.emit("Add", angle, sides), angle)
    upright = op.emit("Where", y_below, op.emit("Neg", quarter), quarter)
    flat = op.emit("Where", x_below, sides, y)
    x_zero, y_zero = op.emit("Equal", x, zero), op.emit("Equal", y, zero)
    found = op.emit("Where", x_zero, op.emit("Where", y_zero, flat, upright), turned)
    both = op.emit("And", op.emit("IsInf", x), op.emit("IsInf", y))
    diagonal = op.emit("Where", x_below, op.const(3 * math.pi / 4, dtype), op.const(math.pi / 4, dtype))
    diagonal = op.emit("Where", y_below, op.emit("Neg", diagonal), diagonal)
    found = op.emit("Where", both, diagonal, found)
    is_nan = op.emit("Or", op.emit("IsNaN", x), op.emit("IsNaN", y))
    return op.emit("Where", is_nan, op.emit("Add", x, y), found)


def _is_negative_zero(op: Op, name: str) -> str:
    return op.emit("Less", op.emit("Reciprocal", name), _zero(op))


def _negated(op: Op) -> str:
    """``negate``: ONNX's Neg is for signed numbers, others wrap."""
    if op.dtype().startswith("uint"):
        return op.emit("Sub", op.const(0, op.dtype()), op.inputs[0])
    return op.emit("Neg", op.inputs[0])


def _cbrt(op: Op) -> str:
    power = op.emit("Pow", op.emit("Abs", op.inputs[0]), op.const(1 / 3, op.dtype()))
    return op.emit("Mul", op.emit("Sign", op.inputs[0]), power)


_PLAIN = {
    **{n: n.capitalize() for n in ("abs", "ceil", "floor", "log", "sign", "sqrt", "tan", "tanh")},
    "cosine": "Cos",
    "divide": "Div",
    "exponential": "Exp",
    "logistic": "Sigmoid",
    "power": "Pow",
    "round_nearest_even": "Round",
    "select": "Where",
    "sine": "Sin",
    "subtract": "Sub",
}

TRANSLATIONS: Mapping[str, Callable[[Op], str]] = {
    **{f"stablehlo.{name}": _same(kind) for name, kind in _PLAIN.items()},
    "stablehlo.add": _boolean("Add", "Or"),
    "stablehlo.maximum": _boolean("Max", "Or"),
    "stablehlo.minimum": _boolean("Min", "And"),
    "stablehlo.multiply": _boolean("Mul", "And"),
    "stablehlo.and": _boolean("BitwiseAnd", "And"),
    "stablehlo.or": _boolean("BitwiseOr", "Or"),
    "stablehlo.xor": _boolean("BitwiseXor", "Xor"),
    "stablehlo.negate": _negated,
    "stablehlo.not": _boolean("BitwiseNot", "Not"),
    "stablehlo.bitcast_convert": bits.bitcast,
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.cbrt": _cbrt,
    "stablehlo.clamp": _clamp,
    "stablehlo.compare": _compare,
    "stablehlo.concatenate": lambda op: op.emit(
        "Concat", *op.inputs, axis=int(op.raw.attributes["dimension"])
    ),
    "stablehlo.convert": narrow.converted,
    "stablehlo.convolution": convolution,
    "stablehlo.dot_general": _dot,
    "stablehlo.atan2": _atan2,
    "stablehlo.count_leading_zeros": bits.leading_zeros,
    "stablehlo.dynamic_slice": indexing.dynamic_slice,
    "stablehlo.dynamic_update_slice": indexing.dynamic_update_slice,
    "stablehlo.exponential_minus_one": _expm1,
    "stablehlo.gather": indexing.gather,
    "stablehlo.iota": _iota,
    "stablehlo.is_finite": _is_finite,
    "stablehlo.log_plus_one": _log1p,
    "stablehlo.pad": _pad,
    "stablehlo.popcnt": bits.population_count,
    "stablehlo.reduce_precision": bits.reduce_precision,
    "stablehlo.remainder": _remainder,
    "stablehlo.reshape": lambda op: reshaped(op, op.inputs[0], op.result),
    "stablehlo.reverse": _reverse,
    "stablehlo.rsqrt": lambda op: op.emit("Reciprocal", op.emit("Sqrt", op.inputs[0])),
    "stablehlo.round_nearest_afz": _round_away,
    "stablehlo.scatter": indexing.scatter,
    "stablehlo.select_and_scatter": windows.select_and_scatter,
    "stablehlo.shift_left": lambda op: bits.shift(op, "LEFT"),
    "stablehlo.shift_right_arithmetic": bits.shift_right_arithmetic,
    "stablehlo.shift_right_logical": lambda op: bits.shift(op, "RIGHT"),
    "stablehlo.slice": _slice,
    "stablehlo.transpose": lambda op: turned(op, op.inputs[0], op.ints("permutation")),
    "chlo.erf": _same("Erf"),
    "chlo.square": lambda op: op.emit("Mul", op.inputs[0], op.inputs[0]),
}
"""Translations of operators with one result."""

SEVERAL: Mapping[str, Callable[[Op], Sequence[str]]] = {
    "stablehlo.custom_call": calls.called,
    "stablehlo.reduce": windows.reduce,
    "stablehlo.reduce_window": windows.reduce_window,
    "stablehlo.sort": sorting.sort,
}
"""Translations of operators with several results."""
