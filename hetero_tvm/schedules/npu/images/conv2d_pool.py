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
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_tvm.host.tvm import tirx
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.layout import PLAIN
from hetero_tvm.ops.pool2d import MAX, Pool2d
from hetero_tvm.schedules.npu import epilogue
from hetero_tvm.schedules.npu.base import CHANNELS_LAST, ROW_MAJOR, NpuSpace
from hetero_tvm.schedules.npu.emit import DRAM, L0A, L0B, L0C, L1, UB, At, Kernel
from hetero_tvm.schedules.npu.patches import Image
from hetero_tvm.schedules.npu.tiles import aligned_rows, ceil_div, extent_at


@dataclass(frozen=True)
class ConvPool:
    """``pool(conv(x))``; operands are those of the convolution."""

    conv: Conv2d
    pool: Pool2d
    raw: bool = False
    """X is as the host has it, float32 and channels first, in DRAM; else it lies in L1."""

    @property
    def inputs(self) -> tuple[Any, ...]:
        return self.conv.inputs

    @property
    def k(self) -> int:
        return self.conv.channels * math.prod(self.conv.kernel)


class ConvPoolSpace(NpuSpace):
    """Not for operators of a graph: the region builder joins two of them."""

    name = "npu.conv_pool"

    def refuses(self, op: Any, machine: Any) -> str | None:
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

    def knobs(self, op: Any, machine: Any) -> tuple[Any, ...]:
        return ()

    def default(self, op: Any, machine: Any) -> dict[str, Any]:
        return {"rows": self._rows(op, machine)}

    def layouts(self, op: Any) -> tuple[tuple[str, ...], str]:
        image = ROW_MAJOR if op.raw else CHANNELS_LAST
        return (image, *(ROW_MAJOR,) * (len(op.inputs) - 1)), CHANNELS_LAST

    def dtypes(self, op: Any, machine: Any) -> tuple[str, ...]:
        first, *rest = super().dtypes(op, machine)
        return ("float32" if op.raw else first, *rest)

    def on_chip(self, op: Any) -> frozenset[int]:
        return frozenset({len(op.inputs)}) if op.raw else frozenset({0, len(op.inputs)})

    def fitted(self, op: Any, point: Any, machine: Any, held: frozenset[int], l1: int) -> Any:
        c = op.conv
        own = 2 * op.k * c.filters + 2 * op.raw * c.height * c.width * c.channels
        return self.default(op, machine) if (op.raw or 0 in held) and own <= l1 else None

    def _rows(self, op: ConvPool, machine: Any) -> int:
        """Pooled rows per strip: as many as fit; 0 when none do."""
        spec, n = machine.spec, op.conv.filters
        if _tile(op, spec) is None or 2 * _weight_rows(op, spec) * n > spec.scratchpad("l0b"):
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

    def pack(self, op: Any, point: Any, machine: Any) -> dict[int, Any]:
        """Weights as [taps, channels] x filters."""
        from hetero_tvm.machines.npu.numbers import numpy_dtype

        dtype = numpy_dtype(machine.short)
        n = op.conv.filters
        return {1: lambda w: np.ascontiguousarray(w.transpose(2, 3, 1, 0).reshape(-1, n)).astype(dtype)}

    def emit(self, op: Any, point: Any, machine: Any) -> Any:
        return self.emit_held(op, point, machine, frozenset() if op.raw else frozenset({0}))

    def emit_held(self, op: ConvPool, point: Any, machine: Any, held: frozenset[int]) -> Any:
        return _Emitter(op, point["rows"], machine, len(op.inputs) in held).run()


def _pixel_bytes(op: ConvPool) -> int:
    """Of the unified buffer, on the way of X to L1: as it comes, and channels last."""
    return 4 * op.conv.channels + 2 * (op.conv.channels | 1)


def _band(op: ConvPool, rows: int) -> int:
    """Rows of X that come at once: those of one strip, so that all are on their way while the strip before
    is computed."""
    return rows * op.pool.strides[0] * op.conv.strides[0]


def _width(op: ConvPool) -> int:
    """Columns of the image in the unified buffer, padding included."""
    return (op.pool.out[1] - 1) * op.pool.strides[1] + op.pool.kernel[1]


