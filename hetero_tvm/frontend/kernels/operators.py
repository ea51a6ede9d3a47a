"""Operators of kernel descriptions: for each its NumPy meaning, and the ONNX nodes that compute it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import helper

from hetero_tvm.frontend.kernels.description import Operator
from hetero_tvm.frontend.nodes import Nodes
from hetero_tvm.host.special import erf

Arrays = Sequence[np.ndarray]


@dataclass(frozen=True)
class Meaning:
    """Meaning of an operator of a description.

    Parameters
    ----------
    compute : its result in NumPy, from the operator and its inputs.
    build : name of the same result in ONNX.
    count : how many inputs it takes, at least and at most.
    attributes : names of those that it cannot do without.
    """

    compute: Callable[[Operator, Arrays], Any]
    build: Callable[[Nodes, Operator, Sequence[str]], str]
    count: tuple[int, int]
    attributes: tuple[str, ...] = ()


def _plain(kind: str, function: Callable[..., Any], count: int) -> Meaning:
    """An operator that ONNX has with the same meaning and no attributes."""
    return Meaning(
        lambda op, x: function(*x), lambda nodes, op, names: nodes.emit(kind, *names), (count, count)
    )


def _is_whole(value: Any) -> bool:
    """Whether a value of JSON is a whole number; in Python true and false are numbers too."""
    return isinstance(value, int) and not isinstance(value, bool)


def _flag(op: Operator, *names: str) -> bool | None:
    """Value of an attribute that is true or false, by the first of its names that is there; else None.

    Raises
    ------
    ValueError : it is another thing, of which Python's truth would be a guess ("no" is true).
    """
    for name in names:
        value = op.attributes.get(name)
        if value is None:
            continue
        if value not in (0, 1) or isinstance(value, float):
            raise ValueError(f"{name} {value!r} is neither true nor false")
        return bool(value)
    return None


def _axes(op: Operator, rank: int) -> tuple[int, ...]:
    """Axes of a reduction, not negative; all where none are given."""
    given = op.attributes.get("axis", op.attributes.get("axes"))
    given = [given] if _is_whole(given) else list(range(rank)) if given in (None, []) else given
    if not isinstance(given, list) or not all(map(_is_whole, given)):
        raise ValueError(f"axis {given!r} is no list of whole numbers")
    if any(not -rank <= axis < rank for axis in given):
        raise ValueError(f"axis {given} is outside of {rank} dimensions")
    found = sorted(axis % rank for axis in given)
    if len(set(found)) < len(found):
        raise ValueError(f"axis {given} names one twice")
    return tuple(found)


def _keeps(op: Operator) -> bool:
    """Whether a reduction keeps its axes; the output's rank says so where nothing else does."""
    said = _flag(op, "keep_dims", "keepdims")
    return len(op.output.shape) == len(op.inputs[0].shape) if said is None else said


def _is_one(op: Operator) -> bool:
    """Whether a reduction of all axes gives one number, of which AKG writes the shape as [1].

    Within a body, where operands have no shapes, it is the shape that NumPy gives.
    """
    if not op.inputs:
        return False
    rank = len(op.inputs[0].shape)
    return op.output.shape == (1,) and len(_axes(op, rank)) == rank and not _keeps(op)


def _reduction(kind: str, function: Callable[..., Any]) -> Meaning:
    def build(nodes: Nodes, op: Operator, names: Sequence[str]) -> str:
        given = op.attributes.get("axis", op.attributes.get("axes"))
        axes = [given] if isinstance(given, int) else given
        if op.inputs:  # none within a body, whose operands have no shapes
            axes = _axes(op, len(op.inputs[0].shape))
        listed = [nodes.constant(axes, "int64")] if axes else []
        reduced = nodes.emit(kind, names[0], *listed, keepdims=int(_keeps(op)))
        return nodes.emit("Reshape", reduced, nodes.constant([1], "int64")) if _is_one(op) else reduced

    def compute(op: Operator, x: Arrays) -> Any:
        options = {"dtype": x[0].dtype} if kind in ("ReduceSum", "ReduceProd") else {}
        found = function(x[0], axis=_axes(op, x[0].ndim), keepdims=_keeps(op), **options)
        return np.reshape(found, 1) if _is_one(op) else found

    return Meaning(compute, build, (1, 1))


def _to_shape(nodes: Nodes, op: Operator, names: Sequence[str]) -> str:
    return nodes.emit("Reshape", names[0], nodes.constant(op.output.shape, "int64"))


def _permutation(op: Operator) -> list[int]:
    rank = len(op.inputs[0].shape)
    given = op.attributes.get("perm", list(range(rank))[::-1])
    if not isinstance(given, list) or sorted(axis % max(rank, 1) for axis in given) != list(range(rank)):
        raise ValueError(f"perm {given} is no order of {rank} axes")
    return [axis % rank for axis in given]


