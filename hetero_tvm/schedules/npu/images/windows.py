"""Sliding windows on the vector unit, channels last: what depthwise convolution and pooling share.

Loops: tiles of some output rows and channels.  The input under a tile is loaded with its padding, then
one vector instruction per tap works on the whole tile, reading the input through strides::

    for image, channels, rows:   UB <- DRAM (padded);  one pass per tap;  epilogue;  DRAM <- UB

Why it is fast: neighbouring channels are contiguous, so every pass uses all lanes, and a tap costs
no copy: it is another base address.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from hetero_tvm.host.tvm import Buffer
from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.pool2d import Pool2d
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.emit import Index
from hetero_tvm.schedules.npu.base import KnobTile, RankedSpace
from hetero_tvm.schedules.npu.emit import UB, At, Kernel
from hetero_tvm.schedules.npu.tiles import ceil_div, even

_MOST = 32
"""Number of tiles that a space offers."""
_ISSUE = 8
"""Cycles that an instruction of one tap costs beyond its work."""


@dataclass(frozen=True, order=True)
class WindowTile(KnobTile):
    """Output rows and channels that are computed at a time."""

    rows: int
    channels: int
    knob = "tile"


class Window:
    """The geometry of an operator whose window slides over images."""

    def __init__(self, op: Conv2d | Pool2d):
        self.batch, self.channels, self.height, self.width = op.batch, op.channels, op.height, op.width
        self.kernel, self.strides, self.padding = op.kernel, op.strides, op.padding
        if isinstance(op, Pool2d):
            self.dilation, self.out = (1, 1), op.out
        else:
            self.dilation, self.out = op.dilation, (op.out_height, op.out_width)

    def reach(self, axis: int, outputs: Index) -> Index:
        """Inputs along an axis under ``outputs`` outputs."""
        return (outputs - 1) * self.strides[axis] + (self.kernel[axis] - 1) * self.dilation[axis] + 1

    def tile_bytes(self, tile: WindowTile, temporaries: int, accumulator: int) -> int:
        """Bytes of the unified buffer, for both versions of all buffers.

        The epilogue has ``temporaries`` more tiles; every result ``accumulator`` bytes more.
        """
        image = 2 * self.reach(0, tile.rows) * self.reach(1, self.out[1])
        out = tile.rows * self.out[1] * (2 * (1 + temporaries) + accumulator)
        constants = tile.channels * (2 * math.prod(self.kernel) + 4)
        return 2 * tile.channels * (image + out) + 2 * constants + 512

    def tiles(self, spec: NPUSpec, temporaries: int = 0, accumulator: int = 0) -> list[WindowTile]:
        """Tiles that fit, the cheapest first."""
        found = set()
        room = spec.scratchpad("ub")
        for parts in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64):
            channels = even(self.channels, ceil_div(self.channels, parts), 16) if parts > 1 else self.channels
            for rows in (1, 2, 3, 4, 7, 8, 14, 16, 28, 56, self.out[0]):
                tile = WindowTile(even(self.out[0], min(rows, self.out[0])), min(channels, self.channels))
                if self.tile_bytes(tile, temporaries, accumulator) <= room:
                    found.add(tile)
        # Of wide images one row of a few channels, in short transfers, is better than none.
        for channels in (8, 4, 2, 1):
            tile = WindowTile(1, min(channels, self.channels))
            if not found and self.tile_bytes(tile, temporaries, accumulator) <= room:
                found.add(tile)
        return sorted(found, key=lambda t: (self.cost(t, spec), t))

    def cost(self, tile: WindowTile, spec: NPUSpec) -> float:
        """Estimated cycles."""
        rows, channels = tile.rows, tile.channels
        count = self.batch * ceil_div(self.out[0], rows) * ceil_div(self.channels, channels)
        vector = math.prod(self.kernel) * (rows * self.out[1] * channels / spec.vector_lanes + _ISSUE)
        image = self.reach(0, rows) * self.width * channels * 2
        dma = (image + rows * self.out[1] * channels * 2) / spec.dram_bytes_per_cycle
        return count * (max(vector, dma) + 0.1 * min(vector, dma)) + vector + dma + 2 * spec.dram_latency

    def load(
        self,
        k: Kernel,
        x: Buffer,
        image: Index,
        tile: WindowTile,
        out_row: Index,
        out_rows: Index,
        channel: Index,
        channels: Index,
        fill: float,
    ) -> Buffer:
        """Load the input under ``out_rows`` output rows from ``out_row`` on, ``channels`` channels from
        ``channel`` on, with its padding; both are at most those of the tile."""
        wide = self.reach(1, self.out[1])
        buffer = k.alloc(UB, (self.reach(0, tile.rows), wide, tile.channels), str(x.dtype))
        top = out_row * self.strides[0] - self.padding[0]
        left = self.padding[1]
        k.load_padded(
            (self.reach(0, out_rows), wide, channels),
            At(buffer, lambda y, z, c: (y, z, c)),
            At(x, lambda y, z, c: (image, top + y, z - left, channel + c)),
            lambda y, z, c: (top + y >= 0, top + y < self.height, z >= left, z < self.width + left),
            fill,
        )
        return buffer

    def tap(self, buffer: Buffer, i: int, j: int) -> At:
        """Elements that tap (i, j) reads, by output row, column, channel."""
        di, dj = i * self.dilation[0], j * self.dilation[1]
        sy, sx = self.strides
        return At(buffer, lambda y, x, c: (y * sy + di, x * sx + dj, c))

    def taps(self) -> Iterator[tuple[int, int]]:
        """Rows and columns of the window."""
        return ((i, j) for i in range(self.kernel[0]) for j in range(self.kernel[1]))


class WindowSpace(RankedSpace):
    """A design space with one knob: the rows and channels of a tile."""

    version = 1
    knob = "tile"

    @abstractmethod
    def window_tiles(self, op: FusedOp, machine: NpuMachine) -> list[WindowTile]:
        """Tiles that fit the unified buffer, the cheapest first."""

    def does_not_fit(self, op: FusedOp, machine: NpuMachine) -> str | None:
        """Reason why no tile fits; None when one does."""
        if not self.window_tiles(op, machine):
            return f"one row of {op.width} pixels does not fit the unified buffer of {machine.spec.name}"
        return None

    def ranked(self, op: FusedOp, machine: NpuMachine) -> list[tuple[int | str, ...]]:
        return [tile.choice() for tile in self.window_tiles(op, machine)[:_MOST]]

    def features(self, op: FusedOp, point: Point, machine: NpuMachine) -> list[float]:
        return [*map(float, point["tile"]), 1e6 / Window(op).cost(WindowTile.of(point), machine.spec)]

    def estimate(self, op: FusedOp, point: Point, machine: NpuMachine) -> float | None:
        return Window(op).cost(WindowTile.of(point), machine.spec)
