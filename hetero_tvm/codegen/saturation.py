"""Bounds and conversion to integers in one instruction each, as LLVM IR that a kernel imports.

TensorIR rounds and then converts, which are three operations for x86's vcvtps2dq, as a conversion of its own
truncates; and a minimum that keeps NaN takes three as well, where no NaN can be or none must be kept.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from hetero_tvm.host.tvm import Expr, tirx, tvm

_LANES = (4, 8, 16)


@functools.cache
def saturation_ir() -> str:
    """Definitions of what :func:`nearest`, :func:`lesser` and :func:`greater` call."""
    lines = []
    for lanes in _LANES:
        whole, value = f"<{lanes} x i32>", f"<{lanes} x float>"
        lines += [
            f"define linkonce_odr {whole} @{_name('nearest', lanes)}({value} %x) alwaysinline {{",
            f"  %r = call {whole} @llvm.lrint.v{lanes}i32.v{lanes}f32({value} %x)",
            f"  ret {whole} %r",
            "}",
            f"declare {whole} @llvm.lrint.v{lanes}i32.v{lanes}f32({value})",
        ]
        for name, order in (("lesser", "olt"), ("greater", "ogt")):
            lines += [
                f"define linkonce_odr {value} @{_name(name, lanes)}({value} %x, {value} %y) alwaysinline {{",
                f"  %c = fcmp {order} {value} %x, %y",
                f"  %r = select <{lanes} x i1> %c, {value} %x, {value} %y",
                f"  ret {value} %r",
                "}",
            ]
    return "\n".join(lines) + "\n"


def nearest(value: Expr, width: int) -> Expr:
    """int32 nearest to each of ``width`` float32, halves to even; what does not fit is undefined."""
    if width in _LANES:
        return tirx.call_extern(f"int32x{width}", _name("nearest", width), value)
    return tirx.nearbyint(value).astype("int32" if width == 1 else f"int32x{width}")


def lesser(value: Expr, bound: Expr) -> Expr:
    """The smaller of two; ``bound`` where ``value`` is NaN (in vectors of four and more)."""
    return _one_of("lesser", tirx.min, value, bound)


def greater(value: Expr, bound: Expr) -> Expr:
    """The larger of two, likewise."""
    return _one_of("greater", tirx.max, value, bound)


def between(value: Expr, low: Expr | float, high: Expr | float, width: int) -> Expr:
    """``value`` within its bounds."""
    numbers = [
        tirx.const(bound, "float32") if isinstance(bound, (int, float)) else bound for bound in (low, high)
    ]
    least, most = (tirx.Broadcast(number, width) if width > 1 else number for number in numbers)
    return greater(lesser(value, most), least)


def _one_of(name: str, plain: Callable[[Expr, Expr], Expr], value: Expr, bound: Expr) -> Expr:
    width = tvm.DataType(str(value.ty.dtype)).lanes
    if width in _LANES:
        return tirx.call_extern(f"float32x{width}", _name(name, width), value, bound)
    return plain(value, bound)


def _name(name: str, lanes: int) -> str:
    return f"hetero_tvm_{name}_v{lanes}"
