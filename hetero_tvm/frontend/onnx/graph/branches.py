"""Branches of an If that a run decides: cleaned as models of their own, and put back into the node."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx
from onnx import helper

from hetero_tvm.errors import UnsupportedOperatorError, shortened
from hetero_tvm.frontend.onnx.graph.constants import (
    ONNX_DOMAINS,
    ConstantPool,
    Types,
    node_inputs,
)
from hetero_tvm.frontend.onnx.graph.nodes import all_nodes, copy_nodes, give_results, set_nodes
from hetero_tvm.frontend.stored import StoredModel, is_stub, stub
from hetero_tvm.host import mapped

Clean = Callable[[StoredModel], StoredModel]
"""Cleans a model of fixed shapes."""
_CLEANED = "cleaned branches"
"""Note at a node whose branches are cleaned."""
_SIDES = ("then_branch", "else_branch")


def is_cleaned(node: onnx.NodeProto) -> bool:
    """Whether a node is an If whose branches are cleaned."""
    return node.op_type == "If" and node.doc_string == _CLEANED


def clean_branches(model: onnx.ModelProto, types: Types, pool: ConstantPool, cleaned: Clean) -> bool:
    """Clean the branches of each If that reads tensors of known shapes; returns whether there were any.

    Raises
    ------
    HeteroTVMError : what a branch computes has no translation, as in the graph itself.
    """
    nodes, found = [], False
    for node in model.graph.node:
        parts = {} if is_cleaned(node) or not _is_choice(node) else _parts(node, model, types, pool)
        if parts:
            graphs = {side: cleaned(part) for side, part in parts.items()}
            _refuse_loops(node, graphs)
            inner = {side: _put_back(node, side, graph, pool) for side, graph in graphs.items()}
            node = helper.make_node("If", node.input, node.output, node.name, _CLEANED, **inner)
            found = True
        nodes.append(node)
    if found:
        set_nodes(model.graph, nodes)
    return found


def _refuse_loops(node: onnx.NodeProto, branches: Mapping[str, StoredModel]) -> None:
    """Refuse loops that stay loops within a branch: their rounds are functions that only the graph calls."""
    loops = [
        f"node {inner.name!r} (Loop) in {side}"
        for side, branch in branches.items()
        for inner in all_nodes(branch.proto.graph)
        if inner.op_type == "Loop"
    ]
    if loops:
        raise UnsupportedOperatorError(
            f"Branches of node {node.name!r} (If) hold loops of many rounds, or of rounds that values end.",
            problems=shortened(loops),
            hint="Move the loop before the If, or let it begin with the If's condition.",
        )


def _is_choice(node: onnx.NodeProto) -> bool:
    return node.op_type == "If" and node.domain in ONNX_DOMAINS


def _parts(
    node: onnx.NodeProto, model: onnx.ModelProto, types: Types, pool: ConstantPool
) -> dict[str, StoredModel]:
    """Both branches as models; none where something that one reads or gives is no tensor of known shape."""
    graphs = {a.name: a.g for a in node.attribute if a.name in _SIDES}
    parts = {}
    for side in _SIDES:
        part = _as_model(f"{node.name}/{side}", graphs[side], model, types, pool)
        if part is None:
            return {}
        parts[side] = part
    return parts


def _as_model(
    name: str, branch: onnx.GraphProto, model: onnx.ModelProto, types: Types, pool: ConstantPool
) -> StoredModel | None:
    """A branch as a model, whose inputs are what lies around it; None where that has no known shape."""
    if any(value.type.WhichOneof("value") not in (None, "tensor_type") for value in branch.output):
        return None
    graph = onnx.GraphProto(name=name, node=branch.node, initializer=branch.initializer)
    makers = {output for node in branch.node for output in node.output}
    own = makers | {tensor.name for tensor in branch.initializer}
    results = [value.name for value in branch.output]
    large = {}
    for read in sorted({n for node in branch.node for n in node_inputs(node)}.union(results) - own):
        if read not in pool:
            shape = pool.shape(read, types)
            if shape is None:
                return None
            graph.input.append(helper.make_tensor_value_info(read, types[read][0], shape))
        elif pool.nbytes(read) >= mapped.LARGE:
            large[read] = pool.array(read)
            graph.initializer.append(stub(read, *pool.type_of(read)))
        else:
            graph.initializer.append(pool.tensor(read))
    give_results(graph, results, name)
    part = onnx.ModelProto(ir_version=model.ir_version, graph=graph)
    part.opset_import.extend(model.opset_import)
    return StoredModel(part, large)


def _put_back(node: onnx.NodeProto, side: str, clean: StoredModel, pool: ConstantPool) -> onnx.GraphProto:
    """A cleaned branch, with names that are nobody else's; large constants are the model's."""
    graph, prefix = clean.proto.graph, f"{node.name}/{side}"
    inner, alias = onnx.GraphProto(name=prefix), {}
    for tensor in graph.initializer:
        if is_stub(tensor):
            if tensor.name not in pool:
                alias[tensor.name] = f"{prefix}/{tensor.name}"
                pool.add_array(alias[tensor.name], clean.array(tensor))
            continue
        alias[tensor.name] = f"{prefix}/{tensor.name}"
        own = inner.initializer.add()
        own.CopyFrom(tensor)
        own.name = alias[tensor.name]
    copy_nodes(graph, inner, alias, prefix)
    return inner
