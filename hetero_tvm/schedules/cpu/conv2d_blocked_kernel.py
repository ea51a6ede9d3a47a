"""The kernel of the convolution on channel blocks; ``conv2d_blocked.py`` tells its loop structure."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from hetero_tvm.ops.activations import ACTIVATIONS
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.layout import Layout
from hetero_tvm.ops.matmul import BIAS, RESIDUAL
from hetero_tvm.schedules.cpu.activation import Activations
from hetero_tvm.schedules.cpu.emit import Kernel, int32, tirx, vector_loop
from hetero_tvm.schedules.cpu.machine import CpuModel

class Shape:
    """Extents of one blocked convolution.

    Attributes
    ----------
    x, y, residual : layouts; ``x`` is what the products read (after the copy of a plain input).
    flat : a 1x1 convolution without halos: all pixels are one row.
    height, width : rows and columns of the output as the tiles see them.
    taps : (row, column) offset in X of each filter tap.
    filter_blocks, channel_blocks : blocks of the output, and blocks of the input that one panel reads.
    group_blocks : with groups, (first input block of each panel); None when they do not fit.
    depth : products per output value.
    """

    def __init__(self, op: Conv2d, lanes: int):
        self.op, self.lanes = op, lanes
        self.x, self.y = Layout.parse(op.x_layout), Layout.parse(op.y_layout)
        self.residual = Layout.parse(op.residual_layout)
        if not self.x.blocked:
            self.x = Layout(1, op.padding)
        halos = (self.x.halo, self.y.halo, self.residual.halo if RESIDUAL in op.epilogue else (0,) * 4)
        self.flat = op.kernel == op.strides == (1, 1) and not any(map(any, halos))
        self.height, self.width = op.out_height, op.out_width
        if self.flat:
            self.height, self.width = 1, self.height * self.width
        top, left = self.x.halo[0] - op.padding[0], self.x.halo[1] - op.padding[1]
        self.taps = [
            (top + i * op.dilation[0], left + j * op.dilation[1])
            for i in range(op.kernel[0])
            for j in range(op.kernel[1])
        ]
        self.filter_blocks = -(-op.filters // lanes)
        self.channel_blocks = self.x.blocks(op.channels)
        if op.groups > 1:
            self.channel_blocks = self.group_blocks[1] if self.group_blocks else 0
        channels = op.channels if op.groups == 1 else self.channel_blocks * lanes
        self.depth = len(self.taps) * channels

    @functools.cached_property
    def group_blocks(self) -> tuple[list[int], int] | None:
        """First input block of each filter block, and how many it reads; None when groups straddle blocks."""
        op, lanes = self.op, self.lanes
        per_in, per_out = op.channels // op.groups, op.filters // op.groups
        firsts, counts = [], set()
        for block in range(self.filter_blocks):
            last_filter = min(op.filters, (block + 1) * lanes) - 1
            first = block * lanes // per_out * per_in // lanes
            last = ((last_filter // per_out + 1) * per_in - 1) // lanes
            firsts.append(first)
            counts.add(last - first + 1)
        # Wasted products are zeros; beyond four times the work the plain kernels are no worse.
        if max(counts) * lanes > max(lanes, 4 * per_in):
            return None
        most = max(counts)
        blocks = -(-op.channels // lanes)
        return [min(first, blocks - most) for first in firsts], most

    @property
    def pitch(self) -> int:
        return self.x.pitch(self.op.width)

    @property
    def units(self) -> int:
        """What rows are cut into blocks of: rows, or pixels of a flat image."""
        return self.width // 4 + 1 if self.flat else self.height

    def tile_units(self, rows: int, columns: int) -> int:
        """Tiles along the direction that blocks cut."""
        return -(-self.width // columns) if self.flat else -(-self.height // rows)

    @property
    def input_bytes(self) -> int:
        return 4 * math.prod(self.x.shape(self.op.image)[1:])

    def weight_shape(self, vectors: int) -> tuple[int, int, int]:
        """[panels, channel blocks * taps * block, NR]."""
        panels = -(-self.filter_blocks // vectors)
        return panels, self.channel_blocks * len(self.taps) * self.x.block, vectors * self.lanes

    def pack_weight(self, w: np.ndarray, vectors: int) -> np.ndarray:
        """[O, C / groups, KH, KW] -> [panels, channel blocks * taps * block, NR], zeros where nothing is."""
        op, block = self.op, self.x.block
        columns, taps = vectors * self.lanes, len(self.taps)
        panels = -(-self.filter_blocks // vectors)
        dense = np.zeros((panels * columns, self.channel_blocks * block, taps), "float32")
        if op.groups == 1:
            dense[: op.filters, : op.channels] = w.reshape(op.filters, op.channels, taps)
        else:
            per_in, per_out = op.channels // op.groups, op.filters // op.groups
            firsts = self.group_blocks[0]
            for o in range(op.filters):
                start = o // per_out * per_in - firsts[o // self.lanes] * block
                dense[o, start : start + per_in] = w[o].reshape(per_in, taps)
        split = dense.reshape(panels, columns, self.channel_blocks, block, taps)
        return np.ascontiguousarray(split.transpose(0, 2, 4, 3, 1)).reshape(self.weight_shape(vectors))

    def pack_bias(self, bias: np.ndarray, vectors: int) -> np.ndarray:
        panels, _, columns = self.weight_shape(vectors)
        return np.pad(bias, (0, panels * columns - self.op.filters))


class BlockedConvKernel:
    """Emits one convolution.

    Parameters
    ----------
    tile : rows, columns and filter vectors of the register tile.
    blocks, groups : parallel pieces of the rows (of a flat image: pixels), of the filter panels.
    """

    def __init__(self, op: Conv2d, tile: tuple[int, int, int], blocks: int, groups: int, machine: CpuModel):
        self.op, self.lanes = op, machine.lanes
        self.shape = Shape(op, machine.lanes)
        self.rows, self.columns, self.vectors = tile
        self.panels = self.shape.weight_shape(self.vectors)[0]
        self.tiles = self.shape.tile_units(self.rows, self.columns)
        self.blocks, self.groups = min(blocks, self.tiles), min(groups, self.panels)
        self.activations = Activations(op.epilogue, machine)
        self.k = Kernel()

    def emit(self) -> Any:
        op, k, shape = self.op, self.k, self.shape
        with k:
            x = k.argument("X", op.inputs[0].shape)
            self.w = k.argument("W", shape.weight_shape(self.vectors))
            extra = []
            for operand in op.inputs[2:]:
                extent = (self.panels * self.vectors * self.lanes,)
                extra.append(k.argument(operand.name, extent if operand.name == BIAS else operand.shape))
            y = k.argument("Y", op.output.shape)
            self.y = self._planes(y, shape.y, op.out_image)
            self.extra = [
                self._planes(buffer, shape.residual, op.out_image) if operand.name == RESIDUAL else buffer
                for buffer, operand in zip(extra, op.inputs[2:], strict=True)
            ]
            if Layout.parse(op.x_layout) == shape.x:
                self.x = self._planes(x, shape.x, op.image)
            else:
                self.x = k.scratch((op.batch * op.channels, shape.x.rows(op.height) * shape.pitch))
                self._fill(x)
            with k.imported(*self.activations.imports):
                with k.parallel(op.batch * self.blocks * self.groups, op.flops) as item:
                    self._item(item)
        return k.function

    def _planes(self, buffer: Any, layout: Layout, image: tuple[int, ...]) -> Any:
        """[planes, elements of a plane]."""
        n, c, h, w = image
        return self.k.view(
            buffer, (n * layout.blocks(c), layout.rows(h) * layout.pitch(w) * layout.block)
        )

    def _fill(self, x: Any) -> None:
        """Copy a plain X between zeros."""
        op, k, layout, pitch = self.op, self.k, self.shape.x, self.shape.pitch
        plain = k.view(x, (op.batch * op.channels, op.height * op.width))

        def put(plane: Any, start: Any, count: int, source: Any | None) -> None:
            def piece(at: Any, width: int) -> None:
                value = k.splat(0.0, width)
                if source is not None:
                    value = k.load(plain, [plane, k.ramp(source + at, width)])
                k.store(self.x, value, [plane, k.ramp(start + at, width)])

            vector_loop(k, count, self.lanes, piece)

        top, left, bottom, right = layout.halo
        with k.parallel(op.batch * op.channels, op.flops) as plane:
            put(plane, 0, top * pitch, None)
            with k.serial(op.height) as row:
                start = (row + top) * pitch
                put(plane, start, left, None)
                put(plane, start + left, op.width, row * op.width)
                put(plane, start + left + op.width, right, None)
            put(plane, (op.height + top) * pitch, bottom * pitch, None)

    # the work ------------------------------------------------------------------------------------
    def _item(self, item: Any) -> None:
        """One block of rows for one group of filter panels."""
        k, shape = self.k, self.shape
        group = tirx.floormod(item, self.groups)
        block = tirx.floormod(tirx.floordiv(item, self.groups), self.blocks)
        self.batch = tirx.floordiv(item, self.groups * self.blocks)
        first, count = _share(group, self.panels, self.groups)
        full = (shape.width // self.columns) if shape.flat else (shape.height // self.rows)
        first_tile, tiles = _share(block, self.tiles, self.blocks)
        with k.serial(count) as p:
            panel = first + p
            with k.serial(tiles) as t:
                tile = first_tile + t
                rest = (shape.width % self.columns) if shape.flat else (shape.height % self.rows)
                if not rest:
                    self._tile_row(panel, tile, self.columns if shape.flat else self.rows)
                elif full:
                    k.branch(
                        tile < full,
                        lambda panel=panel, tile=tile: self._tile_row(
                            panel, tile, self.columns if shape.flat else self.rows
                        ),
                        lambda panel=panel, rest=rest: self._tile_row(panel, int32(full), rest),
                    )
                else:
                    self._tile_row(panel, int32(0), rest)
            if any(shape.y.halo):
                self._halo(panel, first_tile * self.rows, tiles, block)

    def _tile_row(self, panel: Any, tile: Any, extent: int) -> None:
        """All tiles of ``extent`` rows (of a flat image: the one tile of ``extent`` pixels)."""
        k, shape = self.k, self.shape
        if shape.flat:
            self._tile(panel, int32(0), tile * self.columns, 1, extent)
            return
        y = tile * self.rows
        with k.serial(shape.width // self.columns) as column:
            self._tile(panel, y, column * self.columns, extent, self.columns)
        if shape.width % self.columns:
            done = shape.width - shape.width % self.columns
            self._tile(panel, y, int32(done), extent, shape.width - done)

    def _tile(self, panel: Any, y: Any, x: Any, rows: int, columns: int) -> None:
        """The products and the epilogue of output pixels [y, y + rows) x [x, x + columns)."""
        k, lanes = self.k, self.lanes
        acc = k.scratch((rows * columns, self.vectors * lanes))
        bias = self.extra[0] if self.op.epilogue[:1] == (BIAS,) else None
        for v in range(self.vectors):
            start = k.splat(0.0, lanes)
            if bias is not None:
                start = k.let(k.load(bias, [k.ramp((panel * self.vectors + v) * lanes, lanes)]))
            with k.unroll(rows * columns) as p:
                k.store(acc, start, [p, k.ramp(v * lanes, lanes)])
        self._accumulate(acc, panel, y, x, rows, columns)
        for v in range(self.vectors):
            block = panel * self.vectors + v
            if self.shape.filter_blocks % self.vectors and v:
                with k.when(block < self.shape.filter_blocks):
                    self._store(acc, block, v, y, x, rows, columns)
            else:
                self._store(acc, block, v, y, x, rows, columns)

    def _accumulate(self, acc: Any, panel: Any, y: Any, x: Any, rows: int, columns: int) -> None:
        op, k, shape, lanes = self.op, self.k, self.shape, self.lanes
        block, (sh, sw) = shape.x.block, op.strides
        planes = self.batch * shape.x.blocks(op.channels)
        if op.groups > 1:
            planes = planes + self._first_block(panel)
        first = y * (sh * shape.pitch) + x * sw
        kw = op.kernel[1]

        def products(channel_block: Any, i: Any, j: Any, lanes_in: int) -> None:
            """One tap, ``lanes_in`` channels of one block."""
            top, left = shape.taps[0]
            base = (first + (top + i * op.dilation[0]) * shape.pitch + left + j * op.dilation[1]) * block
            depth = ((channel_block * op.kernel[0] + i) * kw + j) * block

            def channel(c: Any) -> None:
                with k.unroll(rows) as r, k.unroll(columns) as q, k.unroll(self.vectors) as v:
                    column = k.ramp(v * lanes, lanes)
                    at = base + (r * (sh * shape.pitch) + q * sw) * block + c
                    product = k.splat(k.load(self.x, [planes + channel_block, at]), lanes) * k.load(
                        self.w, [panel, depth + c, column]
                    )
                    target = [r * columns + q, column]
                    k.store(acc, k.load(acc, target) + product, target)

            with k.unroll(lanes_in) as c:
                channel(c)

        def taps(channel_block: Any, lanes_in: int) -> None:
            # Taps side by side in one body would share inputs, and LLVM would keep them all in registers.
            with k.serial(op.kernel[0]) as i, k.serial(kw) as j:
                products(channel_block, i, j, lanes_in)

        channels = op.channels if op.groups == 1 else shape.channel_blocks * block
        full = channels // block
        if full:
            with k.serial(full) as channel_block:
                taps(channel_block, block)
        if channels % block:
            taps(int32(full), channels % block)

    def _first_block(self, panel: Any) -> Any:
        """First input block that a filter block reads, as an expression (it is linear in steps)."""
        firsts, most = self.shape.group_blocks
        op = self.op
        per_in, per_out = op.channels // op.groups, op.filters // op.groups
        first = tirx.floordiv(tirx.floordiv(panel * self.lanes, per_out) * per_in, self.lanes)
        return tirx.min(first, int32(self.shape.x.blocks(op.channels) - most))

    # the output ----------------------------------------------------------------------------------
    def _store(self, acc: Any, block: Any, v: int, y: Any, x: Any, rows: int, columns: int) -> None:
        op, k, lanes = self.op, self.k, self.lanes
        plane = self.batch * self.shape.filter_blocks + block

        def place(layout: Layout, r: Any, q: Any) -> list[Any]:
            pixel = (y + r + layout.halo[0]) * layout.pitch(op.out_width) + x + q + layout.halo[1]
            return [plane, k.ramp(pixel * lanes, lanes)]

        with k.unroll(rows) as r, k.unroll(columns) as q:
            value = k.load(acc, [r * columns + q, k.ramp(v * lanes, lanes)])
            rest = iter(self.extra)
            for index, step in enumerate(op.epilogue):
                if step == BIAS:
                    bias = next(rest)
                    if index:
                        value = value + k.load(bias, [k.ramp(block * lanes, lanes)])
                elif step == RESIDUAL:
                    value = value + k.load(next(rest), place(self.shape.residual, r, q))
                else:
                    value = self.activations.apply(step, value, lanes)
            k.store(self.y, self._without_tail(value, block), place(self.shape.y, r, q))

    def _without_tail(self, value: Any, block: Any) -> Any:
        """Lanes past the last filter are zero, also after an activation that makes something of zero."""
        op, lanes = self.op, self.lanes
        moved = [s for s in op.epilogue if s in ACTIVATIONS and ACTIVATIONS[s](np.zeros(1))[0] != 0]
        if op.filters % lanes == 0 or not moved:
            return value
        filter_ = tirx.Ramp(block * lanes, int32(1), lanes)
        inside = filter_ < tirx.Broadcast(int32(op.filters), lanes)
        return tirx.Select(inside, value, self.k.splat(0.0, lanes))

    def _halo(self, panel: Any, first_row: Any, tiles: Any, block: Any) -> None:
        """Zeros around the rows that this item has written."""
        op, k, layout, lanes = self.op, self.k, self.shape.y, self.lanes
        top, left, bottom, right = layout.halo
        pitch = layout.pitch(op.out_width)
        rows = tirx.min(tiles * self.rows, op.out_height - first_row)
        zero = k.splat(0.0, lanes)
        for v in range(self.vectors):
            filter_block = panel * self.vectors + v
            plane = self.batch * self.shape.filter_blocks + filter_block

            def clear(pixel: Any, count: int, plane: Any = plane) -> None:
                if count:
                    with k.serial(count) as i:
                        k.store(self.y, zero, [plane, k.ramp((pixel + i) * lanes, lanes)])

            with k.when(filter_block < self.shape.filter_blocks):
                with k.serial(rows) as r:
                    start = (first_row + r + top) * pitch
                    clear(start, left)
                    clear(start + left + op.out_width, right)
                with k.when(block == 0):
                    clear(int32(0), top * pitch)
                with k.when(block == self.blocks - 1):
                    clear(int32((top + op.out_height) * pitch), bottom * pitch)


def _share(index: Any, total: int, pieces: int) -> tuple[Any, Any]:
    """First and count of piece ``index`` when ``total`` are cut into ``pieces``."""
    if pieces == 1:
        return int32(0), total
    first = tirx.floordiv(index * total, pieces)
    return first, tirx.floordiv((index + 1) * total, pieces) - first
