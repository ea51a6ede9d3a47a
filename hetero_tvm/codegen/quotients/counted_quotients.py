"""Quotients of sizes that come at run time.

A division of the processor rounds towards zero.  TVM writes a quotient that rounds down as that and a
correction for negative numbers, unless it proves that there are none, and of the extents of an argument it
knows nothing: a row of a kernel for any batch and length got a dozen instructions more, and LLVM took ten
times as long over it.
"""

from __future__ import annotations

from typing import Any

from hetero_tvm.host.tvm import Call, Expr, IRModule, PrimFunc, tirx, tvm, tvm_ffi, with_body

_EXTENT = 17
"""Field of ``tvm_struct_get`` that is an element of an array of int64: a shape, or strides."""


class _Signs:
    """Signs of the integers of a function.

    Attributes
    ----------
    has_extents : whether an argument has an extent that comes at run time.
    """

    def __init__(self, func: PrimFunc):
        self.has_extents = False
        self._bound: dict[tirx.Var, Expr] = {}
        self._known: dict[tirx.Var, bool] = {}
        tvm_ffi.structural_walk(
            func.body,
            [(tirx.Bind, self._note), (tirx.Let, self._note), (tirx.For, self._note_loop)],
            order="pre",
        )

    def _note(self, binding: tirx.Bind | tirx.Let) -> None:
        self._bound[binding.var] = binding.value
        self.has_extents |= _is_extent(binding.value)

    def _note_loop(self, loop: tirx.For) -> None:
        self._bound[loop.loop_var] = loop.min  # the least of its values

    def never_negative(self, value: Expr) -> bool:
        """Whether an integer is at least 0, as its parts tell."""
        if isinstance(value, tirx.IntImm):
            return int(value) >= 0
        if isinstance(value, tirx.Var):
            return self._of(value)
        if isinstance(value, (tirx.Add, tirx.Mul, tirx.FloorDiv, tirx.Div, tirx.Min)):
            return self.never_negative(value.a) and self.never_negative(value.b)
        if isinstance(value, tirx.FloorMod):
            return self.never_negative(value.b)
        if isinstance(value, tirx.Mod):
            return self.never_negative(value.a)
        if isinstance(value, tirx.Max):
            return self.never_negative(value.a) or self.never_negative(value.b)
        if isinstance(value, tirx.Cast):
            return _is_signed(value) and _is_signed(value.value) and self.never_negative(value.value)
        if isinstance(value, tirx.Select):
            return self.never_negative(value.true_value) and self.never_negative(value.false_value)
        if isinstance(value, tirx.Ramp):
            return self.never_negative(value.base) and self.never_negative(value.stride)
        if isinstance(value, tirx.Broadcast):
            return self.never_negative(value.value)
        if isinstance(value, tirx.Let):
            return self.never_negative(value.body)
        if _name(value) == "tirx.shift_right":
            return self.never_negative(value.args[0])
        return _is_extent(value)

    def _of(self, variable: tirx.Var) -> bool:
        if variable not in self._known:
            bound = self._bound.get(variable)
            self._known[variable] = bound is not None and self.never_negative(bound)
        return self._known[variable]


def _name(value: Expr) -> str:
    return str(value.op.name) if isinstance(value, Call) and isinstance(value.op, tvm.ir.Op) else ""


def _is_extent(value: Expr) -> bool:
    return _name(value) == "tirx.tvm_struct_get" and int(value.args[2]) == _EXTENT


def _is_signed(value: Expr) -> bool:
    return tvm.DataType(str(value.ty.dtype)).type_code == tvm.DataTypeCode.INT


@tirx.transform.prim_func_pass(opt_level=0, name="hetero_tvm.DivideCounts")
def divide_counts(func: PrimFunc, _mod: IRModule, _ctx: Any) -> PrimFunc:
    """Write quotients and remainders of numbers that are never negative without a correction.

    It stands at the end, where nobody simplifies them any more, and looks at kernels for several sizes only.
    """
    signs = _Signs(func)
    if not signs.has_extents:
        return func

    def plain(division: tirx.FloorDiv | tirx.FloorMod) -> Expr:
        if not (
            _is_signed(division) and signs.never_negative(division.a) and signs.never_negative(division.b)
        ):
            return division
        kind = tirx.Div if isinstance(division, tirx.FloorDiv) else tirx.Mod
        return kind(division.a, division.b)

    both = (tirx.FloorDiv, tirx.FloorMod)
    return with_body(func, tvm_ffi.structural_map(func.body, (both, plain), order="post"))
