"""8-bit convolutions of images whose sizes are known when they come: the kernels of one size, tile by tile.

Loop structure::

    parallel over images, tiles of R x C output pixels, parts of the filters: (their number: a run-time value)
        the part of X that the tile reads, padding written out -> an image of one size        (bytes, in L2)
        the convolution of that size                       direct, on the matrix unit, or by Winograd's method
        what the tile has of Y <- its result

So every register tile, packing of words and way out is that of ``quant_conv2d.py``, at its speed; what is new
is a copy of bytes on either side, and the pixels of tiles at the edges that are computed and thrown away.  A
1 x 1 convolution looks at no neighbours: its images are rows of pixels.

Small images have few tiles.  Threads then share out the filters of a tile as well, and each makes the words
of the tile for itself.  Groups (the channels of a depthwise convolution) have nothing in common: some of them
are a piece of work of their own, whose tile lies in L1.
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
from hetero_tvm.schedules.emit import Index, Kernel, in_powers_of_two, int32, pieces_of, share, vector_pieces
from hetero_tvm.schedules.extents import Unfit
from hetero_tvm.schedules.symbolic import Witnesses, shape_variables

OneSize = ImageKernel | WinogradImageKernel
"""Kernel of a convolution of one size."""

_ROWS = (8, 2, 16)
_PIXELS_IN_A_ROW = (64, 256)
"""Pixels of a tile where images are rows of pixels."""
_LEAST_FILTERS = 16
"""Filters of a piece of the groups at least."""
_FEW_TILES = 4
"""Tiles for each thread up to which threads share out filters too: one left over would be waited for."""
_OF_L2 = 0.5
"""Share of L2 that a tile of X and of Y take at most."""
_BYTES = 64
"""Bytes of a vector that is copied, at most."""
_AGAIN = 0.1
"""Share of a tile's time that threads which share out its filters spend alike, roughly."""
_COPIED = 16.0
"""Bytes of the copies that take a cycle, roughly."""


