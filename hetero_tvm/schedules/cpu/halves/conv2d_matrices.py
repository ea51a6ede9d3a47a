"""Convolutions of bfloat16 on the matrix unit of a CPU (AMX): pixels to the left, filters to the right.

::

    parallel over blocks of rows x groups of filter panels:
        the rows of X that the block reads, rounded: 32 channels of a pixel side by side       (in L2)
        for each panel of 32 filters:
            for each 32 pixels of a row, or 16 of two rows, or several rows at once:
                sums[2][2] tiles += X[2 x 16 pixels, 32 channels] @ W[32 channels, 2 x 16 filters]
                                                                for each 32 channels and each tap
                sums -> memory on the stack, 4 KiB in L1; from there the epilogue

Pixels in channel blocks are rows of a left tile as they lie: a tap is an offset and a stride a distance, so
that nothing is copied per tap.  A tile's last pixels may lie behind the row: what it computes there is not
stored.  Where many would, and nothing is left out between rows, tiles go on across their ends instead.
"""

from __future__ import annotations

import numpy as np

from hetero_tvm.codegen.amx import BF16, END, TILE_ROWS, begin
from hetero_tvm.codegen.amx_images import PixelProduct
from hetero_tvm.host.tvm import Expr, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.volumes.conv3d import Conv3d
from hetero_tvm.schedules.cpu import next_panel
from hetero_tvm.schedules.cpu.halves.conv2d_kernel import Bf16ConvKernel, HalfShape
from hetero_tvm.schedules.cpu.images.blocked import PixelTile, each_filter_block
from hetero_tvm.schedules.cpu.integers.matrix_unit import has_matrix_unit
from hetero_tvm.schedules.cpu.joined_rows import joined_tiles, rows_to_join
from hetero_tvm.schedules.emit import Index, int32

PIXELS = 2 * TILE_ROWS
"""Pixels of one product."""
CHANNELS = 32
"""Channels of one step."""
_BYTES = 2 * CHANNELS
_STEP_LINES = CHANNELS // 2
"""Cache lines of a step's words for each 16 filters."""
_SINGLE = 0.25
"""Time that a tile without a second one takes more: its filters are read for it alone."""
_WORTH = 0.9
"""Part of the time of products from which it is worth to join rows."""


def applies(op: Conv2d, machine: CpuModel) -> bool:
    """Whether the matrix unit multiplies ``op``'s channels."""
    return has_matrix_unit(machine, BF16) and op.groups == 1 and not isinstance(op, Conv3d)


def tile_of(shape: HalfShape) -> PixelTile:
    """Pixels whose results leave together, and vectors of filters."""
    vectors = min(2, shape.filter_blocks)
    if rows := joined_rows(shape):
        return PixelTile(rows, shape.width, vectors)
    if shape.flat or shape.width > TILE_ROWS:
        return PixelTile(1, PIXELS, vectors)
    return PixelTile(min(2, shape.height), shape.width, vectors)