def _turned(op: Operator) -> tuple[bool, bool]:
    """Whether the operands of a product are transposed."""
    first = [_flag(op, name) for name in ("transpose_a", "transpose_x1")]
    second = [_flag(op, name) for name in ("transpose_b", "transpose_x2")]
    return any(first), any(second)


def _product(op: Operator, x: Arrays) -> Any:
    first, second = (
        np.swapaxes(array, -1, -2) if turned else array
        for array, turned in zip(x[:2], _turned(op), strict=True)
    )
    return np.matmul(first, second) + (x[2] if len(x) > 2 else x[0].dtype.type(0))


def _build_product(nodes: Nodes, op: Operator, names: Sequence[str]) -> str:
    operands = []
    for i, (name, turned) in enumerate(zip(names, _turned(op), strict=False)):
        if turned:
            order = list(range(len(op.inputs[i].shape)))
            order[-2:] = order[-1], order[-2]
            name = nodes.emit("Transpose", name, perm=order)
        operands.append(name)
    product = nodes.emit("MatMul", *operands)
    return nodes.emit("Add", product, names[2]) if len(names) > 2 else product


def _cast(op: Operator, x: Arrays) -> Any:
    floats = x[0].dtype.kind == "f" and np.dtype(op.output.dtype).kind == "f"
    return x[0] if floats and x[0].dtype == np.float64 else x[0].astype(op.output.dtype)


def _build_cast(nodes: Nodes, op: Operator, names: Sequence[str]) -> str:
    return nodes.emit("Cast", names[0], to=helper.np_dtype_to_tensor_dtype(np.dtype(op.output.dtype)))


def _one_axis(op: Operator, default: int = 0, rank: int | None = None) -> int:
    rank = len(op.inputs[0].shape) if rank is None else rank
    given = op.attributes.get("axis", default)
    axis = given[0] if isinstance(given, list) else given
    if not _is_whole(axis) or not -rank <= axis < rank:
        raise ValueError(f"axis {given} is outside of {rank} dimensions")
    return axis % rank


def _slices(op: Operator) -> tuple[list[int], list[int], list[int]]:
    """First, end and step of each axis of a slice, with numbers within the tensor."""
    shape = op.inputs[0].shape
    begin = op.attributes["begin"]
    steps = op.attributes.get("strides") or [1] * len(begin)
    if "size" in op.attributes:
        sizes = op.attributes["size"]
        end = [
            extent if size == -1 else first + size
            for first, size, extent in zip(begin, sizes, shape, strict=False)
        ]
    else:
        end = op.attributes["end"]
    if not len(begin) == len(end) == len(steps) <= len(shape) or any(step <= 0 for step in steps):
        raise ValueError("begin, end and strides are lists of equal length, and strides are positive")
    bounds = [
        slice(*one).indices(extent)
        for one, extent in zip(zip(begin, end, steps, strict=True), shape, strict=False)
    ]
    return tuple(map(list, zip(*bounds, strict=True)))  # type: ignore[return-value]


def _build_slice(nodes: Nodes, op: Operator, names: Sequence[str]) -> str:
    begin, end, steps = _slices(op)
    parts = (nodes.constant(part, "int64") for part in (begin, end, range(len(begin)), steps))
    return nodes.emit("Slice", names[0], *parts)


def _gather(op: Operator, x: Arrays) -> Any:
    axis = _one_axis(op)
    return np.take(x[0], x[1].astype(np.int64), axis=axis)


def _mean(x: np.ndarray, axis: tuple[int, ...], keepdims: bool) -> Any:
    return np.sum(x, axis=axis, keepdims=keepdims) / x.dtype.type(math.prod(x.shape[a] for a in axis))


def _concatenated(op: Operator, x: Arrays) -> Any:
    return np.concatenate(x, _one_axis(op))


def _square(nodes: Nodes, op: Operator, names: Sequence[str]) -> str:
    return nodes.emit("Mul", names[0], names[0])


def _rsqrt(nodes: Nodes, op: Operator, names: Sequence[str]) -> str:
    return nodes.emit("Reciprocal", nodes.emit("Sqrt", names[0]))


def _not_equal(nodes: Nodes, op: Operator, names: Sequence[str]) -> str:
    return nodes.emit("Not", nodes.emit("Equal", *names))


def _sigmoid(x: np.ndarray) -> Any:
    with np.errstate(over="ignore"):
        return x.dtype.type(1) / (1 + np.exp(-x))


def _tiled(op: Operator, x: Arrays) -> Any:
    return np.tile(x[0], op.attributes["multiples"])


def _build_tile(nodes: Nodes, op: Operator, names: Sequence[str]) -> str:
    multiples = op.attributes["multiples"]
    if len(multiples) != len(op.inputs[0].shape):
        raise ValueError(f"multiples {multiples} has not one number per axis")
    return nodes.emit("Tile", names[0], nodes.constant(multiples, "int64"))


