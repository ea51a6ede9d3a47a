"""8-bit convolutions on the matrix unit of a CPU (AMX): filters to the left, pixels to the right.

::

    parallel over images, groups, blocks of rows, parts of the filters:
        pixels of the block as words of four channels                       (image_packing.py; in L2)
        for each 32 filters:
            for each 32 pixels of a row, or 16 of two rows, or several rows at once:
                sums[2][2] tiles += W[2 x 16 filters, words] @ X[words, 2 x 16 pixels]   for each tap and step
                sums -> memory on the stack; bias, scale, bounds, rounding, a row of pixels at a time

The words that a vector kernel packs are a right tile as they lie: word g of a tap is a row of pixels, and a
tap is an offset.  So nothing is copied per tap, strides are those of the packed phases, and results leave
as plain images.  A step takes up to 16 words of one tap; of 24 it takes 12 twice.  Of images with one word
(the pixels of a camera) it takes words of several taps: a packed row has a row for each column of taps, so
that all taps of a window lie as far from one another (49 of a 7 x 7 window in 4 steps).

Rows of 7, 10, or 20 pixels would leave much of a tile empty.  Where packed rows are rows of results, one
behind the other, a tap is the same offset for all pixels: so tiles go on across the ends of rows, and what is
computed there is left out (a 7 x 7 image takes 4 tiles instead of 7).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hetero_tvm.codegen.amx import END, TILE_ROWS, TILE_WORDS, begin
from hetero_tvm.codegen.amx_images import WindowProduct
from hetero_tvm.codegen.saturation import saturation_ir
from hetero_tvm.host.tvm import Expr, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.integers.quantized import QuantConv2d
from hetero_tvm.schedules.cpu import next_panel
from hetero_tvm.schedules.cpu.integers.image_kernel import (
    ImageDecisions,
    ImageKernel,
    OutputTile,
    whole_vectors,
)
from hetero_tvm.schedules.cpu.integers.image_packing import ImagePacker
from hetero_tvm.schedules.cpu.integers.image_words import LINE_WORDS, ImageWords, image_dot
from hetero_tvm.schedules.cpu.integers.matrix_unit import has_matrix_unit, tile_cycles
from hetero_tvm.schedules.cpu.joined_rows import joined_tiles, rows_to_join
from hetero_tvm.schedules.cpu.register_tile import RegisterTile
from hetero_tvm.schedules.emit import int32, vector_pieces

FILTERS = 2 * TILE_ROWS
"""Filters of one product."""
_LEAST_WORDS = 4
"""Words of a tap from which a step is worth its loads."""
_WORD = 4
_SINGLE = 1.25
"""Time of a tile without a second one by the estimate: its left tiles are read for it alone."""
_WORTH = 0.95
"""Part of the time from which it is worth to join rows."""


def applies(op: QuantConv2d, machine: CpuModel) -> bool:
    """Whether the matrix unit has enough to multiply in a tap and in a tile of filters."""
    shape = words_of(op, machine)
    wide = MatrixWeights.run(shape)[0] >= _LEAST_WORDS and shape.filters >= TILE_ROWS // 2
    return has_matrix_unit(machine) and not shape.by_rows and wide


def words_of(op: QuantConv2d, machine: CpuModel) -> ImageWords:
    """Extents of a convolution on the matrix unit."""
    dot = image_dot(op, machine)
    shape = ImageWords(op, dot)
    follow = op.dilation[0] == 1 and shape.tap_rows * len(shape.taps) > 1
    return ImageWords(op, dot, spread=True) if shape.words == 1 and follow else shape


def step_words(words: int) -> int:
    """Words of one step of a tap of ``words``."""
    return -(-words // -(-words // TILE_WORDS))


@dataclass(frozen=True)
class PixelTiles:
    """Pixels that are multiplied before their results are written.

    Attributes
    ----------
    rows, vectors : rows of the image, and tiles of pixels in each.
    pitch : words of a packed row where tiles go on across the ends of rows; 0 where they do not.
    width : pixels of a row.
    """

    rows: int
    vectors: int
    pitch: int
    width: int

    def count(self, rows: int, columns: int) -> int:
        """Tiles of so many rows and columns."""
        if self.pitch:
            return joined_tiles(rows, self.width, self.pitch)
        return rows * -(-columns // TILE_ROWS)

    def cycles(self, shape: ImageWords) -> float:
        """Estimate of an image and one tile of filters: products and the way out of their sums."""
        columns, cost = min(self.width, self.vectors * TILE_ROWS), _cost(shape, self.vectors)
        bands, rest = divmod(shape.out_height, self.rows)
        total = bands * cost(self.rows, self.count(self.rows, columns))
        total += cost(rest, self.count(rest, columns)) if rest else 0.0
        return total * -(-self.width // columns)

    @classmethod
    def of(cls, shape: ImageWords) -> PixelTiles:
        """Tiles for an image."""
        height, width = shape.out_height, shape.out_width
        alone = cls(1, 2, 0, width) if shape.flat or width > TILE_ROWS else cls(min(2, height), 1, 0, width)
        if shape.flat or shape.row_step > 1 or len(shape.phases) > 1:
            return alone
        wide, pitch = -(-width // TILE_ROWS), shape.pitch(width, 1)
        rows = rows_to_join(height, width, pitch, _cost(shape, wide), _WORTH * alone.cycles(shape))
        return cls(rows, wide, pitch, width) if rows else alone


def _cost(shape: ImageWords, vectors: int) -> Callable[[int, int], float]:
    """Cycles of so many rows, whose results are ``vectors`` each, and of their tiles, two at a time."""
    filters = tile_of(shape)
    steps = MatrixWeights(shape, filters).steps
    pair, single = (tile_cycles(RegisterTile(filters, tiles), steps) for tiles in (2, 1))

    def cost(rows: int, tiles: int) -> float:
        pairs, left = divmod(tiles, 2)
        return pairs * pair + left * _SINGLE * single + 6 * filters * rows * vectors

    return cost


def tile_of(shape: ImageWords) -> int:
    """Filters of one product."""
    return min(FILTERS, -(-shape.filters // TILE_ROWS) * TILE_ROWS)


@functools.lru_cache(maxsize=256)  # asked for every register tile of the other methods
def cycles(op: QuantConv2d, grid: tuple[int, int], machine: CpuModel) -> float:
    """Estimate of one call on the busiest thread."""
    shape = words_of(op, machine)
    filters, pixels = tile_of(shape), PixelTiles.of(shape)
    blocks, parts = grid
    if pixels.pitch:
        blocks = min(blocks, -(-shape.out_height // pixels.rows))
    products = -(-shape.filters // filters) * pixels.cycles(shape)
    packed = shape.words * shape.packed_rows(shape.out_height) * len(shape.phases)
    packing = packed * (6 + shape.pitch(shape.out_width, TILE_ROWS) / TILE_ROWS * 10) * parts
    weights = shape.steps * shape.filters * _WORD * blocks / 10.0  # from beyond L2, for every block
    pieces = op.batch * op.groups * blocks * parts
    busy = -(-pieces // machine.threads) / pieces
    return (products + packing + weights) * op.batch * op.groups * busy + 60 * pieces / machine.threads


class MatrixImageKernel(ImageKernel):
    """Emits one convolution on the matrix unit."""

    parts_of_rows = False

    def __init__(self, op: QuantConv2d, decisions: ImageDecisions, machine: CpuModel):
        shape = words_of(op, machine)
        filters, self.pixels = tile_of(shape), PixelTiles.of(shape)
        rows, vectors = self.pixels.rows, self.pixels.vectors
        decisions = dataclasses.replace(decisions, filters=filters, rows=rows, vectors=vectors)
        super().__init__(op, decisions, machine, shape=shape)
        self.pitch = self.pixels.pitch or self.pitch
        self.layout = MatrixWeights(shape, filters)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        return self.layout.shape

    @property
    def imports(self) -> tuple[str, ...]:
        shape, tile = self.shape, self.decisions
        heights = {
            -(-height // TILE_ROWS) for height in (tile.filters, shape.filters % tile.filters) if height
        }
        products = [self._product(filters, tiles) for filters in sorted(heights) for tiles in (1, 2)]
        return (saturation_ir(), *(product.ir for product in products))

    def packer(self, rows: int, columns: int) -> ImagePacker:
        padded = self.layout.words * self.layout.per_tap
        behind = padded - MatrixWeights.run(self.shape)[0]
        words, spare = (1, behind * self.pitch) if self.shape.spread else (padded, 0)
        if self.pixels.pitch:
            spare = TILE_ROWS  # the last tile ends behind the last row
        return ImagePacker(self.k, self.shape, self.x, rows, columns, self.lanes, self.pitch, words, spare)

    def around(self) -> tuple[str, str]:
        return begin(self.layout.words), END

    def _product(self, filters: int, tiles: int) -> WindowProduct:
        """The product of so many tiles of filters and of pixels."""
        shape, layout = self.shape, self.layout
        row = len(shape.phases) * self.pitch
        places = tuple(
            _WORD * (i * self.op.dilation[0] * row + phase * self.pitch + offset)
            for i in range(shape.tap_rows)
            for phase, offset in shape.taps
        )
        if shape.spread:
            places = (0,)  # the others follow
        return WindowProduct(filters, tiles, layout.words, layout.per_tap, places, self._fetches)

    @property
    def _fetches(self) -> int:
        """Cache lines of the next filters that each step asks for: they come from far in a network."""
        if self.filter_tiles == 1:
            return 0
        down, across = self.pixel_tiles
        products = down * across * self._products
        return -(-self.decisions.filters // TILE_ROWS * self.layout.words // products)

    @property
    def _products(self) -> int:
        """Products of a tile of the image."""
        return -(-self.pixels.count(self.decisions.rows, self.columns) // 2)

    def _ahead(self, t: OutputTile, product: int) -> Expr:
        """Start of the share of the next filters that a product asks for."""
        share = self._fetches * self.layout.steps
        following = next_panel.following(t.tile, self.filter_tiles)
        number = self.tile_number(t) * self._products + product
        line = next_panel.first_line(number, share, self.layout.starts // LINE_WORDS)
        return self.k.address(self.w, [t.group, following, line * LINE_WORDS])

    def row_sums(self, columns: int) -> int:
        return self.pixels.pitch or super().row_sums(columns)

    def _tile(self, t: OutputTile) -> None:
        k, shape, lanes = self.k, self.shape, self.lanes
        filters, tiles = -(-t.height // TILE_ROWS), self.pixels.count(t.rows, t.columns)
        sums = k.scratch((filters * TILE_ROWS, tiles * lanes), "int32")
        row_words = len(shape.phases) * self.pitch
        across = t.rows == 1 or self.pixels.pitch
        distance = TILE_ROWS if across else shape.row_step * row_words
        last = [extent - 1 for extent in self.words.shape]
        for number, first in enumerate(range(0, tiles, 2)):
            product = self._product(filters, min(2, tiles - first))
            place = self._places(t)(0, 0, 0) + first * distance
            following = [int32(0), place + self.pitch] if shape.spread else [int32(1), place]
            k.call(
                product.name,
                k.address(sums, [int32(0), int32(first * lanes)]),
                _int64(tiles * lanes * _WORD),
                k.address(self.w, [t.group, t.tile, int32(0)]),
                _int64(self.layout.tile_words * _WORD),
                k.address(self.words, [int32(0), place]),
                k.address(self.words, following),
                _int64(distance * _WORD),
                self._ahead(t, number),
                k.address(sums, [int32(extent - 1) for extent in sums.shape]),
                k.address(self.words, last),
            )
        pieces = [(line, *piece) for line in range(t.rows) for piece in self._cut(t, line)]
        self._finish(t, sums, lambda f: [self.layout.starts + f], pieces, k.serial)

    def _cut(self, t: OutputTile, line: int) -> list[tuple[int, int]]:
        """Vectors of the results of a row."""
        if self.op.residual:  # it may lie where the results go: each is read once
            return vector_pieces(t.columns, self.lanes)
        if self.pixels.pitch and line < t.rows - 1:
            return self._pieces(t.columns, followed=True)
        return whole_vectors(t.columns, self.lanes)


class MatrixWeights:
    """Weights as left tiles, step by step, and behind those of each 32 filters what their sums start from.

    Attributes
    ----------
    words, per_tap : words of a step; steps of a tap, or of all that follow one another.
    shape : of the packed weights, int32: [groups, tiles of filters, words].
    """

    def __init__(self, shape: ImageWords, filters: int):
        self._shape, self._filters = shape, filters
        words, runs = self.run(shape)
        self.words = step_words(words)
        self.per_tap = -(-words // self.words)
        self.steps = runs * self.per_tap
        self.tile_words = self.steps * TILE_ROWS * self.words
        """Words from one tile of filters to the next."""
        self.starts = filters // TILE_ROWS * self.tile_words
        """Place of the sums' starts."""
        tiles = -(-shape.filters // filters)
        self.shape = (shape.op.groups, tiles, self.starts + filters)

    @staticmethod
    def run(shape: ImageWords) -> tuple[int, int]:
        """Words that lie equally far from one another, and how often there are so many."""
        taps = shape.tap_rows * len(shape.taps)
        return (taps, 1) if shape.spread else (shape.words, taps)

    def pack(self, w: np.ndarray) -> np.ndarray:
        """int8 [filters, channels / groups, *kernel] -> :attr:`shape`."""
        shape, high = self._shape, self._filters
        plain = shape.pack(w, high)  # [groups, tiles, taps * words + 1, filters]
        groups, tiles = plain.shape[:2]
        most, runs = self.run(shape)
        words = plain[:, :, :-1].reshape(groups, tiles, runs, most, high)
        padded = np.zeros((groups, tiles, runs, self.per_tap * self.words, high), np.int32)
        padded[:, :, :, :most] = words
        steps = padded.reshape(groups, tiles, self.steps, self.words, high // TILE_ROWS, TILE_ROWS)
        packed = np.empty(self.shape, np.int32)
        packed[..., : self.starts] = steps.transpose(0, 1, 4, 2, 5, 3).reshape(groups, tiles, -1)
        packed[..., self.starts :] = plain[:, :, -1]
        return packed


def _int64(value: int) -> Expr:
    return tirx.const(value, "int64")
