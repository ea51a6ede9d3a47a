"""8-bit convolutions on the matrix unit of a CPU (AMX): filters to the left, pixels to the right.

::

    parallel over images, groups, blocks of rows, parts of the filters:
        pixels of the block as words of four channels                       (image_packing.py; in L2)
        for each 32 filters:
            for each 32 pixels of a row, or 16 of two rows:
                sums[2][2] tiles += W[2 x 16 filters, words] @ X[words, 2 x 16 pixels]   for each tap and step
                sums -> memory on the stack; bias, scale, bounds, rounding, a row of pixels at a time

The words that a vector kernel packs are a right tile as they lie: word g of a tap is a row of pixels, and a
tap is an offset.  So nothing is copied per tap, strides are those of the packed phases, and results leave
as plain images.  A step takes up to 16 words of one tap; of 24 it takes 12 twice.
"""

from __future__ import annotations

import dataclasses

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
from hetero_tvm.schedules.cpu.register_tile import RegisterTile
from hetero_tvm.schedules.emit import int32, vector_pieces

FILTERS = 2 * TILE_ROWS
"""Filters of one product."""
_LEAST_WORDS = 4
"""Words of a tap from which a step is worth its loads."""
_WORD = 4


def applies(op: QuantConv2d, machine: CpuModel) -> bool:
    """Whether the matrix unit has enough to multiply in a tap and in a tile of filters."""
    shape = ImageWords(op, image_dot(op, machine))
    wide = shape.words >= _LEAST_WORDS and shape.filters >= TILE_ROWS // 2
    return has_matrix_unit(machine) and not shape.by_rows and wide


