"""Integers of data wrap around where they overflow, as those of NumPy and every runtime do.

TVM's simplifier takes all integers for those of mathematics, and LLVM is told that sums of 32 and 64 bits do
not overflow: ``(x * 7) / 7`` would be x, and the remainder of a hash that of another number.  That is right
of indices.  Of what is read from tensors, sums and products that are divided, compared or widened go through
a fence which neither looks behind, and which is no instruction.  So do the operands of a sum or product whose
constants together leave their type: the simplifier would multiply them out, and then refuses a signed one
and makes another number of an unsigned one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hetero_tvm.host.tvm import Expr, PrimFunc, TensorLoad, tirx, tvm, tvm_ffi

_SUMS = (tirx.Add, tirx.Sub, tirx.Mul)
_COMPARED = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)
_READERS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max, *_COMPARED)
"""Operations whose results depend on whether their operands have wrapped around."""


Fence = Callable[[Expr], Expr]
"""Makes of a number one that neither TVM's simplifier nor the compiler behind it knows anything of."""


def _kept(value: Expr, fence: Fence) -> Expr:
    """``value``, behind a fence where it is a sum or product of integers that may overflow."""
    return fence(value) if isinstance(value, _SUMS) and _is_wide(value) and _of_data(value) else value


def _is_wide(value: Expr) -> bool:
    """Whether a value is an integer of 32 or 64 bits: smaller ones are computed as such, or told to wrap."""
    dtype = tvm.DataType(str(value.ty.dtype))
    return "int" in str(dtype) and dtype.lanes == 1 and dtype.bits >= 32


def _llvm_fence(value: Expr) -> Expr:
    """``value``, behind LLVM's fence, which is one of floats."""
    dtype = tvm.DataType(str(value.ty.dtype))
    bits = f"float{dtype.bits}"
    fenced = tirx.call_llvm_pure_intrin(
        bits, "llvm.arithmetic.fence", tirx.call_intrin(bits, "tirx.reinterpret", value)
    )
    return tirx.call_intrin(str(dtype), "tirx.reinterpret", fenced)


def _of_data(value: Expr) -> bool:
    """Whether a value has a variable that stands for a load."""
    found: list[tirx.Var] = []

    def note(variable: tirx.Var) -> None:
        if variable.name == _LOADED:
            found.append(variable)

    tvm_ffi.structural_walk(value, (tirx.Var, note))
    return bool(found)


_LOADED = "hetero_tvm.loaded"
"""Name of the variables that stand for loads, so that their indices stay as they are."""


def _signed(value: Expr, bits: int) -> Expr:
    """The bits of an unsigned number as those of a signed one."""
    if isinstance(value, tirx.IntImm):
        number = int(value)
        return tirx.const(number - 2**bits if number >= 2 ** (bits - 1) else number, f"int{bits}")
    return tirx.call_intrin(f"int{bits}", "tirx.reinterpret", value)


def _greatest_factor(value: Expr) -> int:
    """Bound of the constants that the simplifier may make of a tree of sums and products."""
    if isinstance(value, tirx.IntImm):
        return max(abs(int(value)), 1)
    if isinstance(value, tirx.Mul):
        return _greatest_factor(value.a) * _greatest_factor(value.b)
    if isinstance(value, (tirx.Add, tirx.Sub)):
        return _greatest_factor(value.a) + _greatest_factor(value.b)
    return 1


def _summing(node: Expr, fence: Fence) -> Expr:
    """A sum or product, with its operands behind fences where constants of it may leave its type."""
    if not _is_wide(node) or not _of_data(node):
        return node
    dtype = tvm.DataType(str(node.ty.dtype))
    if isinstance(node, tirx.Mul) and tvm_ffi.structural_equal(node.a, node.b):
        # LLVM takes the square of what it knows nothing of for a number that is not below 0, and sees that
        # through a fence.
        node = tirx.Mul(fence(node.a), node.b)
    if isinstance(node, tirx.Sub) and "uint" in str(dtype):
        # A difference of unsigned numbers is none below 0 to the simplifier, and 0 - x is 0.
        a, b = (_signed(side, dtype.bits) for side in (node.a, node.b))
        if tvm.sym.Analyzer().can_prove_equal(a, b):
            # The simplifier makes a zero of it, which TVM cannot reinterpret.
            return tirx.const(0, str(dtype))
        return tirx.call_intrin(str(dtype), "tirx.reinterpret", _summing(tirx.Sub(a, b), fence))
    if _greatest_factor(node) < 2 ** (dtype.bits - 1):
        return node
    a, b = (fence(side) if _greatest_factor(side) > 1 else side for side in (node.a, node.b))
    return type(node)(a, b)


