"""Constants of Relax that share the memory of mapped arrays (see :mod:`hetero_tvm.host.mapped`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_tvm.host import mapped
from hetero_tvm.host.tvm import DeviceTensor, Expr, relax, tvm

SHARED = frozenset("float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool".split())
"""Types that NumPy and TVM exchange without a copy."""
_NARROWED = {"int64": "int32", "float64": "float32"}
"""Types that ``relax.const`` makes narrower where none is asked for."""


def constant(value: Any, dtype: str | None = None) -> Expr:
    """The same as ``relax.const``, but a large array goes to a mapped file; one that is there is shared."""
    if isinstance(value, np.ndarray) and value.nbytes >= mapped.LARGE:
        name = value.dtype.name
        return relax.const(tensor_of(value.astype(dtype or _NARROWED.get(name, name), copy=False)))
    return relax.const(value, dtype)


def tensor_of(array: np.ndarray) -> DeviceTensor:
    """TVM's tensor of an array, in a mapped file when it is large."""
    if array.dtype.name in SHARED:
        array = mapped.mapped(array)
        if mapped.is_mapped(array):
            return tvm.runtime.from_dlpack(np.asarray(_Writable(array)))
    return tvm.runtime.tensor(array)


def array_of(tensor: DeviceTensor) -> np.ndarray:
    """Values of a tensor, which must not be changed: a large one is shared."""
    if tensor.dtype in SHARED and tensor.device.dlpack_device_type() == 1:
        array = np.from_dlpack(tensor)
        if array.nbytes >= mapped.LARGE:
            mapped.touched(array.nbytes)
            array.flags.writeable = False
            return array
    return tensor.numpy()


class _Writable:
    """Stand-in for an array that says that it may be written to: the exchange knows no other ones."""

    def __init__(self, array: np.ndarray):
        self._array = array
        self.__array_interface__ = {
            "data": (array.ctypes.data, False),
            "shape": array.shape,
            "typestr": array.dtype.str,
            "version": 3,
        }
