"""8-bit convolutions of images whose sizes are known when they come: the kernels of one size, tile by tile.

Loop structure::

    parallel over images and tiles of R x C output pixels:                   (their number: a run-time value)
        the part of X that the tile reads, padding written out -> an image of one size        (bytes, in L2)
        the convolution of that size                       direct, on the matrix unit, or by Winograd's method
        what the tile has of Y <- its result

So every register tile, packing of words and way out is that of ``quant_conv2d.py``, at its speed; what is new
is a copy of bytes on either side, of some hundredths of the time, and the pixels of tiles at the edges that
are computed and thrown away.  A 1 x 1 convolution looks at no neighbours: its images are rows of pixels.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.integers.quantized import OFFSET, QuantConv2d
from hetero_tvm.schedules.cpu.integers.image_kernel import ImageKernel, ImageResult
from hetero_tvm.schedules.cpu.integers.image_winograd import WinogradImageKernel
from hetero_tvm.schedules.cpu.symbolic.tails import narrowed, told_sizes
from hetero_tvm.schedules.emit import Index, Kernel, in_powers_of_two, int32, pieces_of, vector_pieces
from hetero_tvm.schedules.extents import Unfit
from hetero_tvm.schedules.symbolic import Witnesses, shape_variables

OneSize = ImageKernel | WinogradImageKernel
"""Kernel of a convolution of one size."""

_ROWS = (8, 2, 16)
_PIXELS_IN_A_ROW = (64, 256)
"""Pixels of a tile where images are rows of pixels."""
_OF_L2 = 0.5
"""Share of L2 that a tile of X and of Y take at most."""
_BYTES = 64
"""Bytes of a vector that is copied, at most."""
_COPIED = 16.0
"""Bytes of the copies that take a cycle, roughly."""


class ImageTile(NamedTuple):
    """Output pixels that are computed together, and whether an image is one row of them."""

    rows: int
    columns: int
    flat: bool

    def convolution(self, op: QuantConv2d) -> QuantConv2d:
        """The convolution of one tile, padding written out."""
        (kh, kw), (sh, sw), (dh, dw) = op.kernel, op.strides, op.dilation
        height, width = (self.rows - 1) * sh + (kh - 1) * dh + 1, (self.columns - 1) * sw + (kw - 1) * dw + 1
        return dataclasses.replace(op, batch=1, height=height, width=width, padding=(0, 0, 0, 0))

    def count(self, op: QuantConv2d) -> int:
        """Tiles of a call."""
        _, _, height, width = op.output.shape
        if self.flat:
            height, width = 1, height * width
        return op.batch * -(-height // self.rows) * -(-width // self.columns)


def is_flat(ops: Sequence[QuantConv2d]) -> bool:
    """Whether the pixels of an image are one row: a filter of one tap looks at no neighbours."""
    return all(op.kernel == op.strides == (1, 1) and not any(op.padding) for op in ops)


def tiles_for(ops: Sequence[QuantConv2d], machine: CpuModel) -> Iterator[ImageTile]:
    """Tiles that a call of several sizes may have; those that L2 holds, or the smallest."""
    widest = max(op.output.shape[3] for op in ops)
    if is_flat(ops):
        found = [ImageTile(1, columns, True) for columns in _PIXELS_IN_A_ROW]
    else:
        tallest = max(op.output.shape[2] for op in ops)
        rows = [1] if tallest == 1 else [r for r in _ROWS if r == 2 or r <= 2 * tallest]
        columns = [n * machine.lanes for n in (1, 2, 4) if n == 1 or (n - 1) * machine.lanes < widest]
        found = [ImageTile(r, c, False) for r in rows for c in columns]

    def held(tile: ImageTile) -> int:
        one = tile.convolution(ops[0])
        return one.inputs[0].nbytes + one.output.nbytes

    fitting = [tile for tile in found if held(tile) <= _OF_L2 * machine.l2]
    yield from fitting or [min(found, key=held)]


def cycles_of_all(ops: Sequence[QuantConv2d], tile: ImageTile, of_one: float, machine: CpuModel) -> float:
    """Sum over the sizes of the estimated time, each by that of its products alone; ``of_one`` are the cycles
    of the convolution of a tile."""
    one = tile.convolution(ops[0])
    copies = (one.inputs[0].nbytes + (2 if one.residual else 1) * one.output.nbytes) / _COPIED
    turns = [-(-tile.count(op) // machine.threads) for op in ops]
    return sum(turn * (of_one + copies) / max(1, op.flops) for turn, op in zip(turns, ops, strict=True))


class _OneThread(Kernel):
    """A kernel whose parallel loops run on the thread that comes to them, but for the ``outer`` ones."""

    outer = False

    @contextmanager
    def parallel(self, extent: Index, flops: Index | None = None) -> Iterator[Expr]:
        if not self.outer:
            with self.serial(extent) as i:
                yield i
            return
        self.outer = False
        with super().parallel(extent, flops) as i:
            yield i


class RunTimeImageKernel:
    """Emits one convolution.

    Parameters
    ----------
    witnesses : it, at several sizes.
    tile : output pixels that are computed together.
    inner : kernel of the convolution of a tile.

    Raises
    ------
    Unfit : the images have one size.
    """

    def __init__(self, witnesses: Witnesses, tile: ImageTile, inner: OneSize, machine: CpuModel):
        if not changes_size(witnesses.ops):
            raise Unfit("the images have one size")
        self.op: QuantConv2d = witnesses.largest
        self.witnesses, self.tile, self.inner, self.machine = witnesses, tile, inner, machine
        self.one: QuantConv2d = tile.convolution(self.op)
        self.k = inner.k = _OneThread()

    def emit(self) -> PrimFunc:
        """The PrimFunc: X, packed W, bias, scale, the residual's operands, what only tells sizes, Y."""
        op, k = self.op, self.k
        with k:
            variables = shape_variables(self.witnesses.symbols)
            shapes = self.witnesses.shapes(variables)
            x = k.argument("X", shapes[0], op.x_dtype)
            w = k.argument("W", self.inner.weight_shape, "int32")
            extra = [
                k.argument(o.name, shape, o.dtype)
                for o, shape in zip(op.inputs[2:], shapes[2 : len(op.inputs)], strict=True)
            ]
            told_sizes(k, self.witnesses, shapes[len(op.inputs) : -1])
            y = k.argument("Y", shapes[-1], op.output.dtype)
            self._sizes(narrowed(k, variables))
            k.outer = True
            with k.parallel(self.batch * self.down * self.across) as item:
                self._item(item, x, w, extra, y)
        return k.function

    def _sizes(self, variables: dict[str, Expr]) -> None:
        """Name the extents of this call, all int32."""
        k, flat = self.k, self.tile.flat

        def named(of: Callable[[QuantConv2d], int]) -> Index:
            return k.named(self.witnesses.value(of, variables))

        def rows_and_columns(of: Callable[[QuantConv2d], tuple[int, int]]) -> tuple[Index, Index]:
            if flat:
                return 1, named(lambda op: math.prod(of(op)))
            return named(lambda op: of(op)[0]), named(lambda op: of(op)[1])

        self.batch = named(lambda op: op.batch)
        self.height, self.width = rows_and_columns(lambda op: (op.height, op.width))
        self.out_height, self.out_width = rows_and_columns(lambda op: op.output.shape[2:])
        self.top, self.left = (named(lambda op, side=side: op.padding[side]) for side in range(2))
        self.down = k.named(pieces_of(self.out_height, self.tile.rows))
        self.across = k.named(pieces_of(self.out_width, self.tile.columns))

    def _item(self, item: Expr, x: Buffer, w: Buffer, extra: list[Buffer], y: Buffer) -> None:
        """Emit one tile of one image."""
        k, op, one, tile = self.k, self.op, self.one, self.tile
        image = k.let(tirx.truncdiv(item, self.down * self.across))
        rest = item - image * (self.down * self.across)
        row = k.let(tirx.truncdiv(rest, self.across) * tile.rows)
        column = k.let(tirx.truncmod(rest, self.across) * tile.columns)
        # Vectors of a row may end in the next one, and those of the last row behind it.
        part = k.scratch((one.channels * one.height * one.width + _BYTES,), op.x_dtype)
        self._fetch(part, x, image, row, column)
        results = k.scratch(one.output.shape, op.output.dtype)
        operands = list(extra)
        if op.residual:
            operands[-1] = k.scratch(one.output.shape, op.residual)
            self._each_row_of_results(image, row, column, y=extra[-1], part=operands[-1], out=False)
        part = k.view(part, (one.channels, one.height * one.width))
        self.inner.convolve(part, w, ImageResult(k, one, operands, results))
        self._each_row_of_results(image, row, column, y=y, part=results, out=True)

    def _fetch(self, part: Buffer, x: Buffer, image: Expr, row: Expr, column: Expr) -> None:
        """Emit the copy of what a tile reads of X."""
        k, op, one = self.k, self.op, self.one
        total = self.batch * op.channels * self.height * self.width
        source = k.view(x, (total,))
        first_row = k.let(row * op.strides[0] - self.top)
        first = k.let(column * op.strides[1] - self.left)
        low, high = k.let(tirx.max(-first, int32(0))), k.let(tirx.min(int32(one.width), self.width - first))
        filler = tirx.const(op.fill + OFFSET[op.x_dtype], op.x_dtype)
        padded = any(any(each.padding) for each in self.witnesses.ops)
        pieces = [(at, _vector(one.width - at)) for at in range(0, one.width, _BYTES)]
        reach = sum(pieces[-1])
        with k.serial(one.channels) as channel, k.serial(one.height) as line:
            y = k.let(first_row + line)
            target = k.let((channel * one.height + line) * one.width)

            def fill() -> None:
                for at, width in vector_pieces(one.width, _BYTES):
                    k.store(part, k.splat(filler, width), [k.ramp(target + at, width)])

            def copy() -> None:
                start = k.let(((image * op.channels + channel) * self.height + y) * self.width + first)

                def vectors() -> None:
                    for at, width in pieces:
                        value = k.load(source, [k.ramp(start + at, width)])
                        if padded:
                            place = k.ramp(int32(at), width)
                            inside = tirx.And(place >= k.splat(low, width), place < k.splat(high, width))
                            value = tirx.Select(inside, value, k.splat(filler, width))
                        k.store(part, value, [k.ramp(target + at, width)])

                def one_by_one() -> None:
                    with k.serial(one.width) as at:
                        inside = tirx.all(at >= low, at < high)
                        value = tirx.if_then_else(inside, k.load(source, [start + at]), filler)
                        k.store(part, value, [target + at])

                k.branch(tirx.all(start >= 0, start + reach <= total), vectors, one_by_one)

            outside = tirx.any(y < 0, y >= self.height)
            k.branch(outside, fill, copy)

    def _each_row_of_results(
        self, image: Expr, row: Expr, column: Expr, y: Buffer, part: Buffer, out: bool
    ) -> None:
        """Emit the copy of a tile's results, ``out`` to Y, or in from a tensor like it."""
        k, op, tile = self.k, self.op, self.tile
        many = k.let(tirx.min(int32(tile.columns), self.out_width - column))
        rows = tirx.min(int32(tile.rows), self.out_height - row)
        whole = k.view(y, (self.batch * op.filters * self.out_height * self.out_width,))
        own = k.view(part, (op.filters * tile.rows * tile.columns,))
        lanes = _BYTES // np.dtype(str(y.dtype)).itemsize
        with k.serial(op.filters) as channel, k.serial(rows) as line:
            place = k.let(
                ((image * op.filters + channel) * self.out_height + row + line) * self.out_width + column
            )
            local = k.let((channel * tile.rows + line) * tile.columns)

            def move(at: Index, width: int) -> None:
                ends = [[k.ramp(place + at, width)], [k.ramp(local + at, width)]]
                if out:
                    k.store(whole, k.load(own, ends[1]), ends[0])
                else:
                    k.store(own, k.load(whole, ends[0]), ends[1])

            def all_of_them() -> None:
                for at, width in vector_pieces(tile.columns, lanes):
                    move(at, width)

            def some() -> None:
                in_powers_of_two(k, int32(0), many, tile.columns, move)

            k.branch(tirx.EQ(many, int32(tile.columns)), all_of_them, some)


def changes_size(ops: Sequence[QuantConv2d]) -> bool:
    """Whether images differ in their rows or columns."""
    return len({(op.height, op.width) for op in ops}) > 1


def _vector(extent: int) -> int:
    """Bytes of a vector that holds so many, as far as one does."""
    return min(_BYTES, max(16, 1 << (extent - 1).bit_length()))
