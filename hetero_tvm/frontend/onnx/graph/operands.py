"""Nodes with very many operands, written as trees of nodes with few."""

from __future__ import annotations

import onnx
from onnx import helper

from hetero_tvm.errors import ModelError
from hetero_tvm.frontend.onnx.graph.constants import ONNX_DOMAINS, subgraphs
from hetero_tvm.frontend.onnx.graph.nodes import set_nodes

_MOST = 128
"""Operands of one node: a kernel of many hundred compiles for minutes, or beyond the stack."""
_GROUP = 64
"""Operands of the nodes that replace it."""
_MOST_COMPUTED = 1 << 14
"""Operands of one node that are no constants: beyond, what joins them compiles for many minutes."""
_ASSOCIATIVE = frozenset({"Concat", "Max", "Min", "Sum"})


def settle_operands(graph: onnx.GraphProto) -> bool:
    """Let nodes that join very many operands join groups of them first, in subgraphs too; whether any did.

    Raises
    ------
    ModelError : a node has more operands than there is time to compile.
    """
    nodes: list[onnx.NodeProto] = []
    inner = False
    for node in graph.node:
        for attribute in node.attribute:
            for body in subgraphs(attribute):
                inner |= settle_operands(body)
        if len(node.input) > _MOST_COMPUTED:
            _refuse_more(node, graph)
        wide = node.domain in ONNX_DOMAINS and len(node.input) > _MOST
        nodes += _tree(node) if wide and node.op_type in _ASSOCIATIVE else [node]
    changed = len(nodes) > len(graph.node)
    if changed:
        set_nodes(graph, nodes)
    return changed or inner


def _refuse_more(node: onnx.NodeProto, graph: onnx.GraphProto) -> None:
    constants = {tensor.name for tensor in graph.initializer}
    constants |= {other.output[0] for other in graph.node if other.op_type == "Constant"}
    count = sum(name not in constants for name in node.input)
    if count > _MOST_COMPUTED:
        raise ModelError(
            f"Node {node.name or node.output[0]!r} ({node.op_type}) has {count:,} operands; at most "
            f"{_MOST_COMPUTED:,} that are no constants are supported.",
            hint="Export the model with them in one tensor (instead of the parts of a Split, its input).",
        )


def _tree(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Nodes of a group of operands each, and so on, and the node itself over what they give."""
    operands, nodes = list(node.input), []
    while len(operands) > _MOST:
        groups = [operands[n : n + _GROUP] for n in range(0, len(operands), _GROUP)]
        operands = []
        for group in groups:
            part = f"{node.output[0]}/part_{len(nodes)}"
            made = helper.make_node(node.op_type, group, [part], name=f"{node.name}/part_{len(nodes)}")
            made.domain = node.domain
            made.attribute.extend(node.attribute)
            nodes.append(made)
            operands.append(part)
    last = onnx.NodeProto.FromString(node.SerializeToString())
    last.input[:] = operands
    return [*nodes, last]
