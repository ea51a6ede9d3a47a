"""The kernel of 8-bit convolutions in plain images; ``quant_conv2d.py`` tells its loop structure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from hetero_tvm.codegen.saturation import saturation_ir
from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.integers.quantized import QuantConv2d
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.cpu.dots import Dot
from hetero_tvm.schedules.cpu.images.blocked import each_column_tile, each_tile
from hetero_tvm.schedules.cpu.integers.image_packing import ImagePacker
from hetero_tvm.schedules.cpu.integers.image_words import ImageWords, image_dot
from hetero_tvm.schedules.cpu.integers.requantize import CHAINS, Steps, joined, side_by_side
from hetero_tvm.schedules.emit import Index, Kernel, as_index, int32, pieces_of, share, vector_pieces

_FEW_WORDS = 2
"""Words of a tap up to which the taps of a row are written out."""


@dataclass(frozen=True)
class ImageDecisions:
    """A point of the space.

    Attributes
    ----------
    filters, rows, vectors : register tile: filters, output rows, vectors of output columns.
    blocks : parallel pieces of the output rows (of an image of one row: columns).
    parts : parallel pieces of the filters of a group; each packs its pixels itself.
    unroll : words in one loop body.
    """

    filters: int
    rows: int
    vectors: int
    blocks: int
    parts: int
    unroll: int

    @classmethod
    def of(cls, point: Point) -> ImageDecisions:
        """Decisions of a point."""
        filters, rows, vectors = point["tile"]
        blocks, parts = point["grid"]
        return cls(filters, rows, vectors, blocks, parts, point["unroll"])


@dataclass(frozen=True)
class OutputTile:
    """Filters and output pixels of one register tile.

    Attributes
    ----------
    plane, group : image and group, counted through; the group alone.
    tile, first, height : of the filters: number of the tile, first filter of the group, how many.
    y, rows, x, columns : output pixels [y, y + rows) x [x, x + columns).
    """

    plane: Expr
    group: Expr
    tile: Expr
    first: Index
    height: int
    y: Index
    rows: int
    x: Index
    columns: int


@dataclass(frozen=True)
class FilterResult:
    """Way out of the sums of one filter.

    Attributes
    ----------
    plane : plane of Y.
    start : what its sums still lack, int32.
    scale : factor of its sums; None where they stay as they are.
    """

    plane: Expr
    start: Expr
    scale: Expr | None


Sums = tuple[FilterResult, Expr, Index, int]
"""int32 sums on their way out: their filter, a vector of them, the pixel of the first, and how many."""


class ImageResult:
    """Way out of the sums of a convolution: its operands behind X and W, and the image Y."""

    def __init__(self, k: Kernel, op: QuantConv2d, extra: list[Buffer], y: Buffer):
        self.k, self.op = k, op
        _, _, height, width = op.output.shape
        self.y = k.view(y, (op.batch * op.filters, height * width))
        self.bias, self.scale = extra[0], extra[1] if op.scaled else None
        if op.residual:
            self.join, r = extra[2:]
            self.residual = k.view(r, tuple(int(extent) for extent in self.y.shape))

    @classmethod
    def of_arguments(cls, k: Kernel, op: QuantConv2d) -> ImageResult:
        """The way out to arguments of the kernel, declared here."""
        extra = [k.argument(o.name, o.shape, o.dtype) for o in op.inputs[2:]]
        return cls(k, op, extra, k.argument("Y", op.output.shape, op.output.dtype))

    def of_filter(self, plane: Expr, one: Expr, start: Expr) -> FilterResult:
        """Way out of filter ``one`` to plane ``plane`` of Y; its sums still lack ``start`` and its bias."""
        k = self.k
        start = k.let(start + k.load(self.bias, [one]))
        return FilterResult(plane, start, None if self.scale is None else k.let(k.load(self.scale, [one])))

    def put(self, sums: list[Sums]) -> None:
        """Write results, some vectors at a time.  A residual may lie where they go: each is read once."""
        join: tuple[Expr, ...] = ()
        if self.op.residual:
            join = joined(self.k, self.op, [self.k.load(self.join, [int32(n)]) for n in range(4)])
        for first in range(0, len(sums), CHAINS):
            self._together(sums[first : first + CHAINS], join)

    def _together(self, sums: list[Sums], join: tuple[Expr, ...]) -> None:
        k, op = self.k, self.op
        filters, values, pixels, widths = (list(column) for column in zip(*sums, strict=True))
        steps = Steps(k, op, widths)
        places = [
            [way.plane, k.ramp(pixel, width)]
            for way, pixel, width in zip(filters, pixels, widths, strict=True)
        ]
        totals = steps.each(lambda w, v, way: v + k.splat(way.start, w), values, filters)
        scales = None
        if self.scale is not None:
            scales = [k.splat(way.scale, width) for way, width in zip(filters, widths, strict=True)]
        results = steps.requantized(totals, scales, whole=bool(op.residual))
        if op.residual:
            residuals = [k.load(self.residual, place) for place in places]
            results = steps.with_residual(results, residuals, join)
        for value, place in zip(results, places, strict=True):
            k.store(self.y, value, place)


class ImageKernel:
    """Emits one convolution."""

    parts_of_rows = True
    """Whether blocks may be parts of a row that is no flat image."""

    def __init__(
        self,
        op: QuantConv2d,
        decisions: ImageDecisions,
        machine: CpuModel,
        columns: int = 0,
        shape: ImageWords | None = None,
    ):
        self.op, self.decisions, self.lanes = op, decisions, machine.lanes
        self.dot = image_dot(op, machine)
        self.shape = shape = shape or ImageWords(op, self.dot)
        self.columns = columns or decisions.vectors * machine.lanes
        self.by_columns = shape.by_columns if self.parts_of_rows else shape.flat
        whole, unit = shape.out_height, decisions.rows
        if self.by_columns:
            whole, unit = shape.out_width, self.columns
        extent = -(-whole // unit)
        self.tiles, self.blocks = extent, min(decisions.blocks, extent)
        self.filter_tiles = -(-shape.filters // decisions.filters)
        self.parts = min(decisions.parts, self.filter_tiles)
        most = -(-self.tiles // self.blocks)
        rows = 1 if self.by_columns else min(most * decisions.rows, shape.out_height)
        columns = min(most * self.columns, shape.out_width) if self.by_columns else shape.out_width
        self.block = rows, columns
        self.pitch = shape.pitch(columns, machine.lanes)
        self.k = Kernel()
        self.area: tuple[Expr, Expr] | None = None

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the packed weights."""
        return self.shape.weight_shape(self.decisions.filters)

    @property
    def imports(self) -> tuple[str, ...]:
        """LLVM IR that the kernel imports; asked for when its body is written."""
        return (*self.dot.imports, saturation_ir())

    def packer(self, rows: int, columns: int) -> ImagePacker:
        """Writer of the words of blocks of up to so many output rows and columns."""
        return ImagePacker(self.k, self.shape, self.x, rows, columns, self.lanes, self.pitch)

    def around(self) -> tuple[str, ...]:
        """Functions to call before the first product of a piece of work and after its last; none."""
        return ()

    def emit(self) -> PrimFunc:
        """The PrimFunc: X, packed W, bias, scale, the residual's operands, Y."""
        op, k = self.op, self.k
        with k:
            x = k.argument("X", op.inputs[0].shape, op.x_dtype)
            w = k.argument("W", self.weight_shape, "int32")
            self.convolve(x, w, ImageResult.of_arguments(k, op))
        return k.function

    def convolve(self, x: Buffer, w: Buffer, result: ImageResult) -> None:
        """Emit the loops over an image X and packed W."""
        op, k = self.op, self.k
        with self._operands(x, w, result):
            with k.parallel(op.batch * op.groups * self.blocks * self.parts, op.flops) as item:
                part = tirx.floormod(item, self.parts)
                block = tirx.floormod(tirx.floordiv(item, self.parts), self.blocks)
                self._item(tirx.floordiv(item, self.parts * self.blocks), block, part)

    def convolve_part(
        self, x: Buffer, w: Buffer, result: ImageResult, part: Index, parts: Index, area: tuple[Expr, Expr]
    ) -> None:
        """Emit the loops over the first ``area`` (rows, columns) of the results of an image X, at least, and
        where there is one group, over ``part`` of ``parts`` of packed W."""
        assert self.op.batch == self.blocks == self.parts == 1
        self.parts, self.area = parts, area
        with self._operands(x, w, result), self.k.serial(self.op.groups) as group:
            self._item(group, int32(0), as_index(part))

    @contextmanager
    def _operands(self, x: Buffer, w: Buffer, result: ImageResult) -> Iterator[None]:
        op, k = self.op, self.k
        self.w, self.result = w, result
        self.x = k.view(x, (op.batch * op.channels, op.height * op.width))
        with k.imported(*self.imports):
            yield

    def _item(self, plane: Expr, block: Expr, part: Expr) -> None:
        """Emit one block of pixels of one image and group, for one part of the filters."""
        k, shape, decisions = self.k, self.shape, self.decisions
        group = tirx.floormod(plane, self.op.groups)
        first, tiles = share(block, self.tiles, self.blocks)
        if self.area is not None:
            rows, columns = self.area
            wanted, unit = rows, decisions.rows
            if self.by_columns:  # a flat image has its rows one after the other
                wanted, unit = columns + (rows - 1) * self.op.width, self.columns
            tiles = k.let(pieces_of(wanted, unit))
        packer = self.packer(*self.block)
        self.words = packer.target
        if self.by_columns:
            self.first = first * self.columns
            count = shape.out_width
            if self.blocks > 1:
                count = tirx.min(tiles * self.columns, shape.out_width - self.first)
            packer.pack(plane * shape.channels, int32(0), 1, self.first, count)
        else:
            self.first = first * decisions.rows
            count = shape.out_height
            if self.area is not None:
                count = self.area[0]
            elif self.blocks > 1:
                count = tirx.min(tiles * decisions.rows, shape.out_height - self.first)
            packer.pack(plane * shape.channels, self.first, count, 0, shape.out_width)

        def filters(start: Index, height: int) -> None:
            tile = tirx.floordiv(start, decisions.filters)
            if self.by_columns:

                def flat(x: Index, width: int) -> None:
                    self._tile(OutputTile(plane, group, tile, start, height, int32(0), 1, x, width))

                each_tile(k, first, tiles, shape.out_width, self.columns, flat)
                return

            def row(y: Index, count: int) -> None:
                def column(x: Index, width: int) -> None:
                    self._tile(OutputTile(plane, group, tile, start, height, y, count, x, width))

                each_column_tile(k, shape.out_width, self.columns, column)

            each_tile(k, first, tiles, shape.out_height, decisions.rows, row)

        first_filter, filter_tiles = share(part, self.filter_tiles, self.parts)
        before, *after = self.around() or ("",)
        if before:
            k.call(before)
        each_tile(k, first_filter, filter_tiles, shape.filters, decisions.filters, filters)
        for function in after:
            k.call(function)

    def _tile(self, t: OutputTile) -> None:
        """Emit the filters and pixels of one tile."""
        k, shape, lanes = self.k, self.shape, self.lanes
        vectors = -(-t.columns // lanes)
        acc = self._accumulators(t.height, t.rows * vectors)
        place_of = self._places(t)

        def step(way: Dot, word: Index, i: Index, place: Index, number: Index) -> None:
            with k.unroll(t.height) as f, k.unroll(t.rows) as r, k.unroll(vectors) as v:
                at = place_of(i, place, r) + v * lanes
                operands = []
                for inside in range(way.words):
                    words = k.load(self.words, [word + inside, k.ramp(at, lanes)])
                    weight = k.splat(k.load(self.w, [t.group, t.tile, number + inside, f]), lanes)
                    operands += [words, weight]
                target = [f, k.ramp((r * vectors + v) * lanes, lanes)]
                k.store(acc, way.add(k.load(acc, target), lanes, *operands), target)

        self._each_step(step)
        pieces = [
            (row, at, many) for row in range(t.rows) for at, many in self._pieces(t.columns, row < t.rows - 1)
        ]
        self._finish(t, acc, lambda f: [int32(shape.steps), f], pieces, k.unroll)

    def _accumulators(self, rows: int, vectors: int) -> Buffer:
        """Sums in registers, from zero."""
        k, lanes = self.k, self.lanes
        acc = k.scratch((rows, vectors * lanes), "int32")
        zero = k.splat(int32(0), lanes)
        with k.unroll(rows) as r, k.unroll(vectors) as v:
            k.store(acc, zero, [r, k.ramp(v * lanes, lanes)])
        return acc

    def _finish(
        self,
        t: OutputTile,
        sums: Buffer,
        start: Callable[[Index], list[Expr]],
        pieces: list[tuple[int, int, int]],
        loop: Callable[[int], AbstractContextManager[Expr]],
    ) -> None:
        """Emit the way out of the sums [filters, vectors of pixels] of a tile, each filter's in ``pieces``:
        row, column and width.  ``start(f)`` is the place in W, among a tile's, of what its sums lack, and
        ``loop`` is that over filters."""
        k, shape = self.k, self.shape
        row_sums = self.row_sums(t.columns)

        def put(filters: list[Index]) -> None:
            found = []
            for f in filters:
                own = t.first + f
                way = self.result.of_filter(
                    t.plane * shape.filters + own,
                    t.group * shape.filters + own,
                    k.load(self.w, [t.group, t.tile, *start(f)]),
                )
                for row, at, many in pieces:
                    value = k.load(sums, [f, k.ramp(row * row_sums + at, many)])
                    found.append((way, value, (t.y + row) * shape.out_width + t.x + at, many))
            self.result.put(found)

        side_by_side(t.height, len(pieces), loop, put)

    def row_sums(self, columns: int) -> int:
        """Sums from one row of a tile to the next."""
        return -(-columns // self.lanes) * self.lanes

    def _pieces(self, columns: int, followed: bool) -> list[tuple[int, int]]:
        """Vectors of the results of a row; of one that is ``followed`` by the next the last vector may be too
        wide, as that row is written over it, but for what it reads itself."""
        pieces = vector_pieces(columns, self.lanes)
        if followed and not self.op.residual and (rest := columns % self.lanes):
            pieces = [piece for piece in pieces if piece[1] == self.lanes]
            pieces.append((columns - rest, 1 << (rest - 1).bit_length()))
        return pieces

    def _places(self, t: OutputTile) -> Callable[[Index, Index, Index], Expr]:
        """``at(i, place, r)``: place, in a plane of words, of what a tap reads for the first pixel of row
        ``r`` of a tile: that of row ``i`` of the taps, ``place`` words behind the first tap's of its row."""
        shape = self.shape
        pitch = len(shape.phases) * self.pitch
        column = t.x - self.first if self.by_columns else t.x
        row = 0 if self.by_columns else (t.y - self.first) * shape.row_step

        def at(i: Index, place: Index, r: Index) -> Expr:
            return (row + i * self.op.dilation[0]) * pitch + place + column + r * (shape.row_step * pitch)

        return at

    @property
    def pixel_tiles(self) -> tuple[int, int]:
        """Tiles of rows and of columns of a block."""
        rows, columns = self.block
        if self.by_columns:
            return 1, -(-columns // self.columns)
        return -(-rows // self.decisions.rows), -(-self.shape.out_width // self.columns)

    def tile_number(self, t: OutputTile) -> Expr:
        """Number of a tile within its block of pixels."""
        if self.by_columns:
            return tirx.floordiv(t.x - self.first, int32(self.columns))
        row = tirx.floordiv(t.y - self.first, int32(self.decisions.rows))
        return tirx.floordiv(t.x, int32(self.columns)) + self.pixel_tiles[1] * row

    def _each_step(
        self,
        step: Callable[[Dot, Index, Index, Index, Index], None],
        on_words: Callable[[Index], None] | None = None,
    ) -> None:
        """Emit ``step(way, word, i, place, number)`` for the words of every tap.

        ``way`` multiplies from word ``word`` of a tap on; ``i`` and ``place`` are those of :meth:`_places`,
        and ``number`` counts the words of all taps.  ``on_words(number)`` comes before each round of a loop
        of words.
        """
        k, shape, unroll = self.k, self.shape, self.decisions.unroll
        pitch, kw = self.pitch, len(shape.taps)

        def words(i: Index, place: Index, tap: Index) -> None:
            many, number = max(unroll, self.dot.words), tap * shape.words
            full = shape.words // many
            if full > 1:
                with k.serial(full) as outer:
                    if on_words is not None:
                        on_words(number + outer * many)
                    with k.unroll(many // self.dot.words) as inner:
                        word = outer * many + inner * self.dot.words
                        step(self.dot, word, i, place, number + word)
            done = full * many if full > 1 else 0
            for way, word in self.dot.steps(done, shape.words - done):
                step(way, int32(word), i, place, number + word)

        def columns(i: Index) -> None:
            if self.op.strides[1] == 1 and shape.words > _FEW_WORDS and kw > 1:
                with k.serial(kw) as j:
                    words(i, j * self.op.dilation[1], i * kw + j)
                return
            for j, (phase, offset) in enumerate(shape.taps):
                words(i, phase * pitch + offset, i * kw + j)

        if shape.tap_rows == 1:
            columns(int32(0))
        else:
            with k.serial(shape.tap_rows) as i:
                columns(i)


def whole_vectors(extent: int, lanes: int) -> list[tuple[int, int]]:
    """(start, width) of vectors that cover ``extent`` results, the last one over part of the one before
    rather than narrower."""
    width = min(lanes, 1 << (extent.bit_length() - 1))
    if extent % width == 0:
        return vector_pieces(extent, lanes)
    return [(at, width) for at in range(0, extent - width + 1, width)] + [(extent - width, width)]
