"""Quotients and remainders that TVM gets wrong where it flattens buffers.

TVM turns ``(14 - i) % 5`` into ``-(i % -5)``: the 14 is lost, and a flipped tile comes out turned.  The same
of what rises is right, and so both are written by it::

    a // m = -1 - (-1 - a) // m            a % m = m - 1 - (-1 - a) % m

Divisors below 0, which it makes of such, have wrong bounds and are not left either.  It likewise loses
constants between two of them, as in ``((i + 4) % 5 + 1) // 5``, which a roll that is cut has: such an operand
is hidden.
"""

from __future__ import annotations

from typing import Any

from hetero_tvm.host.tvm import Expr, IRModule, PrimFunc, structural_equal, tirx, tvm_ffi, with_body


class _Sum:
    """A sum of multiples of expressions.

    Attributes
    ----------
    terms : expressions that are no sums, each once, with their factors.
    constant : the rest.
    """

    def __init__(self, value: Expr):
        self.terms: list[tuple[Expr, int]] = []
        self.constant = 0
        self._add(value, 1)

    def _add(self, value: Expr, factor: int) -> None:
        if isinstance(value, tirx.IntImm):
            self.constant += factor * int(value)
        elif isinstance(value, (tirx.Add, tirx.Sub)):
            self._add(value.a, factor)
            self._add(value.b, factor if isinstance(value, tirx.Add) else -factor)
        elif isinstance(value, tirx.Mul) and isinstance(value.b, tirx.IntImm):
            self._add(value.a, factor * int(value.b))
        elif isinstance(value, tirx.Mul) and isinstance(value.a, tirx.IntImm):
            self._add(value.b, factor * int(value.a))
        else:
            for n, (known, before) in enumerate(self.terms):
                if structural_equal(known, value):
                    self.terms[n] = known, before + factor
                    return
            self.terms.append((value, factor))

    def falls(self, divisor: int) -> bool:
        """Whether it does along all terms that a remainder by ``divisor`` depends on, and on some."""
        factors = [factor for _, factor in self.terms if factor % divisor]
        return bool(factors) and max(factors) < 0

    def is_shifted(self, divisor: int) -> bool:
        """Whether it holds another quotient or remainder, and a constant counts beside or inside of that."""
        inner = [term for term, _ in self.terms if isinstance(term, (tirx.FloorDiv, tirx.FloorMod))]
        if self.constant % divisor:
            return bool(inner)
        return any(_holds_constant(term) for term in inner)

    def turned(self, dtype: str) -> Expr:
        """-1 minus the sum."""
        total = tirx.const(-1 - self.constant, dtype)
        for term, factor in self.terms:
            if factor:
                total = total + term * tirx.const(-factor, dtype)
        return total


def _holds_constant(division: Expr) -> bool:
    """Whether a constant is added within a quotient or remainder, at any depth."""
    found = _Sum(division.a)
    divisions = [term for term, _ in found.terms if isinstance(term, (tirx.FloorDiv, tirx.FloorMod))]
    return found.constant != 0 or any(map(_holds_constant, divisions))


def _rising(division: Expr) -> Expr:
    dtype, divisor = str(division.ty.dtype), division.b
    if dtype not in ("int32", "int64") or not isinstance(divisor, tirx.IntImm) or not int(divisor):
        return division
    if int(divisor) < 0:
        positive = tirx.const(-int(divisor), dtype)
        less = _rising(type(division)(division.a - tirx.const(1, dtype), positive))
        one = tirx.const(1, dtype)
        return less - (positive - one) if isinstance(division, tirx.FloorMod) else -one - less
    found = _Sum(division.a)
    if found.is_shifted(int(divisor)):
        return type(division)(tirx.bitwise_or(division.a, tirx.const(0, dtype)), divisor)
    if not found.falls(int(divisor)):
        return division
    other = type(division)(found.turned(dtype), divisor)
    last = -1 if isinstance(division, tirx.FloorDiv) else int(divisor) - 1
    return tirx.const(last, dtype) - other


@tirx.transform.prim_func_pass(opt_level=0, name="hetero_tvm.DivideWhatRises")
def divide_what_rises(func: PrimFunc, _mod: IRModule, _ctx: Any) -> PrimFunc:
    """Write every quotient and remainder of falling numbers by one of rising numbers."""
    both = (tirx.FloorDiv, tirx.FloorMod)
    return with_body(func, tvm_ffi.structural_map(func.body, (both, _rising), order="post"))
