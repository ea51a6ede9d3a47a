"""A 1x1 convolution and the depthwise one behind it on channel blocks: the wide image stays in L1 or L2.

Loop structure::

    parallel over blocks of rows x channel blocks of the wide image:
        for each chunk of output rows:
            what the last chunk has left of rows that this one sees, too, moves up
            for each further row of the wide image, for each tile of its pixels:
                acc[pixel] = bias
                for each channel of X:                                       (unrolled by blocks)
                    acc[pixel] += splat(X[pixel, channel]) * W[channel, :]
                its epilogue, stored to L1
            for each tile of output pixels: as in ``images/depthwise.py``, from L1
        the halo of Y in these rows: zeros

Of an inverted residual the wide image is six times as large as what it is made of: it would be written to
and read from L3, or the caches of the core that computed it.  Here one thread computes both, channels of a
register at a time.  A small image is one chunk, and rows of it share a tile; blocks of rows compute the rows
between them twice, so that there are few.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.expand_depthwise import ExpandDepthwise
from hetero_tvm.ops.layout import Layout
from hetero_tvm.ops.matmul import BIAS
from hetero_tvm.schedules.base import DesignSpace, Knob, Packer, Point
from hetero_tvm.schedules.cpu.activation_code import ActivationCode
from hetero_tvm.schedules.cpu.images.blocked import PixelTile, Plane, each_column_tile, each_tile
from hetero_tvm.schedules.cpu.images.conv2d_blocked import BlockedConv2dSpace
from hetero_tvm.schedules.cpu.images.depthwise import DepthwiseKernel, DepthwiseSpace
from hetero_tvm.schedules.emit import Index, as_index, int32, pieces_of, share

_ROWS = (2, 4, 6, 8, 14)
"""Output rows of a chunk, where it is not the whole image."""
_CHUNK = 40.0
"""Cycles of the loops around a chunk."""
_BEYOND_L1 = 0.5
"""Cycles that a pixel of the wide image takes longer where L1 does not hold a chunk of it (measured)."""
_BETWEEN = 32.0
"""Bytes per cycle of an image between two kernels, each way."""
_DEPTHWISE = DepthwiseSpace()


class ExpandDepthwiseSpace(DesignSpace):
    """Knobs: register tile of the depthwise convolution (rows, columns) and of the 1x1 one, output rows of a
    chunk, blocks of rows."""

    name = "cpu.expand_depthwise"
    version = 1

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, ExpandDepthwise):
            return "not a 1x1 convolution with a depthwise one behind it"
        x = Layout.parse(op.x_layout)
        if x.block != machine.lanes:
            return f"the input is {op.x_layout}, not in blocks of {machine.lanes} channels"
        if op.strides[0] > op.kernel[0]:
            return "windows leave out rows"
        return _DEPTHWISE.refuses(between_blocks(op, machine), machine)

    def knobs(self, op: ExpandDepthwise, machine: CpuModel) -> tuple[Knob, ...]:
        depthwise = {k.name: k.choices for k in _DEPTHWISE.knobs(between_blocks(op, machine), machine)}
        height = op.out_image[2]
        return (
            Knob("tile", depthwise["tile"]),
            Knob("pixels", tuple(_pixel_tiles(op, machine))),
            Knob("rows", (height, *(rows for rows in _ROWS if rows < height))),
            Knob("blocks", tuple(b for b in (1, 2, 4, machine.threads) if b <= height)),
        )

    def default(self, op: ExpandDepthwise, machine: CpuModel) -> Point:
        tiles, pixels, rows, blocks = (knob.choices for knob in self.knobs(op, machine))
        # What the tiles of one convolution cost does not depend on those of the other.
        tile = min(tiles, key=lambda t: _depthwise_cycles(op, t, machine))
        some = [
            {"tile": tile, "pixels": p, "rows": r, "blocks": b} for p in pixels for r in rows for b in blocks
        ]
        return min(some, key=lambda point: self.estimate(op, point, machine))

    def features(self, op: ExpandDepthwise, point: Point, machine: CpuModel) -> list[float]:
        sizes = [math.log2(op.channels), math.log2(op.filters), math.log2(op.height * op.width)]
        shape = [op.kernel[0], op.strides[0]]
        decisions = [*point["tile"], *point["pixels"], point["rows"], point["blocks"]]
        return [*sizes, *shape, *decisions, math.log2(self.estimate(op, point, machine))]

    def estimate(self, op: ExpandDepthwise, point: Point, machine: CpuModel) -> float:
        """Cycles of one call on the busiest thread."""
        height, (kernel, stride) = op.out_image[2], (op.kernel[0], op.strides[0])
        rows = min(point["rows"], height)
        chunks = pieces_of(height, rows)
        blocks = min(point["blocks"], chunks)
        of_block = min(-(-chunks // blocks) * rows, height)
        wide = min((of_block - 1) * stride + kernel, op.height)
        pitch = op.width + op.padding[1] + op.padding[3]
        item = wide * _row_cycles(op, point["pixels"], chunks == 1, machine)
        item += of_block * _depthwise_cycles(op, point["tile"], machine) / height
        item += 2.0 * max(0, kernel - stride) * pitch * (-(-chunks // blocks) - 1) + _CHUNK * chunks / blocks
        if ((rows - 1) * stride + kernel) * pitch * machine.lanes * 4 > machine.l1:
            item += _BEYOND_L1 * wide * pitch
        work = -(-op.filters // machine.lanes) * blocks * op.batch
        # What is before it and behind it shares out rows.
        shared = machine.shared_lines(op.inputs[0].nbytes + op.output.nbytes, blocks * op.batch)
        return item * -(-work // machine.threads) + shared

    def pack(self, op: ExpandDepthwise, point: Point, machine: CpuModel) -> dict[int, Packer]:
        lanes, first = machine.lanes, op.expand_operands
        planes = -(-op.filters // lanes)
        room = planes * lanes - op.filters

        def weight(w: np.ndarray) -> np.ndarray:
            """[filters, C, 1, 1] -> [channel blocks, C, block]."""
            padded = np.pad(w.reshape(op.filters, op.channels), ((0, room), (0, 0)))
            return np.ascontiguousarray(padded.reshape(planes, lanes, op.channels).transpose(0, 2, 1))

        packers: dict[int, Packer] = {1: weight}
        if first > 2:
            packers[2] = lambda bias: np.pad(bias, (0, room))
        behind = _DEPTHWISE.pack(between_blocks(op, machine), point, machine)
        return packers | {index + first - 1: packer for index, packer in behind.items()}

    def emit(self, op: ExpandDepthwise, point: Point, machine: CpuModel) -> PrimFunc:
        return ExpandDepthwiseKernel(op, point, machine).emit()


def chain_pays(op: ExpandDepthwise, expand: Conv2d, depthwise: Conv2d, machine: CpuModel) -> bool:
    """Whether one kernel takes less time than the two, which write and read the image between."""
    apart = 0.0
    for space, one in ((BlockedConv2dSpace(), expand), (_DEPTHWISE, depthwise)):
        if space.refuses(one, machine) is not None:
            return False
        apart += space.estimate(one, space.default(one, machine), machine)
    apart += 2 * expand.output.nbytes / _BETWEEN / machine.threads
    space = ExpandDepthwiseSpace()
    return space.estimate(op, space.default(op, machine), machine) < apart


def between_blocks(op: ExpandDepthwise, machine: CpuModel) -> Conv2d:
    """The depthwise convolution, of an image on channel blocks with the zeros that it wants."""
    return dataclasses.replace(op.depthwise, x_layout=str(Layout(machine.lanes, op.padding)))


def _pixel_tiles(op: ExpandDepthwise, machine: CpuModel) -> list[tuple[int, int]]:
    """Tiles (rows, columns) of pixels with an accumulator each; columns divide a row evenly."""
    limit = machine.registers - 3
    tiles = []
    pieces = -(-op.width // limit)
    for parts in range(pieces, min(op.width, pieces + 2) + 1):
        columns = -(-op.width // parts)
        tiles.append((1, columns))
        rows = min(op.height, limit // columns)
        if parts == 1 and rows > 1:
            tiles.append((rows, columns))
    return tiles


def _row_cycles(op: ExpandDepthwise, pixels: tuple[int, int], whole: bool, machine: CpuModel) -> float:
    """Cycles of one row of the wide image, by tiles of ``pixels``."""
    rows, columns = pixels if whole else (1, pixels[1])

    def tile(width: int) -> float:
        count = rows * width
        step = max(count / machine.fma_units, machine.broadcast_cycles * count, machine.fma_latency)
        return op.channels * step + 3.0 * count + 10

    full, rest = divmod(op.width, columns)
    return (full * tile(columns) + (tile(rest) if rest else 0.0)) / rows


def _depthwise_cycles(op: ExpandDepthwise, tile: tuple[int, int], machine: CpuModel) -> float:
    """Cycles of the depthwise convolution of one channel block on one thread."""
    one, alone = (
        dataclasses.replace(op, batch=1, filters=machine.lanes),
        dataclasses.replace(machine, threads=1),
    )
    return _DEPTHWISE.estimate(between_blocks(one, machine), {"tile": tile, "blocks": 1}, alone)


class ExpandDepthwiseKernel(DepthwiseKernel):
    """Emits both convolutions."""

    def __init__(self, op: ExpandDepthwise, point: Point, machine: CpuModel):
        super().__init__(between_blocks(op, machine), PixelTile.of(point["tile"]), 1, machine)
        self.pair, (self.wide_rows, self.columns) = op, point["pixels"]
        self.rows = min(point["rows"], self.op.out_height)
        self.chunks = pieces_of(self.op.out_height, self.rows)
        self.blocks = min(point["blocks"], self.chunks)
        self.pitch = self.x_layout.pitch(op.width)
        self.image = Plane(self.k, Layout.parse(op.x_layout), op.height, op.width)
        self.activations = ActivationCode(op.expand_epilogue, machine)

    def write(self) -> None:
        """Write arguments and loops to ``k``."""
        pair, k, lanes = self.pair, self.k, self.lanes
        x = k.argument("X", pair.inputs[0].shape)
        self.expand_w = k.argument("expand_W", (self.planes, pair.channels, lanes))
        self.expand_bias: Buffer | None = None
        if BIAS in pair.expand_epilogue:
            self.expand_bias = k.argument("expand_bias", (self.planes * lanes,))
        self.w = k.argument("W", (self.planes, math.prod(pair.kernel), lanes))
        self.out.declare(self.planes * lanes)
        self.source = self.image.view(x)
        with k.imported(*dict.fromkeys((*self.out.imports, *self.activations.imports))):
            with k.parallel(pair.batch * self.planes * self.blocks, pair.flops) as item:
                self._item(item)

    def plane_of(self, channel_block: Expr) -> Index:
        return int32(0)

    def first_pixel(self, y: Index, x: Index) -> Expr:
        (down, across), first = self.op.strides, self.first_row
        return (y - first) * (down * self.pitch) + x * across

    def _item(self, item: Expr) -> None:
        """Emit one block of rows of one channel block."""
        k, op, pair = self.k, self.op, self.pair
        block = k.let(tirx.floormod(tirx.floordiv(item, self.planes), self.blocks))
        self.batch = k.let(tirx.floordiv(item, self.planes * self.blocks))
        self.channel_block = k.let(tirx.floormod(item, self.planes))
        plane = self.plane = k.let(self.batch * self.planes + self.channel_block)
        whole = self.chunks == 1
        first, count = (k.let(as_index(part)) for part in share(block, self.chunks, self.blocks))
        top, left, bottom, right = pair.padding
        height = (self.rows - 1) * pair.strides[0] + pair.kernel[0]
        height = max(height, top + pair.height + bottom) if whole else height
        self.x = k.scratch((1, height * self.pitch * self.lanes))
        with k.serial(height) as row:
            self._clear(row * self.pitch, left)
            self._clear(row * self.pitch + left + pair.width, right)
        if whole:
            self.first_row = int32(0)
            self._clear(int32(0), top * self.pitch)
            self._clear(int32((top + pair.height) * self.pitch), (height - top - pair.height) * self.pitch)
            tiles = pieces_of(pair.height, self.wide_rows)
            each_tile(
                k, int32(0), tiles, pair.height, self.wide_rows, lambda y, n: self._expand(y + top, y, n)
            )
            self._depthwise(plane, int32(0), op.out_height)
        else:
            each_tile(k, first, count, op.out_height, self.rows, lambda y, n: self._chunk(plane, first, y, n))
        rows = tirx.min(count * self.rows, op.out_height - first * self.rows)
        ends = (block == 0, block == self.blocks - 1)
        self.out.clear_halo(plane, first * self.rows, rows, *ends)

    def _chunk(self, plane: Expr, first: Expr, y: Index, rows: int) -> None:
        """Emit output rows [y, y + rows) of a block whose first chunk is number ``first``."""
        k, pair = self.k, self.pair
        down, again = pair.strides[0], pair.kernel[0] - pair.strides[0]
        begin = k.let(tirx.Select(tirx.EQ(y, first * self.rows), int32(0), int32(again)))
        above = k.let(y * down - pair.padding[0])
        with k.serial((rows - 1) * down + pair.kernel[0] - begin) as number:
            row = k.let(begin + number)
            at = k.let(above + row)
            k.branch(
                tirx.all(at >= 0, at < pair.height),
                lambda: self._expand(row, at, 1),
                lambda: self._clear(row * self.pitch, self.pitch),
            )
        self.first_row = y
        self._depthwise(plane, y, rows)
        if again:
            with k.serial(again * self.pitch) as pixel:
                source = [0, k.ramp((rows * down * self.pitch + pixel) * self.lanes, self.lanes)]
                k.store(self.x, k.load(self.x, source), [0, k.ramp(pixel * self.lanes, self.lanes)])

    def _clear(self, pixel: Expr, count: int) -> None:
        """Emit zeros for ``count`` pixels of the wide image."""
        if count:
            with self.k.serial(count) as n:
                at = [0, self.k.ramp((pixel + n) * self.lanes, self.lanes)]
                self.k.store(self.x, self.k.splat(0.0, self.lanes), at)

    def _depthwise(self, plane: Expr, y: Index, rows: int) -> None:
        """Emit output rows [y, y + rows), of what the wide image holds."""
        k, op, high = self.k, self.op, self.tile.rows

        def tile_row(down: Index, count: int) -> None:
            def tile(x: Index, columns: int) -> None:
                self.tile_at(plane, y + down, x, count, columns)

            each_column_tile(k, op.out_width, self.tile.columns, tile)

        each_tile(k, int32(0), pieces_of(rows, high), rows, high, tile_row)

    def _expand(self, row: Index, at: Index, rows: int) -> None:
        """Emit rows of the wide image from ``row``: those of X from ``at``."""

        def tile(x: Index, columns: int) -> None:
            self._products(row, at, x, rows, columns)

        each_column_tile(self.k, self.pair.width, self.columns, tile)

    def _products(self, row: Index, at: Index, x: Index, rows: int, columns: int) -> None:
        """Emit pixels [row, row + rows) x [x, x + columns) of the wide image."""
        k, lanes, pair, image = self.k, self.lanes, self.pair, self.image
        acc = k.scratch((rows * columns, lanes))
        lane, block = k.ramp(0, lanes), image.layout.block
        start = k.splat(0.0, lanes)
        if self.expand_bias is not None:
            start = k.let(k.load(self.expand_bias, [k.ramp(self.channel_block * lanes, lanes)]))
        with k.unroll(rows * columns) as p:
            k.store(acc, start, [p, lane])
        self._ask_ahead(at, x, rows, columns)
        planes = image.layout.blocks(pair.channels)

        def of_block(number: Expr, count: int) -> None:
            plane = self.batch * planes + number
            with k.unroll(count) as c:
                weights = k.load(self.expand_w, [self.channel_block, number * block + c, lane])
                with k.unroll(rows) as r, k.unroll(columns) as q:
                    plane_at, pixel = image.first(plane, at + r, x + q)
                    value = k.splat(k.load(self.source, [plane_at, pixel + c]), lanes)
                    target = [r * columns + q, lane]
                    k.store(acc, k.load(acc, target) + value * weights, target)

        full, rest = divmod(pair.channels, block)
        if full:
            with k.serial(full) as number:
                of_block(number, block)
        if rest:
            of_block(int32(full), rest)
        self._finish(acc, row, x, rows, columns)

    def _ask_ahead(self, at: Index, x: Index, rows: int, columns: int) -> None:
        """Ask for the lines of Y that pixels of the wide image lead to: others have read what lay there."""
        k, op, (down, across) = self.k, self.op, self.pair.strides
        for r in range(0, rows, down):
            y = tirx.min(tirx.floordiv(at + r, down), int32(op.out_height - 1))
            for q in range(0, columns, across):
                to = tirx.min(tirx.floordiv(x + q, across), int32(op.out_width - 1))
                k.prefetch(self.out.y, self.out.plane.first(self.plane, y, to), into=1, to_write=True)

    def _finish(self, acc: Buffer, row: Index, x: Index, rows: int, columns: int) -> None:
        """Emit the epilogue of the 1x1 convolution, and what it gives."""
        k, lanes, pair = self.k, self.lanes, self.pair
        steps: list[Callable[[Expr], Expr]] = [
            lambda value, step=step: self.activations.apply(step, value, lanes)
            for step in pair.expand_epilogue
            if step != BIAS
        ]
        left = pair.padding[1]
        with k.unroll(rows) as r, k.unroll(columns) as q:
            value = k.load(acc, [r * columns + q, k.ramp(0, lanes)])
            for step in steps:
                value = step(value)
            pixel = (row + r) * self.pitch + left + x + q
            k.store(self.x, value, [0, k.ramp(pixel * lanes, lanes)])
