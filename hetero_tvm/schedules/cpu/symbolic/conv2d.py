"""Direct convolution of images whose sizes are known only when they come.

As ``images/conv2d.py`` does it: X is copied into phases with zeros around, of which the rows follow one
another at one *pitch*, so that a register tile of filters x pixels reads whole vectors for every tap.  Here
the pitch, the pixels and the number of their blocks are computed at the call::

    parallel over input planes:  copy into phases
    parallel over blocks of rows (of a single row: of its pixels) x groups of filters:
        for each tile of MR filters:
            for each panel of NR pixels, the last of fewer vectors:
                acc[MR][NR] += W[tile, c, tap, MR] * X[phase, c, p + shift(tap)]
                acc -> strip[MR][pixels of the block]
            epilogue on whole rows of the strip, stored to Y

Where a filter reads one channel (depthwise), the rows of a block are copied into phases just before, in L1,
and threads share the channels: otherwise the copies of all planes would go through memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.matmul import TENSORS
from hetero_tvm.schedules.cpu.images.planes.geometry import Taps
from hetero_tvm.schedules.cpu.images.planes.kernel import (
    UNROLLED_TAPS,
    finished,
    packed_weight,
    pixels_apart,
)
from hetero_tvm.schedules.cpu.register_tile import RegisterTile
from hetero_tvm.schedules.cpu.symbolic.tails import narrowed, told_sizes
from hetero_tvm.schedules.emit import Index, Kernel, as_index, int32, pieces_of, vector_loop
from hetero_tvm.schedules.extents import Unfit
from hetero_tvm.schedules.symbolic import Witnesses, shape_variables

_MOST_PIXELS = 4096
"""Pixels of a block at most."""
_FEW_PIXELS = 64
"""Pixels of a block at least, where there are as many."""


class RunTimeConvKernel:
    """Emits one convolution of plain float32 images, with a weight that is packed as ``cpu.conv2d`` does, or
    here where it is computed.

    Raises
    ------
    Unfit : the sizes of the images are fixed, or it is another kind of convolution.
    """

    def __init__(self, witnesses: Witnesses, tile: RegisterTile, machine: CpuModel):
        op: Conv2d = witnesses.largest
        self.op, self.witnesses, self.machine, self.lanes = op, witnesses, machine, machine.lanes
        if len({each.image[2:] for each in witnesses.ops}) == 1:
            raise Unfit("the images have one size")
        if not (op.plain and op.dtype == "float32"):
            raise Unfit("not a convolution of plain images")
        if len({each.inputs[1].shape for each in witnesses.ops}) > 1:
            raise Unfit("the filters depend on the sizes")
        taps = Taps.of(op)
        self.phases, self.taps = taps.phases, taps.places
        self.down, self.right = taps.down, taps.right
        self.looped = len(self.taps) > UNROLLED_TAPS
        if self.looped and op.dilation != (1, 1):
            raise Unfit("many taps that lie apart")
        self.rows, self.vectors = tile.rows, tile.vectors
        self.columns = tile.columns(machine.lanes)
        self.filters, self.depth = op.filters // op.groups, op.channels // op.groups
        self.tiles_each = -(-self.filters // self.rows)
        self.tiles = op.groups * self.tiles_each
        self.flat = op.kernel == op.strides == op.dilation == (1, 1) and all(
            not any(each.padding) for each in witnesses.ops
        )
        """Whether the pixels are one row: a filter of one tap looks at no neighbours."""
        self.one_row = self.flat or all(each.out_height == 1 for each in witnesses.ops)
        self.by_channel = self.depth == self.tiles_each == 1 and not (self.looped or self.one_row)
        """Whether the rows of a block are filled by the one tile that reads them."""
        self.k = Kernel()

    def emit(self) -> PrimFunc:
        """The PrimFunc: X, packed W, the epilogue's operands, what only tells sizes, Y."""
        op, k = self.op, self.k
        with k:
            variables = shape_variables(self.witnesses.symbols)
            shapes = self.witnesses.shapes(variables)
            x = k.argument("X", shapes[0])
            packed = (self.tiles, self.depth, len(self.taps), self.rows)
            weight = k.argument("W", packed if op.constant_weight else op.inputs[1].shape)
            extra = [k.argument(o.name, shapes[2 + n]) for n, o in enumerate(op.inputs[2:])]
            told_sizes(k, self.witnesses, shapes[len(op.inputs) :])
            y = k.argument("Y", shapes[-1])
            self._sizes(narrowed(k, variables))
            flat = (self.batch * op.filters, self.area)
            self.y = k.view(y, flat)
            self.extra = [
                k.view(buffer, flat) if operand.name in TENSORS else buffer
                for buffer, operand in zip(extra, op.inputs[2:], strict=True)
            ]
            self.x = k.view(x, (self.batch * op.channels, self.height * self.width))
            self._blocks()
            planes, plane, self.strip_extent = self._bounds(narrowed(k, variables))
            self.room = len(self.phases) * planes * plane
            if not self.by_channel:
                self.planes = k.scratch((self.room,))
            if not op.constant_weight:
                weight = packed_weight(k, op, weight, packed, self._place)
            self.flat_w = k.view(weight, (math.prod(packed),))
            if not self.by_channel:
                self._fill_all()
            with k.parallel(self.batch * self.count * self.groups, op.flops) as item:
                self._item(item)
        return k.function

    def _sizes(self, variables: dict[str, Expr]) -> None:
        """Name the extents of this call."""

        def of(value: Callable[[Conv2d], Any]) -> Expr:
            return self.k.named(as_index(self.witnesses.value(value, variables)))

        self.batch = of(lambda op: op.batch)
        self.height, self.width = of(lambda op: op.height), of(lambda op: op.width)
        self.out_rows, self.out_columns = of(lambda op: op.out_height), of(lambda op: op.out_width)
        self.top, self.left = of(lambda op: op.padding[0]), of(lambda op: op.padding[1])
        self.area = self.k.named(self.out_rows * self.out_columns)
        if self.flat:
            self.height, self.width = int32(1), self.k.named(self.height * self.width)
            self.out_rows, self.out_columns = int32(1), self.area
        self.pitch = self.k.named(self.out_columns + self.right)

    def _bounds(self, variables: dict[str, Expr]) -> tuple[Expr, Expr, Expr]:
        """Input planes, elements of a plane at most, and of a strip's row: buffers are made before any value
        is named."""
        planes, rows, columns = (
            as_index(self.witnesses.value(of, variables))
            for of in (
                lambda op: op.batch * op.channels,
                lambda op: 1 if self.flat else op.out_height,
                lambda op: op.out_height * op.out_width if self.flat else op.out_width,
            )
        )
        pitch = columns + self.right
        pixels = rows * pitch
        if self.by_channel:
            planes, pixels = int32(1), self._wanted + pitch  # one row, if it is longer than that
        plane = pixels + self.down * pitch + self.right + self.columns + 2 * self.lanes
        strip = int32(self._wanted + self.columns)
        return planes, plane, strip if self.one_row else tirx.max(strip, pitch + self.columns)

    @property
    def _wanted(self) -> int:
        """Pixels of a block, whose inputs lie in the cache."""
        cache = self.machine.l1 if self.by_channel else self.machine.l2 // 2
        fitting = cache // (4 * self.depth * len(self.phases))
        return max(self.columns, min(_MOST_PIXELS, fitting) // self.columns * self.columns)

    def _blocks(self) -> None:
        """Cut the pixels into blocks that share a cache with their inputs, enough of them for all threads."""
        threads = self.machine.threads
        wanted = self._wanted
        if self.one_row:
            each = pieces_of(self.out_columns, threads)
            each = tirx.min(int32(wanted), tirx.max(int32(min(wanted, _FEW_PIXELS)), each))
            self.step = self.k.named(pieces_of(each, self.columns) * self.columns)
            self.count = self.k.named(tirx.truncdiv(self.out_columns + self.step - 1, self.step))
        else:
            rows = tirx.max(int32(1), tirx.truncdiv(int32(wanted), self.pitch))
            share = self.out_rows if self.by_channel else pieces_of(self.out_rows, threads)
            self.block_rows = self.k.named(tirx.max(int32(1), tirx.min(rows, share)))
            self.step = self.k.named(self.block_rows * self.pitch)
            self.count = self.k.named(tirx.truncdiv(self.out_rows + self.block_rows - 1, self.block_rows))
        groups = int32(min(threads, self.tiles))
        if not self.by_channel:
            groups = tirx.Select(self.batch * self.count >= threads, int32(1), groups)
        self.groups = self.k.named(groups)
        rows = self.block_rows if self.by_channel else self.out_rows
        furthest = (rows + self.down) * self.pitch + self.right + self.columns
        # An odd number of vectors: planes that are pages apart share few sets of a cache.
        lines = pieces_of(furthest, self.lanes)
        self.plane = self.k.named((lines + (1 - tirx.truncmod(lines, int32(2)))) * self.lanes)
        planes = 1 if self.by_channel else self.batch * self.op.channels
        self.between = self.k.named(planes * self.plane)

    def _place(self, tile: Expr) -> tuple[Expr, Expr]:
        """Group of the convolution that a tile belongs to, and the tile's first filter in it."""
        if self.op.groups == 1:
            return int32(0), tile * self.rows
        each = int32(self.tiles_each)
        return tirx.truncdiv(tile, each), tirx.truncmod(tile, each) * self.rows

    # the input -----------------------------------------------------------------------------------
    def _fill_all(self) -> None:
        """Copy all planes into phases."""
        k, rows = self.k, self.out_rows + self.down
        across = len({right for _, right in self.phases})
        with k.parallel(self.batch * self.op.channels, self.op.flops) as plane:

            def fill(index: Index, phase: tuple[Index, Index]) -> None:
                begin = k.named(index * self.between + plane * self.plane)
                self._clear(begin)
                self._fill(plane, begin, phase, int32(0), rows)

            if self.looped:
                with k.serial(len(self.phases)) as index:
                    fill(index, (tirx.truncdiv(index, int32(across)), tirx.truncmod(index, int32(across))))
                return
            for index, phase in enumerate(self.phases):
                fill(index, phase)

    def _clear(self, begin: Expr) -> None:
        """Clear one phase of one plane."""
        k = self.k
        with k.serial(tirx.truncdiv(self.plane, int32(self.lanes))) as line:
            k.store(self.planes, k.splat(0.0, self.lanes), [k.ramp(begin + line * self.lanes, self.lanes)])

    def _fill(self, plane: Expr, begin: Expr, phase: tuple[Index, Index], above: Expr, rows: Expr) -> None:
        """Copy ``rows`` rows of one phase of one plane of X, from row ``above`` on, between zeros."""
        k, (sh, sw) = self.k, self.op.strides
        # Row a of a phase is input row a * sh + down; the valid ones are one range, columns likewise.
        down, right = k.named(above * sh + phase[0] - self.top), k.named(phase[1] - self.left)
        first_row, count = self._valid(rows, sh, down, self.height)
        first, columns = self._valid(self.pitch, sw, right, self.width)
        with k.serial(count) as line:
            source = k.named(((line + first_row) * sh + down) * self.width + first * sw + right)
            target = k.named(begin + (line + first_row) * self.pitch + first)

            def copy(start: Expr, width: int) -> None:
                value = pixels_apart(k, self.x, plane, source + start * sw, sw, width, self.lanes)
                k.store(self.planes, value, [k.ramp(target + start, width)])

            vector_loop(k, columns, self.lanes, copy)

    def _valid(self, extent: Expr, step: int, offset: Expr, limit: Expr) -> tuple[Expr, Expr]:
        """First a in [0, extent) with 0 <= a * step + offset < limit, and how many of them there are."""
        first = self.k.named(tirx.max(int32(0), -tirx.floordiv(offset, int32(step))))
        last = tirx.min(extent, tirx.floordiv(limit - 1 - offset, int32(step)) + 1)
        return first, self.k.named(tirx.max(int32(0), last - first))

    # the products --------------------------------------------------------------------------------
    def _item(self, item: Expr) -> None:
        """Emit one block of pixels for one group of filter tiles."""
        k = self.k
        group = self.k.named(tirx.truncmod(item, self.groups))
        self.block = self.k.named(tirx.truncmod(tirx.truncdiv(item, self.groups), self.count))
        self.image = self.k.named(tirx.truncdiv(item, self.groups * self.count))
        first = self.k.named(tirx.truncdiv(group * self.tiles, self.groups))
        last = self.k.named(tirx.truncdiv((group + 1) * self.tiles, self.groups))
        start = self.block * self.step
        if self.one_row:
            self.valid = self.k.named(tirx.min(self.step, self.area - start))
            pixels = self.valid
        else:
            done = k.named(self.block * self.block_rows)
            self.valid = self.k.named(tirx.min(self.block_rows, self.out_rows - done))
            pixels = self.valid * self.pitch
        panels = self.k.named(pieces_of(pixels, self.columns))
        self.strip = k.scratch((self.rows * self.strip_extent,))
        self.strip_row = self.k.named(panels * self.columns)
        if self.by_channel:
            self.planes = k.scratch((self.room,))
            for index in range(len(self.phases)):
                self._clear(index * self.between)
        with k.serial(last - first) as t:
            tile = self.k.named(first + t)
            for index, phase in enumerate(self.phases) if self.by_channel else ():
                plane = self.image * self.op.channels + tile
                self._fill(plane, k.named(index * self.between), phase, done, self.valid + self.down)
            with k.serial(panels) as panel:
                self._panel(tile, panel, pixels - panel * self.columns)
            self._store(tile)

    def _panel(self, tile: Expr, panel: Expr, left: Expr) -> None:
        """Emit the register tile of a panel, no wider than the pixels that are ``left``."""
        # Halves and single vectors: of a short text or a small image the last panel is much, or all.
        widths = sorted({1, -(-self.vectors // 2), self.vectors})

        def narrowest(at: int) -> None:
            if at == len(widths) - 1:
                self._register_tile(tile, panel, self.vectors)
                return
            fits = left <= widths[at] * self.lanes
            self.k.branch(
                fits, lambda: self._register_tile(tile, panel, widths[at]), lambda: narrowest(at + 1)
            )

        narrowest(0)

    def _register_tile(self, tile: Expr, panel: Expr, vectors: int) -> None:
        """Emit one register tile, to the strip."""
        k, lanes = self.k, self.lanes
        acc = k.scratch((self.rows, vectors * lanes))
        with k.unroll(self.rows) as r, k.unroll(vectors) as v:
            k.store(acc, k.splat(0.0, lanes), [r, k.ramp(v * lanes, lanes)])
        pixel = panel * self.columns if self.by_channel else self.block * self.step + panel * self.columns
        self._accumulate(acc, tile, self.k.named(pixel), vectors)
        with k.unroll(self.rows) as r, k.unroll(vectors) as v:
            value = k.load(acc, [r, k.ramp(v * lanes, lanes)])
            place = r * self.strip_row + panel * self.columns + v * lanes
            k.store(self.strip, value, [k.ramp(place, lanes)])

    def _accumulate(self, acc: Buffer, tile: Expr, pixel: Expr, vectors: int) -> None:
        """acc[MR][NR] += sum over channels and taps."""
        k, lanes, taps = self.k, self.lanes, len(self.taps)
        first = self.image * self.op.channels + self._place(tile)[0] * self.depth
        first = int32(0) if self.by_channel else self.k.named(first)

        def tap_product(weights: Expr, tap: int, start: Expr) -> None:
            with k.unroll(self.rows) as r, k.unroll(vectors) as v:
                at = k.ramp(v * lanes, lanes)
                weight = k.splat(k.load(self.flat_w, [weights + (tap * self.rows + r)]), lanes)
                source = k.load(self.planes, [k.ramp(start + v * lanes, lanes)])
                k.store(acc, k.load(acc, [r, at]) + weight * source, [r, at])

        count = 1 if self.looped else taps
        together = max(u for u in (1, 2, 4) if self.depth % u == 0 and (u == 1 or u * count <= 12))
        with k.serial(self.depth // together) as step:
            for u in range(together):
                channel = self.k.named(step * together + u)
                place = self.k.named((first + channel) * self.plane + pixel)
                weights = self.k.named((tile * self.depth + channel) * (taps * self.rows))
                if self.looped:
                    for tap, phase, shift in self._looped_taps():
                        start = self.k.named(place + phase * self.between + shift)
                        tap_product(self.k.named(weights + tap * self.rows), 0, start)
                    continue
                for tap, (phase, down, right) in enumerate(self.taps):
                    tap_product(
                        weights, tap, self.k.named(place + self.between * phase + self.pitch * down + right)
                    )

    def _looped_taps(self) -> Iterator[tuple[Expr, Expr, Expr]]:
        """Each tap with its phase and shift, in loops."""
        (kh, kw), (sh, sw) = self.op.kernel, self.op.strides
        across = min(sw, kw)
        for i_whole, i_phase in _in_steps(self.k, kh, sh):
            for j_whole, j_phase in _in_steps(self.k, kw, sw):
                tap = (i_whole * sh + i_phase) * kw + j_whole * sw + j_phase
                yield tap, i_phase * across + j_phase, i_whole * self.pitch + j_whole

    # the output ----------------------------------------------------------------------------------
    def _store(self, tile: Expr) -> None:
        """Apply the epilogue to whole rows of the strip and store them, without the gaps between them."""
        k = self.k
        group, first = self._place(tile)
        with k.serial(self.rows) as r:
            filter_ = self.k.named(group * self.filters + first + r)
            exists = True if self.filters % self.rows == 0 else first + r < self.filters
            with k.when(exists):
                if self.one_row:
                    self._store_row(filter_, r, int32(0), self.block * self.step, self.valid)
                    return
                with k.serial(self.valid) as line:
                    pixel = self.k.named((self.block * self.block_rows + line) * self.out_columns)
                    self._store_row(filter_, r, self.k.named(line * self.pitch), pixel, self.out_columns)

    def _store_row(self, filter_: Expr, r: Expr, place: Expr, pixel: Expr, count: Expr) -> None:
        k = self.k

        begin = self.k.named(r * self.strip_row + place)

        def finish(start: Expr, width: int) -> None:
            value = k.load(self.strip, [k.ramp(begin + start, width)])
            at = [self.image * self.op.filters + filter_, k.ramp(pixel + start, width)]
            k.store(self.y, finished(k, self.op, self.extra, value, filter_, at, width), at)

        vector_loop(k, self.k.named(count), self.lanes, finish)


def _in_steps(k: Kernel, extent: int, step: int) -> Iterator[tuple[Expr, Expr]]:
    """(whole, phase) of each ``whole * step + phase`` below ``extent``, within loops over them."""
    if extent >= step:
        with k.serial(extent // step) as whole, k.serial(step) as phase:
            yield whole, phase
    if extent % step:
        with k.serial(extent % step) as phase:
            yield int32(extent // step), phase
