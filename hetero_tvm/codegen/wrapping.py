"""Integers of data wrap around where they overflow, as those of NumPy and every runtime do.

TVM's simplifier takes all integers for those of mathematics, and LLVM is told that sums of 32 and 64 bits do
not overflow: ``(x * 7) / 7`` would be x, and the remainder of a hash that of another number.  That is right
of indices.  Of what is read from tensors, sums and products that may leave their type, and that anything but
a further sum reads, go through a fence which neither looks behind, and which is no instruction.  So do the
operands of a sum or product whose constants together leave their type: the simplifier would multiply them
out, and then refuses a signed one and makes another number of an unsigned one.

LLVM's fence is one of floats, whose sign LLVM still follows: the bits of ``(x & 64) * y`` are those of a
number that is not below 0 to it, if nothing overflows.  So the terms of a sum behind a fence are hidden (two
exclusive ors), unless they are loads, of whose signs nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hetero_tvm.host.tvm import Expr, PrimFunc, TensorLoad, tirx, tvm, tvm_ffi, with_body

_SUMS = (tirx.Add, tirx.Sub, tirx.Mul)
_COMPARED = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)
_BITS = (tirx.BitwiseAnd, tirx.BitwiseOr, tirx.BitwiseXor, tirx.LShift, tirx.RShift)
_READERS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max, *_COMPARED, *_BITS)
"""Operations whose results depend on whether their operands have wrapped around."""
_OF_MORE = (tirx.BitwiseNot, tirx.Cast, tirx.Select, tvm.ir.Call)
"""Others that may, by what they are of."""
_CHOICE = "prim.if_then_else"
_READING_CALLS = (_CHOICE, "tirx.popcount", "tirx.clz", "tirx.pow")
"""Functions of integers of which the same is true."""


@dataclass(frozen=True)
class Fence:
    """A barrier for numbers of 32 or 64 bits that neither TVM nor the compiler behind it looks into."""

    make: Callable[[Expr], Expr]
    shows_signs: bool
    """Whether the compiler follows the sign of a number through it."""

    def __call__(self, value: Expr) -> Expr:
        """``value``, behind the fence; of a shorter number, behind what TVM does not look into.

        Compilers are told that sums of shorter numbers wrap around.
        """
        dtype = tvm.DataType(str(value.ty.dtype))
        if dtype.bits >= 32:
            return self.make(value)
        if not self.shows_signs:  # TVM's CUDA sources compute them as int
            return tirx.Cast(str(dtype), self.make(tirx.Cast("int32", value)))
        other = str(dtype)[1:] if str(dtype).startswith("uint") else f"u{dtype}"
        return tirx.call_intrin(str(dtype), _REINTERPRET, tirx.call_intrin(other, _REINTERPRET, value))


_REINTERPRET = "tirx.reinterpret"


def _is_integer(value: Expr) -> bool:
    """Whether a value is one integer of a whole number of bytes."""
    dtype = tvm.DataType(str(value.ty.dtype))
    return str(dtype).startswith(("int", "uint")) and dtype.lanes == 1 and dtype.bits >= 8


def _call_of(value: Expr) -> str | None:
    """Name of the function of TVM that a value is the result of."""
    return value.op.name if isinstance(value, tvm.ir.Call) and isinstance(value.op, tvm.ir.Op) else None


def _llvm_fence(value: Expr) -> Expr:
    """``value``, behind LLVM's fence, which is one of floats."""
    dtype = tvm.DataType(str(value.ty.dtype))
    bits = f"float{dtype.bits}"
    fenced = tirx.call_llvm_pure_intrin(
        bits, "llvm.arithmetic.fence", tirx.call_intrin(bits, _REINTERPRET, value)
    )
    return tirx.call_intrin(str(dtype), _REINTERPRET, fenced)


LLVM = Fence(_llvm_fence, shows_signs=True)


def _wraps(value: Expr) -> bool:
    """Whether a value is a sum, product or shift of integers of data that may leave its type."""
    if not _is_integer(value):
        return False
    if isinstance(value, tirx.LShift):
        return _of_data(value) and not _fits(value, str(value.ty.dtype))
    return isinstance(value, _SUMS) and _of_data(value) and not _stays(value)


def _stays(value: Expr) -> bool:
    """Whether neither a sum nor a sum within it leaves its type, whatever the numbers are."""
    if not isinstance(value, _SUMS):
        return True
    return _stays(value.a) and _stays(value.b) and _fits(value, str(value.ty.dtype))


