"""ONNX models with their large weights apart, as arrays: protobuf would copy them at every step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hetero_tvm.frontend.sizing import Sizing
from hetero_tvm.host import mapped

_PLACE = "memory"
"""Place of its bytes that the stub of a tensor names."""


BRANCH = "branch of "
"""Begin of a key of a model's metadata: which branch of an If, the sizes of whose inputs decide, is taken."""


@dataclass(frozen=True)
class StoredModel:
    """An ONNX model.

    Parameters
    ----------
    proto : the model; initializers that are in ``arrays`` are stubs, without their bytes.
    arrays : large initializers by name.
    sizing : what was computed of the sizes of inputs, of a model that is clean.
    """

    proto: onnx.ModelProto
    arrays: Mapping[str, np.ndarray]
    sizing: Sizing | None = None

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
