"""Maxima and minima that keep NaN and infinities, as NumPy's and PyTorch's do.

Machine code of ``max(a, b)`` is ``a > b ? a : b``: of two operands the second one's NaN survives.  And TVM
starts a reduction at the least finite number, which then is the maximum of nothing but negative infinities.
"""

from __future__ import annotations

from typing import Any

from hetero_tvm.host.tvm import Call, Expr, PrimFunc, Stmt, TensorLoad, tirx, tvm, tvm_ffi, with_body

_OWN_EXPONENTIALS = "hetero_tvm.own_exponentials"
"""Attribute of functions that take exponentials by their bits before polynomials are put in."""

_ENDS = {"float32": 3.4028234663852886e38, "float64": 1.7976931348623157e308, "float16": 65504.0}
"""Largest finite number of a type."""


def _is_constant(expr: Expr) -> bool:
    return isinstance(expr.value if isinstance(expr, tirx.Broadcast) else expr, tirx.FloatImm)


def _constant_first(extreme: Expr) -> Expr:
    """``extreme`` with its constant as the first operand: NaN of the other one survives at no cost."""
    if _is_constant(extreme.b) and not _is_constant(extreme.a):
        return type(extreme)(extreme.b, extreme.a)
    return extreme


def _keeping_nan(extreme: Expr) -> Expr:
    """``extreme`` such that NaN of either operand survives: a comparison more, and a masked maximum.

    Reductions are written as ``so_far = max(so_far, value)``.  The value is compared, not what it joins, so
    that a chain of maxima is as long as before.
    """
    extreme = _constant_first(extreme)
    dtype = str(extreme.ty.dtype)
    if "float" not in dtype or _is_constant(extreme.a) or _is_constant(extreme.b):
        return extreme
    so_far, value = extreme.a, extreme.b
    if isinstance(value, tirx.Var | TensorLoad):
        return tirx.Select(tirx.EQ(value, value), type(extreme)(value, so_far), value)
    name = tirx.Var("value", dtype)
    return tirx.Let(name, value, tirx.Select(tirx.EQ(name, name), type(extreme)(name, so_far), name))


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


def _is_softmax(body: Stmt) -> bool:
    """Whether a function takes exponentials by their bits, as our kernels of softmax and attention do.

    NaN comes through their sum, whatever the maximum is.
    """
    found = []

    def visit(node: Call) -> None:
        is_cast = isinstance(node.op, tvm.ir.Op) and node.op.name == "tirx.reinterpret"
        if is_cast and "float" in str(getattr(node.ty, "dtype", "")):  # pointers are cast in every function
            found.append(node)

    tvm_ffi.structural_walk(body, (Call, visit), order="pre")
    return bool(found)


@tirx.transform.prim_func_pass(opt_level=0, name="hetero_tvm.BeginAtInfinity")
def begin_at_infinity(func: PrimFunc, _mod: Any, _ctx: Any) -> PrimFunc:
    """Let reductions to a maximum or minimum begin at infinity."""
    if _is_softmax(func.body):
        return func.with_attr(_OWN_EXPONENTIALS, True)
    reduced = _reduced(func.body)

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

    return with_body(func, tvm_ffi.structural_map(func.body, (tirx.BufferStore, begin))) if reduced else func


@tirx.transform.prim_func_pass(opt_level=0, name="hetero_tvm.KeepNan")
def keep_nan(func: PrimFunc, _mod: Any, _ctx: Any) -> PrimFunc:
    """Let maxima and minima keep NaN of their operands.

    It follows the vectoriser, which would take a test for NaN apart, and the simplifier, for which every
    value equals itself.
    """
    own = func.attrs is not None and _OWN_EXPONENTIALS in func.attrs
    rewrite, both = _constant_first if own else _keeping_nan, (tirx.Max, tirx.Min)
    return with_body(func, tvm_ffi.structural_map(func.body, (both, rewrite), order="post"))
