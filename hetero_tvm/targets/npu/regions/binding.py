"""Binding of a region's kernels into one stream: offsets in L1, addresses of operands, order, flags."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hetero_tvm import memory
from hetero_tvm.errors import BuildError
from hetero_tvm.machines.npu.spec import SCRATCHPADS, NPUSpec
from hetero_tvm.targets.npu.regions.codegen import Program
from hetero_tvm.targets.npu.regions.sites import Instr
from hetero_tvm.targets.npu.regions.sync import ONLY_READ, Location, Synchronizer, scratchpad_key, slot_key

CONSTANTS, WORKSPACE, IN_L1, IN_UB = 0, 1, -1, -2
"""Slots that every region has; pseudo-slots that stand for L1 and the unified buffer."""
_ON_CHIP = {IN_L1: "l1", IN_UB: "ub"}
_PLAN_SECONDS = 0.3
_MOST_UNMERGED = 16
"""Kernels in a row whose accesses are known tile by tile, before they are merged per tensor."""
_STREAMING = 1 << 16
"""Least bytes of constants with which a kernel's loads keep the DMA engine busy by themselves."""


@dataclass(eq=False)
class Tensor:
    """A tensor between kernels, whole and compact: in a slot of DRAM, or in L1 or the unified buffer."""

    slot: int
    bytes: int
    offset: int = 0
    """First byte in the slot or memory, or in ``whole``."""
    first: int = 1 << 60
    """First kernel that touches it."""
    last: int = -1
    """Last kernel that touches it."""
    whole: Tensor | None = None
    """Tensor that this is a part of."""

    @property
    def address(self) -> int:
        """First byte in the slot, or in the memory on chip."""
        return self.offset + (self.whole.address if self.whole is not None else 0)

    def part(self, offset: int, size: int) -> Tensor:
        """``size`` bytes of this tensor from ``offset`` on."""
        return Tensor(self.slot, size, offset, whole=self)

    def touch(self, kernel: int) -> None:
        """Extend the live range to a kernel."""
        self.first, self.last = min(self.first, kernel), max(self.last, kernel)
        if self.whole is not None:
            self.whole.touch(kernel)


@dataclass
class Call:
    """A kernel with its operands."""

    program: Program
    tensors: list[Tensor]
    tag: str
    behind: int | None = None
    """Number of the kernel whose stores (all but the last quarter: loads take a while to start) go before
    the loads of this one, which would take DRAM from them."""
    streams: bool = field(init=False)
    """Whether its constants keep the DMA engine busy."""

    def __post_init__(self) -> None:
        self.streams = sum(t.bytes for t in self.tensors if t.slot == CONSTANTS) >= _STREAMING


class L1Full(BuildError):
    """The tensors and tiles that are live at once do not fit L1."""


@dataclass(frozen=True)
class L1Plan:
    """Offsets of the kernels' own parts of L1 (tensors hold theirs)."""

    parts: list[int]
    peak: int
    early: list[bool]
    """Whether a kernel owns its part from the start of the kernel before: its loads may run ahead."""


