"""Activations of epilogues on a GPU: scalar float32 expressions over the device's own functions."""

from __future__ import annotations

import math
from collections.abc import Callable

from hetero_tvm.host.activation_names import ByName
from hetero_tvm.host.tvm import Expr, tirx
from hetero_tvm.schedules.cuda.values import const as _c


def _sigmoid(x: Expr) -> Expr:
    return _c(1) / (_c(1) + tirx.exp(_c(0) - x))


def _gelu_tanh(x: Expr) -> Expr:
    inner = _c(math.sqrt(2 / math.pi)) * (x + _c(0.044715) * x * x * x)
    return _c(0.5) * x * (_c(1) + tirx.tanh(inner))


def _leaky_relu(slope: float) -> Callable[[Expr], Expr]:
    return lambda x: tirx.Select(x > _c(0), x, _c(slope) * x)


_KNOWN: dict[str, Callable[[Expr], Expr]] = {
    "relu": lambda x: tirx.max(x, _c(0)),
    "relu6": lambda x: tirx.min(tirx.max(x, _c(0)), _c(6)),
    "gelu_erf": lambda x: _c(0.5) * x * (_c(1) + tirx.erf(x * _c(math.sqrt(0.5)))),
    "gelu_tanh": _gelu_tanh,
    "quick_gelu": lambda x: x * _sigmoid(_c(1.702) * x),
    "hard_swish": lambda x: x * (tirx.min(tirx.max(x + _c(3), _c(0)), _c(6)) * _c(1 / 6)),
    "silu": lambda x: x * _sigmoid(x),
    "sigmoid": _sigmoid,
    "tanh": lambda x: tirx.tanh(x),
}
ACTIVATIONS = ByName(_KNOWN, _leaky_relu)
"""Functions by the names of :data:`hetero_tvm.ops.activations.ACTIVATIONS`."""
