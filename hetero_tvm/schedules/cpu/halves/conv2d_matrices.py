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

import functools

import numpy as np

from hetero_tvm.codegen.amx import BF16, END, TILE_ROWS, TILE_WORDS, begin
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
_SINGLE = 0.25
"""Time that a tile without a second one takes more: its filters are read for it alone."""
_WORTH = 0.9
"""Part of the time of products from which it is worth to join rows."""


def applies(op: Conv2d, machine: CpuModel) -> bool:
    """Whether the matrix unit multiplies ``op``'s channels."""
    return has_matrix_unit(machine, BF16) and op.groups == 1 and not isinstance(op, Conv3d)


class MatrixShape(HalfShape):
    """Extents of one convolution whose pixels are rows of left tiles.

    Attributes
    ----------
    step_words : words of a step: pairs of channels.
    """

    step_words = TILE_WORDS

    @property
    def pixel_bytes(self) -> int:
        """Bytes of a pixel of the copy, of one plane."""
        return _BYTES

    @functools.cached_property
    def tile(self) -> PixelTile:
        """Pixels whose results leave together, and vectors of filters."""
        vectors = min(2, self.filter_blocks)
        if self.joined_rows:
            return PixelTile(self.joined_rows, self.width, vectors)
        if self.flat or self.width > TILE_ROWS:
            return PixelTile(1, PIXELS, vectors)
        return PixelTile(min(2, self.height), self.width, vectors)

    @functools.cached_property
    def joined_rows(self) -> int:
        """Rows that tiles go through from end to end; 0 where each row has tiles of its own."""
        if self.flat or self.copied_steps != (1, 1):
            return 0
        wide = -(-self.width // TILE_ROWS)
        alone = self.height * _time(wide) if wide > 1 else _time(self.height)
        pitch = int(self.copied(1, self.width))
        return rows_to_join(self.height, self.width, pitch, lambda _, tiles: _time(tiles), _WORTH * alone)

    def tiles_of(self, rows: int, columns: int) -> int:
        """Left tiles of so many pixels."""
        if self.joined_rows:
            return joined_tiles(rows, self.width, int(self.copied(1, self.width)))
        return rows if rows > 1 else -(-columns // TILE_ROWS)

    @property
    def planes(self) -> int:
        """Planes of the copy that a product goes through."""
        return -(-self.channel_blocks // 2)

    @property
    def places(self) -> tuple[int, ...]:
        """Bytes from a pixel of the copy to what each step of a plane reads."""
        (down, across), (rows, columns) = self.op.dilation, self.op.kernel
        pitch = 0 if self.flat else int(self.copied(1, self.width))
        return tuple(_BYTES * (i * down * pitch + j * across) for i in range(rows) for j in range(columns))

    @property
    def steps(self) -> int:
        """Steps of a product."""
        return len(self.places) * self.planes

    @property
    def panels_shape(self) -> tuple[int, int, int]:
        """Shape of the packed weights, int32: [panels, steps * words of a step, columns]."""
        vectors = self.tile.vectors
        return -(-self.filter_blocks // vectors), self.steps * self.step_words, vectors * TILE_ROWS

    def pack_panels(self, w: np.ndarray) -> np.ndarray:
        """uint16 [filters, channels, KH, KW] -> :attr:`panels_shape`, zeros where nothing is."""
        op, taps = self.op, len(self.taps)
        panels, _, columns = self.panels_shape
        dense = np.zeros((panels * columns, self.planes * CHANNELS, taps), np.uint16)
        dense[: op.filters, : op.channels] = w.reshape(op.filters, op.channels, taps)
        split = dense.reshape(panels, columns, self.planes, TILE_WORDS, 2, taps)
        ordered = np.ascontiguousarray(split.transpose(0, 2, 5, 3, 1, 4))
        return ordered.view("int32").reshape(self.panels_shape)


def _time(tiles: int) -> float:
    """Time of products of so many tiles, two at a time."""
    return tiles + _SINGLE * (tiles % 2)


class Bf16MatrixConvKernel(Bf16ConvKernel):
    """Emits one convolution on the matrix unit."""

    cuts_depth = False
    shape: MatrixShape

    def __init__(self, op: Conv2d, tile: PixelTile, blocks: int, groups: int, machine: CpuModel):
        super().__init__(op, self.shape_of(op, machine).tile, blocks, groups, machine)
        self.masked = op.channels % machine.lanes != 0
        self.joined = self.shape.joined_rows > 0
        across = 1 if self.shape.flat else self.steps[1]
        self.plane = self.copied_pixels + PIXELS * across
        """Pixels of a plane of the copy, those behind its rows included that a tile may reach."""

    @classmethod
    def shape_of(cls, op: Conv2d, machine: CpuModel) -> MatrixShape:
        return MatrixShape(op, machine.lanes)

    @property
    def weight_shape(self) -> tuple[int, int, int]:
        return self.shape.panels_shape

    @property
    def imports(self) -> tuple[str, ...]:
        def sizes(extent: int, step: int) -> list[int]:
            return [size for size in (step if extent >= step else 0, extent % step) if size]

        high = [1] if self.shape.flat else sizes(self.extent, self.rows)
        tiles = [self.shape.tiles_of(r, c) for r in high for c in sizes(self.shape.width, self.columns)]
        products = {self._product(many) for count in tiles for many in sizes(count, 2)}
        return (*super().imports, *sorted(product.ir for product in products))

    def _item(self, item: Expr) -> None:
        super()._item(item)
        self.k.call(END)

    def begin(self, first_tile: Index, tiles: Index) -> None:
        k, shape = self.k, self.shape
        self.copy = k.scratch((shape.planes * self.plane * CHANNELS,), "uint16")
        self.copy_block(first_tile, tiles)
        if shape.channel_blocks % 2:  # zero times what lies there may not be zero
            with k.serial(self.plane) as pixel:
                nothing = k.splat(tirx.const(0, "uint16"), self.lanes)
                k.store(self.copy, nothing, [self._at(int32(shape.channel_blocks), pixel)])
        k.call(begin())

    def pixel_index(self, pixel: Index) -> Index:
        """Element of the copy at which a pixel begins."""
        return pixel * CHANNELS

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
        shape = self.shape
        across = 1 if shape.flat else self.steps[1]
        distances = (shape.pixel_bytes * pixels for pixels in (across, self._distance))
        return PixelProduct(
            *(tiles, self.vectors, *distances, shape.places),
            *(shape.planes, self.plane * shape.pixel_bytes, self._fetches, shape.step_words),
        )

    @property
    def _products(self) -> int:
        """Products of a whole tile."""
        return -(-self.shape.tiles_of(self.rows, self.columns) // 2)

    @property
    def _fetches(self) -> int:
        """Cache lines of the next panel that each step asks for; 0 where many products go through each."""
        if not self._passes:
            return 0
        return -(-self.shape.step_words * self.vectors // (self._passes * self._products))

    def _ahead(self, panel: Expr, y: Index, x: Index, product: int) -> Expr:
        """Start of the share of the next panel that a product asks for."""
        part = self._pass(y, x)
        if part is None:
            return self.k.address(self.w, [panel, int32(0), int32(0)])
        count = self.shape.steps
        lines = count * self.shape.step_words * self.vectors
        line = next_panel.first_line(part * self._products + product, self._fetches * count, lines)
        row, column = tirx.floordiv(line, self.vectors), tirx.floormod(line, self.vectors)
        after = next_panel.following(panel, self.panels)
        return self.k.address(self.w, [after, row, column * TILE_ROWS])

    def _tile(self, panel: Expr, y: Index, x: Index, rows: int, columns: int) -> None:
        k, lanes, vectors = self.k, self.lanes, self.vectors
        tiles = self.shape.tiles_of(rows, columns)
        sums = k.scratch((tiles * TILE_ROWS, vectors * lanes))
        for first in range(0, tiles, 2):
            k.call(
                self._product(min(2, tiles - first)).name,
                k.address(sums, [int32(first * TILE_ROWS), int32(0)]),
                k.address(self.copy, [self.pixel_index(self.place(y, x) + first * self._distance)]),
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
