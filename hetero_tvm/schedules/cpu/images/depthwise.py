"""Depthwise convolution on channel blocks (NCHW[x]c): one filter per channel, one vector per pixel.

Loop structure::

    parallel over blocks of rows (of a single row: of columns) x channel blocks:
        for each tile of rows x columns of the output:
            acc[pixel] = bias                                                    (registers)
            for each slice of a volume that the filter covers:
              for each pixel of the input under the tile:                        (unrolled)
                  one vector load, and an FMA into every output pixel that sees it
            epilogue on the registers, stored to Y
        the halo of Y in these rows: zeros

A 3x3 filter uses an input vector up to nine times from one load, so that a tile of 2 x 7 pixels loads
36 vectors for 126 FMAs: arithmetic, not the load port, is the bound.  Zeros around the planes come with
X's halo.  A block of channels at a time is small enough for L1/L2, and every thread reads what it has
probably written in the 1x1 convolution before: pixels of all channels of a large image, channels of a small
one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np

from hetero_tvm.host.tvm import Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.layout import Layout
from hetero_tvm.ops.matmul import BIAS, tensors_of
from hetero_tvm.ops.volumes.conv3d import Conv3d
from hetero_tvm.schedules.base import DesignSpace, Knob, Packer, Point
from hetero_tvm.schedules.cpu.images.blocked import (
    BlockedOutput,
    PixelTile,
    Plane,
    each_column_tile,
    each_tile,
)
from hetero_tvm.schedules.cpu.images.slice_planes import SlicePlanes
from hetero_tvm.schedules.emit import Index, Kernel, as_index, int32, is_single, pieces_of, share, smallest

_UNROLLED = 800
"""Most FMAs of one tile: the whole tile is straight-line code."""


class DepthwiseSpace(DesignSpace):
    """Knobs: register tile (rows, columns), blocks of rows."""

    name = "cpu.depthwise"
    version = 1

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if type(op) not in (Conv2d, Conv3d):
            return "not a convolution"
        if not op.depthwise:
            return "not depthwise"
        if not op.constant_weight:
            return "the weight is not constant"
        x, y, residual = (Layout.parse(t) for t in (op.x_layout, op.y_layout, op.residual_layout))
        blocks = {x.block, y.block} | ({residual.block} if tensors_of(op.epilogue) else set())
        if blocks != {machine.lanes}:
            return f"the images are not all in blocks of {machine.lanes} channels"
        if not x.covers(op.padding):
            return f"the input is {op.x_layout}, without the padding {op.padding} around it"
        if min(*op.out_image, *op.kernel) < 1:
            return "an extent is zero"
        if math.prod(op.kernel) > _UNROLLED:
            return f"{math.prod(op.kernel)} filter taps, at most {_UNROLLED}"
        return None

    def knobs(self, op: Conv2d, machine: CpuModel) -> tuple[Knob, ...]:
        most = op.out_width // 4 + 1 if is_single(op.out_height) else op.out_height
        blocks = tuple(b for b in (1, 2, 4, 7, 14, 28) if b <= most)
        return (Knob("tile", tuple(_tiles(op, machine))), Knob("blocks", blocks))

    def default(self, op: Conv2d, machine: CpuModel) -> Point:
        tiles, blocks = (knob.choices for knob in self.knobs(op, machine))
        points = [{"tile": t, "blocks": b} for t in tiles for b in blocks]
        return min(points, key=lambda point: _cost(op, point, machine))

    def features(self, op: Conv2d, point: Point, machine: CpuModel) -> list[float]:
        tile = PixelTile.of(point["tile"])
        sizes = [math.log2(op.channels), math.log2(op.out_height * op.out_width), math.prod(op.kernel)]
        decisions = [tile.rows, tile.columns, tile.pixels, point["blocks"]]
        rests = [op.out_height % tile.rows, op.out_width % tile.columns]
        return [*sizes, op.strides[0], *decisions, *rests, math.log2(_cost(op, point, machine))]

    def estimate(self, op: Conv2d, point: Point, machine: CpuModel) -> float:
        return _cost(op, point, machine)

    def of_all_sizes(self, ops: Sequence[Conv2d], machine: CpuModel) -> Point | None:
        if len({op.image[2:] for op in ops}) == 1:
            return None
        taps, limit = math.prod(ops[0].kernel), machine.registers - 4
        tiles = [
            (rows, columns)
            for rows, columns in product((1, 2, 3, 4), (1, 2, 4, 6, 7, 8, 10, 12, 14, 20, 28))
            if rows * columns <= limit and rows * columns * taps <= _UNROLLED
        ]
        points = [{"tile": t, "blocks": b} for t in tiles or [(1, 1)] for b in (1, 2, 4, 7, 14, 28)]

        def cost(point: Point) -> float:
            return sum(math.log(_cost(op, point, machine)) for op in ops)

        return min(points, key=cost)

    def pack(self, op: Conv2d, point: Point, machine: CpuModel) -> dict[int, Packer]:
        lanes, taps = machine.lanes, op.per_filter * math.prod(op.kernel)
        blocks = -(-op.filters // lanes)

        def weight(w: np.ndarray) -> np.ndarray:
            """[C, slices, KH, KW] -> [channel blocks, taps, block]."""
            padded = np.pad(w.reshape(op.filters, taps), ((0, blocks * lanes - op.filters), (0, 0)))
            return np.ascontiguousarray(padded.reshape(blocks, lanes, taps).transpose(0, 2, 1))

        packers: dict[int, Packer] = {1: weight}
        for index, operand in enumerate(op.inputs):
            if operand.name == BIAS:
                packers[index] = lambda bias: np.pad(bias, (0, blocks * lanes - op.filters))
        return packers

    def emit(self, op: Conv2d, point: Point, machine: CpuModel) -> PrimFunc:
        return DepthwiseKernel(op, PixelTile.of(point["tile"]), point["blocks"], machine).emit()


def _tiles(op: Conv2d, machine: CpuModel) -> list[tuple[int, int]]:
    """Tiles (rows, columns) whose accumulators leave a few registers, columns dividing a row evenly."""
    limit = machine.registers - 4
    tiles = set()
    pieces = -(-op.out_width // limit)
    for parts in range(pieces, min(op.out_width, pieces + 8) + 1):
        columns = -(-op.out_width // parts)
        for rows in (1, 2, 3, 4):
            few = rows == columns == 1
            if rows * columns <= limit and rows <= op.out_height:
                if few or rows * columns * math.prod(op.kernel) <= _UNROLLED:
                    tiles.add((rows, columns))
    return sorted(tiles) or [(1, 1)]


def _reach(op: Conv2d, rows: int, columns: int) -> int:
    """Input pixels under a tile."""
    extents = [range(extent) for extent in (rows, columns, *op.kernel)]
    used = {
        (r * op.strides[0] + i * op.dilation[0], q * op.strides[1] + j * op.dilation[1])
        for r, q, i, j in product(*extents)
    }
    return len(used)


_CROWDED = 0.5
"""Share of a tile's products that load their weight again where registers do not hold them."""


