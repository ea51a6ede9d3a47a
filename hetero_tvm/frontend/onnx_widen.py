"""Models stored in half precision: float16 or bfloat16 at the ends, float32 inside.

What a model stores is no order to compute in it: accumulators and statistics are float32 everywhere, and
which tensors are narrow is the choice of the target (``--precision``), by default what the model was stored
in where the target has it.  So weights become float32, exactly; inputs and outputs keep their types behind
casts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .onnx_constants import ConstantPool

NARROW = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}
_TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype", "output_datatype"})


def stored_type(model: onnx.ModelProto) -> str:
    """The type of most of a model's weights (without weights, of its ends): ``float32``, ``float16`` or
    ``bfloat16``."""
    sizes: Counter[int] = Counter()
    for tensor in model.graph.initializer:
        sizes[tensor.data_type] += int(np.prod(tensor.dims, dtype=np.float64))
    if not any(sizes[kind] for kind in (TensorProto.FLOAT, *NARROW)):
        sizes = Counter(v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output))
    widest = max((TensorProto.FLOAT, *NARROW), key=lambda kind: sizes[kind])
    return NARROW.get(widest, "float32")


def widen(model: onnx.ModelProto, pool: ConstantPool) -> None:
    """Change ``model``, which has its constants in ``pool``, and those; nothing where nothing is narrow."""
    graph = model.graph
    if not any(_narrow_types(graph, pool)):
        return
    for name in list(pool):
        if pool.type_of(name)[0] in NARROW:
            pool.add_array(name, pool.array(name).astype(np.float32))
    taken = {name for node in graph.node for name in (*node.input, *node.output)}
    taken |= {value.name for value in (*graph.input, *graph.output)} | set(pool)
    before = [_cast(value, taken, inward=True) for value in graph.input if _is_narrow(value)]
    behind = [_cast(value, taken, inward=False) for value in graph.output if _is_narrow(value)]
    wide = {cast.input[0]: cast.output[0] for cast in before}
    wide |= {cast.output[0]: cast.input[0] for cast in behind if cast.output[0] not in wide}
    for node in graph.node:
        _widen_node(node, wide)
    behind = [cast for cast in behind if cast.output[0] not in {c.input[0] for c in before}]
    nodes = [*before, *graph.node, *behind]
    del graph.node[:]
    graph.node.extend(nodes)


def _is_narrow(value: onnx.ValueInfoProto) -> bool:
    return value.type.tensor_type.elem_type in NARROW


def _narrow_types(graph: onnx.GraphProto, pool: ConstantPool) -> Iterator[int]:
    ends = (value.type.tensor_type.elem_type for value in (*graph.input, *graph.output))
    yield from (t for t in ends if t in NARROW)
    yield from (t for name in pool if (t := pool.type_of(name)[0]) in NARROW)
    for node in graph.node:
        yield from _types_of(node)


def _types_of(node: onnx.NodeProto) -> Iterator[int]:
    """Narrow types among the attributes of a node and of what its subgraphs hold."""
    for attribute in node.attribute:
        if attribute.name in _TYPE_ATTRIBUTES and attribute.i in NARROW:
            yield attribute.i
        if attribute.HasField("t") and attribute.t.data_type in NARROW:
            yield attribute.t.data_type
        for inner in _graphs(attribute):
            yield from (tensor.data_type for tensor in inner.initializer if tensor.data_type in NARROW)
            for child in inner.node:
                yield from _types_of(child)


def _graphs(attribute: onnx.AttributeProto) -> list[onnx.GraphProto]:
    return [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]


def _cast(value: onnx.ValueInfoProto, taken: set[str], inward: bool) -> onnx.NodeProto:
    """Between an end of the graph and its float32 form, which gets a name of its own."""
    name = f"{value.name}_float32"
    while name in taken:
        name += "_"
    taken.add(name)
    ends = (value.name, name) if inward else (name, value.name)
    to = TensorProto.FLOAT if inward else value.type.tensor_type.elem_type
    return helper.make_node("Cast", ends[:1], ends[1:], name=f"{name}/cast", to=to)


def _widen_node(node: onnx.NodeProto, wide: dict[str, str]) -> None:
    for names in (node.input, node.output):
        for n, name in enumerate(names):
            names[n] = wide.get(name, name)
    for attribute in node.attribute:
        if attribute.name in _TYPE_ATTRIBUTES and attribute.i in NARROW:
            attribute.i = TensorProto.FLOAT
        if attribute.HasField("t"):
            _widen_tensor(attribute.t)
        for inner in _graphs(attribute):
            for tensor in inner.initializer:
                _widen_tensor(tensor)
            for value in (*inner.input, *inner.output, *inner.value_info):
                if _is_narrow(value):
                    value.type.tensor_type.elem_type = TensorProto.FLOAT
            for child in inner.node:
                _widen_node(child, wide)
            for value in inner.output:
                value.name = wide.get(value.name, value.name)


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in NARROW:
        array = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
