"""The kernel of the convolution on channel blocks; ``conv2d_blocked.py`` tells its loop structure."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.layout import Layout
from hetero_tvm.schedules.cpu.images.blocked import (
    FEW_PASSES,
    BlockedOutput,
    PixelTile,
    Plane,
    each_column_tile,
    each_filter_block,
    each_tile,
    prefetch_lines,
)
from hetero_tvm.schedules.cpu.images.conv2d_blocked_shape import BlockedShape
from hetero_tvm.schedules.cpu.images.depth_slices import DepthSlices, TileSums
from hetero_tvm.schedules.cpu.images.slice_planes import SlicePlanes
from hetero_tvm.schedules.emit import Index, Kernel, as_index, int32, share, smallest

_PREFETCHED = 8 << 10
"""Bytes of a panel below which it is fetched soon enough."""


class BlockedConvKernel:
    """Emits one convolution.

    Parameters
    ----------
    tile : pixels and filter vectors of the register tile.
    blocks, groups : parallel pieces of the rows (of a flat image: pixels), of the filter panels.
    k : what it is written to; extents of the images that are known at run time are expressions.
    room : the convolution with extents that buffers may have, where those of ``op`` are named values.

    Attributes
    ----------
    block_tiles : most register tiles of a block.
    slices : of the panels' depth.
    steps : rows and columns of what the products read, from one output pixel to the next.
    pitch : its pixels from one row to the next.
    """

    weight_dtype = "float32"
    """Type of the packed weights."""

    reads_input = True
    """Whether the products read X itself."""

    cuts_depth = True
    """Whether deep panels are taken in slices, whose sums lie in memory between them."""

    def __init__(
        self,
        op: Conv2d,
        tile: PixelTile,
        blocks: int,
        groups: int,
        machine: CpuModel,
        k: Kernel | None = None,
        room: Conv2d | None = None,
    ):
        self.op, self.lanes, self.room = op, machine.lanes, room or op
        self.shape = self.shape_of(op, machine)
        self.rows, self.columns, self.vectors = tile.rows, tile.columns, tile.vectors
        self.panels = self.weight_shape[0]
        self.tiles = self.shape.tile_units(self.rows, self.columns)
        self.blocks, self.groups = smallest(blocks, self.tiles), min(groups, self.panels)
        self.steps, self.pitch = op.strides, self.shape.pitch
        # Of planes of one channel a line holds many pixels, which the hardware fetches by itself.
        self.asks_ahead = self.reads_input and machine.exposed_reads > 0 and self.shape.x.blocked
        self.block_tiles = FEW_PASSES + 1  # of images of any size: weights stay where they are
        if isinstance(self.shape.height, int) and isinstance(self.shape.width, int):
            self.block_tiles = self.shape.block_tiles(self.rows, self.columns, self.blocks)
        passes = self.block_tiles if self.cuts_depth else 1
        self.slices = DepthSlices(self.shape, self.vectors, passes, machine)
        self.k = k or Kernel()
        self.out = BlockedOutput(self.k, op, machine)

    @classmethod
    def shape_of(cls, op: Conv2d, machine: CpuModel) -> BlockedShape:
        """Extents of a convolution."""
        return BlockedShape(op, machine.lanes)

    @property
    def weight_shape(self) -> tuple[int, int, int]:
        """Shape of the packed weights."""
        return self.shape.weight_shape(self.vectors)

    @property
    def imports(self) -> tuple[str, ...]:
        """LLVM IR that the kernel imports."""
        return self.out.imports

    def emit(self) -> PrimFunc:
        """The PrimFunc: X, packed W, the epilogue's operands, Y."""
        with self.k:
            self.write()
        return self.k.function

    def write(self) -> None:
        """Write arguments and loops to ``k``."""
        op, k = self.op, self.k
        self.blocks = k.named(self.blocks)
        x = k.argument("X", op.inputs[0].shape, op.inputs[0].dtype)
        self.w = k.argument("W", self.weight_shape, self.weight_dtype)
        self.out.declare(self.panels * self.vectors * self.lanes)
        self.x = self.read(x)
        with k.imported(*self.imports):
            with k.parallel(op.batch * self.blocks * self.groups, op.flops) as item:
                self._item(item)

    def read(self, x: Buffer) -> Buffer:
        """Planes that the work begins from: those of X, or a plain X copied between zeros."""
        op, layout = self.op, self.shape.x
        plane = Plane(self.k, layout, op.height, op.width)
        if Layout.parse(op.x_layout) == layout:
            return plane.view(x)
        height, width = self.room.image[2:]
        to = self.k.scratch((math.prod(self.room.image[:2]), layout.rows(height) * layout.pitch(width)))
        plane.copy_between_zeros(x, to, math.prod(op.image[:2]), self.lanes, op.flops)
        return to

    # the work ------------------------------------------------------------------------------------
    def _item(self, item: Expr) -> None:
        """Emit one block of rows for one group of filter panels."""
        k, shape = self.k, self.shape
        group = tirx.floormod(item, self.groups)
        block = k.let(tirx.floormod(tirx.floordiv(item, self.groups), self.blocks))
        self.batch = k.let(tirx.floordiv(item, self.groups * self.blocks))
        self.slice_planes = SlicePlanes(k, self.op, shape.x.blocks(self.op.channels), self.batch)
        first, count = share(group, self.panels, self.groups)
        first_tile, tiles = (k.let(as_index(part)) for part in share(block, self.tiles, self.blocks))
        self.begin(first_tile, tiles)
        pixels = self.columns if shape.by_columns else self.rows * shape.width
        units = -(-self.tiles // self.blocks) if self.slices.count > 1 else 0
        self.slices.begin(k, units * pixels, first_tile * pixels)

        def each_tile_of(panel: Expr) -> None:
            if shape.by_columns:
                pixels = functools.partial(self._flat_tile, panel)
                each_tile(k, first_tile, tiles, shape.width, self.columns, pixels)
            else:
                rows = functools.partial(self._tile_row, panel)
                each_tile(k, first_tile, tiles, shape.height, self.rows, rows)

        with k.serial(count) as p:
            panel = first + p
            self.is_first = p == 0
            self.slices.each(functools.partial(each_tile_of, panel))
            if any(shape.y.halo) and shape.by_columns:
                with k.when(block == 0):
                    self._clear_halo(panel, int32(0), int32(1), block, block)
            elif any(shape.y.halo):
                last = self.blocks - 1
                self._clear_halo(panel, first_tile * self.rows, tiles, block, last - block)

    def begin(self, first_tile: Index, tiles: Index) -> None:
        """Emit what comes before the products of a block of tiles; nothing."""

    def _clear_halo(self, panel: Expr, first_row: Index, tiles: Index, before: Expr, after: Expr) -> None:
        """Emit zeros around the rows of some tiles, with ``before`` and ``after`` blocks around them."""
        rows = tirx.min(tiles * self.rows, self.op.out_height - first_row)

        def clear(v: int) -> None:
            plane = self.batch * self.shape.filter_blocks + panel * self.vectors + v
            self.out.clear_halo(plane, first_row, rows, before == 0, after == 0)

        each_filter_block(self.k, panel, self.vectors, self.shape.filter_blocks, clear)

    def _flat_tile(self, panel: Expr, pixel: Index, count: int) -> None:
        self._tile(panel, int32(0), pixel, 1, count)

    def _tile_row(self, panel: Expr, y: Index, rows: int) -> None:
        """Emit all tiles of ``rows`` rows from ``y``."""

        def tile(x: Index, columns: int) -> None:
            self._tile(panel, y, x, rows, columns)

        each_column_tile(self.k, self.shape.width, self.columns, tile)

    def _tile(self, panel: Expr, y: Index, x: Index, rows: int, columns: int) -> None:
        """Products and epilogue of output pixels [y, y + rows) x [x, x + columns)."""
        k, lanes, slices = self.k, self.lanes, self.slices
        acc = k.scratch((rows * columns, self.vectors * lanes))
        tile = TileSums(acc, x if self.shape.flat else y * self.shape.width + x, rows, columns)

        def begin() -> None:
            for v in range(self.vectors):
                start = self.out.start(panel * self.vectors + v)
                with k.unroll(rows * columns) as p:
                    k.store(acc, start, [p, k.ramp(v * lanes, lanes)])

        def each_block(body: Callable[[Expr, int], None]) -> None:
            def one(v: int) -> None:
                body(self.batch * self.shape.filter_blocks + panel * self.vectors + v, v)

            each_filter_block(k, panel, self.vectors, self.shape.filter_blocks, one)

        def ask_ahead(plane: Expr, v: int) -> None:
            with k.unroll(rows) as r, k.unroll(columns) as q:
                self.out.ask_ahead(plane, y + r, x + q)

        def write(plane: Expr, v: int) -> None:
            with k.unroll(rows) as r, k.unroll(columns) as q:
                value = k.load(acc, [r * columns + q, k.ramp(v * lanes, lanes)])
                self.out.put(value, plane, panel * self.vectors + v, y + r, x + q)

        slices.start(tile, begin)
        with k.when(slices.is_last):
            each_block(ask_ahead)
        self._accumulate(acc, panel, y, x, rows, columns, self._pass(y, x))
        if self.shape.straddled:
            self._repeat_special(acc, panel, y, x, rows, columns)
        slices.finish(tile, lambda: each_block(write))

    @property
    def _passes(self) -> int:
        """Tiles of a block, which goes through a panel once for each; 0 when prefetching is not worth it."""
        _, depth, columns = self.weight_shape
        follows = self.panels > self.groups or self.slices.count > 1
        worth = self.block_tiles <= FEW_PASSES and follows and depth * columns * 4 >= _PREFETCHED
        return self.block_tiles if worth else 0

    def _pass(self, y: Index, x: Index) -> Expr | None:
        """A number below :attr:`_passes`, another one for each tile of a block."""
        shape = self.shape
        number = tirx.floordiv(x, self.columns)
        if not shape.flat:
            number = number + tirx.floordiv(y, self.rows) * -(-shape.width // self.columns)
        return tirx.floormod(number, self._passes) if self._passes else None

    def _accumulate(
        self, acc: Buffer, panel: Expr, y: Index, x: Index, rows: int, columns: int, part: Expr | None
    ) -> None:
        """acc[pixel][:] += the products of all taps and of a slice's channels; ``part`` of the next slice or
        panel is fetched."""
        op, k, shape, lanes = self.op, self.k, self.shape, self.lanes
        words, (down_step, across_step), kw = shape.words, self.steps, op.kernel[1]
        planes, first = self.first_plane(panel), self.place(y, x)

        def products(channel_block: Expr, i: Expr, j: Expr, count: int) -> None:
            """Emit one tap for ``count`` words of one block of channels."""
            base = (first + i * op.dilation[0] * self.pitch + j * op.dilation[1]) * words
            depth = ((channel_block * op.kernel[0] + i) * kw + j) * words

            def word(c: Expr) -> None:
                with k.unroll(rows) as r, k.unroll(columns) as q, k.unroll(self.vectors) as v:
                    column = k.ramp(v * lanes, lanes)
                    at = base + (r * (down_step * self.pitch) + q * across_step) * words + c
                    weights = k.load(self.w, [panel, depth + c, column])
                    target = [r * columns + q, column]
                    source = k.splat(self.value(planes + channel_block, at), lanes)
                    k.store(acc, self.added(k.load(acc, target), source, weights), target)

            if self.asks_ahead:
                with k.when(self.is_first):
                    self._ask_ahead(planes, channel_block, y, x, (rows, columns), i * kw + j)
            if part is not None:
                after, row = tirx.min(panel + 1, int32(self.panels - 1)), depth
                if self.slices.count > 1:  # the next one lies behind this one, or nothing does that is read
                    after, row = panel, depth + self.slices.words
                prefetch_lines(k, self.w, [after], row, count, part, self._passes)
            with k.unroll(count) as c:
                word(c)

        def taps(channel_block: Expr, count: int) -> None:
            # Taps side by side in one body would share inputs, and LLVM would keep them all in registers.  It
            # writes out short loops of one word by itself: of taps below one another, which share none, or
            # (below) of channels.
            turned = count == 1 and rows == 1
            outer, inner = (across, down) if turned else (down, across)
            with k.serial(outer[1]) as a, k.serial(inner[1]) as b:
                i, j = (b, a) if turned else (a, b)
                products(channel_block, down[0] + i, across[0] + j, count)

        down, across = self._taps_inside(0, y, rows), self._taps_inside(1, x, columns)

        per_image, block = shape.x.blocks(op.channels), shape.x.block
        rest = 0 if op.groups > 1 else -(-(op.channels % block) * words // block)
        alone = shape.slices == 1 and self.slice_planes.complete
        full = op.channels // block if rest and alone else shape.channel_blocks
        if full:
            first_block, some = self.slice_planes.inside(*self.slices.channel_blocks(full))
            if words == 1 and rows == op.kernel[0] == shape.slices == 1 < full:
                with k.serial(across[1]) as j, k.serial(some) as channel_block:
                    products(first_block + channel_block, int32(0), across[0] + j, words)
                return
            with k.serial(some) as channel_block:
                at = first_block + channel_block
                if not rest or alone:
                    taps(at, words)
                elif per_image == 1:
                    taps(at, rest)
                else:
                    is_last = tirx.EQ(tirx.floormod(at, int32(per_image)), int32(per_image - 1))
                    k.branch(is_last, lambda: taps(at, rest), lambda: taps(at, words))
        if rest and alone:
            taps(int32(full), rest)

    def _ask_ahead(
        self, planes: Expr, channel_block: Expr, y: Index, x: Index, tile: tuple[int, int], tap: Expr
    ) -> None:
        """Emit fetches of the pixels that a tile reads in the next plane, a part with each tap.

        The first panel finds the image beyond L2, in more planes than the hardware follows at once.
        """
        op, k, shape = self.op, self.k, self.shape
        last = int32(shape.channel_blocks - 1) if shape.slices == 1 else self.slice_planes.end - 1
        following = planes + tirx.min(channel_block + 1, last)
        first = self.place(y, x)

        def ask(row: Index, column: Index) -> None:
            k.prefetch(self.x, [following, (first + row * self.pitch + column) * shape.words], into=1)

        reached = [
            (count - 1) * step + (taps - 1) * dilation + 1
            for count, step, taps, dilation in zip(tile, self.steps, op.kernel, op.dilation, strict=True)
        ]
        part = -(-math.prod(reached) // len(shape.taps))
        if part < math.prod(tile):  # taps share pixels
            for number in range(part):
                at = tap * part + number
                ask(tirx.floordiv(at, reached[1]), tirx.floormod(at, reached[1]))
            return
        i, j = tirx.floordiv(tap, op.kernel[1]), tirx.floormod(tap, op.kernel[1])
        for r, q in itertools.product(*map(range, tile)):
            ask(i * op.dilation[0] + r * self.steps[0], j * op.dilation[1] + q * self.steps[1])

    def place(self, y: Index, x: Index) -> Expr:
        """Pixel, in a plane of what the products read, of output pixel (y, x)'s first tap."""
        (sh, sw), (top, left) = self.op.strides, self.shape.taps[0]
        return (y * sh + top) * self.pitch + x * sw + left

    def value(self, plane: Expr, at: Expr) -> Expr:
        """Load what the products read at a place of a plane."""
        return self.k.load(self.x, [plane, at])

    def added(self, total: Expr, value: Expr, weights: Expr) -> Expr:
        """Add the products of a value in all lanes and of weights to ``total``."""
        return total + value * weights

    def _taps_inside(self, axis: int, first: Index, count: int) -> tuple[Index, Index]:
        """First filter tap along an axis, and number of those, that read more than zeros around the image for
        output pixels [first, first + count): those of a dilated or of a long filter may lie outside of it."""
        op, k = self.op, self.k
        extent, taps, dilation = (op.height, op.width)[axis], op.kernel[axis], op.dilation[axis]
        if self.shape.flat or (dilation == 1 and not self.shape.leaves_taps_out(axis, count)):
            return 0, taps
        place, last = first * op.strides[axis] - op.padding[axis], (count - 1) * op.strides[axis]
        begin = tirx.max(tirx.floordiv(dilation - 1 - place - last, int32(dilation)), int32(0))
        end = tirx.min(tirx.floordiv(extent - place + dilation - 1, int32(dilation)), int32(taps))
        begin = k.let(tirx.min(begin, int32(taps)))
        return begin, k.let(tirx.max(end - begin, int32(0)))

    def _repeat_special(self, acc: Buffer, panel: Expr, y: Index, x: Index, rows: int, columns: int) -> None:
        """Compute a tile with NaN or infinity anew, each filter from the channels of its own group alone.

        The weights of the other channels are zeros, but zero times NaN or infinity is NaN.
        """
        k, lanes, every = self.k, self.lanes, self.k.ramp(0, self.lanes)
        magnitudes, largest = k.scratch((lanes,), "int32"), k.scratch((1,), "int32")
        k.store(magnitudes, k.splat(int32(0), lanes), [every])
        with k.unroll(rows * columns) as p:
            bits = tirx.reinterpret(f"int32x{lanes}", k.load(acc, [p, every]))
            magnitude = tirx.bitwise_and(bits, k.splat(int32(0x7FFFFFFF), lanes))
            k.store(magnitudes, tirx.max(k.load(magnitudes, [every]), magnitude), [every])
        k.store(largest, int32(0), [int32(0)])
        with k.unroll(lanes) as lane:
            k.store(largest, tirx.max(k.load(largest, [int32(0)]), k.load(magnitudes, [lane])), [int32(0)])

        def repeat() -> None:
            # In memory of its own: numbered at run time, the accumulators could not be registers.
            again = k.scratch((rows * columns, lanes))
            with k.serial(rows) as r, k.serial(columns) as q:
                self._own_products(again, panel, y, x, r, q, r * columns + q)
            with k.unroll(rows * columns) as p:
                k.store(acc, k.load(again, [p, every]), [p, every])

        infinity = int32(0x7F800000)
        k.branch(k.load(largest, [int32(0)]) >= infinity, repeat)

    def _own_products(
        self, to: Buffer, panel: Expr, y: Index, x: Index, r: Expr, q: Expr, pixel: Expr
    ) -> None:
        """to[pixel][:] = the products of output pixel (y + r, x + q), of each filter's own channels."""
        op, k, shape, lanes = self.op, self.k, self.shape, self.lanes
        per_in, per_out = op.channels // op.groups, op.filters // op.groups
        every, (kh, kw), block = k.ramp(0, lanes), op.kernel, shape.x.block
        k.store(to, self.out.start(panel), [pixel, every])
        filters = k.splat(panel * lanes, lanes) + every
        begins = tirx.floordiv(filters, k.splat(int32(per_out), lanes)) * k.splat(int32(per_in), lanes)
        top, left = shape.taps[0]
        row, column = (y + r) * op.strides[0] + top, (x + q) * op.strides[1] + left
        with (
            k.serial(shape.channel_blocks) as channel_block,
            k.serial(kh) as i,
            k.serial(kw) as j,
            k.serial(block) as c,
        ):
            at = (row + i * op.dilation[0]) * shape.pitch + column + j * op.dilation[1]
            value = k.load(self.x, [self.first_plane(panel) + channel_block, at * block + c])
            depth = ((channel_block * kh + i) * kw + j) * block + c
            product = k.splat(value, lanes) * k.load(self.w, [panel, depth, every])
            channel = k.splat((self.first_block(panel) + channel_block) * lanes + c, lanes)
            own = tirx.And(channel >= begins, channel < begins + k.splat(int32(per_in), lanes))
            before = k.load(to, [pixel, every])
            k.store(to, tirx.Select(own, before + product, before), [pixel, every])

    def first_plane(self, panel: Expr) -> Expr:
        """The plane of X that holds the first block that a panel reads."""
        planes = self.slice_planes.first
        return planes + self.first_block(panel) if self.op.groups > 1 else planes

    def first_block(self, panel: Expr) -> Expr:
        """First input block that a filter block reads, as an expression (it is linear in steps)."""
        op = self.op
        per_in, per_out = op.channels // op.groups, op.filters // op.groups
        first = tirx.floordiv(tirx.floordiv(panel * self.vectors * self.lanes, per_out) * per_in, self.lanes)
        return tirx.min(first, int32(self.shape.x.blocks(op.channels) - self.shape.group_blocks.count))
