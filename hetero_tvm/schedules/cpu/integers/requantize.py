"""The way out of integer accumulators: scale, activation, rounding, saturation, in registers."""

from __future__ import annotations

from hetero_tvm.host.tvm import Expr, tirx
from hetero_tvm.ops.integers.quantized import QuantConv2d, QuantMatmul
from hetero_tvm.schedules.emit import Kernel, int32


def requantized(
    k: Kernel, op: QuantMatmul | QuantConv2d, total: Expr, scale: Expr | None, width: int, whole: bool = False
) -> Expr:
    """``width`` results from int32 sums with their bias, as ``_Quantized._finished`` has them; with ``whole``
    those of 8 bits as float32.

    The bounds are applied before the conversion: beyond them it is undefined.
    """
    many = f"x{width}" if width > 1 else ""
    if scale is None:
        return tirx.max(total, k.splat(int32(0), width)) if op.relu else total
    value = total.astype(f"float32{many}") * scale
    if op.relu:
        value = tirx.max(value, k.splat(0.0, width))
    if op.out == "float32":
        return value
    low, high = op.limits
    value = _between(k, tirx.nearbyint(value) + k.splat(float(op.y_zero), width), (low, high), width)
    return value if whole else _narrow(value, op.out, many)


def with_residual(
    k: Kernel, op: QuantConv2d, value: Expr, residual: Expr, join: list[Expr], width: int
) -> Expr:
    """``width`` results of ``op`` with its residual added, from the rounded ones as float32."""
    many = f"x{width}" if width > 1 else ""
    own, zero, other, final = (k.splat(number, width) for number in join)
    added = residual.astype(f"int32{many}").astype(f"float32{many}") - zero
    value = (value - k.splat(float(op.y_zero), width)) * own + added * other
    return _narrow(_between(k, tirx.nearbyint(value) + final, op.final_limits, width), op.final, many)


def _between(k: Kernel, value: Expr, limits: tuple[int, int], width: int) -> Expr:
    low, high = limits
    return tirx.max(tirx.min(value, k.splat(float(high), width)), k.splat(float(low), width))


def _narrow(value: Expr, dtype: str, many: str) -> Expr:
    return value.astype(f"int32{many}").astype(f"{dtype}{many}")