def _kept(value: Expr, fence: Fence) -> Expr:
    """``value``, behind a fence where it may wrap around."""
    dtype = str(value.ty.dtype)
    if _call_of(value) == _REINTERPRET and _wraps(value.args[0]):  # a difference of unsigned numbers
        return tirx.call_intrin(dtype, _REINTERPRET, _kept(value.args[0], fence))
    if not _wraps(value):
        return value
    bits = tvm.DataType(dtype).bits
    if bits < 32 or not fence.shows_signs or not isinstance(value, _SUMS):
        return fence(value)
    fenced = fence(_hidden_terms(value, bits, fence))
    return fenced if dtype.startswith("int") else tirx.call_intrin(dtype, _REINTERPRET, fenced)


def _hidden_terms(value: Expr, bits: int, fence: Fence) -> Expr:
    """A sum as one of signed numbers, of whose terms LLVM knows nothing.

    Some constants tell it the sign of the other term, if nothing overflows: the largest number less x.
    """
    anchor = _anchor(value, bits)

    def hidden(term: Expr) -> Expr:
        signed = _signed(term, bits)
        if _call_of(term) == _REINTERPRET and isinstance(term.args[0], _SUMS):
            return hidden(term.args[0])
        if isinstance(term, _SUMS):
            a, b = hidden(term.a), hidden(term.b)
            if isinstance(term, tirx.Mul) and tvm_ffi.structural_equal(a, b):
                a = fence(a)
            return type(term)(a, b)
        if isinstance(term, tirx.IntImm):
            if abs(int(signed)) < 2 ** (bits - 2) or anchor is None:
                return signed
        elif isinstance(term, tirx.Var):
            return signed
        if anchor is None:
            return fence(signed)
        return tirx.bitwise_xor(fence(tirx.bitwise_xor(signed, anchor)), anchor)

    return hidden(value)


def _anchor(value: Expr, bits: int) -> Expr | None:
    """A signed number of the data that a value is computed from, and is never computed without."""
    if isinstance(value, tirx.Var):
        if value.name != _LOADED:
            return None
        dtype, wanted = tvm.DataType(str(value.ty.dtype)), f"int{bits}"
        if str(dtype) == "bool":
            return tirx.Sub(tirx.const(0, wanted), tirx.Cast(wanted, value))
        if dtype.lanes != 1 or dtype.bits < 8 or not str(dtype).startswith(("int", "uint", "float")):
            return None
        if str(dtype).startswith("float") and dtype.bits != bits:
            return None
        own = f"int{dtype.bits}"
        signed = value if str(dtype) == own else tirx.call_intrin(own, _REINTERPRET, value)
        return signed if own == wanted else tirx.Cast(wanted, signed)
    if _call_of(value) is not None:
        operands = list(value.args[:1] if _call_of(value) == _CHOICE else value.args)
    else:
        names = ("a", "b", "value", "condition", "true_value", "false_value")
        operands = [getattr(value, name) for name in names if hasattr(value, name)]
    parts = [one for one in operands if isinstance(one, Expr)]
    return next((found for one in parts if (found := _anchor(one, bits)) is not None), None)


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
    """The bits of a number as those of a signed one."""
    if str(value.ty.dtype) == f"int{bits}":
        return value
    if isinstance(value, tirx.IntImm):
        number = int(value)
        return tirx.const(number - 2**bits if number >= 2 ** (bits - 1) else number, f"int{bits}")
    if _call_of(value) == _REINTERPRET and str(value.args[0].ty.dtype) == f"int{bits}":
        return value.args[0]
    return tirx.call_intrin(f"int{bits}", _REINTERPRET, value)


def _greatest_factor(value: Expr) -> int:
    """Bound of the constants that the simplifier may make of a tree of sums and products."""
    if isinstance(value, tirx.IntImm):
        return max(abs(int(value)), 1)
    if isinstance(value, tirx.Mul):
        return _greatest_factor(value.a) * _greatest_factor(value.b)
    if isinstance(value, (tirx.Add, tirx.Sub)):
        return _greatest_factor(value.a) + _greatest_factor(value.b)
    return 1


def _with_other_sign(node: Expr, bits: int) -> Expr | None:
    """The sum of a number and the one whose only bit is the sign, as an exclusive or; None of others.

    LLVM takes the sum, which it is told not to overflow, for an inclusive or.
    """
    if not isinstance(node, (tirx.Add, tirx.Sub)):
        return None
    for one, other in ((node.a, node.b), (node.b, node.a)):
        if isinstance(one, tirx.IntImm) and abs(int(one)) == 2 ** (bits - 1):
            if isinstance(node, tirx.Sub) and one.same_as(node.a):
                return None
            return tirx.bitwise_xor(other, one)
    return None


