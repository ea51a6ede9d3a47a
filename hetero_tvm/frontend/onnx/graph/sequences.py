"""Elements of sequences that the graph makes: ONNX infers no shapes of what comes out of a sequence."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from hetero_tvm.frontend.onnx.graph.body import Body
from hetero_tvm.frontend.onnx.graph.constants import ONNX_DOMAINS, ConstantPool, Types


def settle_elements(graph: onnx.GraphProto, pool: ConstantPool) -> bool:
    """Let the tensor that was put in stand for what SequenceAt takes out, and a constant for the number of
    tensors; returns whether there was any.

    PyTorch's tracing exporter writes ``tensor_split`` as a loop that puts slices into a sequence; SequenceMap
    is a loop over the length of its sequence.
    """
    makers = {name: node for node in graph.node for name in node.output}
    changed = False
    for node in graph.node:
        if node.op_type not in ("SequenceAt", "SequenceLength") or node.domain not in ONNX_DOMAINS:
            continue
        elements = _elements(node.input[0], makers, pool)
        if node.op_type == "SequenceLength":
            if elements is not None:
                length = numpy_helper.from_array(np.array(len(elements), np.int64))
                node.op_type, node.input[:] = "Constant", []
                node.attribute.append(onnx.helper.make_attribute("value", length))
                changed = True
            continue
        place = _place(node, 1, len(elements or ()), pool)
        if elements is None or place is None or not 0 <= place < len(elements):
            continue
        node.op_type, node.input[:] = "Identity", [elements[place]]
        changed = True
    return changed


def split_up(
    node: onnx.NodeProto, opset: int, types: Types, pool: ConstantPool
) -> list[onnx.NodeProto] | None:
    """SequenceConstruct of the parts that SplitToSequence gives; None where their sizes depend on values."""
    b = Body(node, opset)
    shape, sizes = pool.shape(b.input(0), types), b.input(1)
    if opset < 13 or not shape or (sizes and sizes not in pool):
        return None
    axis = int(b.attributes.get("axis", 0)) % len(shape)
    given = pool.array(sizes) if sizes else np.array(1)
    if given.ndim == 0:
        size = int(given)
        if size < 1:
            return None
        extents = [min(size, shape[axis] - start) for start in range(0, shape[axis], size)]
    else:
        extents = [int(extent) for extent in given]
    if not extents or sum(extents) != shape[axis] or min(extents) < 0:
        return None  # what has no parts, or others than it has elements
    parts = b.split(b.input(0), axis, extents) if len(extents) > 1 else [b.input(0)]
    if not sizes and not b.attributes.get("keepdims", 1):
        parts = [b.op("Squeeze", part, b.const([axis], "int64")) for part in parts]
    b.op("SequenceConstruct", *parts, output=node.output[0])
    return b.nodes


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
