"""Whether a convolution among plain images gains by blocks of channels, its conversions counted."""

from __future__ import annotations

import dataclasses
import math

from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.layout import Layout
from hetero_tvm.ops.matmul import tensors_of
from hetero_tvm.ops.volumes.conv3d import Conv3d
from hetero_tvm.schedules.base import DesignSpace
from hetero_tvm.schedules.cpu.images.conv2d import Conv2dSpace
from hetero_tvm.schedules.cpu.images.conv2d_blocked import BlockedConv2dSpace
from hetero_tvm.schedules.cpu.images.depthwise import DepthwiseSpace
from hetero_tvm.schedules.emit import LINE_FLOATS

_TO_BLOCKS, _TO_PLAIN = 14.0, 7.0
"""Bytes of an image that all threads convert in a cycle."""

_PAGE, _CROWDED = 4096, 6.0
"""Planes whole pages apart share few sets of a cache, and take this many times as long to write."""

_LAUNCH = 6000.0
"""Cycles of a kernel beside its work."""

_SURE = 0.97
"""Share of the plain kernel's estimate that the blocked one must stay below, as estimates are off by a few
per cent."""

_SHORT_VECTORS = 1.2
"""Time of the plain kernel by its estimate where vectors are shorter than a cache line, of images of several
rows: a register tile is done before the next channel's lines are there (AVX2 code on Zen 4: 1.0 to 1.4)."""


def blocks_pay(plain: Conv2d, blocked: Conv2d, machine: CpuModel, rounded: float | None = None) -> bool:
    """Whether ``blocked`` and the conversions from and to plain images take less time than ``plain``.

    ``rounded`` are cycles of ``blocked`` in another arithmetic, which may take fewer.
    """
    known = cycles_of_layouts(plain, blocked, machine, rounded)
    if known is None:
        return False
    before, after = known
    if Layout.parse(blocked.x_layout).blocked:
        after += conversion_cycles(plain.image, True)
    after += len(tensors_of(plain.epilogue)) * conversion_cycles(plain.out_image, True)
    return after + conversion_cycles(plain.out_image, False) < _SURE * before


def cycles_of_layouts(
    plain: Conv2d, blocked: Conv2d, machine: CpuModel, rounded: float | None = None
) -> tuple[float, float] | None:
    """Cycles of a convolution on plain images and on blocks, without conversions; None where a form has no
    kernel."""
    before = default_cycles(Conv2dSpace(), plain, machine)
    after = default_cycles(DepthwiseSpace() if plain.depthwise else BlockedConv2dSpace(), blocked, machine)
    if before is None or after is None:
        return None
    if machine.lanes < LINE_FLOATS and plain.out_height > 1:
        before *= 1.0 if Conv2dSpace().default(plain, machine)["copied"] else _SHORT_VECTORS
    return before, after if rounded is None else min(after, rounded)


def conversion_cycles(image: tuple[int, ...], to_blocks: bool) -> float:
    """Cycles in which all threads convert an image [N, C, H, W] to blocks, or back."""
    if to_blocks:
        return _bytes(image) / _TO_BLOCKS + _LAUNCH
    slow = _CROWDED if math.prod(image[2:]) * 4 % _PAGE == 0 else 1.0
    return slow * _bytes(image) / _TO_PLAIN + _LAUNCH


def on_blocks(op: Conv3d, machine: CpuModel) -> Conv3d:
    """The form of a convolution whose images are all in blocks of channels."""
    block = str(Layout(machine.lanes))
    x = str(Layout(machine.lanes, op.padding))
    return dataclasses.replace(op, x_layout=x, y_layout=block, residual_layout=block)


def slices_pay(plain: Conv2d, sliced: Conv3d, machine: CpuModel) -> bool:
    """Whether ``sliced`` on channel blocks takes less time than copies of the windows and ``plain``."""
    if sliced.depthwise:
        return True  # few products for each value that would be copied
    before = default_cycles(Conv2dSpace(), plain, machine)
    after = default_cycles(BlockedConv2dSpace(), on_blocks(sliced, machine), machine)
    if before is None or after is None:
        return after is not None
    return after < before + _bytes(plain.image) / _TO_PLAIN


def default_cycles(space: DesignSpace, op: Conv2d, machine: CpuModel) -> float | None:
    """Cycles of the default point; None where the space refuses the operator."""
    if space.refuses(op, machine) is not None:
        return None
    return space.estimate(op, space.default(op, machine), machine)


def _bytes(image: tuple[int, ...]) -> int:
    return 4 * math.prod(image)
