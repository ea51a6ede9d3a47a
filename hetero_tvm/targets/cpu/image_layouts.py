"""Gains of images by blocks of channels, the same at all sizes that a library takes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.relax_passes.storage.plain_islands import LayoutCosts
from hetero_tvm.schedules.cpu.halves.conv2d import half_cycles
from hetero_tvm.schedules.cpu.images.lone import blocks_pay, conversion_cycles, cycles_of_layouts

_FEW_IMAGES = 4
"""Batch for which layouts are chosen where a library takes a range of batches."""

_USUAL_EXTENT = 64
"""Rows and columns for which they are chosen where it takes a range of those."""


@dataclass(frozen=True)
class ImageLayouts:
    """Judge of plain and blocked forms.

    Attributes
    ----------
    any_rows, any_images : whether batches, and how many extents of images, are known at run time only.
    rounds : whether convolutions may be products of bfloat16.
    """

    machine: CpuModel
    any_rows: bool
    any_images: int
    rounds: bool

    def pays(self, plain: Conv2d, blocked: Conv2d) -> bool:
        """Whether images are converted for a convolution alone."""
        plain, blocked = self._usual(plain), self._usual(blocked)
        return blocks_pay(plain, blocked, self.machine, self._rounded(blocked))

    @property
    def costs(self) -> LayoutCosts | None:
        """Cycles that tell which convolutions stay plain among blocks; None where rows or columns are open,
        whose plain kernels are others."""
        return None if self.any_images else LayoutCosts(self._kernels, self._conversion)

    def _kernels(self, plain: Conv2d, blocked: Conv2d) -> tuple[float, float] | None:
        plain, blocked = self._usual(plain), self._usual(blocked)
        return cycles_of_layouts(plain, blocked, self.machine, self._rounded(blocked))

    def _conversion(self, image: tuple[int, ...], to_blocks: bool) -> float:
        image = (_FEW_IMAGES, *image[1:]) if self.any_rows else image
        return conversion_cycles(image, to_blocks)

    def _rounded(self, blocked: Conv2d) -> float | None:
        return half_cycles(blocked, self.machine) if self.rounds and not self.any_images else None

    def _usual(self, op: Conv2d) -> Conv2d:
        if self.any_rows:
            op = replace(op, batch=_FEW_IMAGES)
        return _usual_image(op, self.any_images > 1) if self.any_images else op


def _usual_image(op: Conv2d, alike: bool) -> Conv2d:
    """The convolution with as many rows and columns as many images have; a small one keeps its own, unless
    ``alike``."""
    height, width = (
        max(_USUAL_EXTENT if alike and extent > 1 else min(extent, _USUAL_EXTENT), (taps - 1) * apart + 1)
        for extent, taps, apart in zip((op.height, op.width), op.kernel, op.dilation, strict=True)
    )
    return replace(op, height=height, width=width)
