"""The way out of integer accumulators: scale, activation, rounding, saturation, in registers.

Bounds come before rounding, less the zero point: they are whole numbers, so that the result is the same, and
what is converted always fits.  A kernel imports ``codegen.saturation``.
"""

from __future__ import annotations

from hetero_tvm.codegen.saturation import between, greater, nearest
from hetero_tvm.host.tvm import Expr, tirx
from hetero_tvm.ops.integers.quantized import QuantConv2d, QuantMatmul
from hetero_tvm.schedules.emit import Kernel, int32


def requantized(
    k: Kernel, op: QuantMatmul | QuantConv2d, total: Expr, scale: Expr | None, width: int, whole: bool = False
) -> Expr:
    """``width`` results from int32 sums with their bias, as ``_Quantized._finished`` has them; with ``whole``
    those of 8 bits as whole float32 numbers less their zero point."""
    many = f"x{width}" if width > 1 else ""
    if scale is None:
        return tirx.max(total, k.splat(int32(0), width)) if op.relu else total
    value = total.astype(f"float32{many}") * scale
    if op.out == "float32":
        return greater(value, k.splat(0.0, width)) if op.relu else value
    low, high = (limit - op.y_zero for limit in op.limits)
    if op.relu:
        low = min(max(low, 0), high)  # a bound below zero comes behind relu, and wins
    value = between(value, low, high, width)
    return tirx.nearbyint(value) if whole else _narrow(k, value, op.y_zero, op.out, width)


def with_residual(
    k: Kernel, op: QuantConv2d, value: Expr, residual: Expr, join: list[Expr], width: int
) -> Expr:
    """``width`` results of ``op`` with its residual added, from the rounded ones as :func:`requantized` has
    them whole."""
    many = f"x{width}" if width > 1 else ""
    own, zero, other, final = (k.splat(number, width) for number in join)
    added = residual.astype(f"int32{many}").astype(f"float32{many}") - zero
    value = tirx.nearbyint(value * own + added * other) + final
    low, high = op.final_limits
    return _narrow(k, between(value, low, high, width), 0, op.final, width)


def _narrow(k: Kernel, value: Expr, zero: int, dtype: str, width: int) -> Expr:
    whole = nearest(value, width)
    shifted = whole + k.splat(int32(zero), width) if zero else whole
    return shifted.astype(f"{dtype}x{width}" if width > 1 else dtype)
