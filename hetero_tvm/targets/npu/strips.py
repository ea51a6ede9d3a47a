"""Chains of convolutions by strips of rows, when their images do not fit L1 whole.

A group is a run of convolutions between two points where a single image lives (a residual block, for
example).  Its output is computed strip by strip, and so is everything before it: strip by strip the
input comes to L1 once for all its readers, intermediate images exist as *segments*, the rows that one
strip's readers need, and the weights stay.  Rows that two strips need (under a window) are computed
once: the kernel that makes them stores them into both segments::

    L1 <- weights;  L1 <- input rows of strip 0;  first convolution of strip 0
    for strip:      L1 <- input rows of the next strip;  second and further convolutions of this strip;
                    first convolution of the next strip;  last convolution of this strip
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hetero_tvm.schedules.npu.conv2d import NpuConv2dSpace
from hetero_tvm.schedules.npu.fetch import Fetch, FetchSpace
from hetero_tvm.targets.npu.machine import NpuMachine
from hetero_tvm.targets.npu.region import Value
from hetero_tvm.targets.npu.residency import Step

_FETCH = FetchSpace()
_LEAST_PIXELS = 96
"""Of a strip: with fewer rows of the product, issuing instructions would cost more than the traffic."""

Rows = tuple[int, int]
"""From, to (exclusive)."""


def split(steps: Sequence[Step], outputs: Sequence[Value], machine: NpuMachine, share: float) -> list[Step]:
    """The steps with groups cut into strips that take up to ``share`` of L1."""
    room = int(machine.spec.scratchpad("l1") * share)
    result: list[Step] = []
    at, before = 0, False
    for start, end in _groups(steps, outputs):
        result += steps[at:start]
        group = list(steps[start:end])
        strips = _strips(group, machine, room)
        follows = before and at == start and strips is not None
        result = _joined(result, strips, room) if follows and strips else result + (strips or group)
        at, before = end, strips is not None
    return [*result, *steps[at:]]


def _joined(done: list[Step], strips: list[Step], room: int) -> list[Step]:
    """The next group's strips behind those of the group before: its first kernel, and what that needs,
    come ahead of the last kernel of ``done``, as within a group, if the first input rows are made by
    then and L1 has room."""
    (weights, image, first, *rest), (*front, middle, final) = strips, done
    rows = image.operands[0]
    assert rows is not None and rows.shift is not None and final.result.shift is not None
    made = rows.root is not final.result.root or rows.shift + _bytes(rows) <= final.result.shift
    plain = [*done, *strips]
    ahead = [*front, weights, middle, image, first, final, *rest]
    return ahead if made and _pinned(ahead) <= max(room, _pinned(plain)) else plain


def _bytes(value: Value) -> int:
    return 2 * math.prod(value.shape)


def _pinned(steps: Sequence[Step]) -> int:
    """Bytes of L1 that pinned values take, at the worst step."""
    spans: dict[Value, tuple[int, int]] = {}
    for n, step in enumerate(steps):
        for value in (*step.operands, step.result, step.copy):
            if value is not None and value.root.pinned:
                spans[value.root] = (spans.get(value.root, (n, n))[0], n)
    live = [0] * (len(steps) + 1)
    for value, (a, z) in spans.items():
        live[a] += _bytes(value)
        live[z + 1] -= _bytes(value)
    return max(itertools.accumulate(live))


def thin(steps: Sequence[Step]) -> list[Step]:
    """1x1 convolutions with strides, whose image is in DRAM, read only the pixels that they use."""
    result: list[Step] = []
    for step in steps:
        op = step.op
        if (
            isinstance(step.space, NpuConv2dSpace) and 0 not in step.held and op.batch == 1
            and op.kernel == (1, 1) and op.strides != (1, 1) and not any(op.padding)
        ):  # fmt: skip
            copy = Fetch(op.height, op.width, op.channels, op.strides)
            image = Value((1, op.channels, *copy.out), pinned=True)
            result.append(_fetch(step, copy, step.operands[0], image))
            op = replace(op, height=copy.out[0], width=copy.out[1], strides=(1, 1))
            step = replace(step, op=op, operands=[image, *step.operands[1:]], recorded=None)
        result.append(step)
    return result


def _fetch(step: Step, op: Fetch, source: Value | None, result: Value) -> Step:
    wanted, layout = _FETCH.layouts(op)
    return Step(_FETCH, op, None, [source], wanted, result, layout, f"{step.name} input", [None])


# --- groups ----------------------------------------------------------------------------------------


def _groups(steps: Sequence[Step], outputs: Sequence[Value]) -> Iterator[tuple[int, int]]:
    """Runs of convolutions that read one image and leave one."""
    last: dict[Value, int] = {value.root: len(steps) for value in outputs}
    for n, step in enumerate(steps):
        for value in step.operands:
            if value is not None:
                last[value.root] = max(last.get(value.root, 0), n)
    start = 0
    for n, step in enumerate(steps):
        if not _can_strip(step):
            start = n + 1
            continue
        run = steps[start : n + 1]
        made = {s.result for s in run}
        read = {v for s in run for v in s.operands if v is not None}
        if {v for v in made | read if last.get(v, 0) > n} - {step.result}:
            continue
        if len(run) > 1 and len(read - made) == 1:
            yield start, n + 1
        start = n + 1


def _can_strip(step: Step) -> bool:
    if not isinstance(step.space, NpuConv2dSpace) or step.op.batch != 1:
        return False
    free = [n for n, value in enumerate(step.operands) if value is not None]
    chip = step.space.on_chip(step.op)
    return all(n in chip and step.operands[n].source is None for n in free)


# --- strips ----------------------------------------------------------------------------------------


@dataclass
class _Ranges:
    """Of one value: rows that each strip adds, and rows that each strip's readers need."""

    made: list[Rows]
    needed: list[Rows]


