"""Tensors of a graph under construction, and what its inputs are drawn from."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper

FLOATS = ("float32", "float16", "float64", "bfloat16")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED + UNSIGNED
NUMBERS = FLOATS + INTEGERS
CONTRIB = "com.microsoft"


class Rejected(Exception):
    """What was tried is no valid node here, or its values leave the sane range."""


def numpy_type(name: str) -> np.dtype:
    """NumPy's dtype of a name, bfloat16 included."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def onnx_type(name: str) -> int:
    """ONNX's element type of a NumPy dtype's name."""
    return TensorProto.BFLOAT16 if name == "bfloat16" else helper.np_dtype_to_tensor_dtype(np.dtype(name))


def name_of(element: int) -> str:
    """NumPy's name of an ONNX element type."""
    return "bfloat16" if element == TensorProto.BFLOAT16 else helper.tensor_dtype_to_np_dtype(element).name


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of the graph, with the value that it has for one draw of the inputs."""

    name: str
    sample: np.ndarray
    const: bool = False

    @property
    def dtype(self) -> str:
        return self.sample.dtype.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.sample.shape

    @property
    def rank(self) -> int:
        return self.sample.ndim

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS


@dataclass(frozen=True)
class Source:
    """What an input of the graph is drawn from."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    low: float
    high: float
    special: bool = False

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        dtype = numpy_type(self.dtype)
        if self.dtype == "bool":
            return rng.random(self.shape) < 0.5
        if self.dtype in INTEGERS:
            return rng.integers(int(self.low), int(self.high), self.shape, endpoint=True).astype(dtype)
        array = rng.uniform(self.low, self.high, self.shape)
        if self.special and array.size:
            for value in (np.nan, np.inf, -np.inf, 0.0, -0.0):
                array[rng.random(self.shape) < 0.06] = value
        return array.astype(dtype)
