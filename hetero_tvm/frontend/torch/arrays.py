"""Exchange of values between PyTorch and NumPy, in the types too that NumPy has from a package beside it."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from hetero_tvm.runtime.arrays import numpy_dtype

_BITS = {1: "uint8", 2: "uint16"}
"""Types that both know, by the size of one (bfloat16, float8) that they do not exchange."""


def tensor_of(torch: ModuleType, array: np.ndarray) -> Any:
    """A tensor with the values of an array, in memory of its own."""
    array = np.array(array, order="C")
    if array.dtype.isbuiltin != 2:  # registered by a package
        return torch.from_numpy(array)
    bits = torch.from_numpy(array.view(_BITS[array.dtype.itemsize]))
    return bits.view(getattr(torch, array.dtype.name))


def array_of(torch: ModuleType, tensor: Any) -> np.ndarray:
    """Values of a tensor as an array, which may share its memory."""
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    try:
        return tensor.numpy()
    except TypeError:  # a type that NumPy does not have itself
        bits = tensor.contiguous().view(getattr(torch, _BITS[tensor.element_size()]))
        return bits.numpy().view(numpy_dtype(str(tensor.dtype).removeprefix("torch.")))
