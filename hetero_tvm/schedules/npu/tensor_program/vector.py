"""Expressions as vector instructions on tiles in the unified buffer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hetero_tvm.schedules.npu.emit import UB, At, Kernel
from hetero_tvm.schedules.npu.tensor_program.stages import FLOAT, INT, Expr, Load
from hetero_tvm.schedules.npu.tensor_program.values import COMPARE

_WIDTH = {"float32": 4, "float16": 2, "bfloat16": 2, "int32": 4, "int8": 1}


@dataclass
class _Step:
    """One instruction: the node it computes, its operands (steps, loads or immediates), the dtype."""

    node: Expr
    dtype: str
    operands: list[Any]


class Plan:
    """An expression in the order of its instructions, with temporaries that are used again.

    ``dtype_of`` gives the stored dtype of a read.  ``into`` is the dtype that the last step writes; a bare
    read has no steps.
    """

    def __init__(self, expr: Expr, dtype_of: Callable[[Load], str], into: str):
        self._dtype_of = dtype_of
        self._known: dict[Expr, Any] = {}
        self.steps: list[_Step] = []
        self.result = self._visit(expr)
        if isinstance(self.result, _Step):
            self.result.dtype = into
        self.slots = self._slots()

    def _visit(self, node: Expr) -> Any:
        if node in self._known:
            return self._known[node]
        kind = node[0]
        if kind == "load":
            result: Any = node[1]
        elif kind == "const":
            result = node[1]
        else:
            operands = [self._visit(part) for part in node[1:] if isinstance(part, tuple)]
            if kind == "ternary" and node[1] == "select":
                operands = self._with_one_immediate(operands)
            result = _Step(node, self._dtype(node, operands), operands)
            self.steps.append(result)
        self._known[node] = result
        return result

    def _with_one_immediate(self, operands: list[Any]) -> list[Any]:
        """Immediates of one instruction share their value: a second one is written to a tile."""
        given = [o for o in operands if isinstance(o, float)]
        if len(given) < 2 or given[0] == given[1]:
            return operands
        fill = _Step(("fill", given[0]), FLOAT, [])
        self.steps.append(fill)
        return [operands[0], fill, operands[2]]

    def _dtype(self, node: Expr, operands: list[Any]) -> str:
        if node[0] == "convert":
            return node[1]
        if node[0] == "binary" and node[1] in COMPARE:
            return INT
        values = operands[1:] if node[:2] == ("ternary", "select") else operands
        dtypes = {self.dtype(o) for o in values if not isinstance(o, float)}
        whole = dtypes and dtypes <= {"int32", "int8"}
        return INT if whole and node[0] != "unary" else FLOAT

    def dtype(self, operand: Any) -> str:
        return operand.dtype if isinstance(operand, _Step) else self._dtype_of(operand)

    def _slots(self) -> dict[str, int]:
        """Tiles needed by dtype; every step but the last gets one of them (``self.slot``)."""
        last_use: dict[int, int] = {}
        for n, step in enumerate(self.steps):
            for operand in step.operands:
                if isinstance(operand, _Step):
                    last_use[id(operand)] = n
        free: dict[str, list[int]] = {}
        count: dict[str, int] = {}
        self.slot: dict[int, int] = {}
        for n, step in enumerate(self.steps):
            for operand in {id(o): o for o in step.operands if isinstance(o, _Step)}.values():
                if last_use[id(operand)] == n:
                    free.setdefault(operand.dtype, []).append(self.slot[id(operand)])
            if step is self.result:
                continue
            pool = free.setdefault(step.dtype, [])
            if not pool:
                pool.append(count.get(step.dtype, 0))
                count[step.dtype] = pool[-1] + 1
            self.slot[id(step)] = pool.pop()
        return count

    def bytes_per_element(self) -> int:
        return sum(_WIDTH[dtype] * n for dtype, n in self.slots.items())

    @property
    def passes(self) -> int:
        return len(self.steps)

    def emit(
        self, k: Kernel, shape: Sequence[int], sizes: Sequence[Any], at: Callable[[Load], At], out: At
    ) -> None:
        """Computes into ``out``; ``at`` gives the region of a read by the tile's axes."""
        temporaries = {
            (dtype, n): k.alloc(UB, tuple(shape), dtype)
            for dtype, count in self.slots.items()
            for n in range(count)
        }

        def place(operand: Any) -> Any:
            if isinstance(operand, float):
                return operand
            if isinstance(operand, Load):
                return at(operand)
            if operand is self.result:
                return out
            return At(temporaries[operand.dtype, self.slot[id(operand)]], lambda *i: i)

        for step in self.steps:
            self._instruction(k, step, sizes, place(step), [place(o) for o in step.operands])

    def _instruction(self, k: Kernel, step: _Step, sizes: Sequence[Any], dst: At, sources: list[Any]) -> None:
        kind, *rest = step.node
        if kind == "fill":
            k.fill(sizes, dst, rest[0])
        elif kind == "convert":
            k.unary("copy", sizes, dst, sources[0])
        elif kind == "unary":
            k.unary(rest[0], sizes, dst, sources[0], rest[1], rest[2])
        elif kind == "binary":
            k.binary(rest[0], sizes, dst, *sources)
        else:
            k.ternary(rest[0], sizes, dst, *sources)


def width(dtype: str) -> int:
    """Bytes of an element."""
    return _WIDTH[dtype]
