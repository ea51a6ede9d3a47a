"""Functions of functions, computed one after the other.

TVM's analyzers visit what a polynomial binds several times, and a polynomial inside of it several times as
often: a sine of a power of a sigmoid took minutes.  And their bounds of integers contradict each other where
a polynomial stands in two places, which is what they make of a variable that is bound to one.  They do not
look through a store: each function goes to a number of its own, which LLVM keeps in a register.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from hetero_tvm.host.tvm import Buffer, Call, Expr, PrimFunc, TensorLoad, tirx, tvm, tvm_ffi, with_body

_STEP = "hetero_tvm.step"
"""Annotation of the buffer of a step."""


def compute_in_steps(func: PrimFunc, functions: Collection[str]) -> PrimFunc:
    """``func`` where the ``functions`` of floats in a value are computed before it: those of functions, and
    those that are no float in the end."""

    def in_steps(store: tirx.BufferStore) -> tirx.Stmt:
        return _in_steps(store, functions)

    return with_body(func, tvm_ffi.structural_map(func.body, (tirx.BufferStore, in_steps), order="post"))


def _in_steps(store: tirx.BufferStore, functions: Collection[str]) -> tirx.Stmt:
    whole = _makes_whole(store.value, functions)
    if not _worth(store.value, functions, whole):
        return store
    read = _unconditional_loads(store.value)
    steps: list[tuple[Expr, Expr, Buffer]] = []
    """Each function spelled out, the same with earlier steps in it, and where its number goes."""

    def step(value: Expr) -> Expr:
        if not _is_function(value, functions):
            return value
        plain = _spelled_out(value, steps)
        # What one branch alone reads may not exist where the other one is taken.
        if not all(_among(load, read) for load in _unconditional_loads(plain)):
            return value
        buffer = next((b for known, _, b in steps if tvm_ffi.structural_equal(known, plain)), None)
        if buffer is None:
            buffer = tirx.decl_buffer((1,), str(value.ty.dtype), "step", scope="local")
            steps.append((plain, value, buffer))
        return buffer[0]

    value = tvm_ffi.structural_map(store.value, ((Call, tirx.Mod), step), order="post")
    if not steps:
        return store
    if whole:
        value = tvm_ffi.structural_map(value, (tirx.Cast, _defined), order="post")
    return behind_steps(store, value, [(function, buffer) for _, function, buffer in steps])


def behind_steps(store: tirx.BufferStore, value: Expr, steps: Iterable[tuple[Expr, Buffer]]) -> tirx.SeqStmt:
    """The store of ``value``, behind those of the numbers that it reads, each into a buffer of its own."""
    made: list[tirx.Stmt] = []
    for number, buffer in steps:
        allocation = tirx.AllocBuffer(buffer, {_STEP: tirx.const(1, "int32")})
        made += [allocation, tirx.BufferStore(buffer, number, [0])]
    return tirx.SeqStmt([*made, tirx.BufferStore(store.buffer, value, store.indices)])


def _is_function(value: Expr, functions: Collection[str]) -> bool:
    """Whether a value is one of the ``functions`` of float32 or float64, or a remainder."""
    if str(getattr(value.ty, "dtype", None)) not in ("float32", "float64"):
        return False
    return isinstance(value, tirx.Mod) or getattr(value.op, "name", "") in functions


def _worth(value: Expr, functions: Collection[str], whole: bool) -> bool:
    """Whether a value has functions to compute before it.

    What is made of variables that are bound inside of it stays.
    """
    if tvm.DataType(str(value.ty.dtype)).lanes != 1:
        return False
    found: list[Expr] = []
    bound: list[Expr] = []

    def note(node: Expr) -> None:
        if isinstance(node, tirx.Let):
            bound.append(node)
        elif _is_function(node, functions):
            found.append(node)

    tvm_ffi.structural_walk(value, ((Call, tirx.Mod, tirx.Let), note))
    if bound or not found:
        return False
    return whole or any(_count(function, functions) > 1 for function in found)


def _count(value: Expr, functions: Collection[str]) -> int:
    """Number of functions in a value."""
    found: list[Expr] = []

    def note(node: Expr) -> None:
        if _is_function(node, functions):
            found.append(node)

    tvm_ffi.structural_walk(value, ((Call, tirx.Mod), note))
    return len(found)


def _makes_whole(value: Expr, functions: Collection[str]) -> bool:
    """Whether a function's result becomes something else than a float."""
    if "float" not in str(value.ty.dtype):
        return _count(value, functions) > 0
    found: list[tirx.Cast] = []

    def note(cast: tirx.Cast) -> None:
        if "float" not in str(cast.ty.dtype) and _count(cast.value, functions):
            found.append(cast)

    tvm_ffi.structural_walk(value, (tirx.Cast, note))
    return bool(found)


