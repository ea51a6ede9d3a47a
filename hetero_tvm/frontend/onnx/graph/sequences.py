"""Elements of sequences that the graph makes: ONNX infers no shapes of what comes out of a sequence."""

from __future__ import annotations

import onnx

from hetero_tvm.frontend.onnx.graph.constants import ONNX_DOMAINS, ConstantPool


def settle_elements(graph: onnx.GraphProto, pool: ConstantPool) -> bool:
    """Let the tensor that was put in stand for what SequenceAt takes out; whether there was any.

    PyTorch's tracing exporter writes ``tensor_split`` as a loop that puts slices into a sequence.
    """
    makers = {name: node for node in graph.node for name in node.output}
    changed = False
    for node in graph.node:
        if node.op_type != "SequenceAt" or node.domain not in ONNX_DOMAINS:
            continue
        elements = _elements(node.input[0], makers, pool)
        place = _place(node, 1, len(elements or ()), pool)
        if elements is None or place is None or not 0 <= place < len(elements):
            continue
        node.op_type, node.input[:] = "Identity", [elements[place]]
        changed = True
    return changed


def _elements(name: str, makers: dict[str, onnx.NodeProto], pool: ConstantPool) -> list[str] | None:
    """Tensors of a sequence, where they are known."""
    steps: list[onnx.NodeProto] = []
    node = makers.get(name)
    while node is not None and node.op_type in ("Identity", "SequenceInsert", "SequenceErase"):
        steps.append(node)
        node = makers.get(node.input[0])
    if node is None or node.op_type not in ("SequenceEmpty", "SequenceConstruct"):
        return None
    elements = list(node.input)
    for step in reversed(steps):
        if step.op_type == "Identity":
            continue
        inserts = step.op_type == "SequenceInsert"
        last = len(elements) - (not inserts)
        place = _place(step, 1 + inserts, len(elements), pool, last)
        if place is None or not 0 <= place <= last:
            return None
        if inserts:
            elements.insert(place, step.input[1])
        else:
            del elements[place]
    return elements


def _place(
    node: onnx.NodeProto, index: int, count: int, pool: ConstantPool, default: int | None = None
) -> int | None:
    """Place in a sequence of ``count`` that an input says, from its beginning; None where it is unknown."""
    name = node.input[index] if index < len(node.input) else ""
    if not name:
        return default
    if name not in pool or pool.array(name).size != 1:
        return None
    place = int(pool.array(name).reshape(()))
    return place + count if place < 0 else place
