"""Unscheduled TensorIR as blocks: stored values, axes, and what indices depend on."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, Stmt, TensorLoad, Var
from hetero_tvm.schedules.npu.tensor_program.index import NotAffineError

_NO_CHAIN = "its TensorIR is no chain of loops over single results"


@dataclass(frozen=True)
class Axis:
    """An iteration variable of a block."""

    var: Var
    extent: int
    reduced: bool


@dataclass
class Block:
    """One block: ``buffer[indices] = value`` over ``axes``; a reduction begins at ``start``."""

    buffer: Buffer
    axes: list[Axis]
    indices: list[Expr]
    value: Expr
    start: Expr | None

    @property
    def reduces(self) -> bool:
        """Whether some axis is reduced."""
        return any(axis.reduced for axis in self.axes)


def blocks_of(function: PrimFunc) -> list[Block]:
    """The blocks of a function in order.  Raises :class:`NotAffineError` where it is no chain of them."""
    blocks: list[Block] = []

    def walk(stmt: Stmt, loops: dict[Var, int]) -> None:
        kind = type(stmt).__name__
        if kind == "SeqStmt":
            for part in stmt.seq:
                walk(part, loops)
        elif kind == "For":
            walk(stmt.body, {**loops, stmt.loop_var: integer(stmt.extent)})
        elif kind == "SBlockRealize" and not stmt.block.iter_vars:
            walk(stmt.block.body, loops)
        elif kind == "SBlockRealize":
            blocks.append(_block(stmt, loops))
        elif kind == "Evaluate":
            raise NotAffineError("a function of the host's library computes it (sorting)")
        else:
            raise NotAffineError(_NO_CHAIN)

    walk(function.body, {})
    if len({block.buffer for block in blocks}) != len(blocks):
        raise NotAffineError("a tensor is written in several places")
    return blocks


def _block(stmt: Any, loops: dict[Var, int]) -> Block:
    block = stmt.block
    store = block.body
    if type(store).__name__ != "BufferStore":
        raise NotAffineError(_NO_CHAIN)
    axes = []
    for var, value in zip(block.iter_vars, stmt.iter_values, strict=True):
        extent = integer(var.dom.extent)
        if type(value).__name__ != "Var" and extent != 1:
            raise NotAffineError("an axis is no loop")
        if extent != 1 and loops.get(value) != extent:
            raise NotAffineError("an axis is not the whole of its loop")
        axes.append(Axis(var.var, extent, int(var.iter_type) == 2))
    start = None if block.init is None else block.init.value
    return Block(store.buffer, axes, list(store.indices), store.value, start)


def integer(extent: Expr | int) -> int:
    """An extent as a number.  Raises :class:`NotAffineError` where it is open."""
    if type(extent).__name__ != "IntImm" and not isinstance(extent, int):
        raise NotAffineError("an extent is not known when the model is compiled")
    return int(extent)


def reduction_of(block: Block) -> tuple[str, Expr]:
    """The reduction that a block is ("sum", "max", "min"), and the value that it reduces."""
    kind = type(block.value).__name__
    names = {"Add": "sum", "Max": "max", "Min": "min"}
    if kind not in names or block.start is None:
        raise NotAffineError("a reduction that is neither sum, maximum nor minimum")
    for old, new in ((block.value.a, block.value.b), (block.value.b, block.value.a)):
        if type(old).__name__ == "TensorLoad" and old.source == block.buffer:
            if names[kind] == "sum" and float(getattr(block.start, "value", 1)) != 0.0:
                raise NotAffineError("a sum that does not start at zero")
            return names[kind], new
    raise NotAffineError("a reduction that does not read what it has")


def has_load(expr: Expr | int) -> bool:
    """Whether an expression reads a tensor."""
    return bool(loads_in(expr))


def loads_in(expr: Any) -> list[TensorLoad]:
    """The reads of an expression."""
    if isinstance(expr, int):
        return []
    kind = type(expr).__name__
    if kind == "TensorLoad":
        return [expr]
    if kind == "Call":
        return [x for arg in expr.args for x in loads_in(arg)]
    if kind == "Select":
        return [x for part in (expr.condition, expr.true_value, expr.false_value) for x in loads_in(part)]
    if kind == "Cast":
        return loads_in(expr.value)
    if kind == "Not":
        return loads_in(expr.a)
    return [*loads_in(expr.a), *loads_in(expr.b)] if hasattr(expr, "a") and hasattr(expr, "b") else []


def wraps(index: Expr, rows: int) -> bool:
    """Whether an index is the data itself, or that modulo the rows, for every index that is valid."""
    for value in {-rows, 1 - rows, -1, 0, 1 % rows, rows // 2, rows - 1}:
        try:
            got = _evaluated(index, value)
        except NotAffineError:
            return False
        if got != value % rows and (value < 0 or got != value) and not (value < 0 and got == value):
            return False
    return True


def _evaluated(expr: Any, value: int) -> int:
    """An index with every read replaced by ``value``."""
    kind = type(expr).__name__
    if kind == "IntImm":
        return int(expr.value)
    if kind == "TensorLoad":
        return value
    if kind == "Cast":
        return _evaluated(expr.value, value)
    if kind == "Select":
        test = _evaluated(expr.condition, value)
        return _evaluated(expr.true_value if test else expr.false_value, value)
    parts = [expr.a, expr.b] if hasattr(expr, "a") and hasattr(expr, "b") else list(getattr(expr, "args", ()))
    values = [_evaluated(part, value) for part in parts]
    name = str(expr.op.name).rpartition(".")[2] if kind == "Call" else kind
    if name not in _FUNCTIONS:
        raise NotAffineError(f"an index contains {name}")
    return int(_FUNCTIONS[name](*values))


_FUNCTIONS = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "FloorMod": operator.mod,
    "FloorDiv": operator.floordiv,
    "Max": max,
    "Min": min,
    "Mod": math.fmod,
    "truncmod": math.fmod,
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "if_then_else": lambda test, a, b: a if test else b,
}


def variable_of(index: Expr) -> Var | None:
    """An index that is a variable; else None."""
    return index if type(index).__name__ == "Var" else None
