"""ONNX models with their large weights apart, as arrays: protobuf would copy them at every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hetero_tvm.host import mapped

_FREE_INITIALIZERS = 4
"""Version of ONNX's format since which initializers need not be inputs."""
_PLACE = "memory"
"""Place of its bytes that the stub of a tensor names."""


@dataclass(frozen=True)
class StoredModel:
    """An ONNX model.

    Parameters
    ----------
    proto : the model; initializers that are in ``arrays`` are stubs, without their bytes.
    arrays : large initializers by name.
    """

    proto: onnx.ModelProto
    arrays: Mapping[str, np.ndarray]

    def whole(self) -> onnx.ModelProto:
        """The model in one piece; it takes the memory of all weights, and is new with every call."""
        model = onnx.ModelProto()
        model.CopyFrom(self.proto)
        for tensor in model.graph.initializer:
            if is_stub(tensor):
                tensor.ClearField("external_data")
                tensor.ClearField("data_location")
                tensor.raw_data = self.arrays[tensor.name].tobytes()
        return model

    def array(self, tensor: TensorProto) -> np.ndarray:
        """Values of an initializer."""
        return self.arrays[tensor.name] if is_stub(tensor) else numpy_helper.to_array(tensor)


def is_stub(tensor: TensorProto) -> bool:
    """Whether the bytes of a tensor are kept apart."""
    return (
        tensor.data_location == TensorProto.EXTERNAL
        and len(tensor.external_data) == 1
        and tensor.external_data[0].value == _PLACE
    )


def stub(name: str, element: int, dims: tuple[int, ...]) -> TensorProto:
    """A tensor whose bytes are kept apart."""
    tensor = TensorProto(name=name, data_type=element, dims=dims, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=_PLACE)
    return tensor


def stored_array(tensor: TensorProto, size: int) -> np.dtype | None:
    """Type of an array of ``size`` bytes that holds a tensor; None for one that is small or odd."""
    if size < mapped.LARGE or tensor.data_type in (0, TensorProto.STRING):
        return None
    try:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
    except KeyError:  # an unknown type, which the import will refuse
        return None
    elements = 1
    for dim in tensor.dims:
        elements *= dim
    return dtype if elements * dtype.itemsize == size else None


def detached(model: onnx.ModelProto) -> StoredModel:
    """The model with its large weights apart; ``model`` stays as it is.

    A node that holds a large constant becomes an initializer, which has the same meaning.
    """
    arrays: dict[str, np.ndarray] = {}
    light = onnx.ModelProto()
    for field, value in model.ListFields():
        if field.name == "graph":
            _copy_graph(value, light.graph, arrays, model.ir_version >= _FREE_INITIALIZERS)
        else:
            _copy_field(light, field.name, value)
    return StoredModel(light, arrays)


def _copy_graph(
    graph: onnx.GraphProto, light: onnx.GraphProto, arrays: dict[str, np.ndarray], free: bool
) -> None:
    for field, value in graph.ListFields():
        if field.name not in ("initializer", "node"):
            _copy_field(light, field.name, value)
    names = Counter(tensor.name for tensor in graph.initializer)
    names.update(name for node in graph.node for name in node.output)
    for tensor in graph.initializer:
        if names[tensor.name] > 1 or not _detach(tensor, tensor.name, light, arrays):
            light.initializer.add().CopyFrom(tensor)
    for node in graph.node:
        value = node.attribute[0].t if node.op_type == "Constant" and len(node.attribute) == 1 else None
        plain = value is not None and free and not node.domain and len(node.output) == 1
        if not plain or names[node.output[0]] > 1 or not _detach(value, node.output[0], light, arrays):
            light.node.add().CopyFrom(node)


def _detach(tensor: TensorProto, name: str, light: onnx.GraphProto, arrays: dict[str, np.ndarray]) -> bool:
    """Put the values of a large tensor into ``arrays``, and a stub into the graph; whether it is one."""
    dtype = stored_array(tensor, len(tensor.raw_data)) if name and tensor.HasField("raw_data") else None
    if dtype is None:
        return False
    arrays[name] = mapped.mapped(np.frombuffer(tensor.raw_data, dtype).reshape(tuple(tensor.dims)))
    light.initializer.append(stub(name, tensor.data_type, tuple(tensor.dims)))
    return True


def _copy_field(message: onnx.ModelProto | onnx.GraphProto, name: str, value: object) -> None:
    """Copy a field of any kind, as ``ListFields`` gives it."""
    target = getattr(message, name)
    if hasattr(target, "MergeFrom"):  # messages, and repeated fields of any kind
        target.MergeFrom(value)
    else:
        setattr(message, name, value)