def _summing(node: Expr, fence: Fence) -> Expr:
    """A sum or product, with its operands behind fences where constants of it may leave its type."""
    if not _is_integer(node) or not _of_data(node):
        return node
    dtype = tvm.DataType(str(node.ty.dtype))
    if isinstance(node, tirx.Mul) and dtype.bits >= 32 and tvm_ffi.structural_equal(node.a, node.b):
        # LLVM takes the square of what it knows nothing of for a number that is not below 0, and sees that
        # through a fence.
        node = tirx.Mul(fence(node.a), node.b)
    if (flipped := _with_other_sign(node, dtype.bits)) is not None:
        return flipped
    if isinstance(node, tirx.Sub) and "uint" in str(dtype):
        # A difference of unsigned numbers is none below 0 to the simplifier, and 0 - x is 0.
        a, b = (_signed(side, dtype.bits) for side in (node.a, node.b))
        if tvm.sym.Analyzer().can_prove_equal(a, b):
            # The simplifier makes a zero of it, which TVM cannot reinterpret.
            return tirx.const(0, str(dtype))
        return tirx.call_intrin(str(dtype), _REINTERPRET, _summing(tirx.Sub(a, b), fence))
    if _greatest_factor(node) < 2 ** (dtype.bits - 1):
        return node
    a, b = (fence(side) if _greatest_factor(side) > 1 else side for side in (node.a, node.b))
    return type(node)(a, b)


def _reading(node: Expr, fence: Fence) -> Expr:
    """An operation with its operands behind fences."""
    if isinstance(node, tirx.Cast):
        return _converted(node, fence)
    if not fence.shows_signs and (isinstance(node, tirx.Select) or _call_of(node) == _CHOICE):
        return node  # in CUDA places go that way: a barrier would make a branch of what a predicate chooses
    if isinstance(node, tirx.Select):
        chosen = _kept(node.true_value, fence), _kept(node.false_value, fence)
        same = chosen[0].same_as(node.true_value) and chosen[1].same_as(node.false_value)
        return node if same else tirx.Select(node.condition, *chosen)
    if isinstance(node, tvm.ir.Call):
        if _call_of(node) not in _READING_CALLS:
            return node
        operands = [_kept(operand, fence) for operand in node.args]
        same = all(new.same_as(old) for new, old in zip(operands, node.args, strict=True))
        return node if same else tirx.call_intrin(str(node.ty.dtype), node.op.name, *operands)
    if isinstance(node, tirx.BitwiseNot):
        a = _kept(node.a, fence)
        return node if a.same_as(node.a) else tirx.BitwiseNot(a)
    a, b = _kept(node.a, fence), _kept(node.b, fence)
    narrow = tvm.DataType(str(a.ty.dtype))
    if isinstance(node, _COMPARED):
        # The simplifier multiplies the other side by the divisor.
        a, b = (fence(side) if _is_quotient(side) else side for side in (a, b))
    if isinstance(node, _COMPARED) and str(narrow) in ("uint8", "uint16"):
        # TVM does not compare sums of these.
        a, b = (tirx.Cast("int32", side) if isinstance(side, _SUMS) else side for side in (a, b))
        a, b = (side if str(side.ty.dtype) == "int32" else tirx.Cast("int32", side) for side in (a, b))
    return node if a.same_as(node.a) and b.same_as(node.b) else type(node)(a, b)


def _is_quotient(value: Expr) -> bool:
    """Whether a value is a quotient of integers of data."""
    return isinstance(value, (tirx.Div, tirx.FloorDiv)) and _is_integer(value) and _of_data(value)


def _converted(node: tirx.Cast, fence: Fence) -> Expr:
    """A conversion, of what may wrap around behind a fence, and of what does not fit by its bits.

    The simplifier takes what does not fit for out of the question: bytes as int8 for 0 to 127.
    """
    value, to = _kept(node.value, fence), str(node.ty.dtype)
    if _is_integer(node) and _is_integer(value) and _of_data(value) and not _fits(value, to):
        wide, narrow = tvm.DataType(to), tvm.DataType(str(value.ty.dtype))
        signed = str(narrow).startswith("int")
        if signed == to.startswith("int"):
            signed = not signed
        kind = f"{'int' if signed else 'uint'}{wide.bits}"
        same = value if kind == str(narrow) else tirx.Cast(kind, value)
        return tirx.call_intrin(to, _REINTERPRET, same)
    return node if value.same_as(node.value) else tirx.Cast(to, value)


def _fits(value: Expr, dtype: str) -> bool:
    """Whether all that a number may be is in a type of integers."""
    bound, bits = tvm.sym.Analyzer().const_int_bound(value), tvm.DataType(dtype).bits
    least, most = (0, 2**bits - 1) if dtype.startswith("uint") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    # No bound at all is the largest number of int64, and less than none its negative.
    return max(least, 2 - 2**63) <= bound.min_value and bound.max_value <= min(most, 2**63 - 2)


def wrapping(expression: Expr, fence: Fence = LLVM) -> Expr:
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
            ((*_READERS, *_OF_MORE), lambda node: _reading(node, fence)),
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
        return with_body(func, tvm_ffi.structural_map(func.body, (tirx.BufferStore, stored), order="post"))

    return wrap


wrap_around = wrapping_pass(LLVM)
