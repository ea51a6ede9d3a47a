"""Differences of floats that TVM would cancel: ``inf - inf`` is NaN, and ``(x + y) - y`` is rounded."""

from __future__ import annotations

from typing import Any

from hetero_tvm.host.tvm import Expr, PrimFunc, tirx, tvm, tvm_ffi


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


@tirx.transform.prim_func_pass(opt_level=0, name="hetero_tvm.KeepCancellation")
def keep_cancellation(func: PrimFunc, _mod: Any, _ctx: Any) -> PrimFunc:
    """Let differences of floats be computed as they are written."""
    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.Sub, _kept), order="post"))
