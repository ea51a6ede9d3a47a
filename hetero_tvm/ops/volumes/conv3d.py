"""Convolution of volumes whose slices are images."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.volumes.slice_windows import SliceWindows

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import TETensor


@dataclass(frozen=True)
class Conv3d(Conv2d):
    """A :class:`hetero_tvm.ops.conv2d.Conv2d` whose images sum up over windows of the slices of volumes.

    Image ``v * out + d`` of Y is a convolution of the channels of slices ``d * step - before ...`` of
    volume ``v``, which are images of X; what lies outside of the volume is zero.

    Parameters
    ----------
    batch : images of Y: ``out_slices`` of each volume.
    channels : of a slice.
    slices : of a volume in X.
    taps, step : slices of a window, and from one window to the next.
    before, after : slices of zeros around a volume.

    Operands: X, W [filters, taps * channels / groups, *kernel], then those of the epilogue.
    """

    kind: ClassVar[str] = "conv3d"

    slices: int = 1
    taps: int = 1
    step: int = 1
    before: int = 0
    after: int = 0

    @classmethod
    def of(cls, op: Conv2d, windows: SliceWindows) -> Conv3d:
        """The convolution ``op`` of images that are ``windows`` of slices, which have no dilation."""
        values = {field.name: getattr(op, field.name) for field in fields(Conv2d)}
        own = {name: getattr(windows, name) for name in ("slices", "taps", "step", "before", "after")}
        return cls(**{**values, "channels": windows.channels, **own})

    @property
    def windows(self) -> SliceWindows:
        """The windows that are multiplied, of plain images."""
        volumes = self.batch // self.out_slices
        form = (volumes, self.slices, self.channels, self.height, self.width, self.taps, self.step)
        return SliceWindows(*form, before=self.before, after=self.after, groups=self.groups)

    @property
    def out_slices(self) -> int:
        """Images of Y of one volume."""
        return (self.slices + self.before + self.after - self.taps) // self.step + 1

    @property
    def least_batch(self) -> int:
        return self.out_slices

    @property
    def image(self) -> tuple[int, int, int, int]:
        volumes = self.batch // self.out_slices
        return (volumes * self.slices, self.channels, self.height, self.width)

    @property
    def per_filter(self) -> int:
        return self.taps * super().per_filter

    @property
    def label(self) -> str:
        _, rest = super().label.split("_", 1)
        return f"conv3d_{self.taps}of{self.slices}x{rest}" if not self.depthwise else f"depthwise3d_{rest}"

    def multiplied_images(self, x: np.ndarray) -> np.ndarray:
        return self.windows.reference(x)

    def multiplied_tensor(self, x: TETensor) -> TETensor:
        return self.windows.windows(x)
