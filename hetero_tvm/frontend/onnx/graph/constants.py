"""Constants of a model, kept apart from its graph.

Large weights are neither copied nor serialized while the graph is checked, converted and folded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hetero_tvm.errors import ModelError
from hetero_tvm.host import mapped

#: Names of the default operator set.
ONNX_DOMAINS = ("", "ai.onnx")

#: Larger constants take part in shape inference as inputs: their values decide no shapes.
VALUE_BYTES = 8192

#: A sparse tensor is stored with its zeros: of so many elements at most, for each value and in all.
_SPARSE_SHARE, _FEW_SPARSE, _MOST_SPARSE = 1 << 12, 1 << 16, 1 << 29

#: Element type and dimensions of a tensor; None for dimensions, or all of them, that are not known.
Type = tuple[int, "tuple[int | None, ...] | None"]

#: Types by tensor name, as shape inference found them.
Types = dict[str, Type]


class ConstantPool:
    """Constant tensors by name, stored as NumPy arrays or as the protobuf they came in."""

    def __init__(self) -> None:
        self._tensors: dict[str, TensorProto] = {}
        self._arrays: dict[str, np.ndarray] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors or name in self._arrays

    def __iter__(self) -> Iterator[str]:
        yield from self._tensors
        yield from (name for name in self._arrays if name not in self._tensors)

    def add_tensor(self, tensor: TensorProto) -> None:
        """Add or replace a constant as protobuf."""
        self._arrays.pop(tensor.name, None)
        self._tensors[tensor.name] = tensor

    def add_array(self, name: str, array: np.ndarray) -> None:
        """Add or replace a constant as an array."""
        self._tensors.pop(name, None)
        self._arrays[name] = mapped.mapped(np.asarray(array))

    def rename(self, name: str, new: str) -> None:
        """Give a constant another name."""
        array = self.array(name)
        self._tensors.pop(name, None)
        del self._arrays[name]
        self.add_array(new, array)

    def array(self, name: str) -> np.ndarray:
        """Values of a constant."""
        if name not in self._arrays:
            self._arrays[name] = to_array(self._tensors[name])
        return self._arrays[name]

    def tensor(self, name: str) -> TensorProto:
        """A constant as protobuf."""
        if name in self._tensors:
            return self._tensors[name]
        return numpy_helper.from_array(np.array(self._arrays[name], order="C"), name)

    def type_of(self, name: str) -> tuple[int, tuple[int, ...]]:
        """ONNX element type and dimensions of a constant."""
        if name in self._tensors:
            return self._tensors[name].data_type, tuple(self._tensors[name].dims)
        array = self._arrays[name]
        return helper.np_dtype_to_tensor_dtype(array.dtype), array.shape

    def nbytes(self, name: str) -> int:
        """Size of a constant in bytes."""
        element, dims = self.type_of(name)
        return int(np.prod(dims, dtype=np.float64) * _item_bytes(element))

    def shape(self, name: str, types: Types) -> tuple[int, ...] | None:
        """Shape of a constant or of a tensor that ``types`` has; None when an extent is unknown."""
        known = self.type_of(name) if name in self else types.get(name)
        if known is None or known[1] is None:
            return None
        shape = tuple(dim for dim in known[1] if dim is not None)
        return shape if len(shape) == len(known[1]) else None

    def dtype(self, name: str, types: Types) -> str:
        """NumPy's name of the element type of a tensor whose type is known."""
        known = self.type_of(name) if name in self else types[name]
        return helper.tensor_dtype_to_np_dtype(known[0]).name

    def attach(self, graph: onnx.GraphProto) -> None:
        """Give a light graph its constants: small ones as initializers, large ones as inputs."""
        used = names_used(graph)
        for name in self:
            if name not in used:
                continue
            element, dims = self.type_of(name)
            if self.nbytes(name) <= VALUE_BYTES:
                graph.initializer.append(self.tensor(name))
            else:
                graph.input.append(helper.make_tensor_value_info(name, element, dims))


