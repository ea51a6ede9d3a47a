"""3x3 convolutions of 8-bit images by Winograd's method, in float32 between bytes and bytes.

Loop structure::

    for each image:
        parallel over channels:                                   V, [points, channels, tiles]
            rows of X as float32, less the zero point, every fourth column together
            for each vector of tiles: B^T d B of their 6 x 6 inputs
        parallel over blocks of rows of tiles x parts of the filters:
            for each group of filter tiles:
                for each of the 36 points, vectors of tiles, filter tiles:
                    acc[filters][vectors] = V[point, channels, tiles] x splat(U[point, channels, filter])
                    stored to M, [points, filters, tiles]                                   (L2)
                for each filter: A^T m A, rounded to integers; rows of pixels; then as in ``image_kernel.py``

Four times fewer products than the convolution has: without an instruction for words of four bytes (AVX2
has none) this is the faster way, as float32 multiplies at least half as many numbers in a cycle as integers
do.  The sums are integers and are rounded to them, so that the result is that of the integer kernels
wherever they stay below some 400,000 in magnitude; beyond, the error of a sum is about 1e-6 of the largest
one, far below the step of the result.  A vector runs over tiles of one image, as images are plain.
"""

from __future__ import annotations

import numpy as np

from hetero_tvm.codegen.saturation import saturation_ir
from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.integers.quantized import OFFSET, QuantConv2d
from hetero_tvm.schedules.cpu.integers.image_kernel import ImageDecisions, ImageResult
from hetero_tvm.schedules.cpu.register_tile import RegisterTile
from hetero_tvm.schedules.cpu.winograd import FILTER, winograd
from hetero_tvm.schedules.emit import Index, Kernel, as_index, int32, share, vector_loop, vector_pieces

SIZE = 4
"""Outputs of a tile per side."""

_FORM = winograd(SIZE)
POINTS = _FORM.reach**2

_TRANSFORM, _PIXEL = 250.0, 1.0
"""Cycles of the transforms of a vector of tiles, and of a pixel on its way in or out."""

_MEMORY = 2.5
"""Bytes per cycle that filters come from memory with, for each thread."""

_FAR = 6.0
"""Bytes per cycle that tiles come from memory with."""

_MOST_GROUP = 4
"""Filter tiles that pass over the channels of a point together."""


def applies(op: QuantConv2d) -> bool:
    """Whether the method computes the operator, whose sums are scaled: their last bits do not count."""
    square = op.kernel == (FILTER, FILTER) and op.strides == op.dilation == (1, 1) and op.groups == 1
    return square and op.scaled