def joined_rows(shape: HalfShape) -> int:
    """Rows that tiles go through from end to end; 0 where each row has tiles of its own."""
    if shape.flat or shape.copied_steps != (1, 1):
        return 0
    height, width = shape.height, shape.width
    wide = -(-width // TILE_ROWS)
    alone = height * _time(wide) if wide > 1 else _time(height)
    pitch = int(shape.copied(1, width))
    return rows_to_join(height, width, pitch, lambda rows, tiles: _time(tiles), _WORTH * alone)


def _time(tiles: int) -> float:
    """Time of products of so many tiles, two at a time."""
    return tiles + _SINGLE * (tiles % 2)


def tiles_of(shape: HalfShape, rows: int, columns: int) -> int:
    """Left tiles of so many pixels."""
    if joined_rows(shape):
        return joined_tiles(rows, shape.width, int(shape.copied(1, shape.width)))
    return rows if rows > 1 else -(-columns // TILE_ROWS)


def steps(shape: HalfShape) -> int:
    """Steps of a product."""
    return len(shape.taps) * -(-shape.channel_blocks // 2)


def weight_shape(shape: HalfShape) -> tuple[int, int, int]:
    """[panels, steps * words of a step, columns], int32."""
    vectors = tile_of(shape).vectors
    return -(-shape.filter_blocks // vectors), steps(shape) * CHANNELS // 2, vectors * TILE_ROWS


def pack_weight(shape: HalfShape, w: np.ndarray) -> np.ndarray:
    """uint16 [filters, channels, KH, KW] -> :func:`weight_shape`, zeros where nothing is."""
    op, taps = shape.op, len(shape.taps)
    panels, _, columns = weight_shape(shape)
    planes = steps(shape) // taps
    dense = np.zeros((panels * columns, planes * CHANNELS, taps), np.uint16)
    dense[: op.filters, : op.channels] = w.reshape(op.filters, op.channels, taps)
    split = dense.reshape(panels, columns, planes, CHANNELS // 2, 2, taps)
    ordered = np.ascontiguousarray(split.transpose(0, 2, 5, 3, 1, 4))
    return ordered.view("int32").reshape(weight_shape(shape))


class Bf16MatrixConvKernel(Bf16ConvKernel):
    """Emits one convolution on the matrix unit."""

    cuts_depth = False

    def __init__(self, op: Conv2d, tile: PixelTile, blocks: int, groups: int, machine: CpuModel):
        super().__init__(op, tile_of(HalfShape(op, machine.lanes)), blocks, groups, machine)
        shape = self.shape
        self.masked = op.channels % machine.lanes != 0
        self.planes = steps(shape) // len(shape.taps)
        self.joined = joined_rows(shape) > 0
        across = 1 if shape.flat else self.steps[1]
        self.plane = self.copied_pixels + PIXELS * across
        """Pixels of a plane of the copy, those behind its rows included that a tile may reach."""

    @property
    def weight_shape(self) -> tuple[int, int, int]:
        return weight_shape(self.shape)

    @property
    def imports(self) -> tuple[str, ...]:
        def sizes(extent: int, step: int) -> list[int]:
            return [size for size in (step if extent >= step else 0, extent % step) if size]

        high = [1] if self.shape.flat else sizes(self.extent, self.rows)
        tiles = [tiles_of(self.shape, r, c) for r in high for c in sizes(self.shape.width, self.columns)]
        products = {self._product(many) for count in tiles for many in sizes(count, 2)}
        return (*super().imports, *sorted(product.ir for product in products))

    def _item(self, item: Expr) -> None:
        super()._item(item)
        self.k.call(END)

    def begin(self, first_tile: Index, tiles: Index) -> None:
        k, shape = self.k, self.shape
        self.copy = k.scratch((self.planes * self.plane * CHANNELS,), "uint16")
        self.copy_block(first_tile, tiles)
        if shape.channel_blocks % 2:  # zero times what lies there may not be zero
            with k.serial(self.plane) as pixel:
                nothing = k.splat(tirx.const(0, "uint16"), self.lanes)
                k.store(self.copy, nothing, [self._at(int32(shape.channel_blocks), pixel)])
        k.call(begin())

    def put(self, value: Expr, block: Expr, pixel: Expr) -> None:
        self.k.store(self.copy, value, [self._at(block, pixel)])

    def _at(self, block: Expr, pixel: Index) -> Expr:
        """Place of a pixel's channels of one block."""
        plane, half = tirx.floordiv(block, 2), tirx.floormod(block, 2)
        return self.k.ramp(((plane * self.plane + pixel) * 2 + half) * self.lanes, self.lanes)

    @property
    def _distance(self) -> int:
        """Pixels of the copy from one left tile to the next."""
        if self.shape.flat or self.joined:
            return TILE_ROWS
        down, across = self.steps
        return TILE_ROWS * across if self.rows == 1 else down * self.pitch

    def _product(self, tiles: int) -> PixelProduct:
        op, pitch = self.op, 0 if self.shape.flat else self.pitch
        across = 1 if self.shape.flat else self.steps[1]
        places = tuple(
            _BYTES * (i * op.dilation[0] * pitch + j * op.dilation[1])
            for i in range(op.kernel[0])
            for j in range(op.kernel[1])
        )
        return PixelProduct(
            *(tiles, self.vectors, _BYTES * across, _BYTES * self._distance),
            *(places, self.planes, self.plane * _BYTES, self._fetches),
        )

    @property
    def _products(self) -> int:
        """Products of a whole tile."""
        return -(-tiles_of(self.shape, self.rows, self.columns) // 2)

    @property
    def _fetches(self) -> int:
        """Cache lines of the next panel that each step asks for; 0 where many products go through each."""
        return -(-_STEP_LINES * self.vectors // (self._passes * self._products)) if self._passes else 0

    def _ahead(self, panel: Expr, y: Index, x: Index, product: int) -> Expr:
        """Start of the share of the next panel that a product asks for."""
        part = self._pass(y, x)
        if part is None:
            return self.k.address(self.w, [panel, int32(0), int32(0)])
        count = steps(self.shape)
        lines = count * _STEP_LINES * self.vectors
        line = next_panel.first_line(part * self._products + product, self._fetches * count, lines)
        row, column = tirx.floordiv(line, self.vectors), tirx.floormod(line, self.vectors)
        after = next_panel.following(panel, self.panels)
        return self.k.address(self.w, [after, row, column * TILE_ROWS])

    def _tile(self, panel: Expr, y: Index, x: Index, rows: int, columns: int) -> None:
        k, lanes, vectors = self.k, self.lanes, self.vectors
        tiles = tiles_of(self.shape, rows, columns)
        sums = k.scratch((tiles * TILE_ROWS, vectors * lanes))
        for first in range(0, tiles, 2):
            k.call(
                self._product(min(2, tiles - first)).name,
                k.address(sums, [int32(first * TILE_ROWS), int32(0)]),
                k.address(self.copy, [(self.place(y, x) + first * self._distance) * CHANNELS]),
                k.address(self.w, [panel, int32(0), int32(0)]),
                self._ahead(panel, y, x, first // 2),
                k.address(sums, [int32(extent - 1) for extent in sums.shape]),
                k.address(self.copy, [self.copy.shape[0] - 1]),
            )
        row = self.pitch if self.joined else TILE_ROWS

        def write(v: int) -> None:
            block = panel * vectors + v
            plane = self.batch * self.shape.filter_blocks + block
            start = self.out.start(block)
            for r in range(rows):
                with k.serial(columns) as q:
                    value = k.load(sums, [r * row + q, k.ramp(v * lanes, lanes)])
                    self.out.put(value + start, plane, block, y + r, x + q)

        each_filter_block(k, panel, vectors, self.shape.filter_blocks, write)
