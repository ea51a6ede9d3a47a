"""Strips: chains of convolutions computed by strips of rows, when their images do not fit L1 whole.

A group is a run of convolutions.  Its output is computed strip by strip, and so is everything before
it: strip by strip the input comes to L1 once for all its readers, intermediate images exist as
*segments*, the rows that one strip's readers need, and weights and biases stay.  Rows that two strips need
(under a window) are computed once: the kernel that makes them stores them into both segments::

    L1 <- weights;  L1 <- input rows of strip 0;  first convolution of strip 0
    for strip:      L1 <- input rows of the next strip;  second and further convolutions of this strip;
                    first convolution of the next strip;  last convolution of this strip

Groups begin and end where a single image lives (around a residual block, for example).  Where the
weights of such a run leave no room for strips, as many of its last convolutions as do are a group, which
then may read several images, and those before it are another one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.schedules.npu.fetch import Fetch, FetchSpace
from hetero_tvm.schedules.npu.images.conv2d import NpuConv2dSpace
from hetero_tvm.targets.npu.regions.region import Value
from hetero_tvm.targets.npu.regions.residency import Step
from hetero_tvm.targets.npu.regions.strip_kernels import Group, Strips, fetch, strips_of

_LEAST_PIXELS = 96
"""Least pixels of a strip: with fewer, issuing instructions costs more than the traffic."""
_SWITCH_CYCLES = 30
"""Least cycles from one kernel of a strip to the next."""
_SLACK_RATIO = 1.2
"""Time of a group's products over that of its DRAM traffic, from which on its copies can wait for its stores
(behind which stores to L1 wait)."""
_BURST_RATIO = 1.5
"""Time that DRAM takes for a kernel's results over that of its products, from which on they come in a
burst."""
_MOST_AHEAD = 4
"""Most kernels by which a copy to L1 runs ahead of its reader."""


def split(steps: Sequence[Step], outputs: Sequence[Value], machine: NpuMachine, share: float) -> list[Step]:
    """The steps with groups cut into strips that take up to ``share`` of L1."""
    room = int(machine.spec.scratchpad("l1") * share)
    result: list[Step] = []
    before: Strips | None = None
    urgent: dict[Step, set[Value]] = {}
    at = 0
    for group in _groups(list(steps), _last_readers(steps, outputs), machine, room):
        if group.start > at:
            result += steps[at : group.start]
            before = None
        result = _joined(result, before, group.strips, room)
        before, at = group.strips, group.end
        if group.matrix > group.moved * _SLACK_RATIO:
            urgent |= _urgent(group.strips, machine)
    return _prefetched([*result, *steps[at:]], room, urgent)


@dataclass(frozen=True)
class _Found:
    """Steps ``start`` to ``end`` (exclusive) as a group."""

    start: int
    end: int
    strips: Strips | None
    """None for a single convolution, which is by itself no group."""
    matrix: float
    """Estimated cycles of the matrix unit."""
    moved: float
    """Estimated cycles of DRAM."""

    @property
    def cycles(self) -> float:
        """Estimated cycles."""
        return max(self.matrix, self.moved)


def _groups(steps: list[Step], last: dict[Value, int], machine: NpuMachine, room: int) -> list[_Found]:
    """Runs by strips; two runs, one behind the other, are one group where that is faster: the image between
    them never leaves L1."""

    def group(start: int, end: int) -> _Found | None:
        strips = _strips(Group.of(steps[start:end]), machine, room)
        return None if strips is None else _Found(start, end, strips, *_estimate(strips, machine))

    def cover(start: int, end: int) -> list[_Found]:
        """Groups of a run: all of it, or else the longest end that fits, and the steps before likewise."""
        whole = Group.of(steps[start:end])
        if whole.bytes() <= room * 7 // 8:
            return []
        for cut in range(start, end - 1):
            inner = (step.result for step in steps[cut : end - 1])
            if all(last[value] < end for value in inner) and (found := group(cut, end)):
                return [*cover(start, cut), found]
        return []

    groups = [
        found
        for start, end in _runs(steps, last)
        for found in ([_single(steps, start, machine)] if end == start + 1 else cover(start, end))
    ]
    while True:
        gains: list[tuple[float, int, _Found]] = []
        for n, (a, b) in enumerate(itertools.pairwise(groups)):
            apart = a.cycles + b.cycles
            if a.end != b.start or not _is_chain(steps[a.start : b.end], b.end, last):
                continue
            if Group.of(steps[a.start : b.end]).bytes() <= room * 7 // 8:
                continue
            if a.matrix + b.matrix < apart and (both := group(a.start, b.end)):
                gains.append((apart - both.cycles, n, both))
        gain, n, both = max(gains, key=lambda entry: entry[0], default=(0.0, 0, None))
        if both is None or gain <= 0:
            return [found for found in groups if found.strips is not None]
        groups[n : n + 2] = [both]


def _single(steps: Sequence[Step], n: int, machine: NpuMachine) -> _Found:
    """The single convolution ``steps[n]``, which may become part of a group."""
    step, spec = steps[n], machine.spec
    images = sum(_bytes(value) for value in (*step.operands, step.result) if value is not None)
    moved = images + 2 * step.space.weight_elements(step.op, machine)
    cycles = step.space.matrix_cycles(step.op, spec) + _SWITCH_CYCLES
    return _Found(n, n + 1, None, cycles, moved / spec.dram_bytes_per_cycle)


def _estimate(strips: Strips, machine: NpuMachine) -> tuple[float, float]:
    """Estimated cycles of the matrix unit and of DRAM."""
    spec, matrix, moved = machine.spec, 0, 0
    for step in strips.steps():
        if step.space.name == FetchSpace.name:
            moved += 2 * math.prod(step.op.out) * step.op.channels
        else:
            own = step.space.matrix_cycles(step.op, spec)
            matrix += own + _SWITCH_CYCLES
            if not step.result.root.resident:
                moved += _bytes(step.result)
                # What comes faster than DRAM takes it waits in the unified buffer, then in the accumulators.
                waiting = _bytes(step.result) - spec.scratchpad("ub") * 3 // 8
                matrix += max(0.0, waiting / spec.dram_bytes_per_cycle - own)
    return matrix, moved / spec.dram_bytes_per_cycle


def _urgent(strips: Strips, machine: NpuMachine) -> dict[Step, set[Value]]:
    """Steps that make results much faster than DRAM takes them, with the images that are copied to L1."""
    spec, steps = machine.spec, strips.steps()
    copied = (step.operands[0] for step in steps if step.space.name == FetchSpace.name)
    images = {value.root for value in copied if value is not None}
    burst = _BURST_RATIO * spec.dram_bytes_per_cycle
    return {
        step: images
        for step in steps
        if not step.result.root.resident
        and _bytes(step.result) > burst * step.space.matrix_cycles(step.op, spec)
    }


def _joined(done: list[Step], before: Strips | None, strips: Strips, room: int) -> list[Step]:
    """The steps ``done`` with the next group's strips behind them.

    The next group's first kernel, and the copies that it needs, come ahead of the last kernel of ``done``, as
    within a group, if the first input rows are made by then and L1 has room.
    """
    plain = [*done, *strips.steps()]
    if before is None:
        return plain
    *front, middle, final = done
    if not all(_made(part.operands[0], final) for part in strips.images):
        return plain
    ahead = [*front, *strips.weights, middle, *strips.images, strips.first, final, *strips.rest]
    return ahead if _resident_bytes(ahead) <= max(room, _resident_bytes(plain)) else plain


def _made(rows: Value | None, final: Step) -> bool:
    """Whether all of ``rows`` is there before ``final`` runs."""
    assert rows is not None and rows.shift is not None and final.result.shift is not None
    return rows.root is not final.result.root or rows.shift + _bytes(rows) <= final.result.shift


def _bytes(value: Value) -> int:
    return 2 * math.prod(value.shape)


def _live(steps: Sequence[Step]) -> tuple[list[int], dict[Value, int]]:
    """Bytes of L1 that resident values take at every step; the first step of each value."""
    spans: dict[Value, tuple[int, int]] = {}
    for n, step in enumerate(steps):
        for value in (*step.operands, step.result, step.copy):
            if value is not None and value.root.resident and not value.in_ub:
                spans[value.root] = (spans.get(value.root, (n, n))[0], n)
    live = [0] * (len(steps) + 1)
    for value, (a, z) in spans.items():
        live[a] += _bytes(value)
        live[z + 1] -= _bytes(value)
    return list(itertools.accumulate(live)), {value: a for value, (a, _) in spans.items()}


def _resident_bytes(steps: Sequence[Step]) -> int:
    """Bytes of L1 that resident values take at the worst step."""
    return max(_live(steps)[0])


def _prefetched(steps: list[Step], room: int, urgent: Mapping[Step, Collection[Value]]) -> list[Step]:
    """The steps with copies to L1 as early as there is room, in their order: the inputs of one block arrive
    while the one before still computes.

    Parameters
    ----------
    urgent : steps whose stores go before copies of some images.
    """
    steps = list(steps)
    order = [step for step in steps if step.space.name == FetchSpace.name and step.result.root.resident]
    barrier = 0
    for copy in order:
        at = steps.index(copy)
        live, first = _live(steps)
        target = copy.result.root
        size, alive = (0, at) if target.in_ub else (_bytes(target), first[target])
        kernels, to, source = 0, at, copy.operands[0]
        while to > barrier:
            above = steps[to - 1]
            if source is not None and source.root in urgent.get(above, ()):
                break
            kernels += above.space.name != FetchSpace.name
            full = to - 1 < alive and live[to - 1] + size > room
            if full or kernels > _MOST_AHEAD or not _of_strip(above) or _feeds(above, copy):
                break
            to -= 1
        steps.insert(to, steps.pop(at))
        barrier = to + 1
        if source is not None:
            stores = (step for step in reversed(steps[:to]) if source.root in urgent.get(step, ()))
            copy.behind = next(stores, None)
    return steps


def _of_strip(step: Step) -> bool:
    """Whether a step is a copy or a kernel of a strip, which leaves room in L1 to others."""
    return step.space.name == FetchSpace.name or (len(step.operands) > 1 and step.operands[1] is not None)


def _feeds(step: Step, copy: Step) -> bool:
    """Whether ``step`` makes bytes that ``copy`` reads."""
    source = copy.operands[0]
    if source is None or step.result.root is not source.root:
        return False
    a, b = step.result.shift or 0, source.shift or 0
    return a < b + _bytes(source) and b < a + _bytes(step.result)


def thin(steps: Sequence[Step]) -> list[Step]:
    """The steps with a copy before every 1x1 convolution with strides whose image is in DRAM: it then reads
    only the pixels that are used."""
    result: list[Step] = []
    for step in steps:
        op = step.op
        if isinstance(step.space, NpuConv2dSpace) and 0 not in step.held and _skips_pixels(op):
            copy = Fetch(op.height, op.width, op.channels, op.strides)
            image = Value((1, op.channels, *copy.out), resident=True)
            result.append(fetch(step, copy, step.operands[0], image))
            op = replace(op, height=copy.out[0], width=copy.out[1], strides=(1, 1))
            step = replace(step, op=op, operands=[image, *step.operands[1:]], recorded=None)
        result.append(step)
    return result


def _skips_pixels(op: Conv2d) -> bool:
    """Whether a convolution of one image is 1x1 with strides."""
    return op.batch == 1 and op.kernel == (1, 1) and op.strides != (1, 1) and not any(op.padding)


# --- groups ----------------------------------------------------------------------------------------


def _last_readers(steps: Sequence[Step], outputs: Sequence[Value]) -> dict[Value, int]:
    """Index of the last step that reads a value; ``len(steps)`` for values that leave the region."""
    last: dict[Value, int] = {value.root: len(steps) for value in outputs}
    for n, step in enumerate(steps):
        for value in step.operands:
            if value is not None:
                last[value.root] = max(last.get(value.root, 0), n)
    return last


def _runs(steps: Sequence[Step], last: dict[Value, int]) -> Iterator[tuple[int, int]]:
    """Shortest runs (start, end) of convolutions that read one image and leave one."""
    start = 0
    layouts = {step.result: step.layout for step in steps}
    for n, step in enumerate(steps):
        # Strips copy rows as they lie: an image that comes in another layout is converted as a whole.
        as_wanted = all(
            value is None or layouts.get(value, wanted) == wanted
            for value, wanted in zip(step.operands, step.wanted, strict=True)
        )
        if not as_wanted or not _can_strip(step):
            start = n + 1
            continue
        run = steps[start : n + 1]
        made = {s.result for s in run}
        read = {v for s in run for v in s.operands if v is not None}
        if {v for v in made | read if last.get(v, 0) > n} - {step.result}:
            continue
        if len(read - made) == 1:
            yield start, n + 1
        start = n + 1


def _is_chain(run: Sequence[Step], end: int, last: dict[Value, int]) -> bool:
    """Whether steps up to ``end`` read one image, and nobody behind them reads what is between them."""
    made = {step.result for step in run}
    read = {value for step in run for value in step.operands if value is not None}
    return len(read - made) == 1 and all(last[value] < end for value in made - {run[-1].result})


def _can_strip(step: Step) -> bool:
    """Whether a step can compute some rows at a time from images in L1."""
    if not step.space.by_rows or step.op.batch != 1:
        return False
    free = [n for n, value in enumerate(step.operands) if value is not None]
    chip = step.space.on_chip(step.op)
    return all(n in chip and step.operands[n].source is None for n in free)


def _strips(group: Group, machine: NpuMachine, room: int) -> Strips | None:
    """Strips of a group that fit ``room``: the fastest of those that are not too short and leave room for the
    input of one more strip; None: there are none."""
    final = group.steps[-1].op
    previous = 0
    found: Strips | None = None
    best: Strips | None = None
    least = math.inf
    for parts in range(2, final.out_height + 1):
        high = -(-final.out_height // parts)
        if high == previous:
            continue
        previous = high
        pixels = high * final.out_width
        if pixels < (_LEAST_PIXELS if found is None else 2 * _LEAST_PIXELS):
            break
        strips = strips_of(group, high, machine)
        if strips is None:
            continue
        need = _resident_bytes(strips.steps())
        if need <= room:
            found = found or strips
            if need + strips.input_bytes <= room and (cycles := max(_estimate(strips, machine))) < least:
                best, least = strips, cycles
    return best or found