def names_used(graph: onnx.GraphProto) -> set[str]:
    """Names of tensors that nodes read or the graph returns, subgraphs included."""
    used = {value.name for value in graph.output}
    for node in graph.node:
        used.update(node_inputs(node))
    return used


def subgraphs(attribute: onnx.AttributeProto) -> list[onnx.GraphProto]:
    """Subgraphs stored in an attribute."""
    return [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]


def node_inputs(node: onnx.NodeProto) -> set[str]:
    """Names that a node reads, also those that its subgraphs take from outside."""
    names = {name for name in node.input if name}
    for attribute in node.attribute:
        for graph in subgraphs(attribute):
            inner = {v.name for v in graph.input} | {t.name for t in graph.initializer}
            inner |= {name for child in graph.node for name in child.output}
            names |= names_used(graph) - inner
    return names


def rename_inputs(node: onnx.NodeProto, alias: Mapping[str, str]) -> None:
    """Let a node, subgraphs included, read other tensors."""
    if not alias:
        return
    for index, name in enumerate(node.input):
        if name in alias:
            node.input[index] = alias[name]
    for attribute in node.attribute:
        for graph in subgraphs(attribute):
            inner = {v.name for v in graph.input} | {t.name for t in graph.initializer}
            inner |= {name for child in graph.node for name in child.output}
            outer = {old: new for old, new in alias.items() if old not in inner}
            for child in graph.node:
                rename_inputs(child, outer)
            for value in graph.output:
                value.name = outer.get(value.name, value.name)


def tensor_type(proto: onnx.TypeProto.Tensor) -> Type:
    """Element type and dimensions (None where unknown) of a protobuf tensor type."""
    if not proto.HasField("shape"):
        return proto.elem_type, None
    return proto.elem_type, tuple(d.dim_value if d.HasField("dim_value") else None for d in proto.shape.dim)


def types_of(graph: onnx.GraphProto) -> Types:
    """Types of a graph's tensors, as inference wrote them."""
    types = {}
    for value in (*graph.value_info, *graph.input, *graph.output):
        if not value.type.HasField("tensor_type"):
            continue
        types[value.name] = tensor_type(value.type.tensor_type)
    return types


def to_array(tensor: TensorProto) -> np.ndarray:
    """Values of a tensor; raises :class:`ModelError` when its bytes do not fit its type and shape."""
    problem = tensor_problem(tensor)
    if problem:
        raise ModelError(f"Tensor {tensor.name!r} is damaged: {problem}.")
    try:
        return numpy_helper.to_array(tensor)
    except Exception as error:  # the decoder has no error family of its own
        raise ModelError(f"Tensor {tensor.name!r} is damaged: {error}.") from error


def sparse_problem(sparse: onnx.SparseTensorProto) -> str | None:
    """Reason why a sparse tensor cannot be written out, or None; nothing is allocated for it."""
    if problem := tensor_problem(sparse.values) or tensor_problem(sparse.indices):
        return problem
    dims, count = list(sparse.dims), math.prod(sparse.values.dims)
    if not dims or any(dim < 0 for dim in dims) or sparse.values.data_type == TensorProto.STRING:
        return f"it has the shape {dims}"
    if (elements := math.prod(dims)) > min(max(_FEW_SPARSE, _SPARSE_SHARE * count), _MOST_SPARSE):
        return f"it says {elements:,} elements by {count:,} values"
    indices = numpy_helper.to_array(sparse.indices)
    if indices.dtype != np.int64 or indices.shape not in ((count,), (count, len(dims))):
        return f"{count} values have indices of shape {list(indices.shape)}"
    most = np.array(dims if indices.ndim > 1 else elements)
    return "an index is out of range" if ((indices < 0) | (indices >= most)).any() else None


def dense(sparse: onnx.SparseTensorProto) -> np.ndarray:
    """Values of a sparse tensor with the zeros between; raises :class:`ModelError` where it is damaged."""
    if problem := sparse_problem(sparse):
        raise ModelError(f"Sparse tensor {sparse.values.name!r} is damaged: {problem}.")
    values, indices = to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    if indices.ndim > 1:
        indices = np.ravel_multi_index(tuple(indices.T), tuple(sparse.dims))
    whole = np.zeros(math.prod(sparse.dims), values.dtype)
    whole[indices] = values.reshape(-1)
    return whole.reshape(tuple(sparse.dims))


