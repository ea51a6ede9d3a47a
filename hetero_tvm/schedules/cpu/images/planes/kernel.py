"""The kernel of the direct convolution; ``../conv2d.py`` tells its loop structure and why it is fast."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from hetero_tvm.codegen import vector_math
from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.matmul import BIAS, TENSORS, joined, steps_with_operands
from hetero_tvm.schedules.cpu.images.planes.copies import BlockCopy, pixels_apart, valid_range
from hetero_tvm.schedules.cpu.images.planes.geometry import Geometry, PixelBlocks
from hetero_tvm.schedules.cpu.register_tile import RegisterTile
from hetero_tvm.schedules.emit import LINE_FLOATS, Index, Kernel, int32, vector_loop, vector_pieces

UNROLLED_TAPS = 49
"""More taps than this make too much code; patches (kernel = stride) and unit strides run them in loops."""

_ROW_TAPS = 16
"""Taps of a step along rows of more than :data:`UNROLLED_TAPS`."""

_FEW_PLANES = 16
"""Planes of the input below which threads share their phases."""


class ConvKernel:
    """Emits one convolution.

    Parameters
    ----------
    tile : filters (rows) and pixel vectors of the register tile.
    blocks : how the output pixels are cut.
    groups : parallel groups of filter tiles.
    copied : whether each block of pixels is copied, panel by panel, before its products.

    A tile has filters of one group of the convolution.
    """

    def __init__(
        self, op: Conv2d, tile: RegisterTile, blocks: PixelBlocks, groups: int, lanes: int, copied: bool
    ):
        self.op, self.lanes, self.blocks, self.copied = op, lanes, blocks, copied
        self.geometry: Geometry = blocks.geometry
        self.rows, self.vectors, self.columns = tile.rows, tile.vectors, tile.columns(lanes)
        self.filters = op.filters // op.groups
        self.tiles_each = -(-self.filters // self.rows)
        self.tiles = op.groups * self.tiles_each
        self.groups = min(groups, self.tiles)
        self.depth = op.channels // op.groups
        alone = self.depth == 1 and self.tiles_each == 1 and blocks.count == 1
        self.by_channel = alone and not self.geometry.patches and not self._reads_x
        """Whether planes of a channel are filled in L1, by the one tile that reads them."""
        self.k = Kernel()

    @property
    def _reads_x(self) -> bool:
        """Whether pixels are read where they lie in X."""
        return self.geometry.direct and self.blocks.plane == self.geometry.pixels and not self.copied

    def emit(self) -> PrimFunc:
        """The PrimFunc: X, packed W, the epilogue's operands, Y."""
        op, k, geometry = self.op, self.k, self.geometry
        with k:
            x = k.argument("X", op.inputs[0].shape)
            packed = (self.tiles, self.depth, len(geometry.taps), self.rows)
            self.w = k.argument("W", packed if op.constant_weight else op.inputs[1].shape)
            extra = [k.argument(o.name, o.shape) for o in op.inputs[2:]]
            y = k.argument("Y", op.output.shape)
            flat = (op.batch * op.filters, op.out_height * op.out_width)
            self.y = k.view(y, flat)
            self.extra = [
                k.view(buffer, flat) if operand.name in TENSORS else buffer
                for buffer, operand in zip(extra, op.inputs[2:], strict=True)
            ]
            self.x_planes = k.view(x, (op.batch * op.channels, op.height * op.width))
            if self._reads_x:
                self.planes = k.view(x, (1, op.batch * op.channels, self.blocks.plane))
            elif not self.by_channel and not self.copied:
                self.planes = k.scratch((len(geometry.phases), op.batch * op.channels, self.blocks.plane))
                self._fill_planes()
            if not op.constant_weight:
                self.w = packed_weight(k, op, self.w, packed, self._place)
            with k.parallel(op.batch * self.blocks.count * self.groups, op.flops) as item:
                self._item(item)
        return k.function

    def _place(self, tile: Expr) -> tuple[Expr, Expr]:
        """Group of the convolution that a tile belongs to, and the tile's first filter in it."""
        if self.op.groups == 1:
            return int32(0), tile * self.rows
        each = self.tiles_each
        return tirx.floordiv(tile, each), tirx.floormod(tile, each) * self.rows

    # the input -----------------------------------------------------------------------------------
    def _fill_planes(self) -> None:
        """Copy X into padded phases; everything around is zero."""
        op, k, phases = self.op, self.k, self.geometry.phases
        planes = op.batch * op.channels

        def fill(plane: Expr, index: int) -> None:
            self._clear_phase(plane, index)
            self._fill_phase(plane, plane, index, phases[index])

        def fill_one_of(first: int, plane: Expr, index: Expr) -> None:
            if first == len(phases) - 1:
                fill(plane, first)
                return
            rest = functools.partial(fill_one_of, first + 1, plane, index)
            k.branch(tirx.EQ(index, first), lambda: fill(plane, first), rest)

        if planes < _FEW_PLANES and not self.geometry.patches:
            # Three planes are no work to share between two threads; their phases are.
            with k.parallel(planes * len(phases), op.flops) as item:
                fill_one_of(0, tirx.floordiv(item, len(phases)), tirx.floormod(item, len(phases)))
            return
        with k.parallel(planes, op.flops) as plane:
            if self.geometry.patches:
                self._fill_patches(plane)
                return
            for index in range(len(phases)):
                fill(plane, index)

    def _fill_patches(self, plane: Expr) -> None:
        """Copy one plane where every tap is a phase of its own."""
        op, k, geometry = self.op, self.k, self.geometry
        sh, sw = op.strides
        with k.serial(sh) as i, k.serial(sw) as j:
            with k.serial(geometry.rows) as line, k.serial(geometry.pitch) as column:
                value = k.load(self.x_planes, [plane, (line * sh + i) * op.width + column * sw + j])
                k.store(self.planes, value, [i * sw + j, plane, line * geometry.pitch + column])
            self._zero(i * sw + j, plane, geometry.rows * geometry.pitch)

    def _clear_phase(self, plane: Index, index: int) -> None:
        """Clear one phase of one plane."""
        # The zeros behind the pixels overlap them: where stores of several widths fill a plane without
        # overlapping, LLVM 22 (SROA) makes one vector of them that does not dominate its uses.
        direct = self.geometry.direct
        self._zero(index, plane, self.geometry.pixels // self.lanes * self.lanes if direct else 0)

    def _fill_phase(self, source_plane: Expr, plane: Index, index: int, phase: tuple[int, int]) -> None:
        """Copy one phase of one plane of X between zeros."""
        op, k, geometry = self.op, self.k, self.geometry
        (sh, sw), (top, left) = op.strides, op.padding[:2]
        # Row a of a phase is input row a * sh + down; the valid ones are one range, columns likewise.
        down, right = phase[0] - top, phase[1] - left
        first_row, last_row = valid_range(geometry.rows, sh, down, op.height)
        first, last = valid_range(geometry.pitch, sw, right, op.width)
        if geometry.direct:
            first_row, last_row, first, last = 0, 1, 0, geometry.pixels
        if last_row <= first_row or last <= first:
            return
        with k.serial(last_row - first_row) as line:
            source = ((line + first_row) * sh + down) * op.width + first * sw + right
            target = (line + first_row) * geometry.pitch + first
            if geometry.direct:
                source = target = int32(0)

            def copy(start: Index, width: int) -> None:
                value = pixels_apart(
                    k, self.x_planes, source_plane, source + start * sw, sw, width, self.lanes
                )
                k.store(self.planes, value, [index, plane, k.ramp(target + start, width)])

            vector_loop(k, last - first, self.lanes, copy)

    def _zero(self, index: Index, plane: Index, start: int) -> None:
        """Clear one plane from ``start``."""
        k = self.k

        def clear(at: Index, width: int) -> None:
            k.store(self.planes, k.splat(0.0, width), [index, plane, k.ramp(start + at, width)])

        vector_loop(k, self.blocks.plane - start, self.lanes, clear)

    # the products --------------------------------------------------------------------------------
    def _item(self, item: Expr) -> None:
        """Emit one block of pixels for one group of filter tiles."""
        k, count = self.k, self.blocks.count
        group = tirx.floormod(item, self.groups)
        self.block = tirx.floormod(tirx.floordiv(item, self.groups), count)
        self.batch = tirx.floordiv(item, self.groups * count)
        first = tirx.floordiv(group * self.tiles, self.groups)
        tiles = tirx.floordiv((group + 1) * self.tiles, self.groups) - first
        gapless = self.geometry.gapless
        self.strip = None if gapless else k.scratch((self.rows, self.blocks.pixels))
        if self.by_channel:
            self.planes = k.scratch((len(self.geometry.phases), 1, self.blocks.plane))
            for index in range(len(self.geometry.phases)):
                self._clear_phase(0, index)
        if self.copied:
            copy = BlockCopy(k, self.op, self.blocks, self.columns, self.lanes, self.x_planes)
            self.planes = copy.emit(self.block, self.batch)
        with k.serial(self.tiles if self.groups == 1 else tiles) as t:
            tile = first + t
            if self.by_channel:
                for index, phase in enumerate(self.geometry.phases):
                    self._fill_phase(self.batch * self.op.channels + tile, 0, index, phase)
            with k.serial(self.blocks.pixels // self.columns) as panel:
                self._panel(tile, panel)
            if not gapless:
                self._store_strip(tile)

    def _panel(self, tile: Expr, panel: Expr) -> None:
        """Emit one register tile: to Y, or to the strip where rows have gaps."""
        k = self.k
        acc = k.scratch((self.rows, self.columns))
        pixel = self.block * self.blocks.step + panel * self.columns
        if self.copied and self.geometry.direct:
            self._accumulate(acc, tile, panel * self.depth, int32(0))
        elif self.copied:
            self._accumulate(acc, tile, int32(0), panel * self.columns)
        elif self.by_channel:
            self._accumulate(acc, tile, int32(0), pixel)
        else:
            first = self.batch * self.op.channels + self._place(tile)[0] * self.depth
            self._accumulate(acc, tile, first, pixel)
        if self.strip is None:
            self._store_panel(acc, tile, pixel)
            return
        with k.unroll(self.rows) as r, k.unroll(self.vectors) as v:
            value = k.load(acc, [r, k.ramp(v * self.lanes, self.lanes)])
            k.store(self.strip, value, [r, k.ramp(panel * self.columns + v * self.lanes, self.lanes)])

    def _accumulate(self, acc: Buffer, tile: Expr, first_plane: Expr, pixel: Expr) -> None:
        """acc[MR][NR] = sum over channels and taps, of planes from ``first_plane`` on."""
        k, taps, lanes = self.k, len(self.geometry.taps), self.lanes
        with k.unroll(self.rows) as r, k.unroll(self.vectors) as v:
            k.store(acc, k.splat(0.0, lanes), [r, k.ramp(v * lanes, lanes)])

        def tap_product(channel: Expr, tap: Index, place: tuple[Index, Index]) -> None:
            phase, shift = place
            with k.unroll(self.rows) as r, k.unroll(self.vectors) as v:
                at = k.ramp(v * lanes, lanes)
                source = [phase, first_plane + channel, k.ramp(pixel + shift + v * lanes, lanes)]
                product = k.splat(k.load(self.w, [tile, channel, tap, r]), lanes) * k.load(
                    self.planes, source
                )
                k.store(acc, k.load(acc, [r, at]) + product, [r, at])

        if self.geometry.patches:
            with k.serial(self.depth) as channel, k.serial(taps) as tap:
                tap_product(channel, tap, (tap, 0))
            return
        if taps > UNROLLED_TAPS:  # unit strides: one phase
            (height, width), (down, right) = self.op.kernel, self.op.dilation
            each = width if width <= UNROLLED_TAPS else _ROW_TAPS
            with k.serial(self.depth) as channel, k.serial(height) as i:

                def products(first: Index, count: int, i: Expr = i, channel: Expr = channel) -> None:
                    for j in range(count):
                        shift = i * (down * self.geometry.pitch) + (first + j) * right
                        tap_product(channel, i * width + first + j, (0, shift))

                with k.serial(width // each) as step:
                    products(step * each, each)
                products(width // each * each, width % each)
            return
        # Few taps leave a short body: several channels per step keep the loop overhead small.
        channels_per_step = max(u for u in (1, 2, 4) if self.depth % u == 0 and (u == 1 or u * taps <= 12))
        ahead = None
        if self._reads_x and self.geometry.pixels > self.columns:
            # Rows of a panel lie a plane apart, where the hardware fetches nothing ahead.
            ahead = k.let(tirx.min(pixel + self.columns, int32(self.geometry.pixels - self.columns)))
        with k.serial(self.depth // channels_per_step) as step:
            for u in range(channels_per_step):
                if ahead is not None:
                    plane = first_plane + step * channels_per_step + u
                    for v in range(self.vectors * lanes // LINE_FLOATS):
                        k.prefetch(self.planes, [int32(0), plane, ahead + v * LINE_FLOATS], into=1)
                for tap in range(taps):
                    tap_product(step * channels_per_step + u, tap, self.geometry.taps[tap])

    # the output ----------------------------------------------------------------------------------
    def _store_panel(self, acc: Buffer, tile: Expr, pixel: Expr) -> None:
        """Apply the epilogue to the registers and store them; the last panel may pass the plane's end."""
        k, pixels = self.k, self.geometry.pixels

        def write(count: int) -> None:
            with k.unroll(self.rows) as r:

                def row(filter_: Expr, r: Expr = r) -> None:
                    for start, width in vector_pieces(count, self.lanes):
                        value = k.load(acc, [r, k.ramp(start, width)])
                        self._finish(value, filter_, pixel + start, width)

                self._if_filter(tile, r, row)

        def inside(count: int) -> None:
            with k.when(pixel < pixels):
                write(count)

        last = pixels % self.columns
        if last == 0:
            inside(self.columns)
        else:
            k.branch(pixel + self.columns <= pixels, lambda: write(self.columns), lambda: inside(last))

    def _store_strip(self, tile: Expr) -> None:
        """Apply the epilogue to whole rows of the strip and store them, without the gaps between them."""
        k, op, rows = self.k, self.op, self.blocks.rows
        valid = tirx.min(int32(rows), op.out_height - self.block * rows)
        with k.serial(self.rows) as r:

            def row(filter_: Expr) -> None:
                with k.serial(valid) as line:
                    for start, width in vector_pieces(op.out_width, self.lanes):
                        value = k.load(self.strip, [r, k.ramp(line * self.geometry.pitch + start, width)])
                        pixel = (self.block * rows + line) * op.out_width + start
                        self._finish(value, filter_, pixel, width)

            self._if_filter(tile, r, row)

    def _if_filter(self, tile: Expr, row: Expr, body: Callable[[Expr], None]) -> None:
        """``body(filter)`` where a tile's filter exists: the last tile of a group may reach past it."""
        group, first = self._place(tile)
        filter_ = group * self.filters + first + row
        if self.filters % self.rows == 0:
            body(filter_)
        else:
            with self.k.when(first + row < self.filters):
                body(filter_)

    def _finish(self, value: Expr, filter_: Expr, pixel: Expr, width: int) -> None:
        """Apply the epilogue to ``width`` pixels of one filter and store them."""
        k = self.k
        at = [self.batch * self.op.filters + filter_, k.ramp(pixel, width)]
        k.store(self.y, finished(k, self.op, self.extra, value, filter_, at, width), at)


def packed_weight(
    k: Kernel,
    op: Conv2d,
    weight: Buffer,
    packed: tuple[int, int, int, int],
    place: Callable[[Expr], tuple[Expr, Expr]],
) -> Buffer:
    """Emit what lays a computed weight out as constant ones are, with zero filters after the last.

    Returns
    -------
    The buffer that it lies in then.

    Parameters
    ----------
    packed : tiles, channels of a group, taps, filters of a tile.
    place : of a tile, its group and its first filter in it.
    """
    tiles, depth, taps, height = packed
    filters = op.filters // op.groups
    plain, target = k.view(weight, (op.filters, depth * taps)), k.scratch(packed)
    flat = k.view(target, (tiles, depth * taps, height))
    with k.parallel(tiles, op.flops) as tile:
        group, start = place(tile)
        first = k.let(group * filters + start)

        def rows(count: int) -> None:
            with k.serial(depth * taps) as d:
                for r in range(height):
                    value = k.load(plain, [first + r, d]) if r < count else k.splat(0.0, 1)
                    k.store(flat, value, [tile, d, int32(r)])

        last = (filters - 1) % height + 1
        if last == height:
            rows(last)
        else:
            k.branch(start + height <= filters, lambda: rows(height), lambda: rows(last))
    return target


def finished(
    k: Kernel, op: Conv2d, operands: Sequence[Buffer], value: Expr, filter_: Expr, at: list[Expr], width: int
) -> Expr:
    """``width`` sums of one filter with the epilogue of ``op``, whose tensors lie at ``at`` like Y."""
    for step, operand in steps_with_operands(op.epilogue, operands):
        if step == BIAS:
            value = value + k.splat(k.load(operand, [filter_]), width)
        elif step in TENSORS:
            value = joined(step, value, k.load(operand, at))
        else:
            value = vector_math.ACTIVATIONS[step](value)
    return value
