"""Choices that hang on choices, computed one after the other.

TVM's simplifier looks at both sides of a choice under its condition, and at what the condition holds once
more for each of them: remainders of quotients as JAX writes them, whose signs are chosen four times, took
hours.  It does not look through a store: each choice goes to a number of its own, which LLVM keeps in a
register.
"""

from __future__ import annotations

from hetero_tvm.codegen.steps.function_steps import behind_steps
from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, TensorLoad, tirx, tvm, tvm_ffi, with_body

_MOST_CHOICES = 8
"""Choices in a value, one in the condition of another, that the simplifier may see at once."""


def choose_in_steps(func: PrimFunc) -> PrimFunc:
    """``func`` where the choices in a value that has many, in conditions of others, are made before it."""
    return with_body(func, tvm_ffi.structural_map(func.body, (tirx.BufferStore, _in_steps), order="post"))


def _in_steps(store: tirx.BufferStore) -> tirx.Stmt:
    if not has_many_choices(store.value):
        return store
    steps: list[tuple[Expr, Buffer]] = []
    """Each choice, with earlier steps in it, and where its number goes."""

    def step(choice: tirx.Select) -> Expr:
        dtype = str(choice.ty.dtype)
        if dtype == "bool" or not _exists_everywhere(choice, store, [buffer for _, buffer in steps]):
            return choice
        buffer = next((b for known, b in steps if tvm_ffi.structural_equal(known, choice)), None)
        if buffer is None:
            buffer = tirx.decl_buffer((1,), dtype, "step", scope="local")
            steps.append((choice, buffer))
        return buffer[0]

    value = tvm_ffi.structural_map(store.value, (tirx.Select, step), order="post")
    return behind_steps(store, value, steps) if steps else store


def has_many_choices(value: Expr) -> bool:
    """Whether a value has many choices, one of them in the condition of another; none of bound variables."""
    if tvm.DataType(str(value.ty.dtype)).lanes != 1:
        return False
    choices = _choices(value)
    if len(choices) <= _MOST_CHOICES:
        return False
    bound: list[Expr] = []
    tvm_ffi.structural_walk(value, (tirx.Let, bound.append))
    return not bound and any(_choices(choice.condition) for choice in choices)


def _choices(value: Expr) -> list[tirx.Select]:
    found: list[tirx.Select] = []
    tvm_ffi.structural_walk(value, (tirx.Select, found.append))
    return found


def _exists_everywhere(choice: Expr, store: tirx.BufferStore, steps: list[Buffer]) -> bool:
    """Whether all that a choice reads is there for every element that is stored, whatever conditions say."""
    loads: list[TensorLoad] = []
    tvm_ffi.structural_walk(choice, (TensorLoad, loads.append))
    return all(
        any(load.source.same_as(buffer) for buffer in steps)
        or all(
            _is_inside(index, extent, store)
            for index, extent in zip(load.indices, load.source.shape, strict=True)
        )
        for load in loads
    )


def _is_inside(index: Expr, extent: Expr, store: tirx.BufferStore) -> bool:
    if isinstance(index, tirx.IntImm):
        return isinstance(extent, tirx.IntImm) and 0 <= int(index) < int(extent)
    return any(
        tvm_ffi.structural_equal(index, other) and tvm_ffi.structural_equal(extent, room)
        for other, room in zip(store.indices, store.buffer.shape, strict=True)
    )
