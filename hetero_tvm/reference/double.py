"""Conversion of an ONNX model to float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def without_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model without its initializers."""
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    del model.graph.initializer[:]
    return model


def to_double(proto: onnx.ModelProto, outputs: Sequence[str] | None = None) -> onnx.ModelProto:
    """Convert all floats of a model to float64 (inputs, constants, casts), but for its initializers.

    These are left out: as protobuf they would be copied several times.  ``outputs`` names the tensors to
    return, by default the model's own outputs.  Values stay what they were (masks of finfo(float32).min,
    rounded constants): only arithmetic becomes finer.
    """
    model = onnx.ModelProto(ir_version=proto.ir_version)
    model.opset_import.extend(proto.opset_import)
    _double_graph(proto.graph, model.graph)
    if outputs is not None:
        del model.graph.output[:]
        model.graph.output.extend(helper.make_value_info(name, onnx.TypeProto()) for name in outputs)
    return model


def _double_graph(source: onnx.GraphProto, result: onnx.GraphProto) -> None:
    """Copy a graph without its initializers."""
    result.name = source.name
    result.input.extend(_double_value(value) for value in source.input)
    result.output.extend(_double_value(value) for value in source.output)
    for node in source.node:
        if node.op_type == "BitCast":
            result.node.extend(_double_bit_cast(node, source))
            continue
        copy = result.node.add()
        copy.CopyFrom(node)
        _double_node(copy)


def _double_bit_cast(node: onnx.NodeProto, graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The bits of a value in the type that the file gives it, which are none of its bits as float64."""
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    types |= {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.value_info)}
    (x,), (y,) = node.input, node.output
    wanted, nodes = next(a.i for a in node.attribute if a.name == "to"), []
    if types.get(x) in _FLOATS:
        nodes.append(helper.make_node("Cast", [x], [f"{y}/narrow"], to=types[x]))
        x = f"{y}/narrow"
    if wanted not in _FLOATS:
        return [*nodes, helper.make_node("BitCast", [x], [y], name=node.name, to=wanted)]
    bits = helper.make_node("BitCast", [x], [f"{y}/bits"], name=node.name, to=wanted)
    return [*nodes, bits, helper.make_node("Cast", [f"{y}/bits"], [y], to=TensorProto.DOUBLE)]


def _double_array(tensor: TensorProto) -> np.ndarray:
    array = numpy_helper.to_array(tensor)
    return array.astype(np.float64) if tensor.data_type in _FLOATS else array


def _double_value(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(value)
    if copy.type.tensor_type.elem_type in _FLOATS:
        copy.type.tensor_type.elem_type = TensorProto.DOUBLE
    return copy


def _double_tensor(tensor: TensorProto) -> TensorProto:
    if tensor.data_type not in _FLOATS:
        return tensor
    return numpy_helper.from_array(_double_array(tensor), tensor.name)


def _double_node(node: onnx.NodeProto) -> None:
    if node.op_type == "Constant" and any(a.name in ("value_float", "value_floats") for a in node.attribute):
        attribute = node.attribute[0]
        value = np.array(attribute.f if attribute.name == "value_float" else attribute.floats, np.float64)
        node.attribute[0].CopyFrom(helper.make_attribute("value", numpy_helper.from_array(value)))
        return
    if node.op_type == "ConstantOfShape" and not node.attribute:
        node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.zeros(1))))
    for attribute in node.attribute:
        # types named by attributes: Cast, EyeLike, SequenceEmpty, DequantizeLinear, ...
        if attribute.name in ("to", "dtype", "output_dtype") and attribute.i in _FLOATS:
            attribute.i = TensorProto.DOUBLE
        if attribute.HasField("t"):
            attribute.t.CopyFrom(_double_tensor(attribute.t))
        if attribute.HasField("g"):
            inner = onnx.GraphProto()
            _double_graph(attribute.g, inner)
            inner.initializer.extend(_double_tensor(tensor) for tensor in attribute.g.initializer)
            attribute.g.CopyFrom(inner)
