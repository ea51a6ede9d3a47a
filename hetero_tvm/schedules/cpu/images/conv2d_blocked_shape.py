"""Extents of a convolution on channel blocks, and its operands laid out for the register tiles."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.layout import Layout
from hetero_tvm.ops.matmul import tensors_of
from hetero_tvm.ops.volumes.conv3d import Conv3d
from hetero_tvm.schedules.emit import Index, is_single, pieces_of

_WORTH_LEAVING_OUT = 0.05
"""Share of products with zeros around an image from which on they are left out."""


@dataclass(frozen=True)
class GroupBlocks:
    """Input blocks that filter blocks of a grouped convolution read: ``count`` from each of ``firsts``."""

    firsts: list[int]
    count: int


class BlockedShape:
    """Extents of one convolution on channel blocks.

    Attributes
    ----------
    x, y, residual : layouts; ``x`` is what the products read (after the copy of a plain input).
    flat : a 1x1 convolution without halos: all pixels are one row.
    by_columns : whether threads share the columns of the output, of which there is one row.
    height, width : rows and columns of the output as the tiles see them.
    taps : (row, column) offset in X of each filter tap.
    slices : of a volume's input that are summed up; 1 for an image.
    filter_blocks, channel_blocks : blocks of the output, and blocks of the input that one panel reads.
    group_blocks : with groups, input blocks of each panel; None when groups straddle blocks.
    depth : products per output value.
    """

    per_word = 1
    """Channels that are multiplied together."""

    shares_row = True
    """Whether threads may share a single row."""

    def __init__(self, op: Conv2d, lanes: int):
        self.op, self.lanes = op, lanes
        self.x, self.y = Layout.parse(op.x_layout), Layout.parse(op.y_layout)
        self.residual = Layout.parse(op.residual_layout)
        if not self.x.blocked:
            self.x = Layout(1, op.padding)
        halos = (self.x.halo, self.y.halo, self.residual.halo if tensors_of(op.epilogue) else (0,) * 4)
        self.flat = op.kernel == op.strides == (1, 1) and not any(map(any, halos))
        self.height, self.width = op.out_height, op.out_width
        if self.flat:
            self.height, self.width = 1, self.height * self.width
        self.by_columns = self.flat or (is_single(self.height) and self.shares_row)
        top, left = self.x.halo[0] - op.padding[0], self.x.halo[1] - op.padding[1]
        self.taps = [
            (top + i * op.dilation[0], left + j * op.dilation[1])
            for i in range(op.kernel[0])
            for j in range(op.kernel[1])
        ]
        self.filter_blocks = -(-op.filters // lanes)
        self.slices = op.taps if isinstance(op, Conv3d) else 1
        self.channel_blocks = self.slices * self.x.blocks(op.channels)
        if op.groups > 1:
            self.channel_blocks = self.group_blocks.count if self.group_blocks else 0
        channels = op.per_filter if op.groups == 1 else self.channel_blocks * lanes
        self.depth = len(self.taps) * channels

    @functools.cached_property
    def group_blocks(self) -> GroupBlocks | None:
        """Blocks that each filter block reads; None when groups straddle blocks."""
        op, lanes = self.op, self.lanes
        per_in, per_out = op.channels // op.groups, op.filters // op.groups
        firsts, counts = [], set()
        for block in range(self.filter_blocks):
            last_filter = min(op.filters, (block + 1) * lanes) - 1
            first = block * lanes // per_out * per_in // lanes
            last = ((last_filter // per_out + 1) * per_in - 1) // lanes
            firsts.append(first)
            counts.add(last - first + 1)
        # Wasted products are zeros; beyond four times the work the plain kernels are no worse.
        if max(counts) * lanes > max(lanes, 4 * per_in):
            return None
        most = max(counts)
        blocks = -(-op.channels // lanes)
        return GroupBlocks([min(first, blocks - most) for first in firsts], most)

    def shares_blocks(self, vectors: int) -> bool:
        """Whether ``vectors`` blocks of filters side by side read the same blocks of channels."""
        op = self.op
        return op.groups == 1 or not self.straddled and op.filters // op.groups % (vectors * self.lanes) == 0

    @property
    def straddled(self) -> bool:
        """Whether a filter block reads channels of groups that are not all of its filters' own."""
        op = self.op
        return op.groups > 1 and any(extent // op.groups % self.lanes for extent in (op.channels, op.filters))

    @property
    def words(self) -> int:
        """Words of one pixel's channels of a block."""
        return self.x.block // self.per_word

    @property
    def pitch(self) -> int:
        """Pixels from one row of X to the next."""
        return self.x.pitch(self.op.width)

    @property
    def units(self) -> int:
        """Most pieces that the image is cut into: rows, or groups of pixels of one row."""
        return self.width // 4 + 1 if self.by_columns else self.height

    def tile_units(self, rows: int, columns: int) -> Index:
        """Tiles along the direction that blocks cut."""
        return pieces_of(self.width, columns) if self.by_columns else pieces_of(self.height, rows)

    def block_tiles(self, rows: int, columns: int, blocks: int) -> int:
        """Most tiles of ``rows`` x ``columns`` pixels in one of ``blocks`` pieces of the image."""
        across = 1 if self.by_columns else -(-self.width // columns)
        return -(-self.tile_units(rows, columns) * across // blocks)

    def leaves_taps_out(self, axis: int, count: int) -> bool:
        """Whether tiles of ``count`` neighbouring output pixels leave out taps that find no pixel."""
        return self.share_outside(axis, count) >= _WORTH_LEAVING_OUT

    def share_outside(self, axis: int, count: int) -> float:
        """Share of an undilated filter's taps along an axis that find no pixel of the image from any of
        ``count`` neighbouring output pixels; 0 where extents are known at run time."""
        op = self.op
        extent, outputs = (op.height, op.width)[axis], (op.out_height, op.out_width)[axis]
        if not isinstance(extent, int) or not isinstance(outputs, int):
            return 0.0
        taps, step, before = op.kernel[axis], op.strides[axis], op.padding[axis]
        starts = [first * step - before for first in range(0, outputs, count)]
        reach = (count - 1) * step
        outside = sum(max(0, -start - reach) + max(0, start + taps - extent) for start in starts)
        return outside / (taps * len(starts))

    @functools.cached_property
    def input_bytes(self) -> int:
        """Bytes of what one image of Y reads of X, halo included."""
        return 4 * self.slices * math.prod(self.x.shape(self.op.image)[1:])

    @functools.cached_property
    def read_bytes(self) -> int:
        """Bytes of the rows of X that the filter's taps reach."""
        op = self.op
        reached = min(1.0, ((op.kernel[0] - 1) * op.dilation[0] + 1) / op.strides[0])
        return int(self.input_bytes * reached)

    def weight_shape(self, vectors: int) -> tuple[int, int, int]:
        """[panels, channel blocks * taps * words of a block, NR]."""
        panels = -(-self.filter_blocks // vectors)
        return panels, self.channel_blocks * len(self.taps) * self.words, vectors * self.lanes

    def pack_weight(self, w: np.ndarray, vectors: int) -> np.ndarray:
        """[O, C / groups, KH, KW] -> :meth:`weight_shape`, zeros where nothing is."""
        op, block = self.op, self.x.block
        columns, taps = vectors * self.lanes, len(self.taps)
        panels = -(-self.filter_blocks // vectors)
        dense = np.zeros((panels * columns, self.channel_blocks * block, taps), w.dtype)
        if op.groups == 1:
            by_slice = dense.reshape(panels * columns, self.slices, -1, taps)
            by_slice[: op.filters, :, : op.channels] = w.reshape(op.filters, self.slices, op.channels, taps)
        else:
            per_in, per_out = op.channels // op.groups, op.filters // op.groups
            firsts = self.group_blocks.firsts
            for o in range(op.filters):
                start = o // per_out * per_in - firsts[o // self.lanes] * block
                dense[o, start : start + per_in] = w[o].reshape(per_in, taps)
        split = dense.reshape(panels, columns, self.channel_blocks, self.words, self.per_word, taps)
        ordered = np.ascontiguousarray(split.transpose(0, 2, 5, 3, 1, 4))
        return ordered.view("int32" if self.per_word > 1 else w.dtype).reshape(self.weight_shape(vectors))

    def pack_bias(self, bias: np.ndarray, vectors: int) -> np.ndarray:
        """[O] -> [panels * NR], zeros past O."""
        panels, _, columns = self.weight_shape(vectors)
        return np.pad(bias, (0, panels * columns - self.op.filters))
