"""Differences of floats that TVM would cancel: ``inf - inf`` is NaN, and ``(x + y) - y`` is rounded.

And comparisons that it would turn around: of NaN nothing is less, and nothing is greater or equal.
"""

from __future__ import annotations

from typing import Any

from hetero_tvm.host.tvm import Expr, PrimFunc, tirx, tvm, tvm_ffi, with_body


def _cancels(difference: tirx.Sub) -> bool:
    """Whether TVM's simplifier would take a difference of floats for one of its operands, or for zero."""
    a, b = difference.a, difference.b
    if tvm_ffi.structural_equal(a, b):
        return True
    if isinstance(a, tirx.Add) and any(tvm_ffi.structural_equal(part, b) for part in (a.a, a.b)):
        return True
    return isinstance(b, tirx.Add) and any(tvm_ffi.structural_equal(part, a) for part in (b.a, b.b))


def _kept(difference: Expr) -> Expr:
    """The difference as a sum, which nothing cancels; LLVM makes a difference of it again."""
    dtype = tvm.DataType(str(difference.ty.dtype))
    if not str(dtype).startswith(("float", "bfloat")) or dtype.lanes != 1 or not _cancels(difference):
        return difference
    return difference.a + difference.b * tirx.const(-1.0, str(dtype))


_COMPARED = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)


def _compares_floats(condition: Expr) -> bool:
    """Whether a condition depends on how floats compare."""
    found: list[Expr] = []

    def note(comparison: Expr) -> None:
        if "float" in str(comparison.a.ty.dtype):
            found.append(comparison)

    tvm_ffi.structural_walk(condition, (_COMPARED, note))
    return bool(found)


def _bit(condition: Expr) -> Expr:
    return tirx.Cast("int32", condition)


def _by_bits(condition: Expr) -> Expr:
    """Opposites and alternatives of comparisons of floats by their bits: NaN makes both of two comparisons
    false of which TVM takes one for true, and unequal is to TVM what is less or greater."""
    if tvm.DataType(str(condition.ty.dtype)).lanes != 1:
        return condition
    if isinstance(condition, tirx.Or):
        if not (_compares_floats(condition.a) and _compares_floats(condition.b)):
            return condition
        return tirx.Cast("bool", tirx.bitwise_or(_bit(condition.a), _bit(condition.b)))
    if isinstance(condition, tirx.NE):
        if "float" not in str(condition.a.ty.dtype):
            return condition
        opposite: Expr = tirx.EQ(condition.a, condition.b)
    else:
        opposite = condition.a
    if not _compares_floats(opposite):
        return condition
    return tirx.Cast("bool", tirx.bitwise_xor(_bit(opposite), tirx.const(1, "int32")))


def _with_itself(equal: tirx.EQ) -> Expr:
    """A float beside itself as ``x <= x``, which NaN makes false: TVM takes ``x == x`` for true."""
    if "float" not in str(equal.a.ty.dtype) or not tvm_ffi.structural_equal(equal.a, equal.b):
        return equal
    return tirx.LE(equal.a, equal.b)


@tirx.transform.prim_func_pass(opt_level=0, name="hetero_tvm.KeepCancellation")
def keep_cancellation(func: PrimFunc, _mod: Any, _ctx: Any) -> PrimFunc:
    """Let differences and comparisons of floats be computed as they are written."""
    choices = (tirx.Not, tirx.NE, tirx.Or)
    body = tvm_ffi.structural_map(func.body, [(tirx.Sub, _kept), (choices, _by_bits)], order="post")
    return with_body(func, tvm_ffi.structural_map(body, (tirx.EQ, _with_itself), order="post"))
