"""Widening of models stored in half precision: float16 or bfloat16 at the ends, float32 inside.

The type that a model is stored in is no order to compute in it: accumulators and statistics are float32
everywhere, and which tensors are narrow is the choice of the target (``--precision``), by default what the
model was stored in where the target has it.  So weights become float32, exactly; inputs and outputs keep
their types behind casts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hetero_tvm.frontend.onnx.graph.constants import ConstantPool, rename_inputs, subgraphs
from hetero_tvm.host import mapped

NARROW = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}
_SHORT = {"INT4": np.int8, "INT2": np.int8, "UINT4": np.uint8, "UINT2": np.uint8}
_TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype", "output_datatype"})


def stored_type(model: onnx.ModelProto) -> str:
    """Type of most of a model's weights: ``float32``, ``float16`` or ``bfloat16``.

    A model without weights has the type of its inputs and outputs.
    """
    sizes: Counter[int] = Counter()
    for tensor in model.graph.initializer:
        sizes[tensor.data_type] += int(np.prod(tensor.dims, dtype=np.float64))
    if not any(sizes[kind] for kind in (TensorProto.FLOAT, *NARROW)):
        sizes = Counter(v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output))
    widest = max((TensorProto.FLOAT, *NARROW), key=lambda kind: sizes[kind])
    return NARROW.get(widest, "float32")


def widen_integers(graph: onnx.GraphProto, pool: ConstantPool) -> None:
    """Make bytes of constants of 4 and 2 bits that only dequantisers read; they mean the same numbers."""
    readers: dict[str, set[str]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, set()).add(node.op_type)
    for name in list(pool):
        wide = _SHORT.get(TensorProto.DataType.Name(pool.type_of(name)[0]))
        if wide is not None and readers.get(name) == {"DequantizeLinear"}:
            pool.add_array(name, pool.array(name).astype(wide))


def widen(model: onnx.ModelProto, pool: ConstantPool, kinds: Mapping[str, int] | None = None) -> None:
    """Widen ``model`` and its constants in ``pool``, in place.

    ``kinds`` : element types of tensors, which those whose bits are read must have.
    """
    graph = model.graph
    kinds = {**(kinds or {}), **{name: pool.type_of(name)[0] for name in pool}}
    widen_integers(graph, pool)
    for name in list(pool):
        if pool.type_of(name)[0] in NARROW:
            pool.add_array(name, mapped.converted(pool.array(name), np.float32))
    taken = {name for node in graph.node for name in (*node.input, *node.output)}
    taken |= {value.name for value in (*graph.input, *graph.output)} | set(pool)
    before = [_cast(value, taken, inward=True) for value in graph.input if _is_narrow(value)]
    wide = {cast.input[0]: cast.output[0] for cast in before}
    outputs = [value for value in graph.output if _is_narrow(value) and value.name not in wide]
    behind = [_cast(value, taken, inward=False) for value in outputs]
    wide |= {cast.output[0]: cast.input[0] for cast in behind}
    for cast in behind:
        if cast.output[0] in pool:  # a constant that the model returns
            pool.rename(cast.output[0], cast.input[0])
    widened: list[onnx.NodeProto] = []
    for node in graph.node:
        kind = kinds.get(node.input[0]) if node.op_type == "BitCast" else None
        rename_inputs(node, wide)
        for n, name in enumerate(node.output):
            node.output[n] = wide.get(name, name)
        if kind is None:
            _widen_attributes(node)
            widened.append(node)
        else:
            widened += _bits(node, kind, pool)
    nodes = [*before, *widened, *behind]
    del graph.node[:]
    graph.node.extend(nodes)


def _is_narrow(value: onnx.ValueInfoProto) -> bool:
    """Whether an input or output has a type of 16 bits."""
    return value.type.tensor_type.elem_type in NARROW


def _cast(value: onnx.ValueInfoProto, taken: set[str], inward: bool) -> onnx.NodeProto:
    """Make a Cast between an end of the graph and its float32 form, which gets a name of its own."""
    name = f"{value.name}_float32"
    while name in taken:
        name += "_"
    taken.add(name)
    ends = (value.name, name) if inward else (name, value.name)
    to = TensorProto.FLOAT if inward else value.type.tensor_type.elem_type
    return helper.make_node("Cast", ends[:1], ends[1:], name=f"{name}/cast", to=to)


def _bits(node: onnx.NodeProto, kind: int, pool: ConstantPool) -> list[onnx.NodeProto]:
    """A BitCast of a tensor of type ``kind``: the bits are those of the types that the file names."""
    (x,), (y,), attribute = node.input, node.output, next(a for a in node.attribute if a.name == "to")
    nodes = [node]

    def cast(source: str, to: int, suffix: str) -> onnx.NodeProto:
        made = f"{y}/{suffix}"
        return helper.make_node("Cast", [source], [made], name=f"{node.name}/{suffix}", to=to)

    if kind in NARROW:
        nodes.insert(0, cast(x, kind, "narrow"))
        node.input[0] = nodes[0].output[0]
    if attribute.i == TensorProto.FLOAT16:
        node.output[0] = f"{y}/bits"
        nodes.append(cast(node.output[0], TensorProto.FLOAT, "wide"))
        nodes[-1].output[0] = y
    elif attribute.i == TensorProto.BFLOAT16:
        # Its bits are the upper half of a float32's; TVM makes a cast of bits that are read as bfloat16.
        attribute.i, node.output[0], high = TensorProto.UINT16, f"{y}/bits", f"{y}/high"
        pool.add_array(f"{y}/65536", np.array(1 << 16, np.uint32))
        nodes.append(cast(node.output[0], TensorProto.UINT32, "wide"))
        nodes.append(helper.make_node("Mul", [nodes[-1].output[0], f"{y}/65536"], [high], name=high))
        to = TensorProto.FLOAT
        nodes.append(helper.make_node("BitCast", [high], [y], name=f"{node.name}/float", to=to))
    return nodes


def _widen_attributes(node: onnx.NodeProto) -> None:
    """Widen types and tensors in the attributes of a node, and of the nodes in its subgraphs."""
    for attribute in node.attribute:
        converts = attribute.name in _TYPE_ATTRIBUTES and node.op_type != "BitCast"
        if converts and attribute.i in NARROW:
            attribute.i = TensorProto.FLOAT
        if attribute.HasField("t"):
            _widen_tensor(attribute.t)
        for inner in subgraphs(attribute):
            for tensor in inner.initializer:
                _widen_tensor(tensor)
            for value in (*inner.input, *inner.output, *inner.value_info):
                if _is_narrow(value):
                    value.type.tensor_type.elem_type = TensorProto.FLOAT
            for child in inner.node:
                _widen_attributes(child)


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in NARROW:
        array = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
