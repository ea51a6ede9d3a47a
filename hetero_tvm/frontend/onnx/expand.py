"""Operators that become plain ones as soon as the shapes of their inputs are known.

A new operator is one function and one entry in ``SHAPED``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx

from hetero_tvm.errors import UnsupportedOperatorError, shortened
from hetero_tvm.frontend.onnx.bodies.cells import CELLS
from hetero_tvm.frontend.onnx.bodies.recurrent import KERNEL, recurrent
from hetero_tvm.frontend.onnx.bodies.transforms import col2im, dft, reverse_sequence, stft
from hetero_tvm.frontend.onnx.graph.constants import ONNX_DOMAINS, ConstantPool, Types
from hetero_tvm.frontend.onnx.graph.nodes import named, set_nodes

Expansion = Callable[[onnx.NodeProto, int, Types, ConstantPool], "list[onnx.NodeProto] | None"]
"""Writes a node out (node, opset, types, constants -> nodes), or gives None while shapes are missing."""

SHAPED: dict[str, Expansion] = {
    **dict.fromkeys(CELLS, recurrent),
    "Col2Im": col2im,
    "DFT": dft,
    "ReverseSequence": reverse_sequence,
    "STFT": stft,
}


def expand_shaped(graph: onnx.GraphProto, types: Types, pool: ConstantPool, opset: int) -> bool:
    """Replace the nodes that have an entry in ``SHAPED``; returns whether any could be replaced.

    Raises
    ------
    UnsupportedOperatorError, ModelError : see the single functions.
    """
    return write_out(graph, SHAPED, types, pool, opset)


def write_out(
    graph: onnx.GraphProto, table: Mapping[str, Expansion], types: Types, pool: ConstantPool, opset: int
) -> bool:
    """Replace the nodes that the expansions of a table write out; returns whether there were any."""
    nodes: list[onnx.NodeProto] = []
    found = False
    for node in graph.node:
        expansion = table.get(node.op_type) if node.domain in ONNX_DOMAINS else None
        with named(node):
            written = expansion(node, opset, types, pool) if expansion else None
        found = found or written is not None
        nodes += [node] if written is None else written
    if found:
        set_nodes(graph, nodes)
    return found


def refuse_shapeless(graph: onnx.GraphProto) -> None:
    """Refuse nodes that :func:`expand_shaped` has left; lists them."""
    left = [
        node
        for node in graph.node
        if node.op_type in SHAPED and node.domain in ONNX_DOMAINS and node.doc_string != KERNEL
    ]
    if left:
        kinds = ", ".join(sorted({node.op_type for node in left}))
        raise UnsupportedOperatorError(
            f"The shapes that {kinds} must know (the length of a sequence, weights) depend on values.",
            problems=shortened([f"node {node.name!r} ({node.op_type})" for node in left]),
            hint="Fix the model's inputs with --shape, or export it with fixed shapes.",
        )
