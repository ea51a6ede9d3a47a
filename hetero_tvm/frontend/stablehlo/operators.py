"""StableHLO operators as ONNX nodes (https://openxla.org/stablehlo/spec)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import helper

from hetero_tvm.frontend.nodes import Nodes

_DTYPES = {
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "i1": "bool",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "ui8": "uint8", "ui16": "uint16", "ui32": "uint32", "ui64": "uint64",
}  # fmt: skip


class Untranslatable(ValueError):
    """An operator in a form that has no translation; says which part."""


@dataclass(frozen=True)
class Op:
    """One operator while it is translated.

    Parameters
    ----------
    raw : the MLIR operation.
    inputs : ONNX names of its operands.
    nodes : where its nodes go.
    dialects : the module ``jaxlib.mlir.dialects.stablehlo``.
    """

    raw: Any
    inputs: Sequence[str]
    nodes: Nodes
    dialects: Any

    @property
    def name(self) -> str:
        return str(self.raw.operation.name)

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """Shape of an operand."""
        return shape_of(self.raw.operands[index].type)

    def dtype(self, index: int = 0) -> str:
        """NumPy name of an operand's type."""
        return dtype_of(self.raw.operands[index].type)

    @property
    def result(self) -> tuple[int, ...]:
        """Shape of the result."""
        return shape_of(self.raw.results[0].type)

    @property
    def result_dtype(self) -> str:
        return dtype_of(self.raw.results[0].type)

    def has(self, name: str) -> bool:
        return name in self.raw.attributes

    def ints(self, name: str, default: Sequence[int] | None = None) -> list[int]:
        """A list of numbers among the attributes, flat."""
        if name not in self.raw.attributes:
            if default is None:
                raise Untranslatable(f"no {name}")
            return list(default)
        value = self.raw.attributes[name]
        try:
            return [int(x) for x in value]
        except TypeError:
            return [int(x) for x in np.asarray(value).reshape(-1)]

    def text(self, name: str) -> str:
        """An attribute as MLIR writes it."""
        return str(self.raw.attributes[name]) if name in self.raw.attributes else ""

    def emit(self, kind: str, *inputs: str, **attributes: Any) -> str:
        return self.nodes.emit(kind, *inputs, **attributes)

    def const(self, value: Any, dtype: str = "int64") -> str:
        return self.nodes.constant(value, dtype)


def shape_of(kind: Any) -> tuple[int, ...]:
    """Dimensions of an MLIR tensor type; :class:`Untranslatable` where one is open."""
    shape = tuple(kind.shape)
    if any(extent < 0 for extent in shape):
        raise Untranslatable(f"the open shape {kind}")
    return shape


def dtype_of(kind: Any) -> str:
    """NumPy name of an MLIR tensor's element type."""
    element = str(kind.element_type)
    if element not in _DTYPES:
        raise Untranslatable(f"numbers of type {element}")
    return _DTYPES[element]


def onnx_type(dtype: str) -> int:
    """ONNX's number of a NumPy type name."""
    import ml_dtypes

    return helper.np_dtype_to_tensor_dtype(np.dtype(getattr(ml_dtypes, dtype, None) or dtype))


def _same(kind: str) -> Callable[[Op], str]:
    return lambda op: op.emit(kind, *op.inputs)


def _boolean(plain: str, logical: str) -> Callable[[Op], str]:
    """An operator of bits, which ONNX calls otherwise for booleans."""
    return lambda op: op.emit(logical if op.dtype() == "bool" else plain, *op.inputs)


def _reshaped(op: Op, name: str, shape: Sequence[int]) -> str:
    return op.emit("Reshape", name, op.const(list(shape)))


def _turned(op: Op, name: str, order: Sequence[int]) -> str:
    return name if list(order) == list(range(len(order))) else op.emit("Transpose", name, perm=list(order))


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
    name = _turned(op, op.inputs[0], order)
    if tuple(shape) != op.shape():
        name = _reshaped(op, name, shape)
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
        name = _turned(op, op.inputs[side], order)
        turned = [shape[axis] for axis in order]
        operands.append(name if wanted == turned else _reshaped(op, name, wanted))
        free_shapes.append([shape[axis] for axis in free])
    product = op.emit("MatMul", *operands)
    lead = [op.shape(0)[axis] for axis in batch[0]]
    got = [*lead, math.prod(free_shapes[0]), math.prod(free_shapes[1])]
    return product if tuple(got) == op.result else _reshaped(op, product, op.result)


def _convolution(op: Op) -> str:
    numbers = op.dialects.ConvDimensionNumbers(op.raw.attributes["dimension_numbers"])
    spatial = len(numbers.input_spatial_dimensions)
    if any(x != 1 for x in op.ints("lhs_dilation", [1] * spatial)):
        return _transposed_convolution(op, numbers)
    if int(op.raw.attributes["batch_group_count"]) != 1 or "true" in op.text("window_reversal"):
        raise Untranslatable("a convolution with groups of the batch, or a reversed window")
    return _from_channels_first(op, numbers, _plain_convolution(op, numbers))


