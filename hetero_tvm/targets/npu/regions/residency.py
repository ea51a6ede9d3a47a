"""Residency: the tensors that stay in L1 between the kernels of a region, and the tiles that fit beside them.

A tensor can stay when its producer can leave it there and every reader takes it from there, in one
layout.  Those that save most traffic for the time that they occupy L1 come first, as long as at every
step enough is left for the tiles of the kernels: of the one that runs, and of the next one, whose
weights arrive meanwhile.  A kernel whose tiles suffer from sharing that room takes all of it instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.npu.base import ROW_MAJOR, NpuSpace
from hetero_tvm.targets.npu.regions.binding import L1Full
from hetero_tvm.targets.npu.regions.region import Value, plain_layout

_SHARING = 0.9
"""A kernel shares L1 with its neighbours unless alone it would take less than this part of the cycles."""


@dataclass(frozen=True)
class ResidencyChoice:
    """Choices of a kernel that only show beside other kernels; None: by rule."""

    keep: bool | None = None
    """Whether its result may stay in L1."""
    share: bool | None = None
    """Whether it leaves half of the free part of L1 to its neighbours, so that their loads run ahead."""

    @staticmethod
    def of(point: Point) -> ResidencyChoice:
        """The choice that a point records."""
        return ResidencyChoice(**{name: bool(point[name]) for name in RESIDENCY_KNOBS if name in point})


RESIDENCY_KNOBS = ("keep", "share")
"""Names under which points record a :class:`ResidencyChoice`; no space knows them."""


@dataclass(eq=False)
class Step:
    """A kernel that is not generated yet."""

    space: NpuSpace
    op: Any
    recorded: Point | None
    """Point of a record; None: the best point for its surroundings."""
    operands: list[Value | None]
    """Values that it reads; None for constants."""
    wanted: tuple[str, ...]
    """Layout of every operand."""
    result: Value
    layout: str
    name: str
    arrays: list[np.ndarray | None]
    """Constant operands; None for values."""
    copy: Value | None = None
    """Value to which the last rows of the result are stored a second time."""
    copied: int = 0
    """Rows of the product that are stored to ``copy``."""
    leader: Step | None = None
    """Step whose point this one shares."""
    behind: Step | None = None
    """Step whose stores to DRAM go before the loads of this copy."""
    number: int | None = None
    """Index of this step's kernel in the region."""
    packed_for: Step | None = None
    """Step whose packed weights this one copies."""
    held: frozenset[int] = frozenset()
    """Operands on chip (the result's index is ``len(operands)``, then comes its copy)."""
    reserves: bool = False
    """Whether vectors of other steps stay in the unified buffer while this one runs."""
    task: str = ""
    """Key of the task that it is a call of."""
    room: int = 0
    """Bytes of L1 that its own part may take."""
    point: Point = field(default_factory=dict)
    residency: ResidencyChoice = field(default_factory=ResidencyChoice)

    def writes(self) -> list[tuple[Value, int]]:
        """Values that it writes, whole or in part, with their indices."""
        made = enumerate((self.result, self.copy), start=len(self.operands))
        return [(value, index) for index, value in made if value is not None]

    def reads(self) -> list[tuple[Value, int]]:
        """Values that it reads with their indices."""
        return [(value, index) for index, value in enumerate(self.operands) if value is not None]


@dataclass(eq=False)
class _Candidate:
    """A value that can stay on chip from step ``first`` to step ``last``."""

    value: Value
    first: int
    last: int
    bytes: int
    uses: list[tuple[int, int]]
    """Pairs (step, operand index) that write or read the value."""

    @property
    def worth(self) -> tuple[bool, float, int]:
        """Rank: resident values first, then by transfers saved per byte and step in L1, then by size."""
        return self.value.resident, len(self.uses) / (self.last - self.first + 1), self.bytes


