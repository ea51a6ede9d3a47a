"""Gains of images by blocks of channels, the same at all sizes that a library takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.relax_passes.storage.plain_islands import LayoutCosts
from hetero_tvm.schedules.cpu.halves.conv2d import half_cycles
from hetero_tvm.schedules.cpu.images.conv2d_few_kernel import MOST_FILTERS
from hetero_tvm.schedules.cpu.images.lone import blocks_pay, conversion_cycles, cycles_of_layouts

_FEW_IMAGES = 4
"""Batch for which layouts are chosen where a library takes a range of batches."""

_USUAL_EXTENT = 64
"""Rows and columns for which they are chosen where it takes a range of those."""

_USUAL_LENGTH = 1024
"""Columns of images of one row, where kernels are weighed."""

_WASTED = 1.5
"""Lanes by those that hold something, below which a convolution stays on blocks."""

_OPEN = 1.3
"""Time of the plain kernel of any size by that of a fixed one."""


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
    def costs(self) -> LayoutCosts:
        """Cycles that tell which convolutions stay plain among blocks."""
        return LayoutCosts(self._kernels, self._conversion)

    def _kernels(self, plain: Conv2d, blocked: Conv2d) -> tuple[float, float] | None:
        if not _wastes(plain, self.machine.lanes):
            return None
        plain, blocked = self._weighed(plain), self._weighed(blocked)
        known = cycles_of_layouts(plain, blocked, self.machine, self._rounded(blocked))
        return known if known is None or not self.any_images else (_OPEN * known[0], known[1])

    def _conversion(self, image: tuple[int, ...], to_blocks: bool) -> float:
        batch, channels, height, width = image
        return conversion_cycles((self._batch(batch), channels, *self._extents(height, width)), to_blocks)

    def _weighed(self, op: Conv2d) -> Conv2d:
        return _of_size(replace(op, batch=self._batch(op.batch)), self._extents(op.height, op.width))

    def _batch(self, batch: int) -> int:
        """Images at once: one where their sizes differ from call to call."""
        return 1 if self.any_images else _FEW_IMAGES if self.any_rows else batch

    def _extents(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of an image, the same for all that a library takes."""
        if not self.any_images:
            return height, width
        usual = _USUAL_LENGTH if 1 in (height, width) else _USUAL_EXTENT
        return 1 if height == 1 else usual, 1 if width == 1 else usual

    def _rounded(self, blocked: Conv2d) -> float | None:
        return half_cycles(blocked, self.machine) if self.rounds and not self.any_images else None

    def _usual(self, op: Conv2d) -> Conv2d:
        if self.any_rows:
            op = replace(op, batch=_FEW_IMAGES)
        return _usual_image(op, self.any_images > 1) if self.any_images else op


def _wastes(op: Conv2d, lanes: int) -> bool:
    """Whether many products of a convolution on blocks are with zeros: in lanes of filters that do not exist,
    or of channels (see ``conv2d_few_kernel.py``), or of the channels of other groups."""
    across = op.channels if op.filters <= MOST_FILTERS else op.filters
    return op.groups > 1 or -(-across // lanes) * lanes >= _WASTED * across


def _usual_image(op: Conv2d, alike: bool) -> Conv2d:
    """The convolution with as many rows and columns as many images have; a small one keeps its own, unless
    ``alike``."""
    usual = (
        _USUAL_EXTENT if alike and extent > 1 else min(extent, _USUAL_EXTENT)
        for extent in (op.height, op.width)
    )
    return _of_size(op, usual)


def _of_size(op: Conv2d, extents: Iterable[int]) -> Conv2d:
    """The convolution of images with these rows and columns, or as many as its filter needs."""
    height, width = (
        max(extent, (taps - 1) * apart + 1)
        for extent, taps, apart in zip(extents, op.kernel, op.dilation, strict=True)
    )
    return replace(op, height=height, width=width)
