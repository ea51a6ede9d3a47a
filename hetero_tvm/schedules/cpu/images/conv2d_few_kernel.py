"""The kernel of a convolution on channel blocks that has few filters, as the last layer of an image has.

Loop structure::

    parallel over blocks of rows:
        for each row, each tile of pixels:
            for each tap, each block of channels:
                acc[pixel][filter][:] += X[pixel, channels] * W[filter, channels]     (lanes: channels)
            the lanes of each sum folded; the epilogue on filters side by side, stored to Y; the halo

Lanes of filters, as the other kernels have them, would hold one filter or three and zeros beside them.  Here
every product counts: a pixel's channels are multiplied as they lie, with weights that all pixels of a tile
share.  What it costs is folding, some ten instructions for each sum.
"""

from __future__ import annotations

import numpy as np

from hetero_tvm.host.tvm import Buffer, Expr, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.layout import Layout
from hetero_tvm.ops.volumes.conv3d import Conv3d
from hetero_tvm.schedules.cpu.images.blocked import PixelTile
from hetero_tvm.schedules.cpu.images.conv2d_blocked_kernel import BlockedConvKernel
from hetero_tvm.schedules.cpu.images.conv2d_blocked_shape import BlockedShape
from hetero_tvm.schedules.emit import Index, Kernel, fold_lanes, int32

MOST_FILTERS = 6
"""Filters up to which products of whole channels may pay."""
_FOLDING = 8.0
"""Cycles in which one sum is folded, and its part of the epilogue done."""


def fits_few(op: Conv2d, machine: CpuModel) -> bool:
    """Whether this kernel computes an operator."""
    known = type(op) in (Conv2d, Conv3d) and op.groups == 1
    in_blocks = Layout.parse(op.x_layout).block == machine.lanes
    return known and in_blocks and op.filters <= min(MOST_FILTERS, machine.lanes)


def pack_few(op: Conv2d, w: np.ndarray, lanes: int) -> np.ndarray:
    """[O, slices * C, KH, KW] -> [1, taps * channel blocks * O, lanes]; zeros past a slice's last channel."""
    slices, taps = op.taps if isinstance(op, Conv3d) else 1, op.kernel[0] * op.kernel[1]
    blocks = -(-op.channels // lanes)
    dense = np.zeros((op.filters, slices, blocks * lanes, taps), w.dtype)
    dense[:, :, : op.channels] = w.reshape(op.filters, slices, op.channels, taps)
    split = dense.reshape(op.filters, slices * blocks, lanes, taps)
    return np.ascontiguousarray(split.transpose(3, 1, 0, 2).reshape(1, -1, lanes))


def few_cycles(shape: BlockedShape, machine: CpuModel) -> float:
    """Cycles of all pixels of one image: products of each block of channels, or the load they wait for."""
    filters = shape.op.filters
    per_step = max(filters / machine.fma_units, machine.load_cycles)
    products = len(shape.taps) * shape.channel_blocks * per_step
    return shape.height * shape.width * (products + filters * _FOLDING)


class FewFiltersKernel(BlockedConvKernel):
    """Emits one convolution; a tile has as many pixels of a row as ``tile`` has, or as fit in registers."""

    cuts_depth = False

    def __init__(
        self,
        op: Conv2d,
        tile: PixelTile,
        blocks: int,
        machine: CpuModel,
        k: Kernel | None = None,
        room: Conv2d | None = None,
    ):
        most = max(1, (machine.registers - 1 - op.filters) // op.filters)
        super().__init__(op, PixelTile(1, min(tile.columns, most)), blocks, 1, machine, k, room)

    @property
    def weight_shape(self) -> tuple[int, int, int]:
        """Shape of the packed weights."""
        return 1, len(self.shape.taps) * self.shape.channel_blocks * self.op.filters, self.lanes

    def _tile(self, panel: Expr, y: Index, x: Index, rows: int, columns: int) -> None:
        """Products and epilogue of output pixels [x, x + columns) of row y."""
        k, lanes, filters = self.k, self.lanes, self.op.filters
        acc = k.scratch((columns, filters, lanes))
        every = [(q, f) for q in range(columns) for f in range(filters)]
        for q, f in every:
            k.store(acc, k.splat(0.0, lanes), [q, f, k.ramp(0, lanes)])
        self._accumulate_channels(acc, y, x, columns)
        fold_lanes(k, acc, every, lanes)
        numbers = k.ramp(0, lanes)
        plane = self.batch * self.shape.filter_blocks
        for q in range(columns):
            total = k.splat(0.0, lanes)
            for f in range(filters):
                own = tirx.EQ(numbers, k.splat(int32(f), lanes))
                total = tirx.Select(own, k.splat(k.load(acc, [q, f, int32(0)]), lanes), total)
            self.out.put(self.out.start(panel) + total, plane, panel, y, x + q)

    def _accumulate_channels(self, acc: Buffer, y: Index, x: Index, columns: int) -> None:
        """acc[pixel][filter][:] += the products of all taps and channels, lane by lane."""
        op, k, shape, lanes = self.op, self.k, self.shape, self.lanes
        filters, blocks, block = op.filters, shape.channel_blocks, shape.x.block
        down, across = self._taps_inside(0, y, 1), self._taps_inside(1, x, columns)
        planes, first = self.slice_planes.first, self.place(y, x)
        begin, some = self.slice_planes.inside(int32(0), blocks)
        # Taps side by side in one body would share inputs, and LLVM would keep them all in registers.
        with k.serial(down[1]) as i, k.serial(across[1]) as j, k.serial(some) as number:
            row, column, channel_block = down[0] + i, across[0] + j, begin + number
            base = (first + row * op.dilation[0] * self.pitch + column * op.dilation[1]) * block
            depth = ((row * op.kernel[1] + column) * blocks + channel_block) * filters
            weights = [k.let(k.load(self.w, [int32(0), depth + f, k.ramp(0, lanes)])) for f in range(filters)]
            for q in range(columns):
                at = k.ramp(base + q * (self.steps[1] * block), lanes)
                value = k.let(k.load(self.x, [planes + channel_block, at]))
                for f in range(filters):
                    place = [q, f, k.ramp(0, lanes)]
                    k.store(acc, k.load(acc, place) + value * weights[f], place)
