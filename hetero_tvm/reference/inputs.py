"""Realistic inputs for a model that was not delivered with any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper

from hetero_tvm.errors import ModelError
from hetero_tvm.frontend.signature import ImportedModel

_Consumers = dict[str, list[onnx.NodeProto]]
_Shapes = Mapping[str, tuple[int, ...]]


FREE = 8
"""Integers of which nothing says how large they may be are below this."""


def sample_inputs(
    model: onnx.ModelProto | ImportedModel, seed: int = 0, free: int = FREE
) -> dict[str, np.ndarray]:
    """Draw realistic inputs by name, equal for equal seeds.

    Integers that index a tensor stay inside it, integer divisors are not zero, masks are ones with a
    few trailing zeros, floats are standard normal, booleans random; other integers are below ``free``.

    Raises
    ------
    ModelError : an input has no fixed shape (import the model first).
    """
    proto = model.clean.proto if isinstance(model, ImportedModel) else model
    weights = {tensor.name: tuple(tensor.dims) for tensor in proto.graph.initializer}
    shapes = {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in (*proto.graph.value_info, *proto.graph.input)
    }
    shapes |= weights
    consumers = _consumers(proto.graph)
    # The import writes operators out: what an input is to them, the user's own file says.
    source = model.source if isinstance(model, ImportedModel) else None
    written = consumers if source is None else _consumers(source.proto.graph)
    inputs = {}
    for value in proto.graph.input:
        if value.name in weights:
            continue
        tensor = value.type.tensor_type
        dims = [dim.dim_value for dim in tensor.shape.dim]
        if any(not dim.HasField("dim_value") or dim.dim_value < 0 for dim in tensor.shape.dim):
            raise ModelError(
                f"Input {value.name!r} has no fixed shape.", hint="Import the model with shapes first."
            )
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        # One generator per input: adding an input does not change the others.
        generator = np.random.default_rng([seed, *value.name.encode()])
        rows = [_table_rows(value.name, users, shapes) for users in (consumers, written)]
        least = min(filter(None, rows), default=None)
        inputs[value.name] = _sample(value.name, dims, dtype, generator, consumers, least, free)
    return inputs


def _sample(
    name: str,
    dims: Sequence[int],
    dtype: np.dtype,
    generator: np.random.Generator,
    consumers: _Consumers,
    rows: int | None,
    free: int,
) -> np.ndarray:
    """Draw one input, as its dtype, its name and its consumers suggest.

    ``rows`` : of the smallest tensor that it indexes.
    """
    if dtype.kind not in "iu":
        if _is_mask(name, consumers):
            return _mask(dims, dtype)
        if dtype.kind == "b":
            return generator.integers(0, 2, dims).astype(bool)
        return np.asarray(generator.standard_normal(dims)).astype(dtype)
    if rows is None and _is_mask(name, consumers):
        return _mask(dims, dtype)
    if rows is None and "position" in name.lower() and dims:
        return np.broadcast_to(np.arange(dims[-1]), dims).astype(dtype)
    least = 1 if rows is None and _divides(name, consumers) else 0
    return np.asarray(generator.integers(least, rows or max(least + 1, free), dims)).astype(dtype)


def _mask(dims: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Mask of ones with a few zeros at the end of each row, as padding gives."""
    mask = np.ones(dims, dtype)
    if dims and dims[-1] >= 4:
        mask[..., -max(1, dims[-1] // 16) :] = 0
    return mask


def _consumers(graph: onnx.GraphProto) -> _Consumers:
    """Nodes by the name of a tensor that they read."""
    consumers: _Consumers = {}
    for node in graph.node:
        for name in node.input:
            consumers.setdefault(name, []).append(node)
    return consumers


_INDEXING = frozenset({"Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"})
_KEEPS_VALUES = frozenset(
    {"Cast", "Unsqueeze", "Squeeze", "Reshape", "Identity", "Expand", "Flatten", "Transpose"}
)


_LENGTHS = {"ReverseSequence": 1, "RNN": 4, "GRU": 4, "LSTM": 4}
"""Operators on sequences -> which of their inputs says how long each is."""
_IMAGES = {"RoiAlign": 2}
"""Operators on boxes -> which of their inputs says in which image each lies."""


def _steps(node: onnx.NodeProto, shapes: _Shapes) -> list[int]:
    """Steps of the sequences that a node reads; empty where they are not known."""
    time = next((a.i for a in node.attribute if a.name in ("time_axis", "layout")), 0)
    return [int(n) for n in shapes.get(node.input[0], ())[time : time + 1] if n]


def _readers(name: str, consumers: _Consumers) -> list[tuple[onnx.NodeProto, str]]:
    """Nodes that compute with an input's values, behind casts and reshapes; each with the name it reads."""
    found, stack, seen = [], [name], set()
    while stack:
        current = stack.pop()
        if current in seen:
            continue
        seen.add(current)
        for node in consumers.get(current, ()):
            if node.op_type in _KEEPS_VALUES and node.input[0] == current:
                stack.append(node.output[0])
            elif node.op_type != "Shape":
                found.append((node, current))
    return found


def _table_rows(name: str, consumers: _Consumers, shapes: _Shapes) -> int | None:
    """Number of rows of the smallest tensor that an integer input indexes; None when it indexes none.

    Of lengths of sequences, one more than the longest: that many values are allowed.
    """
    rows = []
    for node, read in _readers(name, consumers):
        if node.op_type in _LENGTHS and read in node.input[_LENGTHS[node.op_type] :][:1]:
            rows += [extent + 1 for extent in _steps(node, shapes)]
        if node.op_type in _IMAGES and read in node.input[_IMAGES[node.op_type] :][:1]:
            rows += shapes.get(node.input[0], ())[:1]
        if node.op_type not in _INDEXING or read not in node.input[1:2]:
            continue
        shape = shapes.get(node.input[0], ())
        if node.op_type.endswith("ND"):
            rows += shape
        elif shape:
            rows.append(shape[next((a.i for a in node.attribute if a.name == "axis"), 0)])
    return min(filter(None, rows), default=None)


def _divides(name: str, consumers: _Consumers) -> bool:
    """Whether something is divided by an input."""
    readers = _readers(name, consumers)
    return any(node.op_type in ("Div", "Mod") and node.input[1] == read for node, read in readers)


def _is_mask(name: str, consumers: _Consumers) -> bool:
    """Whether an input's name, or the nodes that read it, say that it hides positions."""
    if "mask" in name.lower():
        return True
    users = {node.op_type for node, _ in _readers(name, consumers)}
    cast = any(node.op_type in ("Cast", "Unsqueeze") for node in consumers.get(name, ()))
    return cast and bool(users) and users <= {"Sub", "Equal", "Where", "Not", "And"}