def _tile(op: ConvPool, spec: Any) -> tuple[int, int] | None:
    """Pixels, and elements of the reduction, per product: whole rows of taps, so that patches are long
    runs; None when nothing fits."""
    wide, n = op.conv.out_width, op.conv.filters
    tap_row = op.conv.kernel[1] * op.conv.channels
    for parts in range(1, wide + 1):
        pixels = ceil_div(wide, parts)
        rows = min(op.conv.kernel[0], spec.scratchpad("l0a") // (4 * pixels * tap_row))
        if rows >= 1 and 8 * pixels * n <= spec.scratchpad("l0c"):
            rows = ceil_div(op.conv.kernel[0], ceil_div(op.conv.kernel[0], rows))
            return pixels, rows * tap_row
    return None


def _part_rows(op: ConvPool, spec: Any) -> int:
    """Rows of weights from one part of the reduction to the next in L0B, where parts begin aligned."""
    _, tk = _tile(op, spec)
    return tk if tk >= op.k else aligned_rows(tk, 2 * op.conv.filters, spec.alignment)


def _weight_rows(op: ConvPool, spec: Any) -> int:
    """Rows of all weights in L0B."""
    _, tk = _tile(op, spec)
    return (ceil_div(op.k, tk) - 1) * _part_rows(op, spec) + tk


class _Emitter:
    def __init__(self, op: ConvPool, rows: int, machine: Any, y_held: bool):
        self.op, self.rows, self.dtype, self.y_held = op, rows, machine.dtype, y_held
        self.pixels, self.tk = _tile(op, machine.spec)
        self.part_rows, self.weight_rows = _part_rows(op, machine.spec), _weight_rows(op, machine.spec)
        self.k = Kernel()

    def run(self) -> Any:
        op, k, dtype, p = self.op, self.k, self.dtype, self.rows
        c, pool, n = op.conv, op.pool, op.conv.filters
        (kh, _), (sh, _) = pool.kernel, pool.strides
        high, wide, shared = (p - 1) * sh + kh, _width(op), kh - sh
        with k:
            if op.raw:
                host = k.argument("X", (c.channels, c.height, c.width), "float32")
            else:
                x = k.argument("X", (1, c.height, c.width, c.channels), dtype, L1)
            w = k.argument("W", (op.k, n), dtype)
            bias = k.argument("bias", (n,), "float32")
            y = k.argument("Y", (1, *pool.out, n), dtype, L1 if self.y_held else DRAM)
            w1, b0 = k.alloc(L1, (op.k, n), dtype), k.alloc(L0B, (self.weight_rows, n), dtype)
            self.bias = k.alloc(UB, (n,), "float32")
            self.image = k.alloc(UB, (2, high, wide, n), dtype)
            k.load((op.k, n), At(w1, lambda a, b: (a, b)), At(w, lambda a, b: (a, b)))
            k.load((n,), At(self.bias, lambda b: (b,)), At(bias, lambda b: (b,)))
            self._move_weights(b0, w1)
            left, right = pool.padding[1], wide - pool.padding[1] - c.out_width
            for first, count in ((0, left), (wide - max(right, 0), max(right, 0))):
                if count:
                    self._lowest((2, high, count, n), lambda v, a, b, q, f=first: (v, a, f + b, q))
            self._lowest((shared, wide, n), lambda a, b, q: (0, a, b, q))
            strips = ceil_div(pool.out[0], p)
            if op.raw:
                x = k.alloc(L1, (1, c.height, c.width, c.channels), dtype)
                with k.loop(strips + 1) as t:
                    self._rows_of(host, x, t)
                    with k.when(t > 0):
                        self._strip(x, b0, y, t - 1)
            else:
                with k.loop(strips) as t:
                    self._strip(x, b0, y, t)
        return k.function

    def _move_weights(self, b0: Any, w1: Any) -> None:
        op, k, n = self.op, self.k, self.op.conv.filters
        if self.part_rows == self.tk:
            k.move((op.k, n), At(b0, lambda a, b: (a, b)), At(w1, lambda a, b: (a, b)))
            return
        with k.loop(ceil_div(op.k, self.tk)) as r:
            d = extent_at(op.k, self.tk, r)
            k.move(
                (d, n), At(b0, lambda a, b: (r * self.part_rows + a, b)),
                At(w1, lambda a, b: (r * self.tk + a, b)),
            )  # fmt: skip

    def _strip(self, x: Any, b0: Any, y: Any, t: Any) -> None:
        op, k, p = self.op, self.k, self.rows
        (kh, _), (sh, _) = op.pool.kernel, op.pool.strides
        high, wide, shared, n = (p - 1) * sh + kh, _width(op), kh - sh, op.conv.filters
        turn = t % 2
        with k.when(t > 0):
            k.unary(
                "copy", (shared, wide, n), At(self.image, lambda a, b, q: (turn, a, b, q)),
                At(self.image, lambda a, b, q: (1 - turn, high - shared + a, b, q)),
            )  # fmt: skip
        with k.loop(p * sh) as r:
            row = t * (p * sh) + r
            with k.when(row < op.conv.out_height):
                self._row(x, b0, row, turn, shared + r)
            with k.when(row >= op.conv.out_height):
                self._lowest((wide, n), lambda b, q: (turn, shared + r, b, q))
        self._pool(y, t, turn)

    def _end(self, t: Any) -> Any:
        """One past the last row of X under strip ``t``."""
        c = self.op.conv
        rows = (t + 1) * (self.rows * self.op.pool.strides[0]) - 1
        reach = (c.kernel[0] - 1) * c.dilation[0] + 1
        return tirx.min(rows * c.strides[0] + (reach - c.padding[0]), c.height)

    def _rows_of(self, host: Any, x: Any, t: Any) -> None:
        """Rows of the host's image that strip ``t`` is the first to need, into L1."""
        c, k, high = self.op.conv, self.k, _band(self.op, self.rows)
        first, end = tirx.min(self._end(t - 1), t * c.height), self._end(t)
        with k.loop((end - first + (high - 1)) // high, buffers=2) as q:
            row = first + q * high
            n, wide = tirx.min(end - row, high), c.width
            a = k.alloc(UB, (c.channels, high * wide), "float32")
            # An odd pitch spreads a column over all banks.
            b = k.alloc(UB, (high * wide, c.channels | 1), self.dtype)
            k.load(
                (c.channels, n, wide), At(a, lambda i, y, j: (i, y * wide + j)),
                At(host, lambda i, y, j: (i, row + y, j)),
            )  # fmt: skip
            k.unary(
                "copy", (c.channels, n, wide), At(b, lambda i, y, j: (y * wide + j, i)),
                At(a, lambda i, y, j: (i, y * wide + j)),
            )  # fmt: skip
            k.store(
                (n, wide, c.channels), At(x, lambda y, j, i: (0, row + y, j, i)),
                At(b, lambda y, j, i: (y * wide + j, i)),
            )  # fmt: skip

    def _lowest(self, box: tuple[Any, ...], index: Any) -> None:
        self.k.fill(box, At(self.image, index), -math.inf)

    def _row(self, x: Any, b0: Any, row: Any, turn: Any, at: Any) -> None:
        """One row of the convolution into row ``at`` of the image."""
        op, k, c, n = self.op, self.k, self.op.conv, self.op.conv.filters
        image = Image(
            c.height, c.width, c.channels, c.kernel, c.strides, c.dilation, c.padding[:2], c.out_width
        )
        relu = epilogue.split(c.epilogue).relu
        with k.loop(ceil_div(c.out_width, self.pixels), buffers=2) as j:
            m = extent_at(c.out_width, self.pixels, j)
            acc = k.alloc(L0C, (self.pixels, n), "float32")
            with k.loop(ceil_div(op.k, self.tk), buffers=2) as r:
                d = extent_at(op.k, self.tk, r)
                a0 = k.alloc(L0A, (self.pixels, self.tk), self.dtype)
                first = row * c.out_width + j * self.pixels
                image.patches(k, a0, (m, d), first, r * self.tk, x)
                k.mmad(
                    (m, n, d), At(acc, lambda a, b, q: (a, b)), At(a0, lambda a, b, q: (a, q)),
                    At(b0, lambda a, b, q: (r * self.part_rows + q, b)), r == 0,
                )  # fmt: skip
            column = op.pool.padding[1] + j * self.pixels
            k.move_out(
                (m, n), At(self.image, lambda a, b: (turn, at, column + a, b)), At(acc, lambda a, b: (a, b)),
                bias=At(self.bias, lambda a, b: (b,)), relu=relu,
            )  # fmt: skip

    def _pool(self, y: Any, t: Any, turn: Any) -> None:
        """Largest over the rows of every window, then over its columns."""
        pool, k, n, p = self.op.pool, self.k, self.op.conv.filters, self.rows
        (kh, kw), (sh, sw) = pool.kernel, pool.strides
        count, wide = extent_at(pool.out[0], p, t), _width(self.op)
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

