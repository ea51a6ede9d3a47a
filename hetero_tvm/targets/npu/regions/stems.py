"""Stems: a convolution joined with the max pooling behind it.

The host's image comes to L1 row by row with the strips that need it; any other one as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.schedules.npu.fetch import Fetch, FetchSpace
from hetero_tvm.schedules.npu.images.conv2d import NpuConv2dSpace
from hetero_tvm.schedules.npu.images.conv2d_pool import ConvPool, ConvPoolSpace
from hetero_tvm.schedules.npu.images.pool2d import NpuPool2dSpace
from hetero_tvm.targets.npu.regions.region import Value
from hetero_tvm.targets.npu.regions.residency import Step

_JOINED, _FETCH = ConvPoolSpace(), FetchSpace()


def join(steps: Sequence[Step], outputs: Sequence[Value], machine: NpuMachine) -> list[Step]:
    """The steps with convolutions and poolings joined where the image fits half of L1."""
    readers: dict[Value, list[Step]] = {}
    for step in steps:
        for value in step.operands:
            if value is not None:
                readers.setdefault(value.root, []).append(step)
    leaving = {value.root for value in outputs}
    result: list[Step] = []
    gone: set[Value] = set()
    for step in steps:
        if step.result in gone:
            continue
        pool = readers.get(step.result, [])
        if len(pool) != 1 or step.result in leaving or not _can_join(step, pool[0], machine):
            result.append(step)
            continue
        gone.add(pool[0].result)
        op, operands = _joined(step, pool[0]), step.operands
        if not op.raw:
            result.append(_feed(step))
            operands = [result[-1].result, *step.operands[1:]]
        wanted, layout = _JOINED.layouts(op)
        step = replace(
            step,
            space=_JOINED,
            op=op,
            recorded=None,
            operands=operands,
            wanted=wanted,
            result=pool[0].result,
            layout=layout,
        )
        result.append(step)
    return result


def _can_join(conv: Step, pool: Step, machine: NpuMachine) -> bool:
    if not isinstance(conv.space, NpuConv2dSpace) or not isinstance(pool.space, NpuPool2dSpace):
        return False
    op, x = conv.op, conv.operands[0]
    if x.source is not None or x.dtype != "float32" or pool.operands[0] is not conv.result:
        return False
    if 4 * op.channels * op.height * op.width > machine.spec.scratchpad("l1"):
        return False
    return _JOINED.refuses(_joined(conv, pool), machine) is None


def _joined(conv: Step, pool: Step) -> ConvPool:
    return ConvPool(conv.op, pool.op, raw=conv.operands[0].external is not None)


def _feed(step: Step) -> Step:
    """Copy of the image to L1."""
    op, x = step.op, step.operands[0]
    image = Value((1, op.channels, op.height, op.width), resident=True)
    kernel = Fetch(op.height, op.width, op.channels)
    wanted, layout = _FETCH.layouts(kernel)
    return Step(_FETCH, kernel, None, [x], wanted, image, layout, f"{step.name} input", [None])
