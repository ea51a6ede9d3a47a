"""Convolutions of few plain channels in bfloat16 on the matrix unit of a CPU (AMX): a net's first one.

::

    parallel over blocks of rows x groups of filter panels:
        the rows of X that the block reads, rounded, the channels of a pixel side by side,
        zeros around the image                                                          (in L2)
        for each panel of 32 filters, for each 32 pixels of a row:
            sums[2][2] tiles += X[2 x 16 pixels, a window's row] @ W[a window's row, 2 x 16 filters]
                                                                for each row of the filter
            sums -> memory on the stack; from there the epilogue

With two or four channels to a pixel, what a filter's row reads is one run of bytes: 7 columns of 4 channels
are 56 of a tile's 64.  A row of a left tile is such a run, a stride of pixels behind the one before, and they
overlap; so no window is copied, and a 7x7 filter is seven steps.  Tiles have as many words as a run, so that
nothing beside a window is multiplied: zero times a neighbour's infinity would not be zero.
"""

from __future__ import annotations

import numpy as np

from hetero_tvm.codegen.amx import TILE_WORDS, begin
from hetero_tvm.codegen.bf16_vectors import bf16_bits
from hetero_tvm.host.tvm import Buffer, Expr, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.layout import Layout
from hetero_tvm.schedules.cpu.halves import conv2d_matrices
from hetero_tvm.schedules.cpu.halves.conv2d_matrices import Bf16MatrixConvKernel, MatrixShape
from hetero_tvm.schedules.cpu.images.blocked import Plane
from hetero_tvm.schedules.emit import Index, as_index, int32

_MOST_CHANNELS = 4


def applies(op: Conv2d, machine: CpuModel) -> bool:
    """Whether windows of ``op``'s plain images are rows of tiles."""
    plain = not Layout.parse(op.x_layout).blocked and op.channels <= _MOST_CHANNELS
    windows = op.kernel[1] > 1 and op.dilation[1] == 1
    return plain and windows and conv2d_matrices.applies(op, machine)


class WindowShape(MatrixShape):
    """Extents of one convolution whose filters' rows are steps.

    Attributes
    ----------
    channels : of a pixel, those that are zero included.
    columns : columns of the filter in one step.
    """

    def __init__(self, op: Conv2d, lanes: int):
        super().__init__(op, lanes)
        self.channels = 2 if op.channels <= 2 else _MOST_CHANNELS
        most = 2 * TILE_WORDS // self.channels
        self.columns = max(width for width in range(1, most + 1) if op.kernel[1] % width == 0)
        self.step_words = self.columns * self.channels // 2

    @property
    def copied_planes(self) -> int:
        return 1

    @property
    def planes(self) -> int:
        return 1

    @property
    def pixel_bytes(self) -> int:
        return 2 * self.channels

    @property
    def places(self) -> tuple[int, ...]:
        pitch = self.op.dilation[0] * int(self.copied(1, self.width))
        starts = range(0, self.op.kernel[1], self.columns)
        return tuple(self.pixel_bytes * (i * pitch + j) for i in range(self.op.kernel[0]) for j in starts)

    def pack_panels(self, w: np.ndarray) -> np.ndarray:
        op, (panels, _, columns) = self.op, self.panels_shape
        dense = np.zeros((panels * columns, *op.kernel, self.channels), np.uint16)
        dense[: op.filters, ..., : op.channels] = w.transpose(0, 2, 3, 1)
        ordered = dense.reshape(panels, columns, -1, 2).transpose(0, 2, 1, 3)
        return np.ascontiguousarray(ordered).view("int32").reshape(self.panels_shape)


class Bf16WindowConvKernel(Bf16MatrixConvKernel):
    """Emits one convolution of few plain channels."""

    shape: WindowShape

    @classmethod
    def shape_of(cls, op: Conv2d, machine: CpuModel) -> WindowShape:
        return WindowShape(op, machine.lanes)

    def begin(self, first_tile: Index, tiles: Index) -> None:
        self.copy = self.k.scratch((self.plane,), self._pixel)
        self.copy_block(first_tile, tiles)
        self.k.call(begin(self.shape.step_words))

    @property
    def _pixel(self) -> str:
        """Type of a pixel of the copy."""
        return f"uint{16 * self.shape.channels}"

    @property
    def _passes(self) -> int:
        return 0  # a panel is a few KiB

    def pixel_index(self, pixel: Index) -> Index:
        return pixel

    def read(self, x: Buffer) -> Buffer:
        return Plane(self.k, Layout.parse(self.op.x_layout), self.op.height, self.op.width).view(x)

    def copy_block(self, first_tile: Index, tiles: Index) -> None:
        k, op, shape = self.k, self.op, self.shape
        self.first = first_tile * self.unit
        count = tirx.min(as_index(tiles * self.unit), self.extent - self.first)
        top, left = op.padding[:2]
        columns = max(0, min(op.width, self.pitch - left))

        def row(source: Expr, start: Expr) -> None:
            self._clear(start, left)
            self._copy_row(source * op.width, start + left, columns)
            self._clear(start + left + columns, self.pitch - left - columns)

        with k.serial(shape.copied(0, count)) as r:
            source, start = self.first * op.strides[0] + r * shape.fetched[0] - top, r * self.pitch
            exists = tirx.And(source >= 0, source < op.height)
            k.branch(exists, lambda: row(source, start), lambda: self._clear(start, self.pitch))

    def _clear(self, pixel: Expr, count: int) -> None:
        k = self.k
        if count > 0:
            with k.serial(count) as i:
                k.store(self.copy, tirx.const(0, self._pixel), [pixel + i])

    def _copy_row(self, source: Expr, to: Expr, count: int) -> None:
        """Emit the rounding of ``count`` pixels from place ``source`` of each plane."""
        k, lanes = self.k, self.lanes

        def piece(at: Index, width: int) -> None:
            pixels = k.splat(tirx.const(0, self._pixel), width)
            for channel in range(self.op.channels):
                plane = self.batch * self.op.channels + channel
                value = bf16_bits(k.load(self.x, [plane, k.ramp(source + at, width)]), width)
                place = k.splat(tirx.const(16 * channel, self._pixel), width)
                pixels = tirx.bitwise_or(pixels, tirx.shift_left(value.astype(pixels.ty.dtype), place))
            k.store(self.copy, pixels, [k.ramp(to + at, width)])

        if count < lanes:
            with k.serial(count) as pixel:
                piece(pixel, 1)
            return
        with k.serial(-(-count // lanes)) as vector:
            piece(tirx.min(vector * lanes, int32(count - lanes)), lanes)  # the last one again in part