def plan_l1(calls: Sequence[Call], spec: NPUSpec, early: bool = True) -> L1Plan:
    """Offsets in L1 from live ranges in steps of one kernel; sets those of the tensors.

    Parameters
    ----------
    early : whether kernels own their parts one step earlier where there is room.

    Raises
    ------
    L1Full : there is no plan within the machine's L1.
    """
    held = _held(calls, IN_L1)
    capacity = spec.scratchpad("l1")
    align = spec.alignment
    own = [call.program.needs.get("l1", 0) for call in calls]
    live = [0] * len(calls)
    for tensor in held:
        for n in range(tensor.first, tensor.last + 1):
            live[n] += -(-tensor.bytes // align) * align
    ahead = [early and n > 0 and live[n - 1] + own[n - 1] + own[n] <= capacity for n in range(len(calls))]
    while True:
        spans = [(t.first, t.last + 1, -(-t.bytes // align) * align) for t in held]
        spans += [(n - ahead[n], n + 1, size) for n, size in enumerate(own)]
        buffers = [memory.Buffer(str(n), *span) for n, span in enumerate(spans)]
        plan = memory.plan(memory.Problem(buffers), capacity=capacity, alignment=align, seconds=_PLAN_SECONDS)
        offsets = [plan.offsets[buffer.id] for buffer in buffers]
        if plan.fits:
            for tensor, offset in zip(held, offsets, strict=False):
                tensor.offset = offset
            return L1Plan(offsets[len(held) :], plan.peak, ahead)
        # Kernels at steps that are too full give up their early start.
        full = [False] * len(calls)
        for (lower, upper, size), offset in zip(spans, offsets, strict=True):
            if offset + size > capacity:
                full[lower:upper] = [True] * (upper - lower)
        fewer = [a and not full[n] and not full[n - 1] for n, a in enumerate(ahead)]
        if fewer == ahead:
            break
        ahead = fewer
    raise L1Full(
        f"tensors and tiles need {plan.peak} bytes of l1, {spec.name} has {capacity}",
        hint="choose smaller tiles",
    )


def _held(calls: Sequence[Call], slot: int) -> list[Tensor]:
    """Whole tensors in L1 (``IN_L1``) or the unified buffer (``IN_UB``), in order of first use."""
    found = (t if t.whole is None else t.whole for call in calls for t in call.tensors if t.slot == slot)
    return list(dict.fromkeys(found))


def plan_ub(calls: Sequence[Call], room: int, align: int) -> int:
    """Set the offsets of tensors that stay in the first ``room`` bytes of the unified buffer; returns the
    bytes used.

    Raises
    ------
    L1Full : there is no plan.
    """
    held = _held(calls, IN_UB)
    buffers = [
        memory.Buffer(str(n), t.first, t.last + 1, -(-t.bytes // align) * align) for n, t in enumerate(held)
    ]
    plan = memory.plan(memory.Problem(buffers), capacity=room, alignment=align, seconds=_PLAN_SECONDS)
    if not plan.fits:
        raise L1Full(f"constants need {plan.peak} bytes of the unified buffer, {room} are for them")
    for n, tensor in enumerate(held):
        tensor.offset = plan.offsets[str(n)]
    return plan.peak if held else 0


@dataclass(frozen=True)
class Bound:
    """The instructions of a stream with their flags."""

    code: bytes
    count: int
    tags: list[str]
    events: int


def bind(calls: Sequence[Call], plan: L1Plan, only_read: Container[int]) -> Bound:
    """The kernels' instructions in order, with addresses and flags.

    Parameters
    ----------
    only_read : slots of DRAM that no kernel writes.
    """
    sync = Synchronizer()
    tags = {"": 0}
    count = 0
    unmerged: list[int] = []
    turns = _turns(calls)
    out: dict[int, np.ndarray] = {}
    for index, first, last in _order(calls, plan.early):
        call = calls[index]
        locations = _scratchpads(plan.parts[index], turns[index])
        locations += [_location(tensor, only_read) for tensor in call.tensors]
        slots = [tensor.slot for tensor in call.tensors]
        tag = tags.setdefault(call.tag, len(tags))
        mark = sync.mark()
        if first == 0 < last and call.behind is not None:
            sync.after("dma_in", "dma_out", out[call.behind])
        sync.add(call.program.packed, locations, slots, tag, first, last)
        count += last - first
        out[index] = (mark + 3 * sync.mark()) // 4
        if first < last == len(call.program.instrs):
            # The kernel behind, and copies before it, may still start on the first tiles of this one.
            if call.program.needs.get("l0c") or len(unmerged) == _MOST_UNMERGED:
                for n in unmerged:
                    _merge(calls[n], plan.parts[n], sync, only_read, mark)
                unmerged.clear()
            unmerged.append(index)
    flags = len(sync.flags)
    return Bound(sync.code(), count + 2 * flags, list(tags), 1 if flags else 0)


def _merge(call: Call, part: int, sync: Synchronizer, only_read: Container[int], mark: np.ndarray) -> None:
    """Forget a kernel's accesses before ``mark`` tile by tile: one interval per tensor remains."""
    sync.merge(Location(scratchpad_key("l1"), part), call.program.needs.get("l1", 0), mark)
    for tensor in call.tensors:
        sync.merge(_location(tensor, only_read), tensor.bytes, mark)


def _scratchpads(part: int, turns: Mapping[str, tuple[int, int]]) -> list[Location]:
    """Locations of a kernel's own bytes in every scratchpad; ``part``: their offset in L1."""
    shifts = {"l1": (part, 0), **turns}
    return [Location(n, *shifts.get(name, (0, 0))) for n, name in enumerate(SCRATCHPADS)]


def _turns(calls: Sequence[Call]) -> list[dict[str, tuple[int, int]]]:
    """Shift and wrap of every kernel in L0A, L0B and L0C: it begins in the half that the kernel before has
    left first."""
    begun = dict.fromkeys(SCRATCHPADS, 0)
    found = []
    for call in calls:
        turns = call.program.turns
        found.append({name: (begun[name] % 2 * half, 2 * half) for name, (half, _) in turns.items()})
        for name, size in call.program.needs.items():
            if size:
                begun[name] = begun[name] + turns[name][1] if name in turns else 0
    return found


def _location(tensor: Tensor, only_read: Container[int]) -> Location:
    if tensor.slot in _ON_CHIP:
        return Location(scratchpad_key(_ON_CHIP[tensor.slot]), tensor.address)
    return Location(ONLY_READ if tensor.slot in only_read else slot_key(tensor.slot), tensor.address)


def _order(calls: Sequence[Call], early: Sequence[bool]) -> Iterator[tuple[int, int, int]]:
    """Pieces of kernels: (kernel, first instruction, one past the last).

    Loads of a kernel's constants come before the kernel in front of it when that one leaves the DMA
    engine idle: they would wait behind its last loads, which wait for results.
    """
    done = [0] * len(calls)
    for n, call in enumerate(calls):
        if n + 1 < len(calls) and early[n + 1] and not call.streams:
            front = 0
            following = calls[n + 1].program
            own = call.program.front or 0
            if own > done[n]:
                yield n, done[n], own
                done[n] = own
            while front < (following.front or 0) and _own_l1(following.instrs[front]):
                front += 1
            done[n + 1] = front
            yield n + 1, 0, front
        yield n, done[n], len(call.program.instrs)


def _own_l1(instr: Instr) -> bool:
    return instr.in_l1 is not None and instr.in_l1[0] is None
