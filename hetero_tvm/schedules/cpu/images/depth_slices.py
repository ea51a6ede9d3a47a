"""Slices of the depth of a convolution on channel blocks whose filter panels are larger than L1.

Loop structure::

    for each panel:
        for each slice of the channel blocks:
            for each tile of pixels:
                acc = bias, or what the slice before left in S
                products of the slice's channels and of all taps
                the epilogue after the last slice, else acc to S, [pixels of the block, NR]

A deep panel passes by once for each tile of pixels: from L2 at best, and the first time from memory at the
rate of its products, which is more than memory gives.  A slice stays in L1 for all tiles while the next one
is fetched, so that the panel comes from memory evenly, and once.  The sums between slices are few: this is
for images of few tiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from hetero_tvm.host.tvm import Buffer, Expr, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.cpu.images.blocked import FEW_PASSES
from hetero_tvm.schedules.cpu.images.conv2d_blocked_shape import BlockedShape
from hetero_tvm.schedules.emit import Index, Kernel, int32

_OF_L1 = 0.4
"""Share of L1 that a slice of a panel takes."""

_OF_L2 = 0.125
"""Share of L2 from which on a panel is cut into slices."""


@dataclass(frozen=True)
class TileSums:
    """Accumulators [rows * columns, NR] of the output pixels of one tile, the first of which is ``pixel``."""

    acc: Buffer
    pixel: Index
    rows: int
    columns: int


class DepthSlices:
    """Slices that a convolution's panels are taken in.

    Parameters
    ----------
    vectors : of a panel, which is ``vectors * lanes`` filters wide.
    passes : tiles of pixels that a panel passes over.

    Attributes
    ----------
    blocks : channel blocks of a slice; the last may have fewer.
    count : number of slices; 1 where the panel is not cut.
    deep : whether a panel is one of those that are cut where few tiles pass over it.
    """

    def __init__(self, shape: BlockedShape, vectors: int, passes: int, machine: CpuModel):
        op, self.shape, self.vectors, self.lanes = shape.op, shape, vectors, machine.lanes
        panel = 4 * math.prod(shape.weight_shape(vectors)[1:])
        whole = op.groups == 1 and op.channels % shape.x.block == 0
        self.blocks = shape.channel_blocks
        self.deep = whole and panel >= _OF_L2 * machine.l2
        if self.deep and 1 < passes <= FEW_PASSES:
            self.blocks = max(1, int(_OF_L1 * machine.l1 * shape.channel_blocks / panel))
        self.count = -(-shape.channel_blocks // self.blocks)

    @property
    def words(self) -> int:
        """Rows of a packed panel in a slice."""
        return self.blocks * len(self.shape.taps) * self.shape.words

    def begin(self, k: Kernel, pixels: int, first_pixel: Index) -> None:
        """Declare what the tiles of a block of so many pixels, from ``first_pixel``, are between slices."""
        self.k, self.first_pixel = k, first_pixel
        if self.count > 1:
            self.sums = k.scratch((pixels, self.vectors * self.lanes))

    def each(self, body: Callable[[], None]) -> None:
        """Emit ``body`` for all slices of a panel."""
        if self.count == 1:
            body()
            return
        with self.k.serial(self.count) as self.number:
            body()

    def channel_blocks(self, whole: int) -> tuple[Index, Index]:
        """First channel block of this slice, and how many, of ``whole`` ones."""
        if self.count == 1:
            return int32(0), whole
        first = self.number * self.blocks
        return first, tirx.min(int32(self.blocks), whole - first)

    def start(self, tile: TileSums, begin: Callable[[], None]) -> None:
        """Emit ``begin`` for the first slice of a tile; the others go on from what the one before left."""

        def take(acc: list[Index], sums: list[Index]) -> None:
            self.k.store(tile.acc, self.k.load(self.sums, sums), acc)

        self._either(True if self.count == 1 else self.number == 0, begin, tile, take)

    def finish(self, tile: TileSums, end: Callable[[], None]) -> None:
        """Emit ``end`` after the last slice of a tile; the others leave their sums."""

        def keep(acc: list[Index], sums: list[Index]) -> None:
            self.k.store(self.sums, self.k.load(tile.acc, acc), sums)

        self._either(self.is_last, end, tile, keep)

    @property
    def is_last(self) -> Expr | bool:
        """Whether the epilogue follows this slice."""
        return True if self.count == 1 else self.number == self.count - 1

    def _either(
        self,
        condition: Expr | bool,
        body: Callable[[], None],
        tile: TileSums,
        move: Callable[[list[Index], list[Index]], None],
    ) -> None:
        """Emit ``body`` under a condition, else ``move(place in acc, place in the sums)`` for all vectors."""
        if condition is True:
            body()
            return
        k = self.k

        def each_vector() -> None:
            with k.unroll(tile.rows) as r, k.unroll(tile.columns) as q, k.unroll(self.vectors) as v:
                column = k.ramp(v * self.lanes, self.lanes)
                pixel = tile.pixel - self.first_pixel + r * self.shape.width + q
                move([r * tile.columns + q, column], [pixel, column])

        k.branch(condition, body, each_vector)
