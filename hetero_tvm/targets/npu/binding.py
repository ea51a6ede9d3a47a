"""From kernels to one command stream: places in L1, addresses of operands, order, flags."""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from hetero_tvm import memory
from hetero_tvm.errors import BuildError
from hetero_tvm.targets.npu import isa
from hetero_tvm.targets.npu.codegen import Program
from hetero_tvm.targets.npu.sites import Instr
from hetero_tvm.targets.npu.spec import NPUSpec
from hetero_tvm.targets.npu.sync import Flag, Synchronizer

CONSTANTS, WORKSPACE, IN_L1, IN_UB = 0, 1, -1, -2
"""Slots that every region has, and those that stand for L1 and the unified buffer."""
_ON_CHIP = {IN_L1: "l1", IN_UB: "ub"}
_PLAN_SECONDS = 1.0
_LEAD = 6
_FULL = 0.99
"""Copies to L1 have their place so many steps earlier, as long as L1 is not fuller than that."""
_STREAMING = 1 << 16
"""Bytes of constants from which on a kernel's loads keep the DMA engine busy by themselves."""


@dataclass(eq=False)
class Tensor:
    """A tensor between kernels, whole and compact: in a slot of DRAM, or in L1 or the unified buffer."""

    slot: int
    bytes: int
    offset: int = 0
    first: int = 1 << 60
    """First and last kernel that touch it (where its place is planned)."""
    last: int = -1
    whole: Tensor | None = None
    """What this is a part of, from ``offset`` on."""

    @property
    def address(self) -> int:
        """Byte in its slot, or in its memory on chip."""
        return self.offset + (self.whole.address if self.whole is not None else 0)

    def part(self, offset: int, size: int) -> Tensor:
        return Tensor(self.slot, size, offset, whole=self)

    def touch(self, kernel: int) -> None:
        """A kernel works on it."""
        self.first, self.last = min(self.first, kernel), max(self.last, kernel)
        if self.whole is not None:
            self.whole.touch(kernel)


@dataclass
class Call:
    """A kernel with its operands."""

    program: Program
    tensors: list[Tensor]
    tag: str
    streams: bool = field(init=False)
    """Whether its constants keep the DMA engine busy."""

    def __post_init__(self) -> None:
        self.streams = sum(t.bytes for t in self.tensors if t.slot == CONSTANTS) >= _STREAMING


class L1Full(BuildError):
    """What is alive at once does not fit L1."""


@dataclass(frozen=True)
class L1Plan:
    """Where each kernel's own part of L1 begins (tensors know their place themselves)."""

    parts: list[int]
    peak: int
    early: list[bool]
    """Whether a kernel's part is its own from the start of the kernel before: its loads may run ahead."""


def plan_l1(calls: Sequence[Call], spec: NPUSpec, ahead: bool = True) -> L1Plan:
    """Places in L1, by live ranges in steps of one kernel; ``ahead``: a kernel's part is its own one step
    earlier where there is room.

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
    fits = [bool(n) and live[n - 1] + own[n - 1] + own[n] <= capacity for n in range(len(calls))]
    starts = [tensor.first for tensor in held]
    never = [False] * len(calls)
    leading = (_early_copies(held, calls, own, fits, int(capacity * _FULL), align), fits)
    for begin, early in (leading, (starts, fits), (starts, never)) if ahead else ((starts, never),):
        buffers = [
            memory.Buffer(f"t{n}", begin[n], t.last + 1, -(-t.bytes // align) * align)
            for n, t in enumerate(held)
        ]
        buffers += [memory.Buffer(f"k{n}", n - early[n], n + 1, size) for n, size in enumerate(own)]
        plan = memory.plan(
            memory.Problem(buffers), capacity=capacity, alignment=align, seconds=_PLAN_SECONDS
        )
        if plan.fits:
            for n, tensor in enumerate(held):
                tensor.offset = plan.offsets[f"t{n}"]
            return L1Plan([plan.offsets[f"k{n}"] for n in range(len(calls))], plan.peak, early)
    raise L1Full(
        f"tensors and tiles need {plan.peak} bytes of l1, {spec.name} has {capacity}",
        hint="choose smaller tiles",
    )


def _early_copies(
    held: Sequence[Tensor], calls: Sequence[Call], own: Sequence[int], early: Sequence[bool], room: int,
    align: int,
) -> list[int]:  # fmt: skip
    """From which step on a tensor has its place: up to some before the copy that fills it, while what is
    alive takes at most ``room``, so that the copy waits for none of the kernels right before it."""
    live = list(own)
    for n, size in enumerate(own):
        if early[n]:
            live[n - 1] += size
    sizes = [-(-tensor.bytes // align) * align for tensor in held]
    for tensor, size in zip(held, sizes, strict=True):
        for n in range(tensor.first, tensor.last + 1):
            live[n] += size
    starts = []
    for tensor, size in zip(held, sizes, strict=True):
        begin = tensor.first
        copied = not any(calls[begin].program.needs.values())
        while copied and begin > max(0, tensor.first - _LEAD) and live[begin - 1] + size <= room:
            begin -= 1
            live[begin] += size
        starts.append(begin)
    return starts


def _held(calls: Sequence[Call], slot: int) -> list[Tensor]:
    found = (t if t.whole is None else t.whole for call in calls for t in call.tensors if t.slot == slot)
    return list(dict.fromkeys(found))


def plan_ub(calls: Sequence[Call], room: int, align: int) -> int:
    """Places of what stays in the unified buffer, in its first ``room`` bytes: bytes used.

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


