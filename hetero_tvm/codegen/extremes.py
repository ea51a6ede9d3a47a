"""Maxima and minima that keep NaN and infinities, as ONNX Runtime's do.

Machine code of ``max(a, b)`` is ``a > b ? a : b``: of two operands the second one's NaN survives.  And TVM
starts a reduction at the least finite number, which then is the maximum of nothing but negative infinities.
"""

from __future__ import annotations

from typing import Any

from hetero_tvm.host.tvm import Call, Expr, PrimFunc, Stmt, TensorLoad, tirx, tvm, tvm_ffi

_ENDS = {"float32": 3.4028234663852886e38, "float64": 1.7976931348623157e308, "float16": 65504.0}
"""Largest finite number of a type."""


def _is_constant(expr: Expr) -> bool:
    return isinstance(expr.value if isinstance(expr, tirx.Broadcast) else expr, tirx.FloatImm)


def _constant_first(extreme: Expr) -> Expr:
    """``extreme`` with its constant as the first operand: NaN of the other one survives at no cost."""
    if _is_constant(extreme.b) and not _is_constant(extreme.a):
        return type(extreme)(extreme.b, extreme.a)
    return extreme


def _reduced(body: Stmt) -> dict[Any, float]:
    """Buffers that hold running maxima (-1) or minima (1)."""
    found: dict[Any, float] = {}

    def visit(node: tirx.BufferStore) -> None:
        if isinstance(node.value, tirx.Max | tirx.Min):
            for operand in (node.value.a, node.value.b):
                if isinstance(operand, TensorLoad) and operand.source.same_as(node.buffer):
                    found[node.buffer] = -1.0 if isinstance(node.value, tirx.Max) else 1.0

    tvm_ffi.structural_walk(body, (tirx.BufferStore, visit), order="pre")
    return found


def _takes_exponentials(body: Stmt) -> bool:
    """Whether a function has exponentials: a softmax in pieces needs a finite maximum to begin with."""
    found = []

    def visit(node: Call) -> None:
        if isinstance(node.op, tvm.ir.Op) and node.op.name in ("tirx.exp", "tirx.exp2", "tirx.reinterpret"):
            found.append(node)

    tvm_ffi.structural_walk(body, (Call, visit), order="pre")
    return bool(found)


@tirx.transform.prim_func_pass(opt_level=0, name="hetero_tvm.KeepExtremes")
def keep_extremes(func: PrimFunc, _mod: Any, _ctx: Any) -> PrimFunc:
    """Let maxima and minima keep NaN of their operand, and reductions begin at infinity."""
    body = func.body
    reduced = {} if _takes_exponentials(body) else _reduced(body)

    def begin(store: tirx.BufferStore) -> Stmt:
        dtype = str(store.buffer.dtype)
        sign = next((s for buffer, s in reduced.items() if buffer.same_as(store.buffer)), None)
        value = store.value
        if sign is None or not isinstance(value, tirx.FloatImm) or dtype not in _ENDS:
            return store
        if float(value.value) != sign * _ENDS[dtype]:
            return store
        infinity = tirx.const(sign * float("inf"), dtype)
        return tirx.BufferStore(store.buffer, infinity, store.indices)

    for kind in (tirx.Max, tirx.Min):
        body = tvm_ffi.structural_map(body, (kind, _constant_first), order="post")
    if reduced:
        body = tvm_ffi.structural_map(body, (tirx.BufferStore, begin))
    return func.with_body(body)
