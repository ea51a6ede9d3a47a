"""Forms that ONNX's converter of versions and inference of shapes get wrong, written out before."""

from __future__ import annotations

import itertools

import onnx
from onnx import helper

from hetero_tvm.frontend.onnx.graph.body import Body
from hetero_tvm.frontend.onnx.graph.constants import ONNX_DOMAINS, ConstantPool, Types, subgraphs
from hetero_tvm.frontend.onnx.graph.nodes import (
    all_nodes,
    drop_attributes,
    give_attributes,
    refusal,
    set_nodes,
)

_POOLS = ("MaxPool", "AveragePool", "LpPool")
_FIRST_RIGHT_CEIL = 22
"""Opset from which on ONNX infers the extents of pools that round up as they are."""
_FIRST_SCAN_WITHOUT_BATCH = 9
"""Opset from which on ONNX's converter leaves the inputs of a Scan as they are."""


def settle_old_forms(graph: onnx.GraphProto, opset: int, types: Types) -> None:
    """Write out or refuse what ONNX's version converter would change the meaning of, in subgraphs too.

    Raises
    ------
    UnsupportedOperatorError : norms in training mode.
    """
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        for inner in itertools.chain.from_iterable(map(subgraphs, node.attribute)):
            settle_old_forms(inner, opset, types)
        if node.domain not in ONNX_DOMAINS:
            pass
        elif node.op_type == "BatchNormalization":
            if any(node.output[1:]):
                hint = "Export the model for inference (model.eval()) with opset 17."
                raise refusal(node, "training mode", hint)
            if not attributes.get("spatial", 1):
                nodes += _flat_norm(node, opset)
                continue
        elif node.op_type == "Hardmax":
            nodes += _flattened(node, int(attributes.get("axis", 1)), opset)
            continue
        elif node.op_type == "Scan" and opset < _FIRST_SCAN_WITHOUT_BATCH:
            hint = "Export the model with opset 9 or later."
            raise refusal(node, "an axis of batches (opset 8)", hint)
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
    for node in all_nodes(graph):
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


def settle_pools(graph: onnx.GraphProto, types: Types, opset: int) -> bool:
    """Say by pads where the windows of pools that round up end; returns whether any pool changed.

    A last window that would begin in the end pads is none, for ONNX Runtime and PyTorch.  ONNX's inference of
    shapes counts it before opset 22, and the reference evaluator does not.
    """
    changed = False
    for node in all_nodes(graph):
        if opset >= _FIRST_RIGHT_CEIL or node.op_type not in _POOLS or node.domain not in ONNX_DOMAINS:
            continue
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        shape = types.get(node.input[0], (0, None))[1]
        kernel = attributes.get("kernel_shape", ())
        padded = attributes.get("auto_pad", b"NOTSET") in (b"NOTSET", b"")
        if not attributes.get("ceil_mode", 0) or not padded or shape is None or len(shape) != 2 + len(kernel):
            continue
        ones = [1] * len(kernel)
        strides, dilations = attributes.get("strides", ones), attributes.get("dilations", ones)
        pads = list(attributes.get("pads", [0] * 2 * len(kernel)))
        before, after = pads[: len(kernel)], pads[len(kernel) :]
        axes = list(zip(shape[2:], kernel, strides, dilations, before, after, strict=True))
        if not all(isinstance(axis[0], int) and axis[0] > 0 for axis in axes):
            continue
        ends = [_last_window(*axis) for axis in axes]
        rest = [0 if in_pads else beyond for in_pads, beyond in ends]
        if not any(in_pads for in_pads, _ in ends) or (any(rest) and attributes.get("count_include_pad", 0)):
            continue  # a mean counts pads, and what lies beyond them it does not
        drop_attributes(node, "ceil_mode")
        wider = [end + more for end, more in zip(after, rest, strict=True)]
        give_attributes(node, pads=[*before, *wider])
        changed = True
    return changed


def _last_window(
    extent: int, taps: int, stride: int, dilation: int, before: int, after: int
) -> tuple[bool, int]:
    """Whether the last window, rounded up, begins behind the pads before and what is pooled; places behind
    the end pads that it covers."""
    room = extent + before + after - dilation * (taps - 1) - 1
    return -(-room // stride) * stride >= extent + before, -room % stride


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


def _flat_norm(node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
    """A BatchNormalization whose statistics are those of single features, not of channels."""
    b = Body(node, opset)
    x, scale, shift, mean, variance = (b.input(n) for n in range(5))
    deviation = b.op("Sqrt", b.op("Add", variance, b.const(float(b.attributes.get("epsilon", 1e-5)))))
    normal = b.op("Div", b.op("Sub", x, mean), deviation)
    b.op("Add", b.op("Mul", normal, scale), shift, output=node.output[0])
    return b.nodes