def _operands(op: Op, numbers: Any) -> tuple[str, str]:
    """Images and weights with channels first."""
    image = [
        numbers.input_batch_dimension,
        numbers.input_feature_dimension,
        *numbers.input_spatial_dimensions,
    ]
    kernel = [
        numbers.kernel_output_feature_dimension,
        numbers.kernel_input_feature_dimension,
        *numbers.kernel_spatial_dimensions,
    ]
    return _turned(op, op.inputs[0], image), _turned(op, op.inputs[1], kernel)


def _plain_convolution(op: Op, numbers: Any) -> str:
    spatial = len(numbers.input_spatial_dimensions)
    image, weight = _operands(op, numbers)
    pads = np.asarray(op.ints("padding", [0] * 2 * spatial)).reshape(spatial, 2)
    if (pads < 0).any():
        raise Untranslatable("a convolution with negative padding")
    return op.emit(
        "Conv",
        image,
        weight,
        strides=op.ints("window_strides", [1] * spatial),
        dilations=op.ints("rhs_dilation", [1] * spatial),
        pads=[int(x) for x in pads.T.reshape(-1)],
        group=int(op.raw.attributes["feature_group_count"]),
    )


def _transposed_convolution(op: Op, numbers: Any) -> str:
    """A convolution of an image with zeros between its pixels, which is a transposed one."""
    spatial = len(numbers.input_spatial_dimensions)
    strides, dilation = op.ints("lhs_dilation"), op.ints("rhs_dilation", [1] * spatial)
    groups = int(op.raw.attributes["feature_group_count"])
    if any(x != 1 for x in op.ints("window_strides", [1] * spatial)) or groups != 1:
        raise Untranslatable("a transposed convolution with strides or groups of its own")
    image, weight = _operands(op, numbers)
    kernel = [op.shape(1)[axis] for axis in numbers.kernel_spatial_dimensions]
    weight = op.emit("Transpose", weight, perm=[1, 0, *range(2, 2 + spatial)])
    ends = [-1] * spatial, [np.iinfo(np.int64).min] * spatial, list(range(2, 2 + spatial)), [-1] * spatial
    weight = op.emit("Slice", weight, *(op.const(part) for part in ends))  # the window runs backwards
    pads = np.asarray(op.ints("padding", [0] * 2 * spatial)).reshape(spatial, 2)
    reach = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
    begin = [r - int(p) for r, p in zip(reach, pads[:, 0], strict=True)]
    end = [r - int(p) for r, p in zip(reach, pads[:, 1], strict=True)]
    extra = [max(0, -x) for x in end]
    if any(x < 0 for x in begin) or any(e >= s for e, s in zip(extra, strides, strict=True)):
        raise Untranslatable("a transposed convolution with padding beyond its window")
    made = op.emit(
        "ConvTranspose",
        image,
        weight,
        strides=strides,
        dilations=dilation,
        pads=[*begin, *(max(0, x) for x in end)],
        output_padding=extra,
    )
    return _from_channels_first(op, numbers, made)


def _from_channels_first(op: Op, numbers: Any, name: str) -> str:
    out = [
        numbers.output_batch_dimension,
        numbers.output_feature_dimension,
        *numbers.output_spatial_dimensions,
    ]
    return _turned(op, name, [out.index(axis) for axis in range(len(out))])


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
    image = _turned(op, op.inputs[0], order)
    sizes = [op.shape()[a] for a in axes]
    image = _reshaped(op, image, [math.prod(op.shape()[a] for a in rest), 1, *sizes])
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
    turned = [op.result[a] for a in order]
    return _turned(op, _reshaped(op, pooled, turned), [order.index(a) for a in range(rank)])


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
        index, places = _reshaped(op, index, places[:-1]), places[:-1]
    least, most = op.const(0, op.dtype(1)), op.const(data[axis] - 1, op.dtype(1))
    index = op.emit("Min", op.emit("Max", index, least), most)  # the specification clamps
    gathered = op.emit("Gather", op.inputs[0], index, axis=axis)
    offsets = list(numbers.offset_dims)
    # Gather leaves the axes of the slice around those of the indices.
    batch = [a for a in range(len(op.result)) if a not in offsets]
    made = [*offsets[:axis], *batch, *offsets[axis:]]
    return _turned(op, gathered, [made.index(a) for a in range(len(made))])


def _dynamic_slice(op: Op) -> str:
    sizes, starts = op.ints("slice_sizes"), []
    for axis, name in enumerate(op.inputs[1:]):
        index = op.emit("Cast", name, to=onnx_type("int64"))
        most = op.shape()[axis] - sizes[axis]
        index = op.emit("Min", op.emit("Max", index, op.const(0)), op.const(most))
        starts.append(_reshaped(op, index, [1]))
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
    "stablehlo.convolution": _convolution,
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
    "stablehlo.reshape": lambda op: _reshaped(op, op.inputs[0], op.result),
    "stablehlo.reverse": _reverse,
    "stablehlo.rsqrt": lambda op: op.emit("Reciprocal", op.emit("Sqrt", op.inputs[0])),
    "stablehlo.slice": _slice,
    "stablehlo.transpose": lambda op: _turned(op, op.inputs[0], op.ints("permutation")),
    "chlo.erf": _same("Erf"),
    "chlo.square": lambda op: op.emit("Mul", op.inputs[0], op.inputs[0]),
}
"""Translations of operators with one result."""
