"""Import of kernel descriptions, through the ONNX front end: what is fused in models is fused in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from hetero_tvm.errors import ModelError, UnsupportedOperatorError
from hetero_tvm.frontend.kernels import bodies
from hetero_tvm.frontend.kernels.description import (
    Description,
    Tensor,
    parse_description,
    read_description,
)
from hetero_tvm.frontend.kernels.operators import OPERATORS
from hetero_tvm.frontend.nodes import Nodes
from hetero_tvm.frontend.onnx.importer import import_onnx
from hetero_tvm.frontend.signature import DESCRIBED, ImportedModel

_OPSET = 20


def import_description(source: str | Path | Mapping[str, Any]) -> ImportedModel:
    """Import a kernel description: the path of a JSON file, or what it holds.

    Raises
    ------
    ModelError : it cannot be read, or it contradicts itself (all faults, each with its JSON path).
    UnsupportedOperatorError : operators that are unknown and have no body (all are listed).
    """
    if isinstance(source, Mapping):
        description = parse_description(source)
    else:
        description = read_description(source)
    ways = [(DESCRIBED, description), *description.alternatives]
    _refuse_unknown([one for _, one in ways])
    models = [to_onnx(one) for _, one in ways]
    judge = NumpyKernel(description, models[0])
    first, *others = (
        dataclasses.replace(import_onnx(model, name=description.name), original=judge, implementation=name)
        for (name, _), model in zip(ways, models, strict=True)
    )
    return dataclasses.replace(first, alternatives=tuple(others))


def to_onnx(description: Description) -> onnx.ModelProto:
    """ONNX model of a description whose operators are known; its nodes are named by JSON paths."""
    nodes, faults = Nodes(), []
    nodes.constants += [
        numpy_helper.from_array(np.array(t.value), t.name) for t in description.inputs if t.value is not None
    ]
    for op in description.operators:
        nodes.at = f"{op.path}.{op.kind}"
        operands = [t.name if t.value is None else nodes.constant(t.value, t.dtype) for t in op.inputs]
        build = bodies.build if op.body is not None else OPERATORS[op.kind].build
        try:
            built = build(nodes, op, operands)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            faults.append(f"{op.path}: {op.kind}: {error}")
            continue
        nodes.nodes.append(helper.make_node("Identity", [built], [op.output.name], nodes.at))
    if not faults:
        model = _model(description, nodes)
        faults = _contradictions(description, model)
    if faults:
        raise ModelError(f"the kernel {description.name} contradicts itself.", problems=faults[:50])
    return model


def _model(description: Description, nodes: Nodes) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes.nodes,
        description.name,
        [_info(t) for t in description.inputs if t.value is None],
        [_info(t) for t in description.outputs],
        nodes.constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10)


def _contradictions(description: Description, model: onnx.ModelProto) -> list[str]:
    """Operators whose results have another shape or type than the description says."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.graph.output[:]
    bare.graph.output.extend(onnx.ValueInfoProto(name=t.name) for t in description.outputs)
    try:
        bare = onnx.shape_inference.infer_shapes(bare, check_type=True, strict_mode=True)
    except Exception as error:  # onnx raises kinds of its own, which name the node: a path of ours
        return [str(error).strip().replace("\n", " ")]
    known = {value.name: value.type.tensor_type for value in (*bare.graph.value_info, *bare.graph.output)}
    faults = []
    for op in description.operators:
        found = known.get(op.output.name)
        if found is None or not found.elem_type:
            continue
        shape = tuple(dim.dim_value for dim in found.shape.dim)
        dtype = helper.tensor_dtype_to_np_dtype(found.elem_type).name
        if (shape, dtype) != (op.output.shape, op.output.dtype):
            faults.append(
                f"{op.output.path}: {op.kind} gives {dtype}{list(shape)}, "
                f"not {op.output.dtype}{list(op.output.shape)}"
            )
    return faults


def _refuse_unknown(ways: Sequence[Description]) -> None:
    """Refuse operators that have neither a known name nor a body, of all implementations at once."""
    problems = []
    for op in (op for way in ways for op in way.operators):
        if op.body is not None:
            continue
        meaning = OPERATORS.get(op.kind)
        if meaning is None:
            near = get_close_matches(op.kind, OPERATORS, 2)
            guess = f" (did you mean {' or '.join(near)}?)" if near else ""
            problems.append(f"{op.path}.name: {op.kind}{guess}")
            continue
        least, most = meaning.count
        if not least <= len(op.inputs) <= most:
            count = f"{least} to {most}" if most > least else least
            problems.append(f"{op.path}.input_desc: {op.kind} takes {count} inputs, not {len(op.inputs)}")
        problems += [
            f"{op.path}.attr: {op.kind} needs {n}" for n in meaning.attributes if n not in op.attributes
        ]
    if problems:
        raise UnsupportedOperatorError(
            f"the kernel description {ways[0].name} has operators that are not known.",
            problems=problems,
            hint='give what has no name a body, as in "body": "where(x > 0, x, 0.1 * x)"; known: '
            + ", ".join(sorted(OPERATORS)),
        )


def _info(tensor: Tensor) -> onnx.ValueInfoProto:
    dtype = helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype))
    return helper.make_tensor_value_info(tensor.name, dtype, tensor.shape)


class NumpyKernel:
    """A kernel description as NumPy computes it: the judge of what is compiled from it."""

    exact = available = True
    coarse = False

    def __init__(self, description: Description, model: onnx.ModelProto):
        self._description, self._model = description, model
        self.engine = f"NumPy {np.__version__}"

    def _steps(self, inputs: Mapping[str, np.ndarray], double: bool) -> Iterator[tuple[str, np.ndarray]]:
        """Every tensor with its value, in order."""

        def wide(array: np.ndarray) -> np.ndarray:
            if array.dtype == np.float16 and not double:
                return array.astype(np.float32)  # arithmetic of half precision runs in single
            return array.astype(np.float64) if double and array.dtype.kind == "f" else array

        values: dict[str, np.ndarray] = {}
        for tensor in self._description.inputs:
            values[tensor.name] = wide(inputs[tensor.name] if tensor.value is None else tensor.value)
        for op in self._description.operators:
            arrays = [values[t.name] if t.value is None else wide(np.asarray(t.value)) for t in op.inputs]
            with np.errstate(all="ignore"):
                compute = bodies.compute if op.body is not None else OPERATORS[op.kind].compute
                found = compute(op, arrays)
            values[op.output.name] = wide(np.asarray(found))
            yield op.output.name, values[op.output.name]
        yield from ((t.name, values[t.name]) for t in self._description.inputs)

    def run(self, inputs: Mapping[str, np.ndarray], *, double: bool = False) -> tuple[np.ndarray, ...]:
        """Outputs in signature order."""
        values = dict(self._steps(inputs, double))
        return tuple(
            values[t.name] if double and values[t.name].dtype.kind == "f" else values[t.name].astype(t.dtype)
            for t in self._description.outputs
        )

    def tensors(self, inputs: Mapping[str, np.ndarray], names: Collection[str]) -> dict[str, np.ndarray]:
        """Results of operators, of those in ``names``, in float64 and in order."""
        return {name: value for name, value in self._steps(inputs, double=True) if name in names}

    def to_onnx(self) -> onnx.ModelProto:
        """The same operator for other runtimes."""
        return self._model
