"""Convolution of 8-bit images, plain NCHW in and out: pixels are packed at run time, weights broadcast.

Loop structure::

    parallel over images, groups, blocks of rows (of pixels, where all are one row), parts of the filters:
        pixels of the block as words of four channels, padding written out       (image_packing.py; in L2)
        for each tile of filters:
            for each tile of pixels of the block:
                acc[filters][vectors of pixels] = 0                                         int32
                for each tap, for each word of channels:
                    acc[f][v] += dot(words of the pixels, splat(word of W[f]))              dots.py
                bias, scale, bounds, rounding; stored in 8 bits

A vector runs along the pixels of a row, so that images stay as every other operator has them: no layout is
converted, and pooling, addition and concatenation work on whole vectors.  A pixel is packed once for all
filters, which costs a few instructions for every 32 products of each.  Depthwise convolutions pack rows of
the window instead of channels.  A tile's last vector may reach past the row: what it computes there is not
stored.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from itertools import product

from hetero_tvm.host.peaks import INT8
from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.integers.dynamic_matmul import MOST_K
from hetero_tvm.ops.integers.quantized import QuantConv2d
from hetero_tvm.schedules.base import DesignSpace, Knob, Packer, Point
from hetero_tvm.schedules.cpu.integers import image_filters, image_matrices, image_winograd
from hetero_tvm.schedules.cpu.integers.image_kernel import ImageDecisions, ImageKernel
from hetero_tvm.schedules.cpu.integers.image_words import ImageWords, image_dot
from hetero_tvm.schedules.cpu.integers.integer_tile import step_cycles, tile_fits
from hetero_tvm.schedules.cpu.integers.run_time_images import (
    ImageTile,
    RunTimeImageKernel,
    changes_size,
    cycles_of_all,
    tiles_for,
)
from hetero_tvm.schedules.cpu.register_tile import RegisterTile
from hetero_tvm.schedules.extents import Unfit
from hetero_tvm.schedules.symbolic import Witnesses

_BY_UNROLL = {1: 1.01, 2: 1.0, 4: 1.08}
"""Time by words in a loop body: of four, LLVM starts more broadcasts at once than there are registers."""

DIRECT, WINOGRAD, MATRICES, FILTERS = "direct", "winograd4", "matrices", "filters"
"""Methods: products of integers as the convolution has them, fewer in float32, those on a matrix unit, or
those of the first with vectors of filters."""

_CROWDED = 1.02
"""Time of tiles that leave no register free: LLVM puts sums of the last columns on the stack."""

_MOST_FILTERS = 14
_MOST_VECTORS = 4


class QuantConv2dSpace(DesignSpace):
    """Knobs: method, register tile (filters, rows, vectors), grid of blocks and parts, unrolling of words.

    Winograd's method is that of ``image_winograd.py``; its register tile has rows * vectors vectors of tiles.
    That of ``image_filters.py`` has as many pixels as the tile has filters, and rows * vectors vectors of
    filters.
    """

    name = "cpu.quant_conv2d"
    version = 3

    def arithmetic(self, op: FusedOp, machine: CpuModel) -> str:
        return INT8

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, QuantConv2d):
            return "not a quantised convolution"
        if min(*op.output.shape, op.channels, *op.kernel) < 1:
            return "an extent is zero"
        if op.plain.flops // (2 * math.prod(op.output.shape)) > MOST_K:
            return "sums of so many products may not fit 32 bits"
        return None

    def knobs(self, op: QuantConv2d, machine: CpuModel) -> tuple[Knob, ...]:
        return (
            Knob("method", _methods(op, machine)),
            Knob("tile", self._tiles(op, machine)),
            Knob("grid", tuple(_grids(op, machine))),
            Knob("unroll", (2, 1, 4)),
        )

    @functools.lru_cache(maxsize=64)  # noqa: B019  (spaces live as long as the process)
    def _tiles(self, op: QuantConv2d, machine: CpuModel) -> tuple[tuple[int, int, int], ...]:
        """Register tiles, the best first; kept, as :meth:`canonical` asks for every point of a search."""
        grids = _grids(op, machine)
        fitting = set(_fitting(op, machine))
        methods = _methods(op, machine)

        def best(tile: tuple[int, int, int]) -> float:
            return min(self.cycles(op, m, tile, grid, machine) for m in methods for grid in grids)

        return tuple(sorted(fitting, key=best)[:24])

    def default(self, op: QuantConv2d, machine: CpuModel) -> Point:
        tiles, grids = self._tiles(op, machine), _grids(op, machine)
        method, tile, grid = min(
            product(_methods(op, machine), tiles, grids), key=lambda choice: self.cycles(op, *choice, machine)
        )
        return self.canonical(op, {"method": method, "tile": tile, "grid": grid, "unroll": 2}, machine)

    def cycles(
        self,
        op: QuantConv2d,
        method: str,
        tile: tuple[int, int, int],
        grid: tuple[int, int],
        machine: CpuModel,
    ) -> float:
        """Estimate of one call on the busiest thread."""
        if method == WINOGRAD:
            return image_winograd.cycles(op, _registers(tile), grid, machine)
        if method == MATRICES:
            return image_matrices.cycles(op, grid, machine)
        dot = image_dot(op, machine)
        shape, (filters, rows, vectors), lanes = ImageWords(op, dot), tile, machine.lanes
        wide = vectors * lanes
        if method == FILTERS:
            registers = _registers(tile)
            rows, wide = image_filters.pixel_tile(shape, registers.rows)
            filters = registers.vectors * lanes
        units = -(-shape.out_width // wide) if shape.by_columns else -(-shape.out_height // rows)
        blocks = min(grid[0], units)
        parts = min(grid[1], -(-shape.filters // filters))

        finish = 5 + (0.7 * lanes if op.residual else 0)
        crowded = dot.words == 1 and filters * rows * vectors + rows * vectors + 2 >= machine.registers

        def tiles(height: int, count: int) -> float:
            """Cycles of one register tile of ``height`` filters and ``count`` vectors."""
            per_word = step_cycles(RegisterTile(height, count), dot, machine) * (_CROWDED if crowded else 1)
            return shape.steps * per_word + 20 + 8 * shape.tap_rows + finish * height * count

        def row(height: int, many: int) -> float:
            full, rest = divmod(-(-shape.out_width // lanes), vectors)
            return full * tiles(height, many * vectors) + (tiles(height, many * rest) if rest else 0)

        def image(height: int) -> float:
            if method == FILTERS:
                return image_filters.image_cycles(shape, tile[0], -(-height // lanes), machine)
            full, rest = divmod(shape.out_height, rows)
            return full * row(height, rows) + (row(height, rest) if rest else 0)

        full, rest = divmod(shape.filters, filters)
        products = full * image(filters) + (image(rest) if rest else 0)
        words = shape.words * shape.packed_rows(shape.out_height) * len(shape.phases)
        packing = words * (6 + shape.pitch(shape.out_width, lanes) / lanes * (2 + 2 * dot.group)) * parts
        halo = shape.packed_rows(1) - shape.row_step if shape.tap_rows > 1 else 0
        packing *= 1 + (blocks - 1) * max(0, halo) / max(1, shape.in_height)
        pieces = op.batch * op.groups * blocks * parts
        share = -(-units // blocks) / units * -(-full // parts) / max(1, full) if full else 1.0
        share = max(share / (op.batch * op.groups), 1 / pieces) * -(-pieces // machine.threads)
        # Words beyond L2 are read again for every tile of filters, weights for every block of pixels.
        block_bytes = (
            4
            * shape.words
            * shape.plane(
                -(-shape.out_height // blocks),
                shape.pitch(-(-shape.out_width // (blocks if shape.by_columns else 1)), lanes),
            )
        )
        far = max(0.0, 1.0 - machine.l2 / 2 / block_bytes)
        rereads = far * block_bytes * blocks * -(-shape.filters // filters) / 24
        weights = 4 * shape.steps * shape.filters
        rereads += weights * blocks / (10.0 if weights / parts > machine.l2 / 2 else 40.0)
        images = op.batch * op.groups
        total = (products + packing + rereads) * images * share + 60 * pieces / machine.threads
        return total

    def features(self, op: QuantConv2d, point: Point, machine: CpuModel) -> list[float]:
        dot = image_dot(op, machine)
        shape, chosen = ImageWords(op, dot), ImageDecisions.of(point)
        ideal = op.flops / 2 / dot.group * dot.cycles / machine.lanes / machine.fma_units / machine.threads
        sizes = [math.log2(n) for n in (shape.channels, shape.filters, op.groups, op.batch)]
        image = [math.log2(shape.out_height), math.log2(shape.out_width), float(shape.flat), dot.group]
        window = [*op.kernel, *op.strides, shape.words]
        tile = [chosen.filters, chosen.rows, chosen.vectors, chosen.filters * chosen.rows * chosen.vectors]
        waste = [-shape.out_width % (chosen.vectors * machine.lanes) / shape.out_width]
        waste += [-shape.filters % chosen.filters / shape.filters]
        pieces = [chosen.blocks, chosen.parts, chosen.unroll]
        estimate = self.cycles(op, point["method"], point["tile"], point["grid"], machine)
        window += [float(point["method"] == method) for method in (WINOGRAD, MATRICES, FILTERS)]
        return [*sizes, *image, *window, *tile, *waste, *pieces, ideal / estimate]

    def estimate(self, op: QuantConv2d, point: Point, machine: CpuModel) -> float:
        cycles = self.cycles(op, point["method"], point["tile"], point["grid"], machine)
        return cycles * _BY_UNROLL[point["unroll"]]

    def pack(self, op: QuantConv2d, point: Point, machine: CpuModel) -> dict[int, Packer]:
        height = ImageDecisions.of(point).filters
        if point["method"] == WINOGRAD:
            return {1: lambda w: image_winograd.pack(op, w, height)}
        if point["method"] == FILTERS:
            height = _registers(point["tile"]).vectors * machine.lanes
        if point["method"] == MATRICES:
            words = image_matrices.words_of(op, machine)
            return {1: image_matrices.MatrixWeights(words, image_matrices.tile_of(words)).pack}
        shape = ImageWords(op, image_dot(op, machine))
        return {1: lambda w: shape.pack(w, height)}

    def emit(self, op: QuantConv2d, point: Point, machine: CpuModel) -> PrimFunc:
        return _KERNELS[point["method"]](op, ImageDecisions.of(point), machine).emit()

    def of_all_sizes(self, ops: Sequence[QuantConv2d], machine: CpuModel) -> Point | None:
        if not changes_size(ops):
            return None
        _, method, tile = self._of_tiles(ops, machine)
        return {"method": method, "tile": tile, "grid": (1, 1), "unroll": 2}

    def run_time_kernel(self, witnesses: Witnesses, point: Point, machine: CpuModel) -> PrimFunc | None:
        if not changes_size(witnesses.ops):
            return None  # how many there are is no matter: the kernel of one size says so
        method, packed = point["method"], _packed_as(point["method"], point["tile"])
        area, _, tile = self._of_tiles(witnesses.ops, machine, (method, packed))
        one, own = area.convolution(witnesses.largest), {**point, "tile": tile, "grid": (1, 1)}
        inner = _KERNELS[method](one, ImageDecisions.of(own), machine)
        return RunTimeImageKernel(witnesses, area, inner, machine).emit()

    def _of_tiles(
        self, ops: Sequence[QuantConv2d], machine: CpuModel, kept: tuple[str, int] | None = None
    ) -> tuple[ImageTile, str, tuple[int, int, int]]:
        """Output pixels to compute together, method and register tile for images of many sizes; ``kept``:
        the method, and how weights are packed for it."""
        alone = dataclasses.replace(machine, threads=1)
        found = []
        for area in tiles_for(ops, machine):
            one = area.convolution(ops[0])
            for method, tile in product(_methods(one, machine), self._tiles(one, alone)):
                if kept is None or kept == (method, _packed_as(method, tile)):
                    of_one = self.cycles(one, method, tile, (1, 1), alone)
                    found.append((cycles_of_all(ops, area, of_one, machine), area, method, tile))
        if not found:
            raise Unfit("the method is not that of a tile")
        return min(found, key=lambda choice: choice[0])[1:]

    def canonical(self, op: QuantConv2d, point: Point, machine: CpuModel) -> Point:
        if point["method"] != MATRICES:
            return point
        return {**point, "tile": self._tiles(op, machine)[0], "unroll": 2}  # the method has its own


_KERNELS = {
    DIRECT: ImageKernel,
    WINOGRAD: image_winograd.WinogradImageKernel,
    MATRICES: image_matrices.MatrixImageKernel,
    FILTERS: image_filters.FilterImageKernel,
}


def _packed_as(method: str, tile: tuple[int, int, int]) -> int:
    """The number of a register tile that the layout of the weights depends on."""
    filters, rows, vectors = tile
    return {FILTERS: rows * vectors, MATRICES: 0}.get(method, filters)


def _methods(op: QuantConv2d, machine: CpuModel) -> tuple[str, ...]:
    others = {
        WINOGRAD: image_winograd.applies(op),
        MATRICES: image_matrices.applies(op, machine),
        FILTERS: image_filters.applies(op, machine),
    }
    return (DIRECT, *(method for method, applies in others.items() if applies))


def _registers(tile: tuple[int, int, int]) -> RegisterTile:
    filters, rows, vectors = tile
    return RegisterTile(filters, rows * vectors)


def _fitting(op: QuantConv2d, machine: CpuModel) -> Iterator[tuple[int, int, int]]:
    """Register tiles that fit; several rows only where one tile has whole rows."""
    dot = image_dot(op, machine)
    shape = ImageWords(op, dot)
    wide = -(-shape.out_width // machine.lanes)
    for vectors in range(1, min(_MOST_VECTORS, wide) + 1):
        for rows in (1, 2, 3, 4) if vectors == wide else (1,):
            for filters in range(1, min(_MOST_FILTERS, shape.filters) + 1):
                tile = RegisterTile(filters, rows * vectors)
                if rows <= shape.out_height and tile_fits(tile, dot, machine):
                    yield filters, rows, vectors


def _grids(op: QuantConv2d, machine: CpuModel) -> list[tuple[int, int]]:
    """Pairs of blocks of pixels and parts of the filters."""
    shape, threads = ImageWords(op, image_dot(op, machine)), machine.threads
    units = -(-shape.out_width // machine.lanes) if shape.by_columns else shape.out_height
    blocks = [b for b in sorted({1, threads, 2 * threads, 4, 7, 8, 14, 28}) if b <= units]
    parts = [p for p in sorted({1, threads, 2 * threads}) if p <= max(1, shape.filters // 4)]
    return [(b, p) for b in blocks for p in parts if p == 1 or b * p <= 4 * threads]
