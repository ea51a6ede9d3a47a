"""Values as vector instructions on tiles in the unified buffer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hetero_tvm.machines.npu.numbers import NAMES, WIDTH
from hetero_tvm.schedules.emit import Index
from hetero_tvm.schedules.npu.emit import UB, At, Kernel, Source
from hetero_tvm.schedules.npu.tensor_program.stages import (
    FLOAT,
    INT,
    Binary,
    Const,
    Convert,
    Load,
    Ternary,
    Unary,
    Value,
)
from hetero_tvm.schedules.npu.tensor_program.values import COMPARE


@dataclass
class _Step:
    """One instruction: the node it computes (None: a fill), the dtype of its result, its operands."""

    node: Value | None
    dtype: str
    operands: list[Operand]


Operand = _Step | Load | float
"""The result of a step, a read, or an immediate."""


class InstructionPlan:
    """A value in the order of its instructions, with temporaries that are used again.

    ``dtype_of`` gives the stored dtype of a read.  ``into`` is the dtype that the last step writes; a bare
    read has no steps.
    """

    def __init__(self, value: Value, dtype_of: Callable[[Load], str], into: str):
        self._dtype_of = dtype_of
        self._known: dict[Value, Operand] = {}
        self.steps: list[_Step] = []
        self.result = self._visit(value)
        if isinstance(self.result, _Step):
            self.result.dtype = into
        self.slots = self._slots()

    def _visit(self, node: Value) -> Operand:
        if node in self._known:
            return self._known[node]
        if isinstance(node, Load):
            result: Operand = node
        elif isinstance(node, Const):
            result = node.value
        else:
            operands = [self._visit(part) for part in node.operands]
            if isinstance(node, Ternary) and node.op == "select":
                operands = self._with_one_immediate(operands)
            result = _Step(node, self._dtype(node, operands), operands)
            self.steps.append(result)
        self._known[node] = result
        return result

    def _with_one_immediate(self, operands: list[Operand]) -> list[Operand]:
        """The operands, whose immediates share their value in an instruction: a second one is written to a
        tile."""
        given = [o for o in operands if isinstance(o, float)]
        if len(given) < 2 or given[0] == given[1]:
            return operands
        fill = _Step(None, FLOAT, [given[0]])
        self.steps.append(fill)
        return [operands[0], fill, operands[2]]

    def _dtype(self, node: Value, operands: list[Operand]) -> str:
        if isinstance(node, Convert):
            return node.dtype
        if isinstance(node, Binary) and node.op in COMPARE:
            return INT
        values = operands[1:] if isinstance(node, Ternary) and node.op == "select" else operands
        dtypes = {self.dtype(o) for o in values if not isinstance(o, float)}
        whole = dtypes and dtypes <= {"int32", "int8"}
        return INT if whole and not isinstance(node, Unary) else FLOAT

    def dtype(self, operand: _Step | Load) -> str:
        """Type in which an operand is stored."""
        return operand.dtype if isinstance(operand, _Step) else self._dtype_of(operand)

    def _slots(self) -> dict[str, int]:
        """Number of tiles needed, by dtype; every step but the last gets one of them (``self.slot``)."""
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
        """Bytes of all temporaries per element of a tile."""
        return sum(width(dtype) * n for dtype, n in self.slots.items())

    def emit(
        self, k: Kernel, shape: Sequence[int], sizes: Sequence[Index], at: Callable[[Load], At], out: At
    ) -> None:
        """Compute into ``out``; ``at`` gives the region of a read by the tile's axes."""
        temporaries = {
            (dtype, n): k.alloc(UB, tuple(shape), dtype)
            for dtype, count in self.slots.items()
            for n in range(count)
        }

        def place(operand: Operand) -> Source:
            if isinstance(operand, float):
                return operand
            if isinstance(operand, Load):
                return at(operand)
            if operand is self.result:
                return out
            return At(temporaries[operand.dtype, self.slot[id(operand)]], lambda *i: i)

        for step in self.steps:
            _instruction(k, step.node, sizes, place(step), [place(o) for o in step.operands])


def _instruction(
    k: Kernel, node: Value | None, sizes: Sequence[Index], dst: At, sources: list[Source]
) -> None:
    if node is None:
        k.fill(sizes, dst, sources[0])
    elif isinstance(node, Convert):
        k.unary("copy", sizes, dst, sources[0])
    elif isinstance(node, Unary):
        k.unary(node.op, sizes, dst, sources[0], node.mul, node.add)
    elif isinstance(node, Binary):
        k.binary(node.op, sizes, dst, *sources)
    else:
        k.ternary(node.op, sizes, dst, *sources)


def width(dtype: str) -> int:
    """Bytes of an element."""
    return WIDTH[NAMES[dtype]]