def _cost(op: Conv2d, point: Point, machine: CpuModel) -> float:
    """Cycles of one call on the busiest thread."""
    chosen, taps = PixelTile.of(point["tile"]), math.prod(op.kernel)
    rows, columns = chosen.rows, chosen.columns

    def tile(height: int, width: int) -> float:
        if not height or not width:
            return 0.0
        pixels = height * width
        held = pixels + taps + 1 <= machine.registers  # the weights stay in registers
        loads = _reach(op, height, width) + (0 if held else taps)
        # An input pixel meets the weights of as many filter rows as the tile has.
        if pixels + min(height, op.kernel[0]) * op.kernel[1] + 1 > machine.registers:
            loads += _CROWDED * taps * pixels
        loads *= machine.load_cycles
        products = taps * max(pixels / machine.fma_units, machine.fma_latency)
        work = max(loads, products) + 0.3 * min(loads, products)
        return work * op.per_filter + 3.0 * pixels + 10

    high, wide = op.out_height // rows, op.out_width // columns
    low, narrow = op.out_height % rows, op.out_width % columns
    plane = high * wide * tile(rows, columns) + high * tile(rows, narrow)
    plane += wide * tile(low, columns) + tile(low, narrow)
    units = -(-op.out_width // columns) if is_single(op.out_height) else -(-op.out_height // rows)
    work = min(point["blocks"], units) * -(-op.filters // machine.lanes) * op.batch
    total = plane * -(-op.filters // machine.lanes) * op.batch
    # What is before it and behind it shares out rows.
    shared = machine.shared_lines(
        4.0 * op.batch * op.channels * op.height * op.width, op.batch * point["blocks"]
    )
    return total * -(-work // machine.threads) / work + 40.0 * work / machine.threads + shared


class DepthwiseKernel:
    """Emits one depthwise convolution, to ``k``, where extents known at run time are expressions."""

    def __init__(self, op: Conv2d, tile: PixelTile, blocks: int, machine: CpuModel, k: Kernel | None = None):
        self.op, self.lanes, self.tile = op, machine.lanes, tile
        self.by_columns = is_single(op.out_height)
        along = (op.out_width, tile.columns) if self.by_columns else (op.out_height, tile.rows)
        self.tiles = pieces_of(*along)
        self.blocks = smallest(blocks, self.tiles)
        self.x_layout = Layout.parse(op.x_layout)
        self.planes = -(-op.filters // machine.lanes)
        self.k = k or Kernel()
        self.out = BlockedOutput(self.k, op, machine)

    def emit(self) -> PrimFunc:
        """The PrimFunc: X, packed W, the epilogue's operands, Y."""
        with self.k:
            self.write()
        return self.k.function

    def write(self) -> None:
        """Write arguments and loops to ``k``."""
        op, k = self.op, self.k
        self.blocks = k.named(self.blocks)
        x = k.argument("X", op.inputs[0].shape)
        self.w = k.argument("W", (self.planes, op.per_filter * math.prod(op.kernel), self.lanes))
        self.out.declare(self.planes * self.lanes)
        self.x = Plane(k, self.x_layout, op.height, op.width).view(x)
        with k.imported(*self.out.imports):
            with k.parallel(op.batch * self.planes * self.blocks, op.flops) as item:
                self._item(item)

    def _item(self, item: Expr) -> None:
        """Emit one block of rows of one channel block."""
        k, op = self.k, self.op
        block = k.let(tirx.floormod(tirx.floordiv(item, self.planes), self.blocks))
        batch = k.let(tirx.floordiv(item, self.planes * self.blocks))
        plane = k.let(batch * self.planes + tirx.floormod(item, self.planes))
        self.slices = SlicePlanes(k, op, 1, batch)
        first, count = (k.let(as_index(part)) for part in share(block, self.tiles, self.blocks))
        height = self.tile.rows
        if self.by_columns:

            def tile_of_row(x: Index, columns: int) -> None:
                self.tile_at(plane, int32(0), x, 1, columns)

            each_tile(k, first, count, op.out_width, self.tile.columns, tile_of_row)
            with k.when(block == 0):
                self.out.clear_halo(plane, int32(0), int32(1), block == 0, block == 0)
            return

        def tile_row(y: Index, rows: int) -> None:
            def tile(x: Index, columns: int) -> None:
                self.tile_at(plane, y, x, rows, columns)

            each_column_tile(k, op.out_width, self.tile.columns, tile)

        each_tile(k, first, count, op.out_height, height, tile_row)
        rows = tirx.min(count * height, op.out_height - first * height)
        self.out.clear_halo(plane, first * height, rows, block == 0, block == self.blocks - 1)

    def first_pixel(self, y: Index, x: Index) -> Expr:
        """Place of the first pixel that output pixel (y, x) sees, in its plane."""
        op, layout = self.op, self.x_layout
        top, left = layout.halo[0] - op.padding[0], layout.halo[1] - op.padding[1]
        return (y * op.strides[0] + top) * layout.pitch(op.width) + x * op.strides[1] + left

    def plane_of(self, channel_block: Expr) -> Index:
        """The plane that a channel block reads."""
        return self.slices.first * self.planes + channel_block

    def tile_at(self, plane: Expr, y: Index, x: Index, rows: int, columns: int) -> None:
        """Output pixels [y, y + rows) x [x, x + columns) of one plane."""
        op, k, lanes = self.op, self.k, self.lanes
        (sh, sw), (dh, dw), (kh, kw) = op.strides, op.dilation, op.kernel
        channel_block = tirx.floormod(plane, self.planes)
        lane = k.ramp(0, lanes)
        acc = k.scratch((rows * columns, lanes))
        start = self.out.start(channel_block)
        for pixel in range(rows * columns):
            k.store(acc, start, [pixel, lane])
        sees: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for r, q, i, j in product(range(rows), range(columns), range(kh), range(kw)):
            at = (r * sh + i * dh, q * sw + j * dw)
            sees.setdefault(at, []).append((r * columns + q, i * kw + j))
        pitch = self.x_layout.pitch(op.width)
        first = self.first_pixel(y, x)

        def products(from_plane: Expr, first_tap: Index) -> None:
            for (down, right), uses in sorted(sees.items()):
                at = (first + down * pitch + right) * lanes
                value = k.let(k.load(self.x, [from_plane, k.ramp(at, lanes)]))
                for pixel, tap in uses:
                    term = value * k.load(self.w, [channel_block, first_tap + tap, lane])
                    k.store(acc, k.load(acc, [pixel, lane]) + term, [pixel, lane])

        if op.per_filter == 1:
            products(self.plane_of(channel_block), 0)
        else:
            begin, some = self.slices.inside(int32(0), int32(op.per_filter))
            with k.serial(some) as number:
                from_plane = (self.slices.first + begin + number) * self.planes + channel_block
                products(from_plane, (begin + number) * (kh * kw))
        for r, q in product(range(rows), range(columns)):
            self.out.put(k.load(acc, [r * columns + q, lane]), plane, channel_block, y + r, x + q)
