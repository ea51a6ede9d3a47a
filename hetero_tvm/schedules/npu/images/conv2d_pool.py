"""A convolution and the max pooling behind it as one kernel: the image between them never leaves the
unified buffer.

Loops: strips of some pooled rows.  The convolution's rows of a strip go from the accumulators to an image
in the unified buffer; the rows that the next strip's windows need too are copied there::

    L0B <- weights
    for strip:                      (two images in turns)
      L1 <- the rows of X that the next strip needs, channels last, if X is the host's
      for row of the convolution:   for part of the reduction: L0A <- patches; mmad;   UB <- L0C + bias
      largest over rows, then over columns (vector);  L1 or DRAM <- UB

Why it is fast: the image is the largest of many networks, and its way to DRAM and back costs more than
the products; every row is computed once, and a window costs two passes per axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hetero_tvm.host.tvm import Buffer, PrimFunc, tirx
from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.ops.base import Operand
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.layout import PLAIN
from hetero_tvm.ops.pool2d import MAX, Pool2d
from hetero_tvm.schedules.base import Knob, Packer, Point
from hetero_tvm.schedules.emit import Index
from hetero_tvm.schedules.npu import epilogue
from hetero_tvm.schedules.npu.base import CHANNELS_LAST, ROW_MAJOR, NpuSpace
from hetero_tvm.schedules.npu.emit import DRAM, L0A, L0B, L0C, L1, UB, At, Kernel
from hetero_tvm.schedules.npu.images.conv2d import by_taps
from hetero_tvm.schedules.npu.patches import Image
from hetero_tvm.schedules.npu.tiles import aligned_rows, ceil_div, extent_at, tile_count


@dataclass(frozen=True)
class ConvPool:
    """``pool(conv(x))``; operands are those of the convolution."""

    conv: Conv2d
    pool: Pool2d
    raw: bool = False
    """X is as the host has it, float32 and channels first, in DRAM; else it lies in L1."""

    @property
    def inputs(self) -> tuple[Operand, ...]:
        return self.conv.inputs

    @property
    def k(self) -> int:
        """Elements of a patch."""
        return self.conv.channels * math.prod(self.conv.kernel)


class ConvPoolSpace(NpuSpace):
    """The space of what the region builder joins; not for operators of a graph."""

    name = "npu.conv_pool"

    def refuses(self, op: ConvPool, machine: NpuMachine) -> str | None:
        conv, pool = op.conv, op.pool
        layouts = {conv.x_layout, conv.y_layout, conv.residual_layout, pool.x_layout, pool.y_layout}
        if conv.batch != 1 or conv.groups != 1 or layouts != {PLAIN}:
            return "takes one image and no groups"
        after = epilogue.split(conv.epilogue)
        if not after.bias or after.residual or after.rest:
            return "takes a bias and a relu behind the convolution"
        over = pool.kernel[0] - pool.strides[0]
        if pool.mode != MAX or pool.padding[0] != over or over < 1 or min(pool.strides) < 1:
            return "takes max pooling whose padding is what windows have in common"
        if max(pool.kernel[0] - 1, pool.kernel[1] - 1) < 1 or pool.padding[1] >= pool.kernel[1]:
            return "takes windows of two rows and columns at least"
        if not self._rows(op, machine):
            return "a strip does not fit the scratchpads"
        return None

    def knobs(self, op: ConvPool, machine: NpuMachine) -> tuple[Knob, ...]:
        return ()

    def default(self, op: ConvPool, machine: NpuMachine) -> Point:
        return {"rows": self._rows(op, machine)}

    def layouts(self, op: ConvPool) -> tuple[tuple[str, ...], str]:
        image = ROW_MAJOR if op.raw else CHANNELS_LAST
        return (image, *(ROW_MAJOR,) * (len(op.inputs) - 1)), CHANNELS_LAST

    def dtypes(self, op: ConvPool, machine: NpuMachine) -> tuple[str, ...]:
        first, *rest = super().dtypes(op, machine)
        return ("float32" if op.raw else first, *rest)

    def on_chip(self, op: ConvPool) -> frozenset[int]:
        return frozenset({len(op.inputs)}) if op.raw else frozenset({0, len(op.inputs)})

    def fitted(
        self, op: ConvPool, point: Point | None, machine: NpuMachine, held: frozenset[int], l1: int
    ) -> Point | None:
        c = op.conv
        own = 2 * op.k * c.filters + 2 * op.raw * c.height * c.width * c.channels
        return self.default(op, machine) if (op.raw or 0 in held) and own <= l1 else None

    def _rows(self, op: ConvPool, machine: NpuMachine) -> int:
        """Pooled rows per strip: as many as fit; 0 when none do."""
        spec, n = machine.spec, op.conv.filters
        product = _product_tile(op, spec)
        if product is None or 2 * product.weight_rows * n > spec.scratchpad("l0b"):
            return 0
        wide = _width(op)
        for rows in range(min(op.pool.out[0], 16), 0, -1):
            high = (rows - 1) * op.pool.strides[0] + op.pool.kernel[0]
            ub = 2 * n * (2 * high * wide + 2 * rows * wide + 2 * rows * op.pool.out[1]) + 4 * n + 256
            if op.raw:
                ub += 2 * _band(op, rows) * op.conv.width * _pixel_bytes(op)
            if ub <= spec.scratchpad("ub"):
                return rows
        return 0

    def pack(self, op: ConvPool, point: Point, machine: NpuMachine) -> dict[int, Packer]:
        """Weights as [taps x channels, filters]."""
        dtype = machine.numpy_dtype
        return {1: lambda w: np.ascontiguousarray(by_taps(w)).astype(dtype)}

    def emit(self, op: ConvPool, point: Point, machine: NpuMachine) -> PrimFunc:
        return self.emit_held(op, point, machine, frozenset() if op.raw else frozenset({0}))

    def emit_held(self, op: ConvPool, point: Point, machine: NpuMachine, held: frozenset[int]) -> PrimFunc:
        return _Emitter(op, point["rows"], machine, len(op.inputs) in held).run()


def _pixel_bytes(op: ConvPool) -> int:
    """Bytes of the unified buffer for a pixel of X on its way to L1: as it comes, and channels last."""
    return 4 * op.conv.channels + 2 * (op.conv.channels | 1)


def _band(op: ConvPool, rows: int) -> int:
    """Rows of X that come at once: those of one strip, so that all are on their way while the strip before
    is computed."""
    return rows * op.pool.strides[0] * op.conv.strides[0]


def _width(op: ConvPool) -> int:
    """Columns of the image in the unified buffer, padding included."""
    return (op.pool.out[1] - 1) * op.pool.strides[1] + op.pool.kernel[1]


@dataclass(frozen=True)
class _ProductTile:
    """Extents of one product, and places of all weights in L0B.

    Parameters
    ----------
    pixels, tk : output pixels, and elements of the reduction.
    part_rows : rows of weights from one part of the reduction to the next, where parts begin aligned.
    weight_rows : rows of all weights.
    """

    pixels: int
    tk: int
    part_rows: int
    weight_rows: int


def _product_tile(op: ConvPool, spec: NPUSpec) -> _ProductTile | None:
    """The largest tile of whole rows of taps, so that patches are long runs; None when nothing fits."""
    wide, n = op.conv.out_width, op.conv.filters
    tap_row = op.conv.kernel[1] * op.conv.channels
    for parts in range(1, wide + 1):
        pixels = ceil_div(wide, parts)
        rows = min(op.conv.kernel[0], spec.scratchpad("l0a") // (4 * pixels * tap_row))
        if rows >= 1 and 8 * pixels * n <= spec.scratchpad("l0c"):
            tk = ceil_div(op.conv.kernel[0], ceil_div(op.conv.kernel[0], rows)) * tap_row
            part_rows = tk if tk >= op.k else aligned_rows(tk, 2 * n, spec.alignment)
            return _ProductTile(pixels, tk, part_rows, (ceil_div(op.k, tk) - 1) * part_rows + tk)
    return None


class _Emitter:
    """Writes the loops."""

    def __init__(self, op: ConvPool, rows: int, machine: NpuMachine, y_held: bool):
        self.op, self.rows, self.dtype, self.y_held = op, rows, machine.dtype, y_held
        tile = _product_tile(op, machine.spec)
        assert tile is not None
        self.tile = tile
        self.high = (rows - 1) * op.pool.strides[0] + op.pool.kernel[0]
        """Rows of the image in the unified buffer."""
        self.wide = _width(op)
        self.shared = op.pool.kernel[0] - op.pool.strides[0]
        """Rows that one strip leaves to the next."""
        self.k = Kernel()

    def run(self) -> PrimFunc:
        op, k, dtype = self.op, self.k, self.dtype
        c, pool, n = op.conv, op.pool, op.conv.filters
        with k:
            if op.raw:
                host = k.argument("X", (c.channels, c.height, c.width), "float32")
            else:
                x = k.argument("X", (1, c.height, c.width, c.channels), dtype, L1)
            w = k.argument("W", (op.k, n), dtype)
            bias = k.argument("bias", (n,), "float32")
            y = k.argument("Y", (1, *pool.out, n), dtype, L1 if self.y_held else DRAM)
            w1, b0 = k.alloc(L1, (op.k, n), dtype), k.alloc(L0B, (self.tile.weight_rows, n), dtype)
            self.bias = k.alloc(UB, (n,), "float32")
            self.image = k.alloc(UB, (2, self.high, self.wide, n), dtype)
            k.load((op.k, n), At(w1, lambda a, b: (a, b)), At(w, lambda a, b: (a, b)))
            k.load((n,), At(self.bias, lambda b: (b,)), At(bias, lambda b: (b,)))
            self._move_weights(b0, w1)
            left = pool.padding[1]
            right = max(self.wide - left - c.out_width, 0)
            for first, count in ((0, left), (self.wide - right, right)):
                if count:
                    self._fill_lowest(
                        (2, self.high, count, n), lambda v, a, b, q, first=first: (v, a, first + b, q)
                    )
            self._fill_lowest((self.shared, self.wide, n), lambda a, b, q: (0, a, b, q))
            strips = ceil_div(pool.out[0], self.rows)
            if op.raw:
                x = k.alloc(L1, (1, c.height, c.width, c.channels), dtype)
                with k.loop(strips + 1) as t:
                    self._load_rows(host, x, t)
                    with k.when(t > 0):
                        self._strip(x, b0, y, t - 1)
            else:
                with k.loop(strips) as t:
                    self._strip(x, b0, y, t)
        return k.function

    def _move_weights(self, b0: Buffer, w1: Buffer) -> None:
        op, k, n, tile = self.op, self.k, self.op.conv.filters, self.tile
        if tile.part_rows == tile.tk:
            k.move((op.k, n), At(b0, lambda a, b: (a, b)), At(w1, lambda a, b: (a, b)))
            return
        with k.loop(ceil_div(op.k, tile.tk)) as r:
            box = (extent_at(op.k, tile.tk, r), n)
            source = At(w1, lambda a, b: (r * tile.tk + a, b))
            k.move(box, At(b0, lambda a, b: (r * tile.part_rows + a, b)), source)

    def _strip(self, x: Buffer, b0: Buffer, y: Buffer, t: Index) -> None:
        """Compute and store the pooled rows of strip ``t``."""
        op, k, wide, shared, n = self.op, self.k, self.wide, self.shared, self.op.conv.filters
        new = self.rows * op.pool.strides[0]
        turn = t % 2
        with k.when(t > 0):
            kept = At(self.image, lambda a, b, q: (1 - turn, self.high - shared + a, b, q))
            k.unary("copy", (shared, wide, n), At(self.image, lambda a, b, q: (turn, a, b, q)), kept)
        with k.loop(new) as r:
            row = t * new + r
            with k.when(row < op.conv.out_height):
                self._row(x, b0, row, turn, shared + r)
            with k.when(row >= op.conv.out_height):
                self._fill_lowest((wide, n), lambda b, q: (turn, shared + r, b, q))
        self._pool(y, t, turn)

    def _end(self, t: Index) -> Index:
        """Row of X behind the last one under strip ``t``."""
        c = self.op.conv
        rows = (t + 1) * (self.rows * self.op.pool.strides[0]) - 1
        reach = (c.kernel[0] - 1) * c.dilation[0] + 1
        return tirx.min(rows * c.strides[0] + (reach - c.padding[0]), c.height)

    def _load_rows(self, host: Buffer, x: Buffer, t: Index) -> None:
        """Load the rows of the host's image that strip ``t`` is the first to need into L1."""
        c, k, high = self.op.conv, self.k, _band(self.op, self.rows)
        first, end = tirx.min(self._end(t - 1), t * c.height), self._end(t)
        with k.loop(tile_count(end - first, high), buffers=2) as q:
            row = first + q * high
            n, wide = tirx.min(end - row, high), c.width
            a = k.alloc(UB, (c.channels, high * wide), "float32")
            # An odd pitch spreads a column over all banks.
            b = k.alloc(UB, (high * wide, c.channels | 1), self.dtype)
            planes = At(a, lambda i, y, j: (i, y * wide + j))
            k.load((c.channels, n, wide), planes, At(host, lambda i, y, j: (i, row + y, j)))
            k.unary("copy", (c.channels, n, wide), At(b, lambda i, y, j: (y * wide + j, i)), planes)
            target = At(x, lambda y, j, i: (0, row + y, j, i))
            k.store((n, wide, c.channels), target, At(b, lambda y, j, i: (y * wide + j, i)))

    def _fill_lowest(self, box: tuple[Index, ...], index: Callable[..., tuple[Index, ...]]) -> None:
        """Fill a box of the image with what no maximum takes."""
        self.k.fill(box, At(self.image, index), -math.inf)

    def _row(self, x: Buffer, b0: Buffer, row: Index, turn: Index, at: Index) -> None:
        """Compute one row of the convolution into row ``at`` of the image."""
        op, k, c, n, tile = self.op, self.k, self.op.conv, self.op.conv.filters, self.tile
        image = Image.of(c)
        relu = epilogue.split(c.epilogue).relu
        with k.loop(ceil_div(c.out_width, tile.pixels), buffers=2) as j:
            m = extent_at(c.out_width, tile.pixels, j)
            acc = k.alloc(L0C, (tile.pixels, n), "float32")
            with k.loop(ceil_div(op.k, tile.tk), buffers=2) as r:
                d = extent_at(op.k, tile.tk, r)
                a0 = k.alloc(L0A, (tile.pixels, tile.tk), self.dtype)
                first = row * c.out_width + j * tile.pixels
                image.patches(k, a0, (m, d), first, r * tile.tk, x)
                sums, patches = At(acc, lambda a, b, q: (a, b)), At(a0, lambda a, b, q: (a, q))
                weights = At(b0, lambda a, b, q: (r * tile.part_rows + q, b))
                k.mmad((m, n, d), sums, patches, weights, r == 0)
            column = op.pool.padding[1] + j * tile.pixels
            into = At(self.image, lambda a, b: (turn, at, column + a, b))
            bias = At(self.bias, lambda a, b: (b,))
            k.move_out((m, n), into, At(acc, lambda a, b: (a, b)), bias=bias, relu=relu)

    def _pool(self, y: Buffer, t: Index, turn: Index) -> None:
        """Take the largest over the rows of every window, then over its columns."""
        pool, k, n, p, wide = self.op.pool, self.k, self.op.conv.filters, self.rows, self.wide
        (kh, kw), (sh, sw) = pool.kernel, pool.strides
        count = extent_at(pool.out[0], p, t)
        with k.loop(1, buffers=2):
            tall = k.alloc(UB, (p, wide, n), self.dtype)
            out = k.alloc(UB, (p, pool.out[1], n), self.dtype)

            def row(i: int) -> At:
                return At(self.image, lambda a, b, q: (turn, a * sh + i, b, q))

            def column(j: int) -> At:
                return At(tall, lambda a, b, q: (a, b * sw + j, q))

            largest, result = At(tall, lambda a, b, q: (a, b, q)), At(out, lambda a, b, q: (a, b, q))
            k.binary("max", (count, wide, n), largest, row(0), row(1))
            for i in range(2, kh):
                k.binary("max", (count, wide, n), largest, largest, row(i))
            k.binary("max", (count, pool.out[1], n), result, column(0), column(1))
            for j in range(2, kw):
                k.binary("max", (count, pool.out[1], n), result, result, column(j))
            k.store((count, pool.out[1], n), At(y, lambda a, b, q: (0, t * p + a, b, q)), result)
