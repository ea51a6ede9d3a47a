"""Numbers of 8 bits and fewer without kernels: wider ones carry them, rounded where a program converts."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_tvm.frontend.nodes import onnx_type
from hetero_tvm.frontend.stablehlo.op import Op, carried, narrow_of

_LARGEST_EXPONENT = 0x7F800000
"""Bits of a float32 that hold its exponent, which alone are the power of two below the number."""


def converted(op: Op) -> str:
    """``convert``: to whole numbers cut to their range, as XLA has it, and NaN is 0."""
    (x,), source, target = op.inputs, op.dtype(), op.result_dtype
    kind = narrow_of(op.raw.results[0].type)
    is_float = "float" in source
    if kind is not None and "float" in carried(kind):
        return _rounded(op, x if source == "float32" else _cast(op, x, "float32"), kind)
    if kind is not None:
        import ml_dtypes

        bounds = ml_dtypes.iinfo(kind)
        if is_float:
            return _within(op, x, source, target, int(bounds.min), int(bounds.max))
        return _wrapped(op, x if source == "int64" else _cast(op, x, "int64"), bounds, target)
    if is_float and "int" in target:
        return _within(op, x, source, target, np.iinfo(target).min, np.iinfo(target).max)
    return _cast(op, x, target)


def _cast(op: Op, name: str, dtype: str) -> str:
    return op.emit("Cast", name, to=onnx_type(dtype))


def _within(op: Op, x: str, source: str, target: str, low: int, high: int) -> str:
    """Floats as whole numbers: those beyond become the ends, NaN becomes 0."""
    if source not in ("float32", "float64"):
        x, source = _cast(op, x, "float32"), "float32"
    kind = np.dtype(source).type
    most = kind(high)
    is_exact = int(most) == high
    if not is_exact:  # the power of two above: what is clipped stays below it
        most = np.nextafter(most, kind(0))
    known = op.emit("Where", op.emit("IsNaN", x), op.const(0, source), x)
    clipped = op.emit("Clip", known, op.const(kind(low), source), op.const(most, source))
    found = _cast(op, clipped, target)
    if is_exact:
        return found
    is_beyond = op.emit("Greater", x, op.const(most, source))
    return op.emit("Where", is_beyond, op.const(high, target), found)


def _wrapped(op: Op, x: str, bounds: Any, target: str) -> str:
    """The low bits of a whole number."""
    low, count = int(bounds.min), int(bounds.max) - int(bounds.min) + 1
    moved = op.emit("BitwiseAnd", op.emit("Sub", x, op.const(low)), op.const(count - 1))
    return _cast(op, op.emit("Add", moved, op.const(low)), target)


def _rounded(op: Op, x: str, kind: str) -> str:
    """A float32 rounded to another type of float: to the nearest multiple of the step at its power of two."""
    import ml_dtypes

    facts = ml_dtypes.finfo(kind)
    least, most = float(facts.smallest_normal), float(facts.max)
    bits = op.emit("BitwiseAnd", _bits(op, x, "int32"), op.const(_LARGEST_EXPONENT, "int32"))
    power = op.emit("Max", _bits(op, bits, "float32"), op.const(least, "float32"))
    step = op.emit("Mul", power, op.const(2.0 ** -int(facts.nmant), "float32"))
    near = op.emit("Mul", op.emit("Round", op.emit("Div", x, step)), step)
    with np.errstate(all="ignore"):  # what the type has for numbers beyond it: infinity, NaN, or its largest
        beyond, nothing = (float(np.float32(value).astype(kind)) for value in (np.inf, np.nan))
    is_beyond = op.emit(
        "Or", op.emit("IsInf", x), op.emit("Greater", op.emit("Abs", near), op.const(most, "float32"))
    )
    end = op.emit("Mul", op.emit("Sign", x), op.const(beyond, "float32"))
    found = op.emit("Where", is_beyond, end, near)
    if not np.isnan(nothing):
        found = op.emit("Where", op.emit("IsNaN", x), op.const(nothing, "float32"), found)
    return found


def _bits(op: Op, name: str, dtype: str) -> str:
    return op.emit("BitCast", name, to=onnx_type(dtype))