def _strips(group: list[Step], machine: NpuMachine, room: int) -> list[Step] | None:
    source = _source(group)
    values = [source, *(step.result for step in group)]
    if _whole(group, values) <= room * 7 // 8:
        return None
    final = group[-1].op
    weights = sum(2 * _weights(step) for step in group)
    previous = 0
    for parts in range(2, final.out_height + 1):
        high = -(-final.out_height // parts)
        if high == previous:
            continue
        previous = high
        if high * final.out_width < _LEAST_PIXELS:
            return None
        ranges = _ranges(group, values, high)
        if ranges is not None and weights + _segments(group, values, ranges) <= room:
            return _emit(group, values, ranges)
    return None


def _source(group: list[Step]) -> Value:
    made = {step.result for step in group}
    return next(v for step in group for v in step.operands if v is not None and v not in made)


def _weights(step: Step) -> int:
    op = step.op
    return op.filters * op.channels * op.kernel[0] * op.kernel[1]


def _row_bytes(value: Value) -> int:
    return 2 * value.shape[1] * value.shape[3]


def _whole(group: list[Step], values: list[Value]) -> int:
    """Bytes of L1 with whole images, at the worst step."""
    worst = 0
    for n, _ in enumerate(group):
        later = {v for step in group[n:] for v in step.operands if v is not None} | {values[-1]}
        alive = [v for m, v in enumerate(values) if v in later and m <= n + 1]
        worst = max(worst, sum(_row_bytes(v) * v.shape[2] for v in alive))
    return worst


def _under(op: Any, out: Rows) -> Rows:
    """Rows of X under rows of Y."""
    reach = (op.kernel[0] - 1) * op.dilation[0] + 1
    low = max(0, out[0] * op.strides[0] - op.padding[0])
    return low, min(op.height, (out[1] - 1) * op.strides[0] - op.padding[0] + reach)


def _reads(step: Step) -> Iterator[tuple[Value, bool]]:
    """(image, whether it is the convolution's X and not its residual)."""
    for n, value in enumerate(step.operands):
        if value is not None:
            yield value, n == 0


def _ranges(group: list[Step], values: list[Value], high: int) -> dict[Value, _Ranges] | None:
    """From the strips of the last result backwards; None when a window reaches beyond one strip."""
    total = values[-1].shape[2]
    count = -(-total // high)
    made = {values[-1]: [(i * high, min(total, (i + 1) * high)) for i in range(count)]}
    found = {values[-1]: _Ranges(made[values[-1]], made[values[-1]])}
    for index in range(len(values) - 2, -1, -1):
        value = values[index]
        needed: list[Rows] = []
        for i in range(count):
            rows = [
                _under(step.op, found[step.result].made[i]) if is_x else found[step.result].made[i]
                for step in group
                for read, is_x in _reads(step)
                if read is value
            ]
            needed.append((min(r[0] for r in rows), max(r[1] for r in rows)))
        own: list[Rows] = []
        done = 0
        for i, (_, end) in enumerate(needed):
            end = max(end, done) if i + 1 < count else value.shape[2]
            own.append((done, end))
            done = end
        if index and any(a >= z for a, z in own):
            return None
        if any(needed[i][0] < own[i - 1][0] for i in range(1, count)):
            return None
        needed = [(low, max(low, z)) for (low, _), (_, z) in zip(needed, own, strict=True)]
        found[value] = _Ranges(own, needed)
    return found


def _segments(group: list[Step], values: list[Value], ranges: dict[Value, _Ranges]) -> int:
    """Bytes of L1 beside the weights: two segments of the input and of what has rows in common."""
    total = 0
    for value in values[:-1]:
        r = ranges[value]
        most = max(z - a for a, z in r.needed)
        shared = any(r.needed[i][0] < r.made[i][0] for i in range(1, len(r.made)))
        total += _row_bytes(value) * most * (2 if shared or value is values[0] else 1)
    return total


def _emit(group: list[Step], values: list[Value], ranges: dict[Value, _Ranges]) -> list[Step]:
    source, final = values[0], values[-1]
    count = len(ranges[final].made)
    segments = {
        v: [Value((1, v.shape[1], z - a, v.shape[3]), pinned=True) for a, z in ranges[v].needed]
        for v in values[:-1]
    }
    held = {step.result: Value((_weights(step),), pinned=True) for step in group}
    leader = min(1, count - 1)
    kernels: list[list[Step]] = []
    leaders: dict[Value, Step] = {}
    for i in [leader, *(i for i in range(count) if i != leader)]:
        row = []
        for step in group:
            strip = _strip(step, i, values, ranges, segments, held[step.result])
            strip.leader = leaders.setdefault(step.result, strip) if i != leader else None
            leaders.setdefault(step.result, strip)
            row.append(strip)
        kernels.append(row)
    order = sorted(range(count), key=lambda n: [leader, *(i for i in range(count) if i != leader)][n])
    rows_of = [kernels[n] for n in order]

    def input_of(i: int, piece: int = 0, pieces: int = 1) -> list[Step]:
        first, last = ranges[source].needed[i]
        low, end = (first + (last - first) * n // pieces for n in (piece, piece + 1))
        if low == end:
            return []
        part = source.part((1, source.shape[1], end - low, source.shape[3]), low * _row_bytes(source))
        target = _part(segments[source][i], (first, last), (low, end))
        return [_fetch(group[0], Fetch(end - low, source.shape[3], source.shape[1]), part, target)]

    def weights_of(step: Step) -> Step:
        flat = Fetch(1, 1, _weights(step))
        fetch = _fetch(step, flat, None, held[step.result])
        fetch.packed_for = leaders[step.result]
        return fetch

    result = [weights_of(group[0]), *input_of(0), rows_of[0][0]]
    for i, (_, *middle, final_step) in enumerate(rows_of):
        more = i + 1 < count
        if i == 0:  # Weights in the order in which they are needed, and the next strip's input last.
            for step, weights in zip(middle, group[1:], strict=False):
                result += [weights_of(weights), step]
            result += [weights_of(group[-1]), *(input_of(1) if more else [])]
        else:
            # Piece by piece: the small loads of the kernels would wait behind the whole.
            pieces = [input_of(i + 1, n, len(middle) + 1) if more else [] for n in range(len(middle) + 1)]
            result += pieces[0]
            for step, piece in zip(middle, pieces[1:], strict=True):
                result += [step, *piece]
        # The next strip's first kernel is ahead of this one's last, whose results queue up for DRAM.
        result += [rows_of[i + 1][0]] if more else []
        result.append(final_step)
    return result


def _strip(
    step: Step,
    i: int,
    values: list[Value],
    ranges: dict[Value, _Ranges],
    segments: dict[Value, list[Value]],
    weights: Value,
) -> Step:
    """One convolution on the rows of strip ``i``."""
    op, out = step.op, ranges[step.result].made[i]
    rows = _under(op, out)
    first = out[0] * op.strides[0] - op.padding[0]
    reach = (op.kernel[0] - 1) * op.dilation[0] + 1
    last = (out[1] - 1) * op.strides[0] - op.padding[0] + reach
    padding = (rows[0] - first, op.padding[1], last - rows[1], op.padding[3])
    operands: list[Value | None] = []
    for n, value in enumerate(step.operands):
        if value is None:
            operands.append(weights if n == 1 else None)
        else:
            operands.append(_part(segments[value][i], ranges[value].needed[i], rows if n == 0 else out))
    result, copy, copied = step.result, None, 0
    if result is values[-1]:
        image = (1, result.shape[1], out[1] - out[0], result.shape[3])
        target = result.part(image, out[0] * _row_bytes(result))
    else:
        target = _part(segments[result][i], ranges[result].needed[i], out)
        if i + 1 < len(ranges[result].made):
            low = ranges[result].needed[i + 1][0]
            copied = max(0, out[1] - low)
            if copied:
                copy = _part(segments[result][i + 1], ranges[result].needed[i + 1], (low, out[1]))
    return replace(
        step, op=replace(op, height=rows[1] - rows[0], padding=padding), operands=operands, result=target,
        copy=copy, copied=copied * result.shape[3],
    )  # fmt: skip


def _part(segment: Value, has: Rows, rows: Rows) -> Value:
    if has == rows:
        return segment
    image = (1, segment.shape[1], rows[1] - rows[0], segment.shape[3])
    return segment.part(image, (rows[0] - has[0]) * _row_bytes(segment))

