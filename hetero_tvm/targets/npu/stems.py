"""A convolution joined with the max pooling behind it, on an image that comes to L1 first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hetero_tvm.schedules.npu import convert
from hetero_tvm.schedules.npu.base import CHANNELS_LAST, ROW_MAJOR
from hetero_tvm.schedules.npu.conv2d import NpuConv2dSpace
from hetero_tvm.schedules.npu.conv_pool import ConvPool, ConvPoolSpace
from hetero_tvm.schedules.npu.emit import DRAM, L1
from hetero_tvm.schedules.npu.fetch import Fetch, FetchSpace
from hetero_tvm.schedules.npu.windows import NpuPoolSpace
from hetero_tvm.targets.npu.machine import NpuMachine
from hetero_tvm.targets.npu.region import Value
from hetero_tvm.targets.npu.residency import Step

_JOINED = ConvPoolSpace()


@dataclass(frozen=True)
class ToChannelsLast:
    """The host's image [channels, pixels] as the NPU's [pixels, channels]."""

    channels: int
    pixels: int


class ToChannelsLastSpace(FetchSpace):
    """The first kernel of a region whose input stays in L1."""

    name = "npu.to_channels_last"

    def layouts(self, op: Any) -> tuple[tuple[str, ...], str]:
        return (ROW_MAJOR,), CHANNELS_LAST

    def dtypes(self, op: Any, machine: Any) -> tuple[str, ...]:
        return ("float32",)

    def emit_held(self, op: ToChannelsLast, point: Any, machine: Any, held: frozenset[int]) -> Any:
        scope = L1 if 1 in held else DRAM
        return convert.permute(1, op.channels, op.pixels, "float32", machine.dtype, machine.spec, scope)


_TO_CHANNELS_LAST, _FETCH = ToChannelsLastSpace(), FetchSpace()


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
        if len(pool) != 1 or step.result in leaving or not _joins(step, pool[0], machine):
            result.append(step)
            continue
        gone.add(pool[0].result)
        feed = _feed(step)
        op = ConvPool(step.op, pool[0].op)
        wanted, layout = _JOINED.layouts(op)
        operands = [feed.result, *step.operands[1:]]
        result += [
            feed,
            replace(
                step, space=_JOINED, op=op, recorded=None, operands=operands, wanted=wanted,
                result=pool[0].result, layout=layout,
            ),
        ]  # fmt: skip
    return result


def _joins(conv: Step, pool: Step, machine: NpuMachine) -> bool:
    if not isinstance(conv.space, NpuConv2dSpace) or not isinstance(pool.space, NpuPoolSpace):
        return False
    op, x = conv.op, conv.operands[0]
    if x.source is not None or x.dtype != "float32" or pool.operands[0] is not conv.result:
        return False
    if 4 * op.channels * op.height * op.width > machine.spec.scratchpad("l1"):
        return False
    return _JOINED.refuses(ConvPool(op, pool.op), machine) is None


def _feed(step: Step) -> Step:
    """The image into L1."""
    op, x = step.op, step.operands[0]
    image = Value((1, op.channels, op.height, op.width), pinned=True)
    if x.external is not None:
        space: Any = _TO_CHANNELS_LAST
        kernel: Any = ToChannelsLast(op.channels, op.height * op.width)
    else:
        space, kernel = _FETCH, Fetch(op.height, op.width, op.channels)
    wanted, layout = space.layouts(kernel)
    return Step(space, kernel, None, [x], wanted, image, layout, f"{step.name} input", [None])
