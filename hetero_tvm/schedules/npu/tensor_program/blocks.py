"""Unscheduled TensorIR as blocks: what each stores, over which axes, and what its indices depend on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hetero_tvm.schedules.npu.tensor_program.index import NotAffineError


@dataclass
class Block:
    """One block as it stands: its iteration variables (spatial, reduced) and what it stores."""

    buffer: Any
    axes: list[tuple[Any, int, bool]]
    """(variable, extent, whether it is reduced)."""
    indices: list[Any]
    value: Any
    start: Any


def blocks_of(function: Any) -> list[Block]:
    raws: list[Block] = []

    def walk(stmt: Any, loops: dict[Any, int]) -> None:
        kind = type(stmt).__name__
        if kind == "SeqStmt":
            for part in stmt.seq:
                walk(part, loops)
        elif kind == "For":
            walk(stmt.body, {**loops, stmt.loop_var: integer(stmt.extent)})
        elif kind == "SBlockRealize" and not stmt.block.iter_vars:
            walk(stmt.block.body, loops)
        elif kind == "SBlockRealize":
            raws.append(_raw(stmt, loops))
        elif kind == "Evaluate":
            raise NotAffineError("a function of the host's library computes it (sorting)")
        else:
            raise NotAffineError("its TensorIR is no chain of loops over single results")

    walk(function.body, {})
    if len({raw.buffer for raw in raws}) != len(raws):
        raise NotAffineError("a tensor is written in several places")
    return raws


def _raw(stmt: Any, loops: dict[Any, int]) -> Block:
    block = stmt.block
    store = block.body
    if type(store).__name__ != "BufferStore":
        raise NotAffineError("its TensorIR is no chain of loops over single results")
    axes = []
    for var, value in zip(block.iter_vars, stmt.iter_values, strict=True):
        extent = integer(var.dom.extent)
        if type(value).__name__ != "Var" and extent != 1:
            raise NotAffineError("an axis is no loop")
        if extent != 1 and loops.get(value) != extent:
            raise NotAffineError("an axis is not the whole of its loop")
        axes.append((var.var, extent, int(var.iter_type) == 2))
    start = None
    if block.init is not None:
        start = block.init.value
    return Block(store.buffer, axes, list(store.indices), store.value, start)


def integer(extent: Any) -> int:
    if type(extent).__name__ != "IntImm" and not isinstance(extent, int):
        raise NotAffineError("an extent is not known when the model is compiled")
    return int(extent)


def reduction_of(raw: Block) -> tuple[str, Any]:
    """Which reduction a block is, and what it reduces."""
    kind = type(raw.value).__name__
    names = {"Add": "sum", "Max": "max", "Min": "min"}
    if kind not in names or raw.start is None:
        raise NotAffineError("a reduction that is neither sum, maximum nor minimum")
    for old, new in ((raw.value.a, raw.value.b), (raw.value.b, raw.value.a)):
        if type(old).__name__ == "TensorLoad" and old.source == raw.buffer:
            if names[kind] == "sum" and float(getattr(raw.start, "value", 1)) != 0.0:
                raise NotAffineError("a sum that does not start at zero")
            return names[kind], new
    raise NotAffineError("a reduction that does not read what it has")


def has_load(expr: Any) -> bool:
    return bool(loads_in(expr))


def loads_in(expr: Any) -> list[Any]:
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


def text_of(load: Any) -> str:
    return str(load)


def wraps(index: Any, rows: int) -> bool:
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
    functions = {
        "Add": lambda a, b: a + b, "Sub": lambda a, b: a - b, "Mul": lambda a, b: a * b,
        "FloorMod": lambda a, b: a % b, "FloorDiv": lambda a, b: a // b, "Max": max, "Min": min,
        "Mod": lambda a, b: int(math.fmod(a, b)), "truncmod": lambda a, b: int(math.fmod(a, b)),
        "LT": lambda a, b: a < b, "GE": lambda a, b: a >= b, "LE": lambda a, b: a <= b,
        "GT": lambda a, b: a > b, "if_then_else": lambda t, a, b: a if t else b,
    }  # fmt: skip
    if name not in functions:
        raise NotAffineError(f"an index contains {name}")
    return int(functions[name](*values))


def variable_of(index: Any) -> Any:
    return index if type(index).__name__ == "Var" else None
