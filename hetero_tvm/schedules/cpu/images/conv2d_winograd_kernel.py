"""The kernel of a convolution on channel blocks by Winograd's method.

Loop structure::

    several groups of panels: parallel over channel blocks x rows of tiles:
        for each tile: B^T d B of its (m + 2) x (m + 2) inputs, one vector per point
                                                    V, [points, channel blocks, tiles, block]
    parallel over blocks of tiles x groups of filter panels:
        one group: V of the tiles of the block alone                               (L2)
        for each panel of NR filters:
            for each of the (m + 2)^2 points:
                for each group of MR tiles:                        a matrix product, as in a 1x1 convolution
                    acc[MR][NR] = V[point, channels, tiles] x U[panel, point, channels, :]
                stored to M, [points, tiles, NR]                      (L2)
            for each tile: A^T m A, the epilogue on the registers, stored to Y; the halo

Groups of panels share V, which they write together first; with a single group every block has its own, and
nothing that is transformed leaves the core's L2.

Four times (m = 4) fewer products than the direct kernel, for two transforms that cost a few vector
operations per value, and for filters of (m + 2)^2 / 9 times the size: it pays while those come from
memory faster than they are used, which is while an image has many tiles.

A tile at the border reads the last row or column again instead of what lies outside; what comes of it
is not stored.  A NaN or an infinity spreads over its whole tile, not only over the filter's window.
In a dilated filter's last tiles that last pixel may be one between the taps.

Filters of 3x3 are the usual case.  Longer ones are parts of three taps, side by side in the depth of the
products, the last one with zeros; two taps, and parts of them, have one more output from as many points.
With strides each part reads pixels of one remainder alone.  Outputs of a tile are as far apart as the taps
of a dilated filter.  Along an axis on which a filter has a single tap nothing is transformed: a row has m + 2
points, half the products.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable

import numpy as np

from hetero_tvm.host import mapped
from hetero_tvm.host.expanded import Expanded, expanded
from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.layout import Layout
from hetero_tvm.ops.volumes.conv3d import Conv3d
from hetero_tvm.schedules.cpu.images.blocked import (
    FEW_PASSES,
    BlockedOutput,
    Plane,
    each_filter_block,
    each_tile,
    prefetch_lines,
)
from hetero_tvm.schedules.cpu.images.conv2d_blocked_shape import BlockedShape
from hetero_tvm.schedules.cpu.images.slice_planes import SlicePlanes
from hetero_tvm.schedules.cpu.register_tile import RegisterTile
from hetero_tvm.schedules.cpu.winograd import FILTER, TileAxis, parts_of
from hetero_tvm.schedules.emit import Index, Kernel, as_index, int32, largest, pieces_of, share, smallest

_OF_L2 = 0.4
"""Share of L2 that transformed pixels and sums of a block take."""

_MOST_STRIDE, _MOST_PARTS = 2, 24
"""Stride and parts of a filter beyond which they transform the same pixels too often."""


def applies(op: Conv2d) -> bool:
    """Whether Winograd's method computes the operator (on an input in blocks)."""
    x = Layout.parse(op.x_layout)
    if not x.blocked or max(op.strides) > _MOST_STRIDE:
        return False
    if op.groups > 1 and any(extent // op.groups % x.block for extent in (op.channels, op.filters)):
        return False
    if type(op) is Conv3d:
        once = op.strides == op.dilation == (1, 1)
        return once and op.kernel == (FILTER, FILTER) and op.channels % x.block == 0
    if max(op.strides) > 1 and max(op.dilation) > 1:
        return False
    parts = [parts_of(*axis) for axis in zip(op.kernel, op.strides, strict=True)]
    several = any(taps > stride for taps, stride in zip(op.kernel, op.strides, strict=True))
    return several and math.prod(map(len, parts)) <= _MOST_PARTS


def transformed_blocks(shape: BlockedShape) -> int:
    """Blocks of channels that one image's results are made from."""
    return shape.channel_blocks if shape.op.groups == 1 else shape.x.blocks(shape.op.channels)


class TileGrid:
    """Tiles of the output of one convolution.

    Attributes
    ----------
    axes : down and across.
    rows, columns, count : of tiles in one image.
    parts : of a filter.
    points : products per tile and channel of a part.
    depth : channels of all parts.
    """

    def __init__(self, op: Conv2d, size: int):
        extents = (op.out_height, op.out_width)
        each = zip(op.kernel, op.strides, op.dilation, extents, strict=True)
        self.axes = [TileAxis(*axis, size) for axis in each]
        self.rows, self.columns = (axis.tiles for axis in self.axes)
        self.count = self.rows * self.columns
        self.parts = math.prod(len(axis.parts) for axis in self.axes)
        self.points = math.prod(axis.reach for axis in self.axes)
        self.depth = self.parts * op.per_filter

    def pack_weight(self, op: Conv2d, w: np.ndarray, lanes: int, vectors: int) -> Expanded:
        """[O, C, KH, KW] -> U, [panels, points, parts * channels, NR], transformed in float64; zeros past O
        and past the taps."""
        columns = vectors * lanes
        panels = -(-op.filters // columns)
        matrix = np.kron(*(axis.filters for axis in self.axes))
        down, across = (axis.taps for axis in self.axes)
        plain = mapped.empty((panels, down * across, self.depth * columns), np.float32)
        plain[:] = 0
        split = plain.reshape(panels, down, across, self.parts, op.per_filter, columns)
        for panel in range(panels):
            some = w[panel * columns : (panel + 1) * columns].reshape(-1, op.per_filter, *op.kernel)
            for n, (rows, taps) in enumerate(itertools.product(*(axis.parts for axis in self.axes))):
                part = some[:, :, rows, taps]
                split[panel, : part.shape[2], : part.shape[3], n, :, : len(part)] = part.transpose(2, 3, 1, 0)
        return expanded(matrix, plain).reshape(panels, self.points, self.depth, columns)


def most_tiles(op: Conv2d, size: int, registers: RegisterTile, machine: CpuModel) -> int:
    """Tiles of a block at most, a whole number of register tiles, of an image of any size: so many that what
    a thread keeps of them stays in L2."""
    grid = TileGrid(op, size)
    each = 4 * grid.points * (grid.depth * op.groups + registers.vectors * machine.lanes)
    return max(1, int(_OF_L2 * machine.l2 / each / registers.rows)) * registers.rows


def blocks_in_l2(op: Conv2d, machine: CpuModel) -> int:
    """Blocks of the largest tiles, of which what a thread keeps with one vector of filters stays in L2."""
    return pieces_of(TileGrid(op, 4).count, most_tiles(op, 4, RegisterTile(1, 1), machine))


def blocks_of_tiles(count: Index, wanted: int, height: int, most: int) -> Index:
    """Number of blocks that an image of any size is cut into: the ``wanted`` one, as far as each has a
    register tile of ``height``, and none more than ``most`` tiles."""
    return largest(smallest(wanted, pieces_of(count, height)), pieces_of(count, most))


class WinogradKernel:
    """Emits one convolution.

    Parameters
    ----------
    size : outputs of a tile per side.
    registers : tiles (as rows) and filter vectors of the register tile.
    blocks, groups : parallel pieces of the tiles, of the filter panels.
    k : what it is written to; extents of the images that are known at run time are expressions.
    room : the convolution with extents that buffers may have, where those of ``op`` are named values.
    """

    def __init__(
        self,
        op: Conv2d,
        size: int,
        registers: RegisterTile,
        blocks: int,
        groups: int,
        machine: CpuModel,
        k: Kernel | None = None,
        room: Conv2d | None = None,
    ):
        self.op, self.lanes, self.room = op, machine.lanes, room or op
        self.shape, self.tiles, self.size = BlockedShape(op, machine.lanes), TileGrid(op, size), size
        self.channel_blocks = transformed_blocks(self.shape)
        self.vectors = registers.vectors
        self.panels = -(-self.shape.filter_blocks // self.vectors)
        self.blocks, self.groups = blocks, min(groups, self.panels)
        self.own = self.groups == 1
        self.open = not isinstance(self.tiles.count, int)
        self.height = registers.rows
        self.most = most_tiles(op, size, registers, machine) if self.open else self._even_blocks()
        self.k = k or Kernel()
        self.out = BlockedOutput(self.k, op, machine)

    def _even_blocks(self) -> int:
        """Cut the tiles into even blocks, and those into even pieces; gives the tiles of a block."""
        self.blocks = min(self.blocks, self.tiles.count)
        self.block = -(-self.tiles.count // self.blocks)
        self.blocks = -(-self.tiles.count // self.block)
        self.height = -(-self.block // -(-self.block // self.height))
        return self.block

    def _measured(self) -> None:
        """Compute how many tiles and blocks an image has that is known at run time."""
        named, tiles, height = self.k.named, self.tiles, self.height
        tiles.rows, tiles.columns = named(tiles.rows), named(tiles.columns)
        tiles.count = named(tiles.rows * tiles.columns)
        blocks = named(blocks_of_tiles(tiles.count, self.blocks, height, self.most))
        each = tirx.truncdiv(tiles.count - 1, blocks) + 1
        self.block = named(pieces_of(each, height) * height)
        self.blocks = named(tirx.truncdiv(tiles.count - 1, self.block) + 1)

    def emit(self) -> PrimFunc:
        """The PrimFunc: X, packed W, the epilogue's operands, Y."""
        with self.k:
            self.write()
        return self.k.function

    def write(self) -> None:
        """Write arguments and loops to ``k``."""
        op, k, shape, points = self.op, self.k, self.shape, self.tiles.points
        columns = self.vectors * self.lanes
        x = k.argument("X", op.inputs[0].shape)
        self.u = k.argument("W", (self.panels, points, self.tiles.depth, columns))
        self.out.declare(self.panels * columns)
        self.x = Plane(k, shape.x, op.height, op.width).view(x)
        if not self.own:
            planes = self.tiles.parts * math.prod(shape.x.shape(self.room.image)[:2])
            count = TileGrid(self.room, self.size).count
            self.v = k.scratch((points, planes * count * self.lanes))
        if self.open:
            self._measured()
        if not self.own:
            self._transform_image()
        with k.imported(*self.out.imports):
            with k.parallel(op.batch * self.blocks * self.groups, op.flops) as item:
                self._item(item)

    def _transform_image(self) -> None:
        """V of all tiles, which all threads write and read."""
        k, planes = self.k, math.prod(self.shape.x.shape(self.op.image)[:2])
        self.v_plane = self.tiles.count * self.lanes
        with k.parallel(planes * self.tiles.rows, self.op.flops) as item:
            plane, row = tirx.floordiv(item, self.tiles.rows), tirx.floormod(item, self.tiles.rows)
            with k.serial(self.tiles.columns) as column:
                self._transform_inputs(plane, row, column, plane, row * self.tiles.columns + column)

    def _transform_block(self, first_tile: Expr, tiles: Expr) -> None:
        """V of the tiles of one block; a line between points, as whole pages would share few sets of L1."""
        k, blocks = self.k, self.channel_blocks
        self.v_plane = self.most * self.lanes
        self.v = k.scratch((self.tiles.points, self.tiles.parts * blocks * self.v_plane + self.lanes))
        begin, some = self.slice_planes.inside(int32(0), blocks)
        with k.serial(some) as number, k.serial(tiles) as t:
            block, tile = begin + number, first_tile + t
            row, column = self._place(tile)
            self._transform_inputs(self.slice_planes.first + block, row, column, block, t)

    def _transform_inputs(self, plane: Expr, row: Expr, column: Expr, to_plane: Expr, to_tile: Expr) -> None:
        """Transform one tile of one channel block for each part: V[:, to_plane * parts + part, to_tile]."""
        op, k, lanes, (down, across) = self.op, self.k, self.lanes, self.tiles.axes
        (top, left), pitch = self.shape.taps[0], self.shape.pitch
        y, x = down.first(k, row), across.first(k, column)
        for part, (rows, taps) in enumerate(itertools.product(down.parts, across.parts)):
            ys = down.pixels(k, y, rows, top, self.shape.x.rows(op.height))
            xs = across.pixels(k, x, taps, left, pitch)
            at = k.ramp((to_plane * self.tiles.parts + part) * self.v_plane + to_tile * lanes, lanes)
            self._transform_input(plane, ys, xs, at)

    def _transform_input(self, plane: Expr, ys: list[Expr], xs: list[Expr], at: Expr) -> None:
        """V[:, at] from the pixels of one channel block in the rows ``ys`` and columns ``xs``."""
        k, lanes, (down, across) = self.k, self.lanes, self.tiles.axes
        lane = k.ramp(0, lanes)
        half = k.scratch((self.tiles.points, lanes))
        for j, x in enumerate(xs):
            pixels = [[plane, k.ramp((y * self.shape.pitch + x) * lanes, lanes)] for y in ys]
            loaded = [k.let(k.load(self.x, place)) for place in pixels]
            for i, value in enumerate(down.input_side(k, loaded)):
                k.store(half, value, [i * across.reach + j, lane])
        for i in range(down.reach):
            values = [k.load(half, [i * across.reach + j, lane]) for j in range(across.reach)]
            for j, value in enumerate(across.input_side(k, values)):
                k.store(self.v, value, [i * across.reach + j, at])

    def _place(self, tile: Expr) -> tuple[Expr, Expr]:
        """Row and column of a tile."""
        columns = as_index(self.tiles.columns)
        return self.k.let(tirx.floordiv(tile, columns)), self.k.let(tirx.floormod(tile, columns))

    def _item(self, item: Expr) -> None:
        """Emit one block of tiles for one group of filter panels."""
        k, points = self.k, self.tiles.points
        group = tirx.floormod(item, self.groups)
        block = k.let(tirx.floormod(tirx.floordiv(item, self.groups), self.blocks))
        self.batch = k.let(tirx.floordiv(item, self.groups * self.blocks))
        self.slice_planes = SlicePlanes(k, self.op, self.shape.x.blocks(self.op.channels), self.batch)
        first_tile = block * self.block
        tiles = k.let(tirx.min(as_index(self.block), self.tiles.count - first_tile))
        first, count = share(group, self.panels, self.groups)
        if self.own:
            self._transform_block(first_tile, tiles)
        m = k.scratch((points, self.most * self.vectors * self.lanes + self.lanes))
        with k.serial(count) as p:
            panel = first + p
            with k.serial(points) as point:
                self._products(m, panel, point, first_tile, tiles)
            with k.serial(tiles) as t:
                finish = functools.partial(self._finish, m, panel, first_tile, t)
                self._each_filter_block(panel, finish)
            if any(self.shape.y.halo):
                with k.when(block == 0):
                    self._each_filter_block(panel, functools.partial(self._clear_halo, panel))

    def _products(self, m: Buffer, panel: Expr, point: Expr, first_tile: Expr, tiles: Expr) -> None:
        """M[point] of all tiles of the block; the last block may be smaller than the others."""
        k = self.k

        def some(start: Index, size: int) -> None:
            self._accumulate(m, panel, point, first_tile, start, size)

        pieces = tirx.floordiv(tiles + (self.height - 1), self.height)
        if self.open:
            each_tile(k, int32(0), pieces, tiles, self.height, some)
            return
        last = self.tiles.count - (self.blocks - 1) * self.block
        if self.blocks == 1 or last == self.block:
            each_tile(k, int32(0), pieces, self.block, self.height, some)
        else:
            k.branch(
                first_tile < (self.blocks - 1) * self.block,
                lambda: each_tile(k, int32(0), -(-self.block // self.height), self.block, self.height, some),
                lambda: each_tile(k, int32(0), -(-last // self.height), last, self.height, some),
            )

    def _accumulate(
        self, m: Buffer, panel: Expr, point: Expr, first_tile: Expr, start: Index, tiles: int
    ) -> None:
        """M[point, start : start + tiles]: the product over all channels."""
        op, k, lanes = self.op, self.k, self.lanes
        acc = k.scratch((tiles, self.vectors * lanes))
        plane = int32(0) if self.own else self.slice_planes.first
        if op.groups > 1:
            group = tirx.floordiv(panel * (self.vectors * lanes), op.filters // op.groups)
            plane = k.let(plane + group * (op.per_filter // lanes))
        before = start if self.own else first_tile + start

        def each(body: Callable[[Expr, Expr], None]) -> None:
            with k.unroll(tiles) as t, k.unroll(self.vectors) as v:
                body(t, k.ramp(v * lanes, lanes))

        each(lambda t, column: k.store(acc, k.splat(0.0, lanes), [t, column]))
        following = panel * self.tiles.points + point + 1
        last = self.panels * self.tiles.points - 1
        following = k.let(tirx.min(following, int32(last)))
        ahead = [tirx.floordiv(following, self.tiles.points), tirx.floormod(following, self.tiles.points)]
        passes = -(-self.most // self.height)

        def channels(part: Index, block: Expr, count: int) -> None:
            depth = part * op.per_filter + block * lanes
            if passes <= FEW_PASSES:
                prefetch_lines(
                    k, self.u, ahead, depth, count, tirx.floordiv(as_index(start), self.height), passes
                )
            v_plane = (plane + block) * self.tiles.parts + part
            with k.unroll(count) as c:

                def product(t: Expr, column: Expr) -> None:
                    at = [point, v_plane * self.v_plane + (before + t) * lanes + c]
                    value = k.splat(k.load(self.v, at), lanes)
                    value = value * k.load(self.u, [panel, point, depth + c, column])
                    k.store(acc, k.load(acc, [t, column]) + value, [t, column])

                each(product)

        full, rest = divmod(op.per_filter, lanes)

        def each_block(part: Index) -> None:
            if full:
                begin, some = self.slice_planes.inside(int32(0), full)
                with k.serial(some) as number:
                    channels(part, begin + number, lanes)
            if rest:
                channels(part, int32(full), rest)

        if self.tiles.parts == 1:
            each_block(0)
        else:
            with k.serial(self.tiles.parts) as part:
                each_block(part)
        with k.unroll(tiles) as t, k.unroll(self.vectors) as v:
            sums = k.load(acc, [t, k.ramp(v * lanes, lanes)])
            k.store(m, sums, [point, self._sums_at(start + t, v)])

    def _sums_at(self, tile: Index, v: Index) -> Expr:
        """Place in a point of M of one vector of filters."""
        return self.k.ramp((tile * self.vectors + v) * self.lanes, self.lanes)

    def _finish(self, m: Buffer, panel: Expr, first_tile: Expr, t: Expr, v: int) -> None:
        """Store the outputs of one tile and one block of filters."""
        k, lanes, (down, across) = self.k, self.lanes, self.tiles.axes
        lane = k.ramp(0, lanes)
        half = k.scratch((down.size * across.reach, lanes))
        for j in range(across.reach):
            points = range(j, self.tiles.points, across.reach)
            values = [k.let(k.load(m, [point, self._sums_at(t, v)])) for point in points]
            for i, value in enumerate(down.output_side(k, values)):
                k.store(half, value, [i * across.reach + j, lane])
        filter_block = panel * self.vectors + v
        plane = self.batch * self.shape.filter_blocks + filter_block
        bias = self.out.start(filter_block)
        row, column = self._place(first_tile + t)
        y, x = down.first(k, row), across.first(k, column)
        for i in range(down.size):
            values = [k.load(half, [i * across.reach + j, lane]) for j in range(across.reach)]
            for j, value in enumerate(across.output_side(k, values)):
                conditions = [*down.inside(y, i), *across.inside(x, j)]
                with k.when(tirx.all(*conditions)) if conditions else contextlib.nullcontext():
                    at = y + i * down.apart, x + j * across.apart
                    self.out.put(value + bias, plane, filter_block, *at)

    def _clear_halo(self, panel: Expr, v: int) -> None:
        """Write zeros around the plane of one filter block."""
        plane = self.batch * self.shape.filter_blocks + panel * self.vectors + v
        always = tirx.const(True)
        self.out.clear_halo(plane, int32(0), self.op.out_height, always, always)

    def _each_filter_block(self, panel: Expr, body: Callable[[int], None]) -> None:
        each_filter_block(self.k, panel, self.vectors, self.shape.filter_blocks, body)