def tensor_problem(tensor: TensorProto) -> str | None:
    """Reason why a tensor cannot be read, or None.  Never allocates what the dimensions claim."""
    if tensor.data_location == TensorProto.EXTERNAL:
        return "its data is in an external file (give the path of the model, not the loaded model)"
    if tensor.data_type not in TensorProto.DataType.values() or tensor.data_type == TensorProto.UNDEFINED:
        return f"its data type {tensor.data_type} is unknown"
    if any(dim < 0 for dim in tensor.dims):
        return f"it has the shape {list(tensor.dims)}"
    if tensor.HasField("segment"):
        return "it is stored in segments, of which no reader knows more"
    if tensor.data_type == TensorProto.STRING:
        return None
    elements = math.prod(tensor.dims)
    bits = int(_item_bytes(tensor.data_type) * 8)
    if tensor.HasField("raw_data"):
        needed, stored = stored_bytes(tensor), len(tensor.raw_data)
        unit = "bytes"
    else:
        field = helper.tensor_dtype_to_field(tensor.data_type)
        stored, unit = len(getattr(tensor, field)), "values"
        needed = elements
        if tensor.data_type in (TensorProto.COMPLEX64, TensorProto.COMPLEX128):
            needed = 2 * elements
        elif bits < 8:
            needed = (elements * bits + 7) // 8
    if needed != stored:
        return f"shape {list(tensor.dims)} needs {needed} {unit}, it has {stored}"
    return None if bits < 8 else _wide_bits(tensor, bits)


def _wide_bits(tensor: TensorProto, bits: int) -> str | None:
    """Damage of floats that are kept as the bits of integers, or None.

    Integers in wider fields wrap around, as in ONNX Runtime, which refuses these as we do.
    """
    kind = TensorProto.DataType.Name(tensor.data_type)
    if "FLOAT" not in kind or kind == "FLOAT":
        return None
    data = tensor.int32_data
    ends = (min(data), max(data)) if data else ()
    wide = [value for value in ends if not 0 <= value < 1 << bits]
    return f"int32_data holds {wide[0]}, which is more than the {bits} bits of {kind}" if wide else None


def stored_bytes(tensor: TensorProto) -> int | None:
    """Bytes of a tensor that is stored raw; None when its type or its shape says none."""
    sized = set(TensorProto.DataType.values()) - {TensorProto.UNDEFINED, TensorProto.STRING}
    if tensor.data_type not in sized:
        return None
    elements = math.prod(tensor.dims)
    return (elements * int(_item_bytes(tensor.data_type) * 8) + 7) // 8 if elements >= 0 else None


def _item_bytes(element: int) -> float:
    """Bytes of one element; less than 1 where a byte holds several."""
    if element == TensorProto.STRING:
        return 1.0
    name = TensorProto.DataType.Name(element)
    if name in ("INT4", "UINT4", "FLOAT4E2M1"):
        return 0.5
    if name in ("INT2", "UINT2"):
        return 0.25
    return helper.tensor_dtype_to_np_dtype(element).itemsize


def constant_value(node: onnx.NodeProto) -> list[np.ndarray] | None:
    """Value of a Constant node in any of its spellings; None for strings."""
    if len(node.attribute) != 1:
        raise ModelError(f"Node {node.name!r} (Constant) has {len(node.attribute)} values instead of one.")
    attribute = node.attribute[0]
    if attribute.name == "value":
        return [to_array(attribute.t)]
    if attribute.name == "sparse_value":
        return [dense(attribute.sparse_tensor)]
    if attribute.name == "value_int":
        return [np.array(attribute.i, np.int64)]
    if attribute.name == "value_ints":
        return [np.array(attribute.ints, np.int64)]
    if attribute.name == "value_float":
        return [np.array(attribute.f, np.float32)]
    if attribute.name == "value_floats":
        return [np.array(attribute.floats, np.float32)]
    return None