def bind(calls: Sequence[Call], plan: L1Plan, constant: Iterable[Hashable]) -> Bound:
    """Put the kernels' instructions in order, fill in addresses, synchronise."""
    sync = Synchronizer(constant)
    tags = [""]
    tag_ids = {"": 0}
    codes: list[bytes] = []
    for index, instrs in _order(calls, plan.early):
        call = calls[index]
        if call.tag not in tag_ids:
            tag_ids[call.tag] = len(tags)
            tags.append(call.tag)
        _emit(call, plan.parts[index], instrs, tag_ids[call.tag], sync, codes)
        if index and instrs and instrs[-1] is call.program.instrs[-1]:
            # The kernel behind may still start on the first tiles of this one.
            _merge(calls[index - 1], plan.parts[index - 1], sync)
    code, count = _with_flags(codes, sync.flags)
    return Bound(code, count, tags, 1 if sync.flags else 0)


def _merge(call: Call, part: int, sync: Synchronizer) -> None:
    sync.merge("l1", part, part + call.program.needs.get("l1", 0))
    for tensor in call.tensors:
        sync.merge(_memory_of(tensor), tensor.address, tensor.address + tensor.bytes)


def _memory_of(tensor: Tensor) -> Hashable:
    return _ON_CHIP.get(tensor.slot, ("dram", tensor.slot))


def _order(calls: Sequence[Call], early: Sequence[bool]) -> Iterable[tuple[int, Sequence[Instr]]]:
    """Pieces of kernels: (kernel, instructions).

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
                yield n, call.program.instrs[done[n] : own]
                done[n] = own
            while front < (following.front or 0) and _own_l1(following.instrs[front]):
                front += 1
            done[n + 1] = front
            yield n + 1, following.instrs[:front]
        yield n, call.program.instrs[done[n] :]


def _own_l1(instr: Instr) -> bool:
    return instr.in_l1 is not None and instr.in_l1[0] is None


def _emit(
    call: Call, part: int, instrs: Sequence[Instr], tag: int, sync: Synchronizer, codes: list[bytes]
) -> None:
    keys = [_memory_of(t) for t in call.tensors]
    addresses = [t.address for t in call.tensors]
    tag_bytes = struct.pack("<H", tag)
    for instr in instrs:
        accesses = []
        for memory_, low, high, write in instr.accesses:
            if memory_ == "l1":
                accesses.append(("l1", low + part, high + part, write))
            elif isinstance(memory_, str):
                accesses.append((memory_, low, high, write))
            else:
                shift = addresses[memory_]
                accesses.append((keys[memory_], low + shift, high + shift, write))
        sync.add(instr.queue, accesses)
        code = instr.code
        if instr.reference is not None or instr.in_l1 is not None or instr.in_ub is not None:
            patched = bytearray(code)
            if instr.reference is not None:
                parameter, slot_at, address_at, offset = instr.reference
                struct.pack_into("<H", patched, slot_at, call.tensors[parameter].slot)
                struct.pack_into("<Q", patched, address_at, addresses[parameter] + offset)
            if instr.in_l1 is not None:
                owner, at, form, offset = instr.in_l1
                base = part if owner is None else addresses[owner]
                struct.pack_into(form, patched, at, base + offset)
            if instr.in_ub is not None:
                owner, at, form, offset = instr.in_ub
                struct.pack_into(form, patched, at, addresses[owner] + offset)
            code = bytes(patched)
        codes.append(code[:2] + tag_bytes + code[4:])


def _with_flags(codes: list[bytes], flags: Sequence[Flag]) -> tuple[bytes, int]:
    """The instructions with set_flag behind producers and wait_flag before consumers, and their number."""
    after: dict[int, list[bytes]] = {}
    before: dict[int, list[bytes]] = {}
    cache: dict[tuple[str, int, int], bytes] = {}

    def flag(name: str, source: int, target: int) -> bytes:
        key = (name, source, target)
        if key not in cache:
            cache[key] = isa.encode(name, source=isa.QUEUES[source], target=isa.QUEUES[target], event=0)
        return cache[key]

    for f in flags:
        after.setdefault(f.after, []).append(flag("set_flag", f.source, f.target))
        before.setdefault(f.before, []).append(flag("wait_flag", f.source, f.target))
    parts: list[bytes] = []
    for n, code in enumerate(codes):
        parts += before.get(n, ())
        parts.append(code)
        parts += after.get(n, ())
    return b"".join(parts), len(parts)