def _reading(node: Expr, fence: Fence) -> Expr:
    """An operation with its operands behind fences."""
    if isinstance(node, tirx.Cast):
        wide, narrow = (tvm.DataType(str(end.ty.dtype)) for end in (node, node.value))
        whole = "int" in str(wide) and "int" in str(narrow)
        value = _kept(node.value, fence) if whole and wide.bits > narrow.bits else node.value
        if whole and str(wide)[0] != str(narrow)[0] and _of_data(value) and not _fits(value, str(wide)):
            # The simplifier takes what does not fit for out of the question: bytes as int8 for 0 to 127.
            kind = f"{str(narrow).rstrip('0123456789')}{wide.bits}"
            same = value if kind == str(narrow) else tirx.Cast(kind, value)
            return tirx.call_intrin(str(wide), "tirx.reinterpret", same)
        return node if value.same_as(node.value) else tirx.Cast(str(wide), value)
    a, b = _kept(node.a, fence), _kept(node.b, fence)
    narrow = tvm.DataType(str(a.ty.dtype))
    if isinstance(node, _COMPARED) and str(narrow) in ("uint8", "uint16"):
        # TVM does not compare sums of these.
        a, b = (tirx.Cast("int32", side) if isinstance(side, _SUMS) else side for side in (a, b))
        a, b = (side if str(side.ty.dtype) == "int32" else tirx.Cast("int32", side) for side in (a, b))
    return node if a.same_as(node.a) and b.same_as(node.b) else type(node)(a, b)


def _fits(value: Expr, dtype: str) -> bool:
    """Whether all that a number may be is in a type of integers."""
    bound, bits = tvm.sym.Analyzer().const_int_bound(value), tvm.DataType(dtype).bits
    least, most = (0, 2**bits - 1) if dtype.startswith("uint") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    # No bound at all is the largest number of int64.
    return least <= bound.min_value and bound.max_value <= min(most, 2**63 - 2)


def wrapping(expression: Expr, fence: Fence = _llvm_fence) -> Expr:
    """``expression``, with fences around what may overflow of integers that are read from tensors."""
    loads: dict[tirx.Var, TensorLoad] = {}
    variables: dict[int, tirx.Var] = {}

    def name(load: TensorLoad) -> Expr:
        key = tvm_ffi.structural_hash(load)
        variable = variables.get(key)
        if variable is None or not tvm_ffi.structural_equal(loads[variable], load):
            variable = variables[key] = tirx.Var(_LOADED, str(load.ty.dtype))
            loads[variable] = load
        return variable

    def back(variable: tirx.Var) -> Expr:
        return loads.get(variable, variable)

    named = tvm_ffi.structural_map(expression, (TensorLoad, name), order="pre")
    value = tvm_ffi.structural_map(
        named,
        [
            (_SUMS, lambda node: _summing(node, fence)),
            ((*_READERS, tirx.Cast), lambda node: _reading(node, fence)),
        ],
        order="post",
    )
    if value.same_as(named):
        return expression
    return tvm_ffi.structural_map(value, (tirx.Var, back), order="post")


def wrapping_pass(fence: Fence) -> Any:
    """A pass that lets integers that are read from tensors wrap around."""

    def stored(store: tirx.BufferStore) -> tirx.BufferStore:
        value = wrapping(store.value, fence)
        return store if value.same_as(store.value) else tirx.BufferStore(store.buffer, value, store.indices)

    @tirx.transform.prim_func_pass(opt_level=0, name="hetero_tvm.WrapAround")
    def wrap(func: PrimFunc, _mod: Any, _ctx: Any) -> PrimFunc:
        return func.with_body(tvm_ffi.structural_map(func.body, (tirx.BufferStore, stored), order="post"))

    return wrap


wrap_around = wrapping_pass(_llvm_fence)
