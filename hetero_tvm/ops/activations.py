"""Activation functions that an epilogue may contain: NumPy semantics by name."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from hetero_tvm.host.activation_names import ByName
from hetero_tvm.host.special import erf


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def relu6(x: np.ndarray) -> np.ndarray:
    return np.clip(x, 0, 6)


def gelu_erf(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + erf(x * math.sqrt(0.5)))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def quick_gelu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-1.702 * x))


def hard_swish(x: np.ndarray) -> np.ndarray:
    return x * (np.clip(x + 3, 0, 6) / 6)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def leaky_relu(slope: float) -> Callable[[np.ndarray], np.ndarray]:
    """x, and below zero ``slope * x``."""
    return lambda x: np.where(x > 0, x, x * x.dtype.type(slope))


_KNOWN: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": relu,
    "relu6": relu6,
    "gelu_erf": gelu_erf,
    "gelu_tanh": gelu_tanh,
    "silu": silu,
    "quick_gelu": quick_gelu,
    "hard_swish": hard_swish,
    "sigmoid": sigmoid,
    "tanh": np.tanh,
}
ACTIVATIONS = ByName(_KNOWN, leaky_relu)
"""Name -> NumPy function.  ``codegen.vector_math`` has the vector code under the same names."""


def moves_zero(name: str) -> bool:
    """Whether an activation of zero is not zero."""
    return bool(ACTIVATIONS[name](np.zeros(1))[0] != 0)
