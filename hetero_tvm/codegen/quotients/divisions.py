"""Integer divisions by values in memory: without traps, and in vectors of floats up to 32 bits.

Processors divide integers one at a time, in ten cycles and more, and trap at a divisor of 0 and at the
smallest integer by -1.  A quotient of floats that hold both operands exactly is off by less than it is away
from the next integer, so that its whole part is exact; a remainder is as well, as its product is no greater
than the operands.
"""

from __future__ import annotations

from typing import Any

from hetero_tvm.host.tvm import Expr, IRModule, PrimFunc, TensorLoad, tirx, tvm, tvm_ffi, with_body

DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)
_FLOORED = (tirx.FloorDiv, tirx.FloorMod)

_FLOATS = {8: "float32", 16: "float32", 32: "float64"}
"""Bits of an integer -> a float that holds all such integers, and products of divisors and quotients."""


def reads_memory(expr: Expr) -> bool:
    """Whether an expression has a load."""
    found: list[TensorLoad] = []

    def note(load: TensorLoad) -> TensorLoad:
        found.append(load)
        return load

    tvm_ffi.structural_map(expr, (TensorLoad, note))
    return bool(found)


def _safe_division(division: Expr) -> Expr:
    """``division``, with 1 for a divisor of 0.

    The smallest integer by -1 is itself, and its remainder 0, as if numbers wrapped around.
    """
    a, b, dtype = division.a, division.b, tvm.DataType(str(division.ty.dtype))
    if "int" not in str(dtype) or dtype.lanes != 1:
        return division
    if isinstance(b, tirx.IntImm) and int(b) < 0 and isinstance(division, _FLOORED) and reads_memory(a):
        return _by_a_negative_constant(division)
    if not reads_memory(b):
        return division
    trap = tirx.EQ(b, tirx.const(0, dtype))
    if dtype.bits in _FLOATS:
        return _by_floats(type(division), a, tirx.Select(trap, tirx.const(1, dtype), b), dtype)
    if str(dtype).startswith("int"):
        wraps = tirx.all(tirx.EQ(a, tirx.min_value(dtype)), tirx.EQ(b, tirx.const(-1, dtype)))
        trap = tirx.any(trap, wraps)
    return type(division)(a, tirx.Select(trap, tirx.const(1, dtype), b))


def _by_a_negative_constant(division: Expr) -> Expr:
    """A floored division from one that rounds to zero.

    TVM adds a number to the dividend to divide by the opposite constant, which overflows near the ends of
    the type, and the smallest integer has no opposite.
    """
    a, b = division.a, division.b
    rest, zero = tirx.Mod(a, b), tirx.const(0, str(division.ty.dtype))
    if isinstance(division, tirx.FloorMod):
        return rest + tirx.Select(rest > zero, b, zero)
    return tirx.Div(a, b) - tirx.Select(rest > zero, tirx.const(1, str(division.ty.dtype)), zero)


def _by_floats(kind: type, a: Expr, b: Expr, dtype: tvm.DataType) -> Expr:
    """The quotient or remainder of two integers that floats hold."""
    wide = _FLOATS[dtype.bits]
    dividend, divisor = tirx.Cast(wide, a), tirx.Cast(wide, b)
    quotient = tirx.Div(dividend, divisor)
    whole = tirx.floor(quotient) if kind in _FLOORED else tirx.trunc(quotient)
    if kind in (tirx.Mod, tirx.FloorMod):
        whole = dividend - whole * divisor
    if dtype.bits < 32:
        return tirx.Cast(str(dtype), tirx.Cast("int32", whole))
    if str(dtype).startswith("int"):
        beyond = whole > tirx.const(float(2**31 - 1), wide)
        whole = tirx.Select(beyond, tirx.const(float(-(2**31)), wide), whole)
    return tirx.Cast(str(dtype), whole)


@tirx.transform.prim_func_pass(opt_level=0, name="hetero_tvm.DivideWithoutTraps")
def divide_without_traps(func: PrimFunc, _mod: IRModule, _ctx: Any) -> PrimFunc:
    """Make every integer division by a value in memory one that cannot end the process."""
    return with_body(func, tvm_ffi.structural_map(func.body, (DIVISIONS, _safe_division), order="post"))