def settle(
    steps: Sequence[Step],
    outputs: Sequence[Value],
    machine: NpuMachine,
    least_free: int,
) -> None:
    """Choose the values that stay on chip, and a point for every step.

    Parameters
    ----------
    outputs : values that leave the region.
    least_free : bytes of L1 that are left to tiles.

    Raises
    ------
    L1Full : resident values do not fit.
    """
    capacity = machine.spec.scratchpad("l1")
    found = _candidates(steps, outputs)
    # Beside weights that pass through L1, a value that takes most of it leaves them too little.
    streams = [sum(a.nbytes // 2 for a in step.arrays if a is not None) > capacity for step in steps]
    found = [
        c
        for c in found
        if c.value.resident
        or steps[c.first].residency.keep
        or 2 * c.bytes <= capacity
        or not any(streams[c.first : c.last + 1])
    ]
    candidates = sorted(found, key=lambda c: c.worth, reverse=True)
    live = [0] * len(steps)
    chosen: list[_Candidate] = []
    for c in candidates:
        free = 0 if c.value.resident else least_free
        if max(live[c.first : c.last + 1]) + c.bytes + free <= capacity:
            chosen.append(c)
            for n in range(c.first, c.last + 1):
                live[n] += c.bytes
        elif c.value.resident:
            raise L1Full(f"{steps[c.first].name}: resident tensors do not fit l1 of {machine.spec.name}")
    while (failed := _choose_points(steps, chosen, machine)) is not None:
        around = [c for c in chosen if c.first <= failed <= c.last and not c.value.resident]
        mine = [c for c in around if any(n == failed for n, _ in c.uses)] or around
        if not mine:
            raise L1Full(f"{steps[failed].name}: no tiles fit beside the resident tensors in l1")
        chosen.remove(min(mine, key=lambda c: c.worth))


def _choose_points(steps: Sequence[Step], chosen: Sequence[_Candidate], machine: NpuMachine) -> int | None:
    """Set the held operands and the point of every step; returns the first step for which no point fits."""
    capacity = machine.spec.scratchpad("l1")
    live = [0] * len(steps)
    held: list[set[int]] = [set() for _ in steps]
    for c in chosen:
        for n, index in c.uses:
            held[n].add(index)
        for n in range(c.first, c.last + 1):
            live[n] += c.bytes
            steps[n].reserves |= c.value.in_ub
    for n, step in sorted(enumerate(steps), key=lambda entry: entry[1].leader is not None):
        step.held = frozenset(held[n])
        around = max(live[max(0, n - 1) : n + 2])
        alone = capacity - live[n]
        recorded = step.recorded if step.leader is None else step.leader.point
        # The indices of a second copy and of a table are no operands of the contract.
        inner = frozenset(index for index in step.held if index <= len(step.operands))
        rooms = ((capacity - around) // 2, capacity - around, alone)
        step.room = rooms[1]
        point = _fitted(step, recorded, machine, inner, rooms)
        if point is None:
            if live[n]:
                return n
            point = step.recorded or step.space.default(step.op, machine)
        step.point = {**point, "copied": step.copied} if step.copied else point
    return None


def _fitted(
    step: Step, recorded: Point | None, machine: NpuMachine, held: frozenset[int], rooms: Sequence[int]
) -> Point | None:
    """Point for the first room that has one, or for a later room where that is much faster."""
    space, op = step.space, step.op
    points = (space.fitted(op, recorded, machine, held, room) for room in rooms)
    shared = next(points)
    if shared is not None and step.residency.share:
        return shared
    wide = next((point for point in points if point is not None), None)
    if shared is None or wide is None:
        return shared or wide
    if step.residency.share is False:
        return wide
    costs = [space.cost(op, point, machine, held) for point in (shared, wide)]
    return wide if None not in costs and costs[1] < _SHARING * costs[0] else shared


def _candidates(steps: Sequence[Step], outputs: Sequence[Value]) -> list[_Candidate]:
    """Values that their writers can leave on chip and all their readers can take from there."""
    readers: dict[Value, list[tuple[int, int]]] = {}
    writers: dict[Value, list[tuple[int, int]]] = {}
    for n, step in enumerate(steps):
        for value, index in step.reads():
            readers.setdefault(value.root, []).append((n, index))
        for value, index in step.writes():
            writers.setdefault(value.root, []).append((n, index))
    found = []
    leaving = {value.root for value in outputs}
    for value, made in writers.items():
        read = readers.get(value, [])
        if not read or value in leaving or value.dtype != "float32":  # whole numbers stay in DRAM
            continue
        if not value.resident and any(steps[n].residency.keep is False for n, _ in made):
            continue
        layouts = {plain_layout(value.shape, steps[n].layout) for n, _ in made}
        able = all(len(steps[n].operands) in _on_chip(steps[n]) for n, _ in made)
        taken = len(layouts) == 1 and all(_takes(steps[n], index, value, *layouts) for n, index in read)
        if not value.resident and not (able and taken):
            continue
        size = 0 if value.in_ub else 2 * math.prod(value.shape)
        steps_of = [n for n, _ in [*made, *read]]
        found.append(_Candidate(value, min(steps_of), max(steps_of), size, [*made, *read]))
    return found


def _takes(step: Step, index: int, value: Value, layout: str) -> bool:
    """Whether a step can read an operand, all or a view of ``value``, on chip in a layout."""
    operand = step.operands[index]
    wanted = plain_layout(operand.shape, step.wanted[index])
    if operand is not value and operand.shift is None:
        # A view: the same bytes only when both are row-major.
        return layout == wanted == ROW_MAJOR and index in _on_chip(step)
    return layout == wanted and index in _on_chip(step)


def _on_chip(step: Step) -> frozenset[int]:
    return step.space.on_chip_at(step.op, step.recorded)
