"""Nodes of opsets before 7 in the form of opset 7.

ONNX's converter does not know all of these operators, infers no shapes of them, and spreads the second of two
operands along other axes than the file says.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, shape_inference

from hetero_tvm.frontend.onnx.definitions import with_constants, write_defaults
from hetero_tvm.frontend.onnx.graph.constants import ONNX_DOMAINS, ConstantPool
from hetero_tvm.frontend.onnx.graph.nodes import (
    drop_attributes,
    give_attributes,
    inner_nodes,
    refusal,
    set_nodes,
)

_OPSET = 7
_OPSET_OF_NONE = 17
"""Opset of a model of other domains' operators alone, which names none of ONNX's."""
_HINT = "Export the model with opset 17."
_LOGICAL = ("And", "Or", "Xor", "Less", "Greater", "Equal")
_BINARY = ("Add", "Sub", "Mul", "Div", "Pow", *_LOGICAL)
_GONE = {
    **dict.fromkeys((*_BINARY, "Gemm"), ("axis", "broadcast")),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), ("output_sequence",)),
    **dict.fromkeys(("BatchNormalization", "Dropout"), ("is_test",)),
}
"""Attributes that opset 7 has no more, and that say what is done anyway."""


def to_opset_7(model: onnx.ModelProto, pool: ConstantPool, opset: int) -> None:
    """Write the nodes of a model of an older opset as those of opset 7, in place.

    Raises
    ------
    UnsupportedOperatorError : a node has a form that no constant or known rank settles.
    """
    if opset >= _OPSET:
        return
    if not any(each.domain in ONNX_DOMAINS for each in model.opset_import):  # no node is one of ONNX's own
        model.opset_import.append(helper.make_opsetid("", _OPSET_OF_NONE))
        return
    axes: dict[str, int] = {}
    nodes = [(node, False) for node in model.graph.node]
    nodes += [(node, True) for node in inner_nodes(model.graph.node)]
    for node, inside in nodes:
        if node.domain not in ONNX_DOMAINS:
            continue
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type in _BINARY and attributes.get("broadcast", 0) and "axis" in attributes:
            axes[node.output[0]] = int(attributes["axis"])
        elif node.op_type == "PRelu":
            axes[node.output[0]] = 1
        if inside and (node.op_type == "Tile" or node.output[0] in axes):
            raise refusal(node, "operands to spread, inside of a subgraph", _HINT)
        drops = node.op_type == "Dropout" and attributes.get("ratio", 0.5) > 0
        if (node.op_type == "BatchNormalization" or drops) and not attributes.get("is_test", 0):
            raise refusal(node, "training mode", "Export the model for inference (model.eval()).")
        write = _FORMS.get(node.op_type)
        if write is not None:
            write(node, attributes, pool, opset)
        drop_attributes(node, "consumed_inputs", *_GONE.get(node.op_type, ()))
    next(o for o in model.opset_import if o.domain in ONNX_DOMAINS).version = _OPSET
    if axes or any(node.op_type == "Tile" for node in model.graph.node):
        _spread(model, pool, axes)


def _constant(node: onnx.NodeProto, index: int, pool: ConstantPool) -> np.ndarray:
    """Values of an operand, which must be a constant."""
    if node.input[index] not in pool:
        raise refusal(node, f"no constant as operand {index + 1}", _HINT)
    return pool.array(node.input[index])


def _add_operand(node: onnx.NodeProto, values: object, pool: ConstantPool) -> None:
    name = f"{node.output[0]}/operand_{len(node.input)}"
    pool.add_array(name, np.asarray(values, np.int64))
    node.input.append(name)


# Forms of single operators --------------------------------------------------------------------------
def _cast(node: onnx.NodeProto, attributes: dict, pool: ConstantPool, opset: int) -> None:
    if isinstance(to := attributes.get("to"), bytes):
        give_attributes(node, to=TensorProto.DataType.Value(to.decode().upper()))


def _concat(node: onnx.NodeProto, attributes: dict, pool: ConstantPool, opset: int) -> None:
    give_attributes(node, axis=attributes.get("axis", 1))


def _reshape(node: onnx.NodeProto, attributes: dict, pool: ConstantPool, opset: int) -> None:
    if len(node.input) == 1 and "shape" in attributes:
        drop_attributes(node, "shape")
        _add_operand(node, attributes["shape"], pool)


def _pad(node: onnx.NodeProto, attributes: dict, pool: ConstantPool, opset: int) -> None:
    if "paddings" in attributes:
        give_attributes(node, pads=attributes["paddings"])
        drop_attributes(node, "paddings")


def _split(node: onnx.NodeProto, attributes: dict, pool: ConstantPool, opset: int) -> None:
    if len(node.input) > 1:
        parts = _constant(node, 1, pool)
        give_attributes(node, split=[int(part) for part in parts.reshape(-1)])
        del node.input[1:]


def _upsample(node: onnx.NodeProto, attributes: dict, pool: ConstantPool, opset: int) -> None:
    if "height_scale" in attributes:
        give_attributes(node, scales=[1.0, 1.0, attributes["height_scale"], attributes["width_scale"]])
        drop_attributes(node, "height_scale", "width_scale")
    if attributes.get("mode") == b"bilinear":
        give_attributes(node, mode="linear")


def _whole_power(node: onnx.NodeProto, attributes: dict, pool: ConstantPool, opset: int) -> None:
    power = attributes.get("p", 2)
    if power != int(power):
        raise refusal(node, f"p={power}", _HINT)
    give_attributes(node, p=int(power))


def _defaults(node: onnx.NodeProto, attributes: dict, pool: ConstantPool, opset: int) -> None:
    write_defaults(node, opset)


_FORMS: dict[str, Callable[[onnx.NodeProto, dict, ConstantPool, int], None]] = {
    "Cast": _cast,
    "Concat": _concat,
    "GlobalLpPool": _whole_power,
    "LpPool": _whole_power,
    "Pad": _pad,
    "Reshape": _reshape,
    "Selu": _defaults,  # they had fewer digits
    "Split": _split,
    "Upsample": _upsample,
}


# Operands that are spread from an axis on -----------------------------------------------------------
def _spread(model: onnx.ModelProto, pool: ConstantPool, axes: dict[str, int]) -> None:
    """Give second operands as many dimensions of extent 1 behind theirs as the axis asks for."""
    ranks = _ranks(model, pool, axes)
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node.op_type == "Tile" and len(node.input) == 3:
            _tile(node, pool, ranks)
        axis = axes.get(node.output[0]) if node.output else None
        if axis is not None:
            whole, part = (ranks.get(name) for name in node.input[:2])
            if whole is None or part is None:
                raise refusal(node, "operands of unknown rank", _HINT)
            behind = whole - (axis if axis >= 0 else axis + whole) - part
            if behind > 0 and part:
                spread = f"{node.output[0]}/spread"
                nodes.append(
                    helper.make_node(
                        "Unsqueeze",
                        [node.input[1]],
                        [spread],
                        name=f"{node.name}/spread",
                        axes=[*range(part, part + behind)],
                    )
                )
                node.input[1] = spread
        nodes.append(node)
    if len(nodes) > len(model.graph.node):
        set_nodes(model.graph, nodes)


def _ranks(model: onnx.ModelProto, pool: ConstantPool, axes: dict[str, int]) -> dict[str, int]:
    """Ranks of tensors; results of the nodes in ``axes`` have that of their first operand."""
    light = with_constants(model, pool)
    for node in light.graph.node:
        if node.output and node.output[0] in axes:
            kind = "Cast" if node.op_type in _LOGICAL else "Identity"
            to = {"to": TensorProto.BOOL} if kind == "Cast" else {}
            node.CopyFrom(helper.make_node(kind, node.input[:1], node.output[:1], **to))
    graph = shape_inference.infer_shapes(light).graph
    known = {
        value.name: len(value.type.tensor_type.shape.dim)
        for value in (*graph.value_info, *graph.output, *graph.input)
        if value.type.tensor_type.HasField("shape")
    }
    return known | {name: len(pool.type_of(name)[1] or ()) for name in pool}


def _tile(node: onnx.NodeProto, pool: ConstantPool, ranks: dict[str, int]) -> None:
    """Repeats along one axis as repeats of all."""
    count, axis = (int(_constant(node, index, pool).item()) for index in (1, 2))
    if node.input[0] not in ranks:
        raise refusal(node, "an operand of unknown rank", _HINT)
    repeats = [1] * ranks[node.input[0]]
    repeats[axis] = count
    del node.input[1:]
    _add_operand(node, repeats, pool)