_UNARY: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "Abs": ("Abs", np.abs),
    "Ceil": ("Ceil", np.ceil),
    "Cos": ("Cos", np.cos),
    "Erf": ("Erf", erf),
    "Exp": ("Exp", np.exp),
    "Floor": ("Floor", np.floor),
    "Log": ("Log", np.log),
    "LogicalNot": ("Not", np.logical_not),
    "Neg": ("Neg", np.negative),
    "Reciprocal": ("Reciprocal", lambda x: x.dtype.type(1) / x),
    "ReLU": ("Relu", lambda x: np.maximum(x, x.dtype.type(0))),
    "Round": ("Round", np.round),
    "Sigmoid": ("Sigmoid", _sigmoid),
    "Sign": ("Sign", np.sign),
    "Sin": ("Sin", np.sin),
    "Sqrt": ("Sqrt", np.sqrt),
    "Tanh": ("Tanh", np.tanh),
}
_BINARY: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "Add": ("Add", np.add),
    "Equal": ("Equal", np.equal),
    "Greater": ("Greater", np.greater),
    "GreaterEqual": ("GreaterOrEqual", np.greater_equal),
    "Less": ("Less", np.less),
    "LessEqual": ("LessOrEqual", np.less_equal),
    "LogicalAnd": ("And", np.logical_and),
    "LogicalOr": ("Or", np.logical_or),
    "Maximum": ("Max", np.maximum),
    "Minimum": ("Min", np.minimum),
    "Mul": ("Mul", np.multiply),
    "Pow": ("Pow", np.power),
    "RealDiv": ("Div", np.true_divide),
    "Sub": ("Sub", np.subtract),
}

OPERATORS: Mapping[str, Meaning] = {
    **{name: _plain(kind, function, 1) for name, (kind, function) in _UNARY.items()},
    **{name: _plain(kind, function, 2) for name, (kind, function) in _BINARY.items()},
    "Square": Meaning(lambda op, x: x[0] * x[0], _square, (1, 1)),
    "Rsqrt": Meaning(lambda op, x: x[0].dtype.type(1) / np.sqrt(x[0]), _rsqrt, (1, 1)),
    "NotEqual": Meaning(lambda op, x: np.not_equal(*x), _not_equal, (2, 2)),
    "Select": _plain("Where", np.where, 3),
    "ReduceSum": _reduction("ReduceSum", np.sum),
    "ReduceMean": _reduction("ReduceMean", _mean),
    "ReduceMax": _reduction("ReduceMax", np.max),
    "ReduceMin": _reduction("ReduceMin", np.min),
    "ReduceProd": _reduction("ReduceProd", np.prod),
    "Reshape": Meaning(lambda op, x: x[0].reshape(op.output.shape), _to_shape, (1, 2)),
    "ExpandDims": Meaning(lambda op, x: x[0].reshape(op.output.shape), _to_shape, (1, 1)),
    "Squeeze": Meaning(lambda op, x: x[0].reshape(op.output.shape), _to_shape, (1, 1)),
    "BroadcastTo": Meaning(
        lambda op, x: np.broadcast_to(x[0], op.output.shape),
        lambda nodes, op, names: nodes.emit("Expand", names[0], nodes.constant(op.output.shape, "int64")),
        (1, 2),
    ),
    "Transpose": Meaning(
        lambda op, x: x[0].transpose(_permutation(op)),
        lambda nodes, op, names: nodes.emit("Transpose", names[0], perm=_permutation(op)),
        (1, 1),
    ),
    "Cast": Meaning(_cast, _build_cast, (1, 1)),
    "AddN": Meaning(
        lambda op, x: functools.reduce(np.add, x), lambda nodes, op, names: nodes.emit("Sum", *names), (1, 64)
    ),
    "MatMul": Meaning(_product, _build_product, (2, 3)),
    "BatchMatMul": Meaning(_product, _build_product, (2, 3)),
    "Concat": Meaning(
        _concatenated, lambda nodes, op, names: nodes.emit("Concat", *names, axis=_one_axis(op)), (1, 64)
    ),
    "Gather": Meaning(
        _gather, lambda nodes, op, names: nodes.emit("Gather", *names[:2], axis=_one_axis(op)), (2, 2)
    ),
    "StridedSlice": Meaning(
        lambda op, x: x[0][tuple(map(slice, *_slices(op)))], _build_slice, (1, 1), ("begin",)
    ),
    "Tile": Meaning(_tiled, _build_tile, (1, 1), ("multiples",)),
}
"""Meanings by the names of AKG and MindSpore."""
OPERATORS = {
    **OPERATORS,
    "Div": OPERATORS["RealDiv"],
    "Relu": OPERATORS["ReLU"],
    "Slice": OPERATORS["StridedSlice"],
}
