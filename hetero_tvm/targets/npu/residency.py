"""Which tensors stay in L1 between the kernels of a region, and the tiles that are left room by them.

A tensor can stay when its producer can leave it there and every reader takes it from there, in one
layout.  Those that save most traffic for the time that they occupy L1 come first, as long as at every
step enough is left for the tiles of the kernels: of the one that runs, and of the next one, whose
weights arrive meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.npu.base import ROW_MAJOR
from hetero_tvm.targets.npu.machine import NpuMachine
from hetero_tvm.targets.npu.region import Value, plain_layout

LEAST_FREE = 8
"""One part in so many of L1 is always left to tiles."""


@dataclass(eq=False)
class Step:
    """A kernel to be."""

    space: Any
    op: Any
    recorded: Point | None
    """From a record; None: the space's default."""
    operands: list[Value | None]
    """None for constants."""
    wanted: tuple[str, ...]
    """Layout of every operand."""
    result: Value
    layout: str
    held: frozenset[int] = frozenset()
    """Operands (the result's index is ``len(operands)``) in L1."""
    point: Point = field(default_factory=dict)


@dataclass(eq=False)
class _Candidate:
    value: Value
    first: int
    last: int
    bytes: int
    places: list[tuple[int, int]]
    """(step, operand index)."""

    @property
    def worth(self) -> tuple[float, int]:
        """Transfers saved per byte and step of L1."""
        return len(self.places) / (self.last - self.first + 1), self.bytes


def settle(steps: Sequence[Step], outputs: Sequence[Value], machine: NpuMachine, least_free: int) -> None:
    """Choose what is held, and a point for every step; ``least_free`` bytes of L1 are left to tiles."""
    capacity = machine.spec.scratchpad("l1")
    candidates = sorted(_candidates(steps, outputs), key=lambda c: c.worth, reverse=True)
    live = [0] * len(steps)
    chosen: list[_Candidate] = []
    for c in candidates:
        if max(live[c.first : c.last + 1]) + c.bytes + least_free <= capacity:
            chosen.append(c)
            for n in range(c.first, c.last + 1):
                live[n] += c.bytes
    while (failed := _points(steps, chosen, machine, capacity)) is not None:
        mine = [c for c in chosen if any(n == failed for n, _ in c.places)]
        mine = mine or [c for c in chosen if c.first <= failed <= c.last]
        chosen.remove(min(mine, key=lambda c: c.worth))


def _points(
    steps: Sequence[Step], chosen: Sequence[_Candidate], machine: NpuMachine, capacity: int
) -> int | None:
    """Set what is held and the points; the first step for which nothing fits."""
    live = [0] * len(steps)
    held: list[set[int]] = [set() for _ in steps]
    for c in chosen:
        for n, index in c.places:
            held[n].add(index)
        for n in range(c.first, c.last + 1):
            live[n] += c.bytes
    for n, step in enumerate(steps):
        step.held = frozenset(held[n])
        around = max(live[max(0, n - 1) : n + 2])
        alone = capacity - live[n]
        for room in ((capacity - around) // 2, capacity - around, alone):
            point = step.space.fitted(step.op, step.recorded, machine, step.held, room)
            if point is not None:
                break
        else:
            if not chosen:
                point = step.recorded or step.space.default(step.op, machine)
            else:
                return n
        step.point = point
    return None


def _candidates(steps: Sequence[Step], outputs: Sequence[Value]) -> list[_Candidate]:
    readers: dict[Value, list[tuple[int, int]]] = {}
    for n, step in enumerate(steps):
        for index, operand in enumerate(step.operands):
            if operand is not None:
                readers.setdefault(operand.root, []).append((n, index))
    found = []
    leaving = {value.root for value in outputs}
    for n, step in enumerate(steps):
        value, result = step.result, len(step.operands)
        places = readers.get(value, [])
        if not places or value in leaving or result not in step.space.on_chip(step.op):
            continue
        if value.dtype != "float32":  # whole numbers stay what they are, in DRAM
            continue
        layout = plain_layout(value.shape, step.layout)
        if all(_takes(steps[reader], index, value, layout) for reader, index in places):
            size = 2
            for extent in value.shape:
                size *= extent
            found.append(_Candidate(value, n, max(r for r, _ in places), size, [(n, result), *places]))
    return found


def _takes(step: Step, index: int, value: Value, layout: str) -> bool:
    operand = step.operands[index]
    wanted = plain_layout(operand.shape, step.wanted[index])
    if operand is not value:  # a view: the same bytes only when both are row-major
        return layout == wanted == ROW_MAJOR and index in step.space.on_chip(step.op)
    return layout == wanted and index in step.space.on_chip(step.op)
