"""Branches that keep an empty tensor from operators that refuse one, as detectors have before suppression."""

from __future__ import annotations

import math

import onnx

from hetero_tvm.frontend.onnx.graph.constants import ConstantPool
from hetero_tvm.frontend.onnx.graph.nodes import in_its_place, set_nodes


def drop_guards(graph: onnx.GraphProto, pool: ConstantPool) -> bool:
    """Let the other branch stand for "nothing, where x is empty"; whether there was such an If.

    PyTorch's ``batched_nms`` asks whether there are boxes, since a maximum of none is an error.  Where boxes
    are counted there is none: of no box that counts, suppression keeps none, which is what the If would give.
    """
    makers = {name: node for node in graph.node for name in node.output}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        other = _unguarded(node, makers, pool)
        if other is None:
            nodes.append(node)
            continue
        nodes += in_its_place(node, other)
        for tensor in other.initializer:
            pool.add_tensor(tensor)
    if len(nodes) == len(graph.node):
        return False
    set_nodes(graph, nodes)
    return True


def _unguarded(
    node: onnx.NodeProto, makers: dict[str, onnx.NodeProto], pool: ConstantPool
) -> onnx.GraphProto | None:
    """Branch that an If takes where a tensor has elements, if the other one gives none."""
    if node.op_type != "If":
        return None
    branches = {a.name: a.g for a in node.attribute}
    asked = _asked_for_elements(node.input[0], makers, pool)
    nothing, other = branches.get("then_branch"), branches.get("else_branch")
    if asked is None or nothing is None or other is None or not _gives_nothing(nothing):
        return None
    # Without elements a suppression keeps nothing; of other operators that is not known.
    suppresses = any(inner.op_type == "NonMaxSuppression" for inner in other.node)
    reads = any(asked in inner.input for inner in other.node)
    return other if suppresses and reads and len(other.output) == len(node.output) else None


def _asked_for_elements(condition: str, makers: dict[str, onnx.NodeProto], pool: ConstantPool) -> str | None:
    """Tensor of which a condition says that it has no elements."""

    def made_by(name: str, *kinds: str) -> onnx.NodeProto | None:
        node = makers.get(name)
        while node is not None and node.op_type in ("Cast", "Identity") and node.op_type not in kinds:
            node = makers.get(node.input[0])
        return node if node is not None and node.op_type in kinds else None

    equal = made_by(condition, "Equal")
    if equal is None:
        return None
    numbers = [pool.array(name) if name in pool else None for name in equal.input]
    counted = [name for name, number in zip(equal.input, numbers, strict=True) if number is None]
    known = [number for number in numbers if number is not None]
    if len(counted) != 1 or known[0].size != 1 or known[0].reshape(-1)[0] != 0:
        return None
    size = made_by(counted[0], "Size", "ReduceProd")
    if size is not None and size.op_type == "ReduceProd":
        size = made_by(size.input[0], "Shape")
        if size is not None and size.attribute:
            return None  # of some of its axes
    return None if size is None else size.input[0]


def _gives_nothing(branch: onnx.GraphProto) -> bool:
    """Whether the results of a branch are constants without elements."""
    empty = {tensor.name for tensor in branch.initializer if math.prod(tensor.dims) == 0}
    for node in branch.node:
        values = [a.t for a in node.attribute if a.name == "value"]
        if node.op_type == "Constant" and len(values) == 1 and math.prod(values[0].dims) == 0:
            empty.update(node.output)
    return all(value.name in empty for value in branch.output)
