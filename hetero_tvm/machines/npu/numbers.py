"""Data types of the machine, and how values pass from one to another."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

DTYPES = ("f16", "bf16", "f32", "i8", "i32")
NAMES = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "int8": "i8", "int32": "i32"}
"""Names in the instruction set, by the names that everybody else uses."""
_NUMPY = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "i8": np.dtype(np.int8),
    "i32": np.dtype(np.int32),
}
WIDTH = {name: dtype.itemsize for name, dtype in _NUMPY.items()}
"""Bytes of an element."""


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's type for f16, bf16, f32, i8 or i32."""
    return _NUMPY[name]


def cast(values: np.ndarray, dtype: str, zero_point: int = 0) -> np.ndarray:
    """Round to ``dtype``: floats to nearest even; floats to integers half to even, saturated, NaN to 0;
    integers to narrower ones saturated.  ``zero_point`` is added after rounding, before saturation.
    """
    target = _NUMPY[dtype]
    if dtype not in ("i8", "i32"):
        with np.errstate(all="ignore"):
            return values.astype(target) if values.dtype != target else values
    limits = np.iinfo(target)
    if values.dtype.kind in "iu":
        return np.clip(values.astype(np.int64) + zero_point, limits.min, limits.max).astype(target)
    rounded = np.rint(np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf))
    return np.clip(rounded + zero_point, limits.min, limits.max).astype(target)
