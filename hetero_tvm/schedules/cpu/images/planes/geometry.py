"""Geometry of a direct convolution: places of the inputs of each pixel, and blocks of pixels."""

from __future__ import annotations

from dataclasses import dataclass

from hetero_tvm.ops.conv2d import Conv2d

_LOOPED_PATCH_TAPS = 9
"""Patches with more taps than this run them in a loop: unrolled they would be too much code."""
_PAGE = 1024
"""Elements between planes that share few sets of a cache, as do their multiples."""
_LINE = 16
_MANY_PLANES, _MANY_FILTERS = 16, 32
"""Planes of a tile, and filters that read them again, from which on planes are put apart."""


@dataclass(frozen=True)
class Taps:
    """The taps of a filter, on images that are cut into phases by the strides.

    Attributes
    ----------
    phases : (row, column) remainders modulo the strides that any tap reads.
    places : of each tap, row-major, the index of its phase, and rows and columns from a pixel of it on.
    down, right : rows and columns to the furthest tap.
    """

    phases: list[tuple[int, int]]
    places: list[tuple[int, int, int]]
    down: int
    right: int

    @classmethod
    def of(cls, op: Conv2d) -> Taps:
        (sh, sw), (kh, kw), (dh, dw) = op.strides, op.kernel, op.dilation
        taps = [(i * dh, j * dw) for i in range(kh) for j in range(kw)]
        phases = sorted({(i % sh, j % sw) for i, j in taps})
        places = [(phases.index((i % sh, j % sw)), i // sh, j // sw) for i, j in taps]
        return cls(phases, places, (kh - 1) * dh // sh, (kw - 1) * dw // sw)


class Geometry:
    """The padded, phase-split input planes of one convolution.

    Attributes
    ----------
    phases : (row, column) remainders modulo the strides that any tap reads.
    taps : for each filter tap, row-major, (index of its phase, shift in that phase's plane).
    rows, pitch : extent of a phase's plane; ``pitch`` is also the distance of output rows.
    direct : a 1x1 filter with unit stride: X is the plane as it is, one long row.
    patches : filters do not overlap (kernel = stride): each tap is a phase of its own at shift 0.
    gapless : output rows follow one another without gaps, or there is one row.
    pixels : numbered pixels, from the first to the last valid one.
    reread : whether many filters read many planes, which must not push one another out of a cache.
    """

    def __init__(self, op: Conv2d):
        taps = Taps.of(op)
        self.phases = taps.phases
        self.direct = op.strides == (1, 1) and op.kernel == (1, 1) and not any(op.padding)
        self.rows, self.pitch = op.out_height + taps.down, op.out_width + taps.right
        if self.direct:
            self.rows, self.pitch = 1, op.height * op.width
        self.taps = [(phase, down * self.pitch + right) for phase, down, right in taps.places]
        self.patches = (
            op.strides == op.kernel
            and op.dilation == (1, 1)
            and not any(op.padding)
            and len(taps.places) > _LOOPED_PATCH_TAPS
        )
        self.out_rows = 1 if self.direct else op.out_height
        self.out_columns = self.pitch if self.direct else op.out_width
        self.gapless = self.pitch == self.out_columns or self.out_rows == 1
        self.pixels = (self.out_rows - 1) * self.pitch + self.out_columns
        self.reread = op.channels // op.groups >= _MANY_PLANES and op.filters // op.groups >= _MANY_FILTERS
        self.reach = max(shift for _, shift in self.taps)


class PixelBlocks:
    """The output pixels cut into equal blocks: panels of a gapless plane, else whole rows.

    Attributes
    ----------
    count : blocks that have any pixel (rounding up to panels may use up fewer than asked for).
    rows : output rows of a block (not gapless).
    pixels : pixels that a block computes, a whole number of panels of ``columns``.
    step : distance between the first pixels of consecutive blocks.
    plane : elements of an input plane, so that the furthest read stays inside; no multiple of a page where
        planes are read again.
    """

    def __init__(self, geometry: Geometry, wanted: int, columns: int):
        self.geometry = geometry
        if geometry.gapless:
            self.rows = geometry.out_rows
            self.pixels = max(1, -(-geometry.pixels // wanted // columns)) * columns
            self.count = -(-geometry.pixels // self.pixels)
            self.step = self.pixels
        else:
            self.rows = -(-geometry.out_rows // wanted)
            self.pixels = -(-self.rows * geometry.pitch // columns) * columns
            self.count = -(-geometry.out_rows // self.rows)
            self.step = self.rows * geometry.pitch
        furthest = (self.count - 1) * self.step + self.pixels + geometry.reach
        self.plane = max(furthest, geometry.rows * geometry.pitch)
        if geometry.reread and self.plane % _PAGE == 0:
            self.plane += _LINE
