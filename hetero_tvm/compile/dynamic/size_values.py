"""Values of what a model computes of its sizes, at many sizes at once.

Arrays have an axis for the sizes in front; what is the same at all of them has one element there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

Values = dict[str, np.ndarray]
Attributes = Mapping[str, object]


class UnknownValue(Exception):
    """Reason why a value is not known at all sizes."""


def computed(node: onnx.NodeProto, operands: Sequence[np.ndarray | None]) -> np.ndarray:
    """The first result of a node; None stands for an operand that is left out.

    Raises
    ------
    UnknownValue : the operator is not known here, or the extents of its result follow from sizes.
    """
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    function = _MOVING.get(node.op_type)
    try:
        with np.errstate(all="ignore"):
            if function is not None:
                return function(list(operands), attributes)
            together = _aligned([operand for operand in operands if operand is not None])
            if node.op_type == "Clip":
                return _clipped(_aligned(operands[:1])[0], operands)
            if node.op_type == "Cast":
                return together[0].astype(helper.tensor_dtype_to_np_dtype(attributes["to"]))
            if node.op_type == "Mod":
                return (np.fmod if attributes.get("fmod") else np.mod)(*together)
            return _ELEMENTWISE[node.op_type](*together)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise UnknownValue(node.op_type) from error


def decided(
    node: onnx.NodeProto, operands: Sequence[np.ndarray | None], result: np.ndarray
) -> np.ndarray | None:
    """Decision of a node, as small numbers by size: a comparison, which operand is the least; None for
    arithmetic."""
    kind = node.op_type
    given = [operand for operand in operands if operand is not None]
    if kind in _COMPARING or result.dtype == bool and kind == "Cast" or kind in ("Sign", "ArgMax", "ArgMin"):
        return result
    if kind in ("Min", "Max"):
        stacked = np.stack(np.broadcast_arrays(*_aligned(given)))
        return (stacked.argmin if kind == "Min" else stacked.argmax)(0)
    if kind in ("ReduceMax", "ReduceMin"):
        data = given[0].reshape(len(given[0]), -1)
        return (data.argmax if kind == "ReduceMax" else data.argmin)(1)
    if kind in ("Relu", "Abs"):
        return np.sign(given[0])
    if kind == "Clip":
        return np.sign(result.astype(float) - _aligned(given[:1])[0].astype(float))
    if kind == "Gather" and len(given[1]) > 1 and len(given[0]) == 1:
        return result
    return None


def value_of(tensor: np.ndarray) -> np.ndarray:
    """A constant, the same at all sizes."""
    return np.asarray(tensor)[None]


def _aligned(operands: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    """Operands with as many axes, new ones behind that of the sizes."""
    rank = max(operand.ndim for operand in operands if operand is not None)
    return [
        operand.reshape(len(operand), *(1,) * (rank - operand.ndim), *operand.shape[1:])
        for operand in operands
        if operand is not None
    ]


def _same(operand: np.ndarray | None) -> np.ndarray:
    """Value of an operand that is the same at all sizes: indices, axes, shapes."""
    if operand is None or len(operand) != 1:
        raise UnknownValue("an operand follows from sizes")
    return operand[0]


def _axes(operands: Sequence[np.ndarray | None], attributes: Attributes) -> list[int] | None:
    if len(operands) > 1 and operands[1] is not None:
        return [int(axis) for axis in _same(operands[1]).reshape(-1)]
    axes = attributes.get("axes")
    return None if axes is None else list(axes)


def _behind(axis: int, rank: int) -> int:
    """Place of an axis, of ``rank`` without that of the sizes, behind it."""
    return axis + 1 if axis >= 0 else axis + rank + 1


def _divided(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return a / b
    if (b == 0).any():
        raise UnknownValue("a division by 0")
    return (np.abs(a) // np.abs(b) * (np.sign(a) * np.sign(b))).astype(a.dtype)


def _power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "i" and b.dtype.kind == "i" and (b < 0).any():
        raise UnknownValue("a power below 0")
    return np.power(a, b).astype(a.dtype)


def _clipped(x: np.ndarray, operands: Sequence[np.ndarray | None]) -> np.ndarray:
    least, most = (*operands[1:3], None, None)[:2]
    if least is not None:
        x = np.maximum(*_aligned([x, least]))
    return x if most is None else np.minimum(*_aligned([x, most]))


def _many(function: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Callable[..., np.ndarray]:
    def each(first: np.ndarray, *others: np.ndarray) -> np.ndarray:
        for other in others:
            first = function(first, other)
        return first

    return each


def _gather(operands: list, attributes: Attributes) -> np.ndarray:
    data, indices = operands[:2]
    axis = _behind(attributes.get("axis", 0), data.ndim - 1)
    if len(indices) == 1:
        return np.take(data, indices[0], axis=axis)
    if axis != 1 or data.ndim != 2 or len(data) != 1:  # a table in which sizes tell the place
        raise UnknownValue("an index follows from sizes")
    return np.take(data[0], indices)


def _unsqueeze(operands: list, attributes: Attributes) -> np.ndarray:
    data, axes = operands[0], _axes(operands, attributes)
    rank = data.ndim - 1 + len(axes or ())
    return np.expand_dims(data, tuple(_behind(axis, rank) for axis in axes or ()))


def _squeeze(operands: list, attributes: Attributes) -> np.ndarray:
    data, axes = operands[0], _axes(operands, attributes)
    if axes is None:
        axes = [n for n, extent in enumerate(data.shape[1:]) if extent == 1]
    return np.squeeze(data, tuple(_behind(axis, data.ndim - 1) for axis in axes))


def _concat(operands: list, attributes: Attributes) -> np.ndarray:
    many = max(map(len, operands))
    axis = _behind(attributes["axis"], operands[0].ndim - 1)
    return np.concatenate([np.broadcast_to(o, (many, *o.shape[1:])) for o in operands], axis=axis)


def _slice(operands: list, attributes: Attributes) -> np.ndarray:
    data = operands[0]
    starts, ends, axes, steps = (
        None if operand is None else [int(n) for n in _same(operand).reshape(-1)]
        for operand in (*operands[1:], None, None, None, None)[:4]
    )
    axes = list(range(len(starts))) if axes is None else axes
    index = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps or [1] * len(axes), strict=True):
        if step < 0:
            raise UnknownValue("a slice goes back")
        index[_behind(axis, data.ndim - 1)] = slice(start, end, step)
    return data[tuple(index)]


def _reshape(operands: list, attributes: Attributes) -> np.ndarray:
    shape = [int(n) for n in _same(operands[1])]
    if 0 in shape:
        raise UnknownValue("a shape with 0")
    return operands[0].reshape(len(operands[0]), *shape)


def _reducing(function: Callable[..., np.ndarray]) -> Callable[[list, Attributes], np.ndarray]:
    def reduced(operands: list, attributes: Attributes) -> np.ndarray:
        data, axes = operands[0], _axes(operands, attributes)
        if not axes and attributes.get("noop_with_empty_axes"):
            return data
        rank = data.ndim - 1
        places = tuple(_behind(axis, rank) for axis in axes) if axes else tuple(range(1, data.ndim))
        kept = bool(attributes.get("keepdims", 1))
        return function(data, axis=places, keepdims=kept).astype(data.dtype)

    return reduced


def _arg(function: Callable[..., np.ndarray]) -> Callable[[list, Attributes], np.ndarray]:
    def found(operands: list, attributes: Attributes) -> np.ndarray:
        if attributes.get("select_last_index"):
            raise UnknownValue("the last of several")
        axis = _behind(attributes.get("axis", 0), operands[0].ndim - 1)
        result = function(operands[0], axis=axis)
        return np.expand_dims(result, axis) if attributes.get("keepdims", 1) else result

    return found


def _constant(operands: list, attributes: Attributes) -> np.ndarray:
    filled = attributes.get("value")
    value = np.zeros(1, np.float32) if filled is None else numpy_helper.to_array(filled)
    return np.full([int(n) for n in _same(operands[0])], value.reshape(-1)[0], value.dtype)[None]


_COMPARING: dict[str, Callable[..., np.ndarray]] = {
    "Equal": np.equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
}
_ELEMENTWISE: dict[str, Callable[..., np.ndarray]] = {
    **_COMPARING,
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": _divided,
    "Pow": _power,
    "Min": _many(np.minimum),
    "Max": _many(np.maximum),
    "Sum": _many(np.add),
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
    "Not": np.logical_not,
    "Where": np.where,
    "Neg": np.negative,
    "Abs": np.abs,
    "Sign": np.sign,
    "Sqrt": np.sqrt,
    "Exp": np.exp,
    "Log": np.log,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Round": np.rint,
    "Reciprocal": lambda x: (1 / x).astype(x.dtype),
    "Relu": lambda x: np.maximum(x, 0),
    "Identity": lambda x: x,
}
_MOVING: dict[str, Callable[[list, Attributes], np.ndarray]] = {
    "Gather": _gather,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Concat": _concat,
    "Slice": _slice,
    "Reshape": _reshape,
    "ConstantOfShape": _constant,
    "ReduceProd": _reducing(np.prod),
    "ReduceSum": _reducing(np.sum),
    "ReduceMax": _reducing(np.max),
    "ReduceMin": _reducing(np.min),
    "ArgMax": _arg(np.argmax),
    "ArgMin": _arg(np.argmin),
}