class ImageTile(NamedTuple):
    """Output pixels that are computed together, and whether an image is one row of them."""

    rows: int
    columns: int
    flat: bool

    def convolution(self, op: QuantConv2d) -> QuantConv2d:
        """The convolution of one tile, padding written out, of as many groups as are computed together."""
        (kh, kw), (sh, sw), (dh, dw) = op.kernel, op.strides, op.dilation
        height, width = (self.rows - 1) * sh + (kh - 1) * dh + 1, (self.columns - 1) * sw + (kw - 1) * dw + 1
        one = dataclasses.replace(op, batch=1, height=height, width=width, padding=(0, 0, 0, 0))
        pieces = pieces_of_groups(op)
        channels, filters, groups = (n // pieces for n in (op.channels, op.filters, op.groups))
        return dataclasses.replace(one, channels=channels, filters=filters, groups=groups)

    def count(self, op: QuantConv2d) -> int:
        """Tiles of a call."""
        _, _, height, width = op.output.shape
        if self.flat:
            height, width = 1, height * width
        return op.batch * -(-height // self.rows) * -(-width // self.columns)


def pieces_of_groups(op: QuantConv2d) -> int:
    """Equal pieces of the groups of a convolution that are computed one by one."""
    least = min(op.groups, -(-_LEAST_FILTERS * op.groups // op.filters))
    return next(op.groups // n for n in range(least, op.groups + 1) if op.groups % n == 0)


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
    pieces = pieces_of_groups(ops[0])
    turns = [_turns(pieces * tile.count(op), one, machine.threads) for op in ops]
    return sum(turn * (of_one + copies) / max(1, op.flops) for turn, op in zip(turns, ops, strict=True))


def _turns(tiles: int, one: QuantConv2d, threads: int) -> float:
    """Tiles that come one after the other on a thread."""
    if one.groups == 1 and tiles < _FEW_TILES * threads:
        return tiles / threads * (1.0 + _AGAIN * (threads > 1))
    return -(-tiles // threads)


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


class _Results(NamedTuple):
    """Results of a tile: its filters from ``first`` on, ``count`` of them; where filter 0 lies among the
    planes of Y; its first row and column; rows and columns that there are."""

    first: Expr
    count: Expr
    plane: Expr
    row: Expr
    column: Expr
    rows: Expr
    columns: Expr


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
        self.pieces = self.op.groups // self.one.groups
        self.k = inner.k = _OneThread()

    def emit(self) -> PrimFunc:
        """The PrimFunc: X, packed W, bias, scale, the residual's operands, what only tells sizes, Y."""
        op, k = self.op, self.k
        with k:
            variables = shape_variables(self.witnesses.symbols)
            shapes = self.witnesses.shapes(variables)
            x = k.argument("X", shapes[0], op.x_dtype)
            groups, *rest = self.inner.weight_shape
            w = k.argument("W", (self.pieces * groups, *rest), "int32")
            extra = [
                k.argument(o.name, shape, o.dtype)
                for o, shape in zip(op.inputs[2:], shapes[2 : len(op.inputs)], strict=True)
            ]
            told_sizes(k, self.witnesses, shapes[len(op.inputs) : -1])
            y = k.argument("Y", shapes[-1], op.output.dtype)
            self._sizes(narrowed(k, variables))
            k.outer = True
            tiles = k.let(self.batch * self.down * self.across)
            parts: Index = self.pieces
            if self.op.groups == 1 and self.machine.threads > 1 and isinstance(self.inner, ImageKernel):
                most = int32(min(self.machine.threads, self.inner.filter_tiles))
                parts = k.named(tirx.Select(tiles < _FEW_TILES * self.machine.threads, most, int32(1)))
            with k.parallel(tiles * parts) as item:
                part = item - k.let(tirx.truncdiv(item, parts)) * parts
                self._item(tirx.truncdiv(item, parts), k.let(part), parts, x, w, extra, y)
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

    def _item(
        self, item: Expr, part: Expr, parts: Index, x: Buffer, w: Buffer, extra: list[Buffer], y: Buffer
    ) -> None:
        """Emit one tile of one image: a piece of its groups, or a part of its filters."""
        k, op, one, tile = self.k, self.op, self.one, self.tile
        image = k.let(tirx.truncdiv(item, self.down * self.across))
        rest = item - image * (self.down * self.across)
        row = k.let(tirx.truncdiv(rest, self.across) * tile.rows)
        column = k.let(tirx.truncmod(rest, self.across) * tile.columns)
        # Vectors of a row may end in the next one, and those of the last row behind it.
        pixels = k.scratch((one.channels * one.height * one.width + _BYTES,), op.x_dtype)
        rows = int32(1) if tile.rows == 1 else k.let(tirx.min(int32(tile.rows), self.out_height - row))
        columns = k.let(tirx.min(int32(tile.columns), self.out_width - column))
        piece = part if self.pieces > 1 else int32(0)
        first_plane = k.let(image * op.channels + piece * one.channels)
        self._fetch(pixels, x, first_plane, row, column, rows)
        pixels = k.view(pixels, (one.channels, one.height * one.width))
        results = k.scratch(one.output.shape, op.output.dtype)
        first_filter, operands = k.let(piece * one.filters), list(extra)
        if self.pieces > 1:
            for n in range(2 if op.scaled else 1):
                operands[n] = k.part(extra[n], (one.filters,), first_filter)
            w = k.part(w, self.inner.weight_shape, piece * math.prod(self.inner.weight_shape))
        first, count = int32(0), int32(one.filters)
        by_filters = self.pieces == 1 and not isinstance(parts, int)
        if by_filters:
            first, tiles = share(part, self.inner.filter_tiles, parts)
            height = self.inner.decisions.filters
            first, tiles = k.let(first * height), tiles * height
            count = k.let(tirx.min(tiles, one.filters - first))
        plane = k.let(image * op.filters + first_filter)
        area = _Results(first, count, plane, row, column, rows, columns)
        if op.residual:
            operands[-1] = k.scratch(one.output.shape, op.residual)
            self._each_row_of_results(area, y=extra[-1], part=operands[-1], out=False)
        result = ImageResult(k, one, operands, results)
        if isinstance(self.inner, ImageKernel):
            shared = (part, parts) if by_filters else (0, 1)
            self.inner.convolve_part(pixels, w, result, *shared, area=(rows, columns))
        else:
            self.inner.convolve(pixels, w, result)
        self._each_row_of_results(area, y=y, part=results, out=True)

    def _fetch(self, part: Buffer, x: Buffer, plane: Expr, row: Expr, column: Expr, rows: Expr) -> None:
        """Emit the copy of what ``rows`` rows of a tile read of X, from ``plane`` on."""
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
        lines: Index = one.height
        # Winograd's method takes whole tiles.
        if isinstance(self.inner, ImageKernel) and self.tile.rows > 1:
            lines = k.let((rows - 1) * op.strides[0] + (op.kernel[0] - 1) * op.dilation[0] + 1)
        with k.serial(one.channels) as channel, k.serial(lines) as line:
            y = k.let(first_row + line)
            target = k.let((channel * one.height + line) * one.width)

            def fill() -> None:
                for at, width in vector_pieces(one.width, _BYTES):
                    k.store(part, k.splat(filler, width), [k.ramp(target + at, width)])

            def copy() -> None:
                start = k.let(((plane + channel) * self.height + y) * self.width + first)

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

    def _each_row_of_results(self, area: _Results, y: Buffer, part: Buffer, out: bool) -> None:
        """Emit the copy of a tile's results, ``out`` to Y, or in from a tensor like it."""
        k, op, tile = self.k, self.op, self.tile
        many = area.columns
        whole = k.view(y, (self.batch * op.filters * self.out_height * self.out_width,))
        own = k.view(part, (self.one.filters * tile.rows * tile.columns,))
        lanes = _BYTES // np.dtype(str(y.dtype)).itemsize
        with k.serial(area.count) as number, k.serial(area.rows) as line:
            channel = area.first + number
            down = (area.plane + channel) * self.out_height + area.row + line
            place = k.let(down * self.out_width + area.column)
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