def step_words(words: int) -> int:
    """Words of one step of a tap of ``words``."""
    return -(-words // -(-words // TILE_WORDS))


def tile_of(shape: ImageWords) -> tuple[int, int, int]:
    """Filters, rows and vectors of one product."""
    filters = min(FILTERS, -(-shape.filters // TILE_ROWS) * TILE_ROWS)
    if shape.flat or shape.out_width > TILE_ROWS:
        return filters, 1, 2
    return filters, min(2, shape.out_height), 1


def cycles(op: QuantConv2d, grid: tuple[int, int], machine: CpuModel) -> float:
    """Estimate of one call on the busiest thread."""
    shape = ImageWords(op, image_dot(op, machine))
    filters, rows, vectors = tile_of(shape)
    steps = len(shape.taps) * shape.tap_rows * -(-shape.words // TILE_WORDS)
    tiles = -(-shape.out_height // rows) * -(-shape.out_width // (vectors * TILE_ROWS))
    blocks, parts = grid
    finish = 6 * filters * rows * vectors
    one = tile_cycles(RegisterTile(filters, rows * vectors), steps) + finish
    products = tiles * -(-shape.filters // filters) * one
    packed = shape.words * shape.packed_rows(shape.out_height) * len(shape.phases)
    packing = packed * (6 + shape.pitch(shape.out_width, TILE_ROWS) / TILE_ROWS * 10) * parts
    weights = shape.steps * shape.filters * _WORD * blocks / 10.0  # from beyond L2, for every block
    pieces = op.batch * op.groups * blocks * parts
    busy = -(-pieces // machine.threads) / pieces
    return (products + packing + weights) * op.batch * op.groups * busy + 60 * pieces / machine.threads


class MatrixImageKernel(ImageKernel):
    """Emits one convolution on the matrix unit."""

    def __init__(self, op: QuantConv2d, decisions: ImageDecisions, machine: CpuModel):
        shape = ImageWords(op, image_dot(op, machine))
        filters, rows, vectors = tile_of(shape)
        super().__init__(
            op, dataclasses.replace(decisions, filters=filters, rows=rows, vectors=vectors), machine
        )
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
        padded = self.layout.words * -(-self.shape.words // self.layout.words)
        return ImagePacker(self.k, self.shape, self.x, rows, columns, self.lanes, padded)

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
        return WindowProduct(filters, tiles, layout.words, layout.per_tap, places, self._fetches)

    @property
    def _fetches(self) -> int:
        """Cache lines of the next filters that each step asks for: they come from far in a network."""
        if self.filter_tiles == 1:
            return 0
        down, across = self.pixel_tiles
        return -(-self.decisions.filters // TILE_ROWS * self.layout.words // (down * across))

    def _ahead(self, t: OutputTile) -> Expr:
        """Start of the share of the next filters that a tile of pixels asks for."""
        share = self._fetches * self.layout.steps
        following = next_panel.following(t.tile, self.filter_tiles)
        line = next_panel.first_line(self.tile_number(t), share, self.layout.starts // LINE_WORDS)
        return self.k.address(self.w, [t.group, following, line * LINE_WORDS])

    def _tile(self, t: OutputTile) -> None:
        k, shape, lanes = self.k, self.shape, self.lanes
        vectors = -(-t.columns // lanes)
        filters, tiles = -(-t.height // TILE_ROWS), t.rows * vectors
        product = self._product(filters, tiles)
        sums = k.scratch((filters * TILE_ROWS, tiles * lanes), "int32")
        row_words = len(shape.phases) * self.pitch
        place = self._places(t)(0, 0, 0)
        last = [extent - 1 for extent in self.words.shape]
        k.call(
            product.name,
            k.address(sums, [int32(0), int32(0)]),
            _int64(tiles * lanes * _WORD),
            k.address(self.w, [t.group, t.tile, int32(0)]),
            _int64(self.layout.tile_words * _WORD),
            k.address(self.words, [int32(0), place]),
            k.address(self.words, [int32(1), place]),
            _int64((TILE_ROWS if t.rows == 1 else shape.row_step * row_words) * _WORD),
            self._ahead(t),
            k.address(sums, [int32(extent - 1) for extent in sums.shape]),
            k.address(self.words, last),
        )
        # A residual may lie where the results go: each is read once.
        cut = (vector_pieces if self.op.residual else whole_vectors)(t.columns, lanes)
        pieces = [(line, at, many) for line in range(t.rows) for at, many in cut]
        self._finish(t, sums, lambda f: [self.layout.starts + f], pieces, k.serial)


class MatrixWeights:
    """Weights as left tiles, step by step, and behind those of each 32 filters what their sums start from.

    Attributes
    ----------
    words, per_tap : words of a step; steps of a tap.
    shape : of the packed weights, int32: [groups, tiles of filters, words].
    """

    def __init__(self, shape: ImageWords, filters: int):
        self._shape, self._filters = shape, filters
        self.words = step_words(shape.words)
        self.per_tap = -(-shape.words // self.words)
        self.steps = shape.tap_rows * len(shape.taps) * self.per_tap
        self.tile_words = self.steps * TILE_ROWS * self.words
        """Words from one tile of filters to the next."""
        self.starts = filters // TILE_ROWS * self.tile_words
        """Place of the sums' starts."""
        tiles = -(-shape.filters // filters)
        self.shape = (shape.op.groups, tiles, self.starts + filters)

    def pack(self, w: np.ndarray) -> np.ndarray:
        """int8 [filters, channels / groups, *kernel] -> :attr:`shape`."""
        shape, high = self._shape, self._filters
        plain = shape.pack(w, high)  # [groups, tiles, taps * words + 1, filters]
        groups, tiles = plain.shape[:2]
        words = plain[:, :, :-1].reshape(groups, tiles, -1, shape.words, high)
        padded = np.zeros((*words.shape[:3], self.per_tap * self.words, high), np.int32)
        padded[:, :, :, : shape.words] = words
        steps = padded.reshape(groups, tiles, self.steps, self.words, high // TILE_ROWS, TILE_ROWS)
        packed = np.empty(self.shape, np.int32)
        packed[..., : self.starts] = steps.transpose(0, 1, 4, 2, 5, 3).reshape(groups, tiles, -1)
        packed[..., self.starts :] = plain[:, :, -1]
        return packed


def _int64(value: int) -> Expr:
    return tirx.const(value, "int64")
