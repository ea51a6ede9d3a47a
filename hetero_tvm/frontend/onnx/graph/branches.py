"""Branches of an If that a run decides: cleaned as models of their own, and put back into the node.

A loop that stays one is taken out of its branch, since its rounds are functions that only the graph calls:
what comes before it becomes an If of its own, whose other branch gives zeros; the loop begins if the branch
is taken; and what comes behind it stays a branch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence

import onnx
from onnx import helper

from hetero_tvm.errors import UnsupportedOperatorError, shortened
from hetero_tvm.frontend.onnx.graph.constants import (
    ONNX_DOMAINS,
    ConstantPool,
    Types,
    node_inputs,
    tensor_type,
)
from hetero_tvm.frontend.onnx.graph.nodes import copy_nodes, give_results, set_nodes
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
            _refuse_rows(node, graphs)
            inner = {side: _put_back(node, side, graph, pool) for side, graph in graphs.items()}
            for side in _SIDES:
                nodes += _taken_out(node, side, inner[side], pool)
            node = helper.make_node("If", node.input, node.output, node.name, _CLEANED, **inner)
            found = True
        nodes.append(node)
    if found:
        set_nodes(model.graph, nodes)
    return found


def _refuse_rows(node: onnx.NodeProto, branches: Mapping[str, StoredModel]) -> None:
    """Refuse loops that stay loops within a branch and give rows: of no rounds, there would be none."""
    loops = [
        f"node {inner.name!r} (Loop) in {side}"
        for side, branch in branches.items()
        for inner in branch.proto.graph.node
        if inner.op_type == "Loop" and len(inner.output) > len(inner.input) - 2
    ]
    if loops:
        raise UnsupportedOperatorError(
            f"Branches of node {node.name!r} (If) hold loops of many rounds that give rows.",
            problems=shortened(loops),
            hint="Move the loop before the If.",
        )


def _taken_out(
    node: onnx.NodeProto, side: str, branch: onnx.GraphProto, pool: ConstantPool
) -> list[onnx.NodeProto]:
    """Nodes before an If for the loops of a branch, which keeps what is behind the last of them."""
    nodes: list[onnx.NodeProto] = []
    for number in itertools.count():
        place = next((n for n, inner in enumerate(branch.node) if inner.op_type == "Loop"), None)
        if place is None:
            break
        before, behind = branch.node[:place], branch.node[place + 1 :]
        prefix = f"{node.name}/{side}/taken_out_{number}"
        read = {name for inner in branch.node[place:] for name in node_inputs(inner)}
        read |= {value.name for value in branch.output}
        made = [name for inner in before for name in inner.output if name in read]
        _share_constants(branch, read.union(*map(node_inputs, before)), pool)
        if made:
            known = {v.name: v for v in (*branch.value_info, *branch.output)}
            results = [known[name] for name in made]
            taken = onnx.GraphProto(name=f"{prefix}/before", node=before, value_info=branch.value_info)
            give_results(taken, made, f"{prefix}/before")
            graphs = [taken, _zeros(results, f"{prefix}/instead")]
            inner = dict(zip(_SIDES if side == _SIDES[0] else _SIDES[::-1], graphs, strict=True))
            nodes.append(helper.make_node("If", node.input, made, f"{prefix}/before", _CLEANED, **inner))
        nodes += _begun(node, side, branch.node[place], prefix)
        set_nodes(branch, behind)
    return nodes


def _begun(node: onnx.NodeProto, side: str, loop: onnx.NodeProto, prefix: str) -> list[onnx.NodeProto]:
    """A loop that runs if a branch is taken."""
    shape = helper.make_tensor(f"{prefix}/shape", onnx.TensorProto.INT64, [0], [])
    nodes = [
        helper.make_node("Constant", [], [shape.name], shape.name, value=shape),
        helper.make_node(
            "Reshape", [node.input[0], shape.name], [f"{prefix}/condition"], f"{prefix}/condition"
        ),
    ]
    runs = nodes[-1].output[0]
    if side != _SIDES[0]:
        nodes.append(helper.make_node("Not", [runs], [f"{prefix}/not"], f"{prefix}/not"))
        runs = nodes[-1].output[0]
    if loop.input[1]:
        nodes.append(helper.make_node("And", [loop.input[1], runs], [f"{prefix}/runs"], f"{prefix}/runs"))
        runs = nodes[-1].output[0]
    copy = onnx.NodeProto.FromString(loop.SerializeToString())
    copy.input[1] = runs
    return [*nodes, copy]


def _share_constants(branch: onnx.GraphProto, names: Collection[str], pool: ConstantPool) -> None:
    """Make constants of a branch the model's, which all its parts can read."""
    kept = []
    for tensor in branch.initializer:
        if tensor.name in names:
            pool.add_tensor(onnx.TensorProto.FromString(tensor.SerializeToString()))
        else:
            kept.append(onnx.TensorProto.FromString(tensor.SerializeToString()))
    del branch.initializer[:]
    branch.initializer.extend(kept)


def _zeros(values: Sequence[onnx.ValueInfoProto], name: str) -> onnx.GraphProto:
    """A graph that gives zeros of these types and shapes."""
    graph = onnx.GraphProto(name=name)
    for place, value in enumerate(values):
        element, shape = tensor_type(value.type.tensor_type)
        result = f"{name}/result_{place}"
        if shape:
            sizes = helper.make_tensor(f"{name}/shape_{place}", onnx.TensorProto.INT64, [len(shape)], shape)
            zero = helper.make_tensor("zero", element, [1], [0])
            graph.initializer.append(sizes)
            made = helper.make_node("ConstantOfShape", [sizes.name], [result], result, value=zero)
        else:
            zero = helper.make_tensor("zero", element, [], [0])
            made = helper.make_node("Constant", [], [result], result, value=zero)
        graph.node.append(made)
        graph.output.append(helper.make_tensor_value_info(result, element, shape))
    return graph


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
