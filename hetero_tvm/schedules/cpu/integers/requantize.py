"""The way out of integer accumulators: scale, activation, rounding, saturation, in registers."""

from __future__ import annotations

from hetero_tvm.host.tvm import Expr, tirx
from hetero_tvm.ops.integers.quantized import QuantConv2d, QuantMatmul
from hetero_tvm.schedules.emit import Kernel, int32


def requantized(
    k: Kernel, op: QuantMatmul | QuantConv2d, total: Expr, scale: Expr | None, width: int
) -> Expr:
    """``width`` results from int32 sums with their bias, as ``_Quantized._finished`` has them.

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
    value = tirx.nearbyint(value) + k.splat(float(op.y_zero), width)
    value = tirx.max(tirx.min(value, k.splat(float(high), width)), k.splat(float(low), width))
    return value.astype(f"int32{many}").astype(f"{op.out}{many}")
