"""Windows of the slices of volumes, as images that hold the channels of all slices of a window."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hetero_tvm.ops.base import FusedOp, Operand

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import Expr, PrimFunc, TETensor


@dataclass(frozen=True)
class SliceWindows(FusedOp):
    """``Y[v * out + d, (group, tap, c)] = X[v * slices + d * step + tap * dilation - before, (group, c)]``.

    Parameters
    ----------
    volumes : number of volumes; X holds the slices of one after those of another.
    slices, channels, height, width : extents of a volume.
    taps, step, dilation : slices of a window, from one window to the next, from one slice to the next.
    before, after : slices of zeros around a volume.
    groups : of channels; those of all taps lie together.

    Operand: X [volumes * slices, channels, height, width].
    """

    kind: ClassVar[str] = "slice_windows"

    volumes: int
    slices: int
    channels: int
    height: int
    width: int
    taps: int
    step: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0
    groups: int = 1

    @property
    def out_slices(self) -> int:
        """Windows of a volume."""
        reach = self.dilation * (self.taps - 1) + 1
        return (self.slices + self.before + self.after - reach) // self.step + 1

    @property
    def inputs(self) -> tuple[Operand, ...]:
        return (Operand("X", (self.volumes * self.slices, self.channels, self.height, self.width)),)

    @property
    def output(self) -> Operand:
        images = self.volumes * self.out_slices
        return Operand("Y", (images, self.taps * self.channels, self.height, self.width))

    @property
    def flops(self) -> int:
        return math.prod(self.output.shape)

    @property
    def label(self) -> str:
        return f"slice_windows_{self.channels}x{self.slices}x{self.height}x{self.width}_k{self.taps}"

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        (x,) = arrays
        each, plane = self.channels // self.groups, (self.height, self.width)
        volume = x.reshape(self.volumes, self.slices, self.groups, each, *plane)
        volume = np.pad(volume, ((0, 0), (self.before, self.after), *[(0, 0)] * 4))
        last = (self.out_slices - 1) * self.step + 1
        taps = [
            volume[:, tap * self.dilation : tap * self.dilation + last : self.step]
            for tap in range(self.taps)
        ]
        return np.stack(taps, axis=3).reshape(self.output.shape)

    def workload(self) -> PrimFunc:
        from hetero_tvm.ops.te_workload import prim_func

        return prim_func(self, self.windows, "int64")

    def windows(self, x: TETensor) -> TETensor:
        """The result as a tensor expression."""
        from hetero_tvm.host.tvm import te, tirx

        each = self.channels // self.groups

        def element(image: Expr, channel: Expr, i: Expr, j: Expr) -> Expr:
            volume, window = tirx.floordiv(image, self.out_slices), tirx.floormod(image, self.out_slices)
            group, tap = tirx.floordiv(channel, self.taps * each), tirx.floordiv(channel, each)
            place = window * self.step + tirx.floormod(tap, self.taps) * self.dilation - self.before
            source = x[volume * self.slices + place, group * each + tirx.floormod(channel, each), i, j]
            inside = te.all(place >= 0, place < self.slices)
            return te.if_then_else(inside, source, tirx.const(0.0, x.dtype))

        return te.compute(self.output.shape, element, name="windows")
