"""Forms that ONNX's converter of versions and inference of shapes get wrong, written out before."""

from __future__ import annotations

import onnx
from onnx import helper

from hetero_tvm.frontend.onnx.graph.body import Body
from hetero_tvm.frontend.onnx.graph.constants import ONNX_DOMAINS, ConstantPool, Types
from hetero_tvm.frontend.onnx.graph.nodes import inner_nodes, refusal, set_nodes


def settle_old_forms(graph: onnx.GraphProto, opset: int, types: Types) -> None:
    """Write out or refuse what ONNX's version converter would change the meaning of.

    Raises
    ------
    UnsupportedOperatorError : norms in training mode.
    """
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if node.domain not in ONNX_DOMAINS:
            pass
        elif node.op_type == "BatchNormalization":
            old = (opset < 7 and not attributes.get("is_test", 0)) or any(node.output[1:])
            if old or not attributes.get("spatial", 1):
                form = "spatial=0" if not attributes.get("spatial", 1) else "training mode"
                raise refusal(node, form, "Export the model for inference (model.eval()) with opset 17.")
        elif node.op_type == "Hardmax":
            nodes += _flattened(node, int(attributes.get("axis", 1)), opset)
            continue
        elif node.op_type == "PRelu" and opset < 7:
            nodes += _by_channel(node, opset)
            continue
        elif node.op_type == "Dropout" and 7 <= opset < 10 and any(node.output[1:]):
            nodes += _numbered_mask(node, types)
            continue
        nodes.append(node)
    if len(nodes) > len(graph.node):
        set_nodes(graph, nodes)


def settle_axes(graph: onnx.GraphProto, types: Types, pool: ConstantPool) -> bool:
    """Keep the axes that operands have of those a normalization names; returns whether others went.

    Its default, (0, 2, 3), is that of images.  ONNX Runtime drops what vectors and sequences lack of it;
    ONNX's inference of shapes stops there.
    """
    changed = False
    for node in (*graph.node, *inner_nodes(graph)):
        if node.op_type != "MeanVarianceNormalization" or node.domain not in ONNX_DOMAINS:
            continue
        shape = pool.type_of(node.input[0]) if node.input[0] in pool else types.get(node.input[0])
        for attribute in node.attribute:
            if attribute.name == "axes" and shape is not None and shape[1] is not None:
                kept = [axis for axis in attribute.ints if axis < len(shape[1])]
                if len(kept) < len(attribute.ints):
                    attribute.CopyFrom(
                        helper.make_attribute("axes", kept, attr_type=onnx.AttributeProto.INTS)
                    )
                    changed = True
    return changed


def _flattened(node: onnx.NodeProto, axis: int, opset: int) -> list[onnx.NodeProto]:
    """A Hardmax from before opset 13: over all axes from ``axis`` on."""
    b = Body(node, opset)
    shape = b.op("Shape", node.input[0])
    flat = b.op("Hardmax", b.op("Flatten", node.input[0], axis=axis), axis=1)
    b.op("Reshape", flat, shape, output=node.output[0])
    return b.nodes


def _numbered_mask(node: onnx.NodeProto, types: Types) -> list[onnx.NodeProto]:
    """A Dropout from before opset 10, whose mask has the type of the data: the converter makes it boolean."""
    mask = node.output[1]
    if mask not in types:
        return [node]
    node.output[1] = f"{mask}/kept"
    cast = helper.make_node("Cast", [node.output[1]], [mask], name=f"{node.name}/mask", to=types[mask][0])
    return [node, cast]


def _by_channel(node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
    """A PRelu from before opset 7, when slopes were of channels and nothing was broadcast to another rank."""
    b = Body(node, opset)

    def reshaped(x: str, extents: list[int]) -> str:
        if opset < 5:
            return b.op("Reshape", x, shape=extents)
        return b.op("Reshape", x, b.const(extents, "int64"))

    shape = b.op("Shape", node.input[0])
    flat = b.op("PRelu", reshaped(node.input[0], [0, 0, -1]), reshaped(node.input[1], [-1, 1]))
    b.op("Reshape", flat, shape, output=node.output[0])
    return b.nodes
