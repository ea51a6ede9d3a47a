"""What a single node computes, by the two references, and whether ONNX takes it at all."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper

from hetero_tvm.frontend.onnx.evaluator import REFERENCE_OPS
from tests.campaign.graphs.values import CONTRIB, Rejected, Value, onnx_type


@functools.lru_cache(maxsize=4096)
def schema_of(op_type: str, opset: int, domain: str) -> Any:
    """ONNX's schema of an operator; None for operators of other domains."""
    if domain:
        return None
    try:
        schema = defs.get_schema(op_type, opset, "")
    except defs.SchemaError:
        raise Rejected(f"no {op_type} in opset {opset}") from None
    if schema.deprecated:
        raise Rejected(f"{op_type} is deprecated in opset {opset}")
    return schema


@functools.lru_cache(maxsize=4096)
def _types(op_type: str, since: int) -> tuple[tuple[str, frozenset[str], bool], ...]:
    schema = defs.get_schema(op_type, since, "")
    allowed = {c.type_param_str: frozenset(c.allowed_type_strs) for c in schema.type_constraints}
    variadic = defs.OpSchema.FormalParameterOption.Variadic
    return tuple(
        (i.type_str, allowed.get(i.type_str, frozenset({i.type_str})), i.option == variadic)
        for i in schema.inputs
    )


def check_types(schema: Any, inputs: Sequence[Value | None]) -> None:
    expected = _types(schema.name, schema.since_version)
    bound: dict[str, str] = {}
    for index, value in enumerate(inputs):
        if index >= len(expected) and not (expected and expected[-1][2]):
            raise Rejected("too many inputs")
        letter, allowed, _ = expected[min(index, len(expected) - 1)]
        if value is None:
            continue
        name = f"tensor({ {'float32': 'float', 'float64': 'double'}.get(value.dtype, value.dtype) })"
        if name not in allowed:
            raise Rejected(f"{schema.name} takes no {value.dtype}")
        same = not (schema.inputs and expected[-1][2] and not schema.inputs[-1].is_homogeneous)
        if same and bound.setdefault(letter, name) != name:
            raise Rejected("two types")


_WRONG = {"Erf", "LRN", "BatchNormalization", "MaxPool", "Softmax", "LogSoftmax", "Hardmax"} | {
    "LpNormalization"
}
MENDED = [op for op in REFERENCE_OPS if op.__name__ in _WRONG]
"""What is wrong in ONNX's evaluator; ONNX Runtime has no Erf of float64 and no LRN of an even size."""
EVALUATOR, RUNTIME = "evaluator", "onnxruntime"


def compute(
    node: onnx.NodeProto, inputs: Sequence[Value], opset: int, first: str = EVALUATOR
) -> list[np.ndarray]:
    """Results of one node: by one of the two references, else by the other one."""
    feeds = {v.name: v.sample for v in inputs}
    opsets = {"": opset, CONTRIB: 1}
    outputs = [helper.make_value_info(n, onnx.TypeProto()) for n in node.output if n]
    if node.op_type.startswith("Sequence") or any(isinstance(array, list) for array in feeds.values()):
        untyped = [helper.make_value_info(name, onnx.TypeProto()) for name in feeds]
        return _by_evaluator(helper.make_graph([node], "one", untyped, outputs), opsets, feeds)
    values = [helper.make_tensor_value_info(n, onnx_type(a.dtype.name), a.shape) for n, a in feeds.items()]
    graph = helper.make_graph([node], "one", values, outputs)
    expected = _inferred(node, inputs, opset)
    engines = [_by_evaluator, _by_onnxruntime]
    if first == RUNTIME:
        engines.reverse()
    problem: Exception | None = None
    for engine in engines:
        try:
            results = engine(graph, opsets, feeds)
            _check_results(node, results, expected)
        except Exception as error:
            problem = error
            continue
        found = iter(results)
        return [next(found) if name else None for name in node.output]
    raise Rejected(f"not computable: {problem}")


def _by_evaluator(graph: Any, opsets: dict[str, int], feeds: dict[str, np.ndarray]) -> list[Any]:
    from onnx.reference import ReferenceEvaluator

    if graph.node[0].domain:
        raise NotImplementedError("another domain")
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(graph, opsets=opsets, new_ops=MENDED).run(None, feeds)


def _inferred(node: onnx.NodeProto, inputs: Sequence[Value], opset: int) -> dict[str, Any]:
    """Types of a node's results, as ONNX infers them."""
    schema = schema_of(node.op_type, opset, node.domain)
    if schema is None or any(a.HasField("g") for a in node.attribute):
        return {}
    types = {v.name: helper.make_tensor_type_proto(onnx_type(v.dtype), v.shape) for v in inputs}
    data = {
        v.name: numpy_helper.from_array(v.sample, v.name) for v in inputs if v.const and v.sample.size < 64
    }
    try:
        imports = [helper.make_opsetid("", opset)]
        return onnx.shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=imports)
    except Exception as error:
        raise Rejected(f"invalid: {error}") from None


def _check_results(node: onnx.NodeProto, results: Sequence[Any], expected: dict[str, Any]) -> None:
    """Refuse results of other types than ONNX infers: the evaluator is at fault then."""
    for name, result in zip(filter(None, node.output), results, strict=True):
        if name not in expected or not isinstance(result, np.ndarray | np.generic):
            continue
        tensor = expected[name].tensor_type
        if tensor.elem_type and tensor.elem_type != onnx_type(result.dtype.name):
            raise Rejected("another type")
        if tensor.HasField("shape"):
            dims = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
            if len(dims) != result.ndim or any(
                d not in (None, s) for d, s in zip(dims, result.shape, strict=True)
            ):
                raise Rejected("another shape")


def _by_onnxruntime(graph: Any, opsets: dict[str, int], feeds: dict[str, np.ndarray]) -> list[Any]:
    import onnxruntime

    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)