class TileRows:
    """Tiles of one convolution, in blocks of whole rows of tiles.

    Attributes
    ----------
    rows, columns : of tiles in an image.
    block_rows, blocks : rows of tiles in a block; blocks.
    vectors : vectors of tiles in a block.
    pitch : tiles from one channel of V to the next: the last vectors reach past the image.
    group : filter tiles that pass over the channels of a point together.
    """

    def __init__(self, op: QuantConv2d, tile: RegisterTile, blocks: int, machine: CpuModel):
        lanes = machine.lanes
        _, _, height, width = op.output.shape
        self.rows, self.columns = -(-height // SIZE), -(-width // SIZE)
        self.block_rows = -(-self.rows // min(blocks, self.rows))
        self.blocks = -(-self.rows // self.block_rows)
        self.vectors = -(-self.block_rows * self.columns // lanes)
        last = (self.blocks - 1) * self.block_rows * self.columns + self.vectors * lanes
        self.pitch = max(last, (self.rows - 1) * self.columns + -(-self.columns // lanes) * lanes)
        one = 4 * POINTS * tile.rows * self.vectors * lanes
        self.group = max(1, min(_MOST_GROUP, machine.l2 // 2 // one))


def cycles(op: QuantConv2d, tile: RegisterTile, grid: tuple[int, int], machine: CpuModel) -> float:
    """Estimate of one call on the busiest thread."""
    tiles, lanes = TileRows(op, tile, grid[0], machine), machine.lanes
    most = min(tile.vectors, tiles.vectors)
    filter_tiles = -(-op.filters // tile.rows)
    parts = min(grid[1], filter_tiles)

    def products(vectors: int) -> float:
        one = RegisterTile(tile.rows, vectors)
        return op.channels * one.step_cycles(machine, machine.load_cycles) + 20 + 2.0 * tile.rows * vectors

    full, rest = divmod(tiles.vectors, most)
    pixels = tiles.block_rows * SIZE * op.output.shape[3]
    finish = tile.rows * (_TRANSFORM * tiles.vectors + _PIXEL * pixels)
    of_tile = POINTS * (full * products(most) + (products(rest) if rest else 0.0)) + finish
    compute = -(-tiles.blocks * parts // machine.threads) * -(-filter_tiles // parts) * of_tile
    rows = SIZE * tiles.rows + FILTER - 1
    begin = _TRANSFORM * tiles.rows * -(-tiles.columns // lanes) + _PIXEL * rows * op.width
    begin *= -(-op.channels // machine.threads)
    filters = 4.0 * POINTS * op.channels * op.filters * tiles.blocks
    held = 4.0 * POINTS * tile.rows * tiles.group * tiles.vectors * lanes
    spilled = max(0.0, held - machine.l2 / 2) / 8 * filter_tiles / tiles.group * tiles.blocks
    if 4.0 * POINTS * op.channels * tiles.pitch > machine.l3 / 2:
        # Groups of filters that pass over more tiles than L2 holds fetch them from memory each time.
        taken = 4.0 * POINTS * op.channels * tiles.vectors * lanes
        passes = -(-filter_tiles // parts) / tiles.group * -(-tiles.blocks * parts // machine.threads)
        spilled += max(0.0, taken - machine.l2 / 2) / _FAR * passes
    read = filters / (_MEMORY * machine.threads)
    return op.batch * (max(compute, read) + 0.3 * (compute + read) + begin + spilled + 1200)


def weight_shape(op: QuantConv2d, height: int) -> tuple[int, int, int]:
    """[tiles of ``height`` filters, points * channels + 1, height], int32."""
    return -(-op.filters // height), POINTS * op.channels + 1, height


def pack(op: QuantConv2d, w: np.ndarray, height: int) -> np.ndarray:
    """int8 [filters, channels, 3, 3] -> :func:`weight_shape`: the bits of the transformed filters in float32,
    and behind them the sums of each filter times the zero point, which the pixels count less."""
    tiles, rows, _ = weight_shape(op, height)
    packed = np.zeros((tiles * height, rows), np.int32)
    moved = _FORM.filter(w).astype("float32").reshape(op.filters, op.channels, POINTS)
    bits = np.ascontiguousarray(moved.transpose(0, 2, 1)).view(np.int32)
    packed[: op.filters, :-1] = bits.reshape(op.filters, -1)
    packed[: op.filters, -1] = op.fill * w.reshape(op.filters, -1).astype(np.int64).sum(-1)
    return np.ascontiguousarray(packed.reshape(tiles, height, rows).transpose(0, 2, 1))


class WinogradImageKernel:
    """Emits one convolution; ``rows`` and ``vectors`` of its decisions are vectors of tiles."""

    def __init__(self, op: QuantConv2d, decisions: ImageDecisions, machine: CpuModel):
        self.op, self.lanes = op, machine.lanes
        self.height = decisions.filters
        tile = RegisterTile(decisions.filters, decisions.rows * decisions.vectors)
        self.tiles = TileRows(op, tile, decisions.blocks, machine)
        self.most_vectors = min(tile.vectors, self.tiles.vectors)
        self.filter_tiles = -(-op.filters // self.height)
        self.parts = min(decisions.parts, self.filter_tiles)
        self.k = Kernel()

    def emit(self) -> PrimFunc:
        """The PrimFunc: X, packed W, bias, scale, the residual's operands, Y."""
        op, k = self.op, self.k
        with k:
            x = k.argument("X", op.inputs[0].shape, op.x_dtype)
            w = k.argument("W", self.weight_shape, "int32")
            self.convolve(x, w, ImageResult.of_arguments(k, op))
        return k.function

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the packed weights."""
        return weight_shape(self.op, self.height)

    def convolve(self, x: Buffer, w: Buffer, result: ImageResult) -> None:
        """Emit the loops over an image X and packed W."""
        op, k, tiles = self.op, self.k, self.tiles
        self.w, self.result = w, result
        self.x = k.view(x, (op.batch * op.channels, op.height * op.width))
        self.v = k.scratch((POINTS, op.channels, tiles.pitch))
        with k.imported(saturation_ir()), k.serial(op.batch) as image:
            with k.parallel(op.channels, op.flops) as channel:
                self._transform_channel(image, channel)
            with k.parallel(tiles.blocks * self.parts, op.flops) as item:
                self._item(image, tirx.floordiv(item, self.parts), tirx.floormod(item, self.parts))

    # the input -----------------------------------------------------------------------------------
    def _transform_channel(self, image: Expr, channel: Expr) -> None:
        """V[:, channel]: the transformed tiles of one channel."""
        op, k, tiles, lanes = self.op, self.k, self.tiles, self.lanes
        rows, units = SIZE * tiles.rows + FILTER - 1, tiles.columns + 1
        across = -(-tiles.columns // lanes)
        line = k.scratch((SIZE * units,))
        phases = k.scratch((rows, SIZE, across * lanes + lanes))
        vector_loop(
            k, SIZE * units, lanes, lambda at, n: k.store(line, k.splat(0.0, n), [k.ramp(at, n)]), unroll=2
        )
        zero = float(op.fill + OFFSET[op.x_dtype])
        plane, (top, left) = image * op.channels + channel, op.padding[:2]

        def convert(at: Index, width: int) -> None:
            many = f"x{width}" if width > 1 else ""
            value = k.load(self.x, [plane, k.ramp(self.y * op.width + at, width)])
            value = value.astype(f"int32{many}").astype(f"float32{many}") - k.splat(zero, width)
            k.store(line, value, [k.ramp(at + left, width)])

        with k.serial(rows) as row:
            self.y = row - top

            def inside() -> None:
                vector_loop(k, op.width, lanes, convert)
                # LLVM makes vectors of this loop, and shuffles of its strides.
                with k.serial(units) as unit, k.unroll(SIZE) as phase:
                    k.store(phases, k.load(line, [unit * SIZE + phase]), [row, phase, unit])

            def outside() -> None:
                for phase in range(SIZE):

                    def clear(at: Index, width: int, phase: int = phase) -> None:
                        k.store(phases, k.splat(0.0, width), [row, phase, k.ramp(at, width)])

                    vector_loop(k, units, lanes, clear)

            k.branch(tirx.all(self.y >= 0, self.y < op.height), inside, outside)
        with k.serial(tiles.rows) as row, k.serial(across) as vector:
            self._transform_tiles(phases, channel, row, vector * lanes)

    def _transform_tiles(self, phases: Buffer, channel: Expr, row: Expr, first: Expr) -> None:
        """A vector of tiles of one row of tiles; what reaches past the row is overwritten by the next one."""
        k, lanes, reach = self.k, self.lanes, _FORM.reach
        half, lane = k.scratch((POINTS, lanes)), k.ramp(0, lanes)
        for j in range(reach):
            loaded = [
                k.let(k.load(phases, [row * SIZE + i, j % SIZE, k.ramp(first + j // SIZE, lanes)]))
                for i in range(reach)
            ]
            for i, value in enumerate(_FORM.input_side(k, loaded)):
                k.store(half, value, [i * reach + j, lane])
        for i in range(reach):
            values = [k.load(half, [i * reach + j, lane]) for j in range(reach)]
            for j, value in enumerate(_FORM.input_side(k, values)):
                at = k.ramp(row * self.tiles.columns + first, lanes)
                k.store(self.v, value, [i * reach + j, channel, at])

    # the products --------------------------------------------------------------------------------
    def _item(self, image: Expr, block: Expr, part: Expr) -> None:
        """One block of tiles for one part of the filters."""
        k, tiles = self.k, self.tiles
        first, count = share(part, self.filter_tiles, self.parts)
        m = k.scratch((POINTS, tiles.group * self.height, tiles.vectors * self.lanes))
        start = block * (tiles.block_rows * tiles.columns)
        groups = tirx.floordiv(as_index(count) + (tiles.group - 1), tiles.group)
        with k.serial(groups) as number:
            tile = first + number * tiles.group
            many = k.let(tirx.min(int32(tiles.group), first + count - tile))
            with k.serial(POINTS) as point:
                full, rest = divmod(tiles.vectors, self.most_vectors)
                with k.serial(full) as vector:
                    self._products(m, tile, many, point, start, vector * self.most_vectors, self.most_vectors)
                if rest:
                    self._products(m, tile, many, point, start, int32(full * self.most_vectors), rest)
            with k.serial(many) as t, k.serial(self.height) as f:
                one = (tile + t) * self.height + f
                with k.when(one < self.op.filters if self.op.filters % self.height else True):
                    self._finish(m, image, block, tile + t, f, t * self.height + f)

    def _products(
        self, m: Buffer, tile: Expr, many: Expr, point: Expr, start: Expr, vector: Expr, vectors: int
    ) -> None:
        """M[point] of ``many`` filter tiles for some vectors of tiles."""
        k, op, lanes = self.k, self.op, self.lanes
        with k.serial(many) as t:
            acc = k.scratch((self.height, vectors * lanes))
            with k.unroll(self.height) as f, k.unroll(vectors) as v:
                k.store(acc, k.splat(0.0, lanes), [f, k.ramp(v * lanes, lanes)])
            unroll = max(u for u in (1, 2, 4) if op.channels % u == 0)
            with k.serial(op.channels // unroll) as outer, k.unroll(unroll) as inner:
                channel = outer * unroll + inner
                with k.unroll(self.height) as f, k.unroll(vectors) as v:
                    bits = k.load(self.w, [tile + t, point * op.channels + channel, f])
                    weight = k.splat(tirx.reinterpret("float32", bits), lanes)
                    place = start + (vector + v) * lanes
                    value = weight * k.load(self.v, [point, channel, k.ramp(place, lanes)])
                    target = [f, k.ramp(v * lanes, lanes)]
                    k.store(acc, k.load(acc, target) + value, target)
            with k.unroll(self.height) as f, k.unroll(vectors) as v:
                value = k.load(acc, [f, k.ramp(v * lanes, lanes)])
                k.store(m, value, [point, t * self.height + f, k.ramp((vector + v) * lanes, lanes)])

    # the output ----------------------------------------------------------------------------------
    def _finish(self, m: Buffer, image: Expr, block: Expr, tile: Expr, f: Expr, held: Expr) -> None:
        """The outputs of one filter: tiles to rows of int32 sums, and those to the result."""
        op, k, tiles, lanes = self.op, self.k, self.tiles, self.lanes
        _, _, height, width = op.output.shape
        sums = k.scratch((SIZE * SIZE, tiles.vectors * lanes), "int32")
        with k.serial(tiles.vectors) as vector:
            self._output_tiles(m, sums, held, vector * lanes)
        one = tile * self.height + f
        start = k.load(self.w, [tile, int32(POINTS * op.channels), f])
        way = self.result.of_filter(image * op.filters + one, one, start)
        line = k.scratch((SIZE * tiles.columns,), "int32")
        rows = block * (tiles.block_rows * SIZE)
        with k.serial(tiles.block_rows) as row, k.serial(SIZE) as i:
            y = k.let(rows + row * SIZE + i)
            with k.when(y < height):
                with k.serial(tiles.columns) as unit, k.unroll(SIZE) as j:
                    value = k.load(sums, [i * SIZE + j, row * tiles.columns + unit])
                    k.store(line, value, [unit * SIZE + j])
                pieces = vector_pieces(width, lanes)
                self.result.put(
                    [(way, k.load(line, [k.ramp(at, many)]), y * width + at, many) for at, many in pieces]
                )

    def _output_tiles(self, m: Buffer, sums: Buffer, held: Expr, first: Expr) -> None:
        """A^T m A of a vector of tiles, as integers."""
        k, lanes, reach = self.k, self.lanes, _FORM.reach
        half, lane, at = k.scratch((SIZE * reach, lanes)), k.ramp(0, lanes), k.ramp(first, lanes)
        for j in range(reach):
            values = [k.let(k.load(m, [i * reach + j, held, at])) for i in range(reach)]
            for i, value in enumerate(_FORM.output_side(k, values)):
                k.store(half, value, [i * reach + j, lane])
        for i in range(SIZE):
            values = [k.load(half, [i * reach + j, lane]) for j in range(reach)]
            for j, value in enumerate(_FORM.output_side(k, values)):
                whole = tirx.nearbyint(value).astype(f"int32x{lanes}")
                k.store(sums, whole, [i * SIZE + j, at])
