"""Relax operators in NumPy, for folding: values and shape arithmetic of constants.

A function takes the call, its result's shape and the operands' arrays (a list for a tuple, an int64
vector for a shape, plain integers for a tuple of numbers) and returns the array, or None for a form
that it does not cover.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hetero_tvm.host.tvm import Call, Expr
from hetero_tvm.ops import activations

Function = Callable[..., "np.ndarray | None"]


def _plain(function: Callable[..., Any]) -> Function:
    return lambda call, shape, *arrays: function(*arrays)


def _viewed(call: Call, shape: tuple[int, ...], x: np.ndarray, *_: Any) -> np.ndarray:
    return x.reshape(shape)


def _reduction(function: Callable[..., np.ndarray]) -> Function:
    def reduced(call: Call, shape: tuple[int, ...], x: np.ndarray) -> np.ndarray | None:
        ends = {np.max: -np.inf, np.min: np.inf}
        if x.size == 0 and function in ends:  # NumPy knows no extremum of nothing
            return np.full(shape, ends[function], x.dtype) if x.dtype.kind == "f" else None
        return function(x, axis=_axes(call.attrs.axis), keepdims=bool(call.attrs.keepdims))

    return reduced


def _axes(value: Expr) -> tuple[int, ...] | None:
    return None if value is None else tuple(int(axis) for axis in value)


def _divide(call: Call, shape: tuple[int, ...], a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    return a / b if a.dtype.kind == "f" else None  # integers: a zero divisor is left to run time


def _power(call: Call, shape: tuple[int, ...], a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    return np.power(a, b) if a.dtype.kind == "f" else None  # NumPy refuses negative integer powers


def _take(call: Call, shape: tuple[int, ...], table: np.ndarray, at: np.ndarray) -> np.ndarray | None:
    mode, axis = str(call.attrs.mode), call.attrs.axis
    if axis is None or mode not in ("wrap", "clip"):
        return None
    return np.take(table, at.astype(np.int64), int(axis), mode=mode)


def _gather_elements(call: Call, shape: tuple[int, ...], x: np.ndarray, at: np.ndarray) -> np.ndarray | None:
    axis = int(call.attrs.axis)
    if at.size and not -x.shape[axis] <= at.min() <= at.max() < x.shape[axis]:
        return None
    seen = x[tuple(slice(None if d == axis % x.ndim else n) for d, n in enumerate(at.shape))]
    return np.take_along_axis(seen, np.where(at < 0, at + x.shape[axis], at), axis)


def _dequantize(
    call: Call, shape: tuple[int, ...], x: np.ndarray, scale: np.ndarray, zero: np.ndarray
) -> np.ndarray:
    """Steps in float32, as kernels take them: the difference is whole, and rounded once by the product."""
    along = [1] * x.ndim
    if scale.size != 1 or zero.size != 1:
        along[int(call.attrs.axis) % x.ndim] = -1

    def spread(vector: np.ndarray) -> np.ndarray:
        return vector.reshape(along) if vector.size != 1 else vector.reshape(())

    whole = x.astype(np.int64) - spread(zero).astype(np.int64) if x.dtype.kind in "iu" else x - spread(zero)
    return whole.astype(np.float32) * spread(scale).astype(np.float32)


def _strided_slice(call: Call, shape: tuple[int, ...], x: np.ndarray, axes, begins, ends, steps=None):
    cut = [slice(None)] * x.ndim
    for i, axis in enumerate(axes):
        step = 1 if steps is None else steps[i]
        if step < 1:
            return None
        cut[axis] = slice(begins[i], ends[i], step)
    return x[tuple(cut)]


def _cumsum(call: Call, shape: tuple[int, ...], x: np.ndarray) -> np.ndarray | None:
    if call.attrs.axis is None or call.attrs.exclusive or x.dtype.kind not in "if":
        return None
    return np.cumsum(x, int(call.attrs.axis), dtype=x.dtype)


def _quantize(
    call: Call, shape: tuple[int, ...], x: np.ndarray, scale: np.ndarray, zero: np.ndarray
) -> np.ndarray | None:
    """Steps in float32, halves to even; NaN is left to run time, and so are scales along an axis."""
    if (
        scale.size != 1
        or zero.size != 1
        or str(call.attrs.out_dtype) not in ("int8", "uint8")
        or np.isnan(x).any()
    ):
        return None
    limits = np.iinfo(str(call.attrs.out_dtype))
    steps = np.rint(x.astype(np.float32) / scale.reshape(()).astype(np.float32))
    return np.clip(steps + np.float32(zero.reshape(())), limits.min, limits.max)


def _exactly(function: Callable[[np.ndarray], np.ndarray]) -> Function:
    """A function of float64, rounded once."""
    return lambda call, shape, x: function(x.astype(np.float64)).astype(x.dtype)


def _leaky(call: Call, shape: tuple[int, ...], x: np.ndarray) -> np.ndarray:
    return activations.leaky_relu(float(call.attrs.alpha))(x)


def _softplus(call: Call, shape: tuple[int, ...], x: np.ndarray) -> np.ndarray | None:
    beta = float(call.attrs.beta)
    return (np.logaddexp(0, beta * x.astype(np.float64)) / beta).astype(x.dtype)


# fmt: off
VALUES: dict[str, Function] = {
    "add": _plain(np.add), "subtract": _plain(np.subtract), "multiply": _plain(np.multiply),
    "divide": _divide, "power": _power, "maximum": _plain(np.maximum), "minimum": _plain(np.minimum),
    "less": _plain(np.less), "less_equal": _plain(np.less_equal), "greater": _plain(np.greater),
    "greater_equal": _plain(np.greater_equal), "equal": _plain(np.equal), "not_equal": _plain(np.not_equal),
    "logical_and": _plain(np.logical_and), "logical_or": _plain(np.logical_or),
    "logical_not": _plain(np.logical_not), "negative": _plain(np.negative), "abs": _plain(np.abs),
    "sqrt": _plain(np.sqrt), "rsqrt": _plain(lambda x: 1 / np.sqrt(x)), "exp": _plain(np.exp),
    "log": _plain(np.log), "sin": _plain(np.sin), "cos": _plain(np.cos), "tanh": _plain(np.tanh),
    "floor": _plain(np.floor), "ceil": _plain(np.ceil), "isnan": _plain(np.isnan),
    "dequantize": _dequantize, "square": _plain(np.square), "sigmoid": _exactly(activations.sigmoid),
    "quantize": _quantize, "erf": _exactly(activations.erf), "nn.relu": _plain(activations.relu),
    "nn.leakyrelu": _leaky, "nn.softplus": _softplus, "nn.gelu": _exactly(activations.gelu_erf),
    "nn.gelu_tanh": _exactly(activations.gelu_tanh), "nn.silu": _exactly(activations.silu),
    "clip": _plain(np.clip),
    "where": _plain(lambda c, a, b: np.where(c.astype(bool), a, b)),
    "astype": lambda call, shape, x: x.astype(str(call.attrs.dtype)),
    "reshape": _viewed, "expand_dims": _viewed, "squeeze": _viewed, "flatten": _viewed,
    "permute_dims": lambda call, shape, x: x.transpose(_axes(call.attrs.axes)),
    "broadcast_to": lambda call, shape, x, _: np.broadcast_to(x, shape),
    "concat": lambda call, shape, fields: np.concatenate(fields, int(call.attrs.axis or 0)),
    "zeros": lambda call, shape, _: np.zeros(shape), "ones": lambda call, shape, _: np.ones(shape),
    "zeros_like": lambda call, shape, x: np.zeros(shape), "ones_like": lambda call, shape, x: np.ones(shape),
    "full": lambda call, shape, _, value: np.full(shape, value.reshape(())),
    "shape_to_tensor": lambda call, shape, extents: extents,
    "take": _take, "gather_elements": _gather_elements, "strided_slice": _strided_slice, "cumsum": _cumsum,
    "sum": _reduction(np.sum), "mean": _reduction(np.mean), "max": _reduction(np.max),
    "min": _reduction(np.min),
}
# fmt: on
"""Relax operator, without its prefix -> its function in NumPy."""
