"""Attention of queries that see no key: zero, as PyTorch computes it, which its exporter forgets."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from hetero_tvm.frontend.stored import is_stub

_MADE_FROM = "pkg.torch.onnx.fx_node"
_ATTENTION = "scaled_dot_product_attention"


def guard_attention(graph: onnx.GraphProto) -> None:
    """Let PyTorch's attention with a mask give zero for queries that the mask hides every key from.

    The exporter hides keys with the least number, from which a softmax of nothing else gives equal weights,
    or does not look at the mask at all, so that they are NaN.
    """
    made_by = {name: node for node in graph.node for name in node.output}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer if not is_stub(t)}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            constants[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    nodes: list[onnx.NodeProto] = []
    renamed: dict[str, str] = {}
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        nodes.append(node)
        if node.op_type != "Softmax" or not _is_attention(node):
            continue
        scores = made_by.get(node.input[0])
        if scores is None or scores.op_type != "Add":
            continue  # no mask
        if any(reader.op_type == "IsNaN" for reader in readers.get(node.output[0], ())):
            for name in scores.input:
                _hide_wholly(graph, made_by.get(name), constants)
        else:
            nodes += _guarded(node, renamed, graph)
    del graph.node[:]
    graph.node.extend(nodes)


def _is_attention(node: onnx.NodeProto) -> bool:
    return any(entry.key == _MADE_FROM and _ATTENTION in entry.value for entry in node.metadata_props)


def _hide_wholly(
    graph: onnx.GraphProto, choice: onnx.NodeProto | None, constants: dict[str, np.ndarray]
) -> None:
    """Let ``where(mask, 0, least number)`` hide keys with -inf."""
    if choice is None or choice.op_type != "Where" or choice.input[2] not in constants:
        return
    hidden = constants[choice.input[2]]
    if hidden.size != 1 or not np.isfinite(hidden.astype("float64")).all() or hidden.reshape(()) >= 0:
        return
    name = f"{choice.output[0]}.hidden"
    infinity = np.full(hidden.shape, -np.inf, hidden.dtype)
    graph.initializer.append(numpy_helper.from_array(infinity, name))
    choice.input[2] = name


def _guarded(
    softmax: onnx.NodeProto, renamed: dict[str, str], graph: onnx.GraphProto
) -> list[onnx.NodeProto]:
    """``where(isnan(weights), 0, weights)``."""
    weights = softmax.output[0]
    known = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.output)}
    dtype = helper.tensor_dtype_to_np_dtype(known.get(weights, onnx.TensorProto.FLOAT))
    graph.initializer.append(numpy_helper.from_array(np.zeros((), dtype), f"{weights}.zero"))
    renamed[weights] = f"{weights}.guarded"
    made = [
        helper.make_node("IsNaN", [weights], [f"{weights}.nan"]),
        helper.make_node("Where", [f"{weights}.nan", f"{weights}.zero", weights], [f"{weights}.guarded"]),
    ]
    for node in made:
        node.metadata_props.extend(softmax.metadata_props)
    return made