def _spelled_out(value: Expr, steps: list[tuple[Expr, Expr, Buffer]]) -> Expr:
    """``value`` with functions in the places of the steps that it reads."""

    def function(load: TensorLoad) -> Expr:
        return next((plain for plain, _, buffer in steps if load.source.same_as(buffer)), load)

    return tvm_ffi.structural_map(value, (TensorLoad, function), order="post")


def _unconditional_loads(value: Expr) -> list[TensorLoad]:
    """Loads that a value makes whatever its conditions say."""

    def condition(choice: Expr) -> Expr:
        if isinstance(choice, tirx.Select):
            return tirx.Cast(str(choice.ty.dtype), choice.condition)
        if getattr(choice.op, "name", "") in ("prim.if_then_else", "tirx.if_then_else"):
            return tirx.Cast(str(choice.ty.dtype), choice.args[0])
        return choice

    loads: list[TensorLoad] = []
    always = tvm_ffi.structural_map(value, ((tirx.Select, Call), condition), order="post")
    tvm_ffi.structural_walk(always, (TensorLoad, loads.append))
    return loads


def _among(load: TensorLoad, loads: list[TensorLoad]) -> bool:
    return any(tvm_ffi.structural_equal(load, other) for other in loads)


def _defined(cast: tirx.Cast) -> Expr:
    """``cast`` of a float to int32 or int64 as processors do it: the least number for NaN and what is out of
    range.  LLVM may make anything of a NaN that it sees a polynomial give."""
    source, dtype = str(cast.value.ty.dtype), str(cast.ty.dtype)
    if source != "float32" or dtype not in ("int32", "int64"):
        return cast
    bits = tvm.DataType(dtype).bits
    limit = tirx.const(2.0 ** (bits - 1), source)
    inside = tirx.And(cast.value >= -limit, cast.value < limit)
    return tirx.Select(inside, cast, tirx.min_value(dtype))


@tirx.transform.prim_func_pass(opt_level=0, name="hetero_tvm.StepsOfLanes")
def give_each_lane_its_steps(func: PrimFunc, _mod: Any, _ctx: Any) -> PrimFunc:
    """Make the number that a step leaves in a vectorised loop one of each lane; TVM's vectoriser would leave
    one of all."""
    return with_body(func, tvm_ffi.structural_map(func.body, (tirx.For, _with_lanes), order="post"))


def _with_lanes(loop: tirx.For) -> tirx.Stmt:
    if loop.kind != tirx.ForKind.VECTORIZED:
        return loop
    wide: list[tuple[Buffer, Buffer]] = []

    def widen(allocation: tirx.AllocBuffer) -> tirx.Stmt:
        if _STEP not in (allocation.annotations or {}):
            return allocation
        dtype = str(allocation.buffer.dtype)
        buffer = tirx.decl_buffer((loop.extent,), dtype, "steps", scope="local")
        wide.append((allocation.buffer, buffer))
        return tirx.Evaluate(tirx.const(0, "int32"))

    body = tvm_ffi.structural_map(loop.body, (tirx.AllocBuffer, widen))
    if not wide:
        return loop
    lane = loop.loop_var - loop.min

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        buffer = next((new for old, new in wide if node.buffer.same_as(old)), None)
        return node if buffer is None else tirx.BufferStore(buffer, node.value, [lane])

    def load(node: TensorLoad) -> Expr:
        buffer = next((new for old, new in wide if node.source.same_as(old)), None)
        return node if buffer is None else buffer[lane]

    body = tvm_ffi.structural_map(body, [(tirx.BufferStore, store), (TensorLoad, load)], order="post")
    loop = tirx.For(
        loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, loop.annotations
    )
    return tirx.SeqStmt([*(tirx.AllocBuffer(buffer) for _, buffer in wide), loop])
