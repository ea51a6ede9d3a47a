"""Direct convolution in NCHW: a register tile of filters x pixels that needs no im2col.

The trick is the *pitch*: pixels of the output are numbered with the row length of the padded input
(``p = y * pitch + x``).  Then, for stride 1, the input of filter tap (i, j) for pixel p is element
``p + i * pitch + j`` of the padded plane: consecutive pixels are consecutive in memory for every tap,
and a tile is vector loads, broadcasts and FMAs.  Pixels between the rows (x >= width) are computed
and thrown away (3% at 56 columns, 22% at 7).  Strides are reduced to this by splitting the padded
plane into its phases: tap (i, j) reads phase (i mod s, j mod s) at shift (i / s, j / s).

Loop structure::

    parallel over input planes:  copy into phases, with zeros around      (left out when X fits as it is)
    parallel over blocks of pixels x groups of filters:
        for each tile of MR filters:
            for each panel of NR pixels:
                acc[MR][NR] += W[tile, c, tap, MR] * X[c, p + shift(tap)]       over channels and taps
                direct: epilogue on the registers, stored to Y          (rows without gaps)
                else:   acc -> strip[MR][pixels of the block]           (L1)
            else: epilogue on whole rows of the strip, stored to Y

A block's input (all channels) stays in L2 while the tiles of filters pass over it; weights are packed
as [tiles, C, taps, MR].  Depthwise convolution is the same with one filter per plane.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero_tvm.codegen import vector_math
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.matmul import BIAS, RESIDUAL
from hetero_tvm.schedules.base import DesignSpace, Knob, Packer, Point
from hetero_tvm.schedules.cpu.emit import Kernel, chunks, int32, tirx, vector_loop
from hetero_tvm.schedules.cpu.machine import CpuModel

_UNROLLED_TAPS = 49
"""More taps than this make too much code; only patches (kernel = stride) run them in loops."""

_STRIP_LIMIT = 48 << 10
"""Bytes of one strip: it should stay in L1/L2 between the products and the epilogue."""


class _Geometry:
    """Where output pixels find their inputs in the padded, phase-split planes."""

    def __init__(self, op: Conv2d):
        (sh, sw), (kh, kw), (dh, dw) = op.strides, op.kernel, op.dilation
        self.phases = [(i * dh % sh, j * dw % sw) for i in range(kh) for j in range(kw)]
        self.phases = sorted(set(self.phases))
        self.direct = op.strides == (1, 1) and op.kernel == (1, 1) and not any(op.padding)
        self.rows = op.out_height + (kh - 1) * dh // sh
        self.pitch = op.out_width + (kw - 1) * dw // sw
        if self.direct:
            self.rows, self.pitch = 1, op.height * op.width
        self.taps = [
            (self.phases.index((i * dh % sh, j * dw % sw)), i * dh // sh * self.pitch + j * dw // sw)
            for i in range(kh)
            for j in range(kw)
        ]
        # Non-overlapping patches: tap and phase are the same thing, so both may be loops.
        self.patches = (
            op.strides == op.kernel and op.dilation == (1, 1) and not any(op.padding) and len(self.taps) > 9
        )
        self.out_rows = 1 if self.direct else op.out_height
        self.out_columns = self.pitch if self.direct else op.out_width
        self.gapless = self.pitch == self.out_columns
        self.pixels = (self.out_rows - 1) * self.pitch + self.out_columns


class Conv2dSpace(DesignSpace):
    """Knobs: register tile (filters, pixel vectors), pixels per block, groups that filters are cut into."""

    name = "cpu.conv2d"
    version = 1

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, Conv2d):
            return "not a convolution"
        if op.groups != 1 and not op.depthwise:
            return f"{op.groups} groups of {op.channels // op.groups} channels: neither one group nor depthwise"
        taps = op.kernel[0] * op.kernel[1]
        if taps > _UNROLLED_TAPS and not _Geometry(op).patches:
            return f"{taps} filter taps, at most {_UNROLLED_TAPS}"
        shape = (*op.output.shape, op.channels, *op.kernel)
        return "an extent is zero" if min(shape) < 1 else None

    def knobs(self, op: Conv2d, machine: CpuModel) -> tuple[Knob, ...]:
        tiles = []
        for vectors in (2, 1, 3, 4, 6):
            for rows in (8, 12, 6, 4, 14, 3, 2, 1):
                one_filter = op.depthwise and rows > 1
                if rows * vectors + vectors + 1 <= machine.registers and rows <= op.filters and not one_filter:
                    tiles.append((rows, vectors))
        return (
            Knob("tile", tuple(tiles)),
            Knob("blocks", self._block_choices(op, machine)),
            Knob("groups", tuple(sorted({g for g in (1, machine.threads, 2 * machine.threads) if g <= op.filters}))),
        )  # fmt: skip

    def _block_choices(self, op: Conv2d, machine: CpuModel) -> tuple[int, ...]:
        """Into how many blocks the pixels may be cut: whole rows, or panels of a gapless plane."""
        geometry = _Geometry(op)
        most = geometry.out_rows if not geometry.gapless else max(1, geometry.pixels // (2 * machine.lanes))
        return tuple(b for b in (1, 2, 4, 7, 8, 14, 16, 28, 32, 56) if b <= most)

    def default(self, op: Conv2d, machine: CpuModel) -> Point:
        geometry = _Geometry(op)
        lanes = machine.lanes
        tiles, blocks, groups = (knob.choices for knob in self.knobs(op, machine))

        def cost(point: tuple[tuple[int, int], int, int]) -> float:
            (rows, vectors), block_count, group_count = point
            columns = vectors * lanes
            pixels = self._block_pixels(geometry, block_count, columns)
            tile_count = -(-op.filters // rows)
            if op.depthwise:
                tile_count = op.filters
            issue = max(
                rows * vectors / machine.fma_units, 1.12 * machine.fma_latency,
                0.5 * rows + vectors * (1.0 if lanes >= 16 else 0.5) * 1.3,
            )  # fmt: skip
            depth = len(geometry.taps) * (1 if op.depthwise else op.channels)
            work = block_count * group_count * op.batch
            balance = -(-work // machine.threads) * machine.threads / work
            per_group = -(-tile_count // group_count)
            balance *= per_group * group_count / tile_count
            block_bytes = pixels * 4 * (1 if op.depthwise else op.channels)
            spill = 1.0 + 0.5 * max(0.0, 1.0 - machine.l2 / 2 / block_bytes)
            weights = op.filters * depth * 4
            reload = 1.0 + 0.05 * max(0, block_count - 1) * (weights > machine.l2 / 2)
            strips = -(-pixels // columns) * columns / columns
            per_block = strips * (issue * depth + 30 + 2.0 * rows * vectors) * tile_count / group_count
            strip_bytes = rows * pixels * 4
            strip = 1.0 if geometry.gapless or strip_bytes <= _STRIP_LIMIT else 1.3
            return per_block * block_count * group_count * balance * spill * reload * strip

        best = min(((t, b, g) for t in tiles for b in blocks for g in groups), key=cost)
        return {"tile": best[0], "blocks": best[1], "groups": best[2]}

    @staticmethod
    def _block_pixels(geometry: _Geometry, block_count: int, columns: int) -> int:
        """Pixels of one block, a whole number of panels."""
        if geometry.gapless:
            return -(-geometry.pixels // block_count // columns) * columns or columns
        rows = -(-geometry.out_rows // block_count)
        return -(-rows * geometry.pitch // columns) * columns

    def features(self, op: Conv2d, point: Point, machine: CpuModel) -> list[float]:
        geometry = _Geometry(op)
        rows, vectors = point["tile"]
        pixels = self._block_pixels(geometry, point["blocks"], vectors * machine.lanes)
        work = point["blocks"] * point["groups"] * op.batch
        return [
            math.log2(op.channels), math.log2(op.filters), math.log2(geometry.pixels), len(geometry.taps),
            rows, vectors, rows * vectors, point["blocks"], point["groups"], work % machine.threads,
            pixels * point["blocks"] / geometry.pixels, op.filters % rows / rows,
            math.log2(pixels * op.channels * 4 / machine.l2),
            min(1.0, rows * vectors / machine.fma_units / (0.5 * rows + 1.3 * vectors)) * geometry.pixels / (
                pixels * point["blocks"]),
        ]  # fmt: skip

    def pack(self, op: Conv2d, point: Point, machine: CpuModel) -> dict[int, Packer]:
        rows = point["tile"][0]
        tiles = -(-op.filters // rows)

        def weight(w: np.ndarray) -> np.ndarray:
            """[O, C, KH, KW] -> [tiles, C, taps, MR], zero filters after O."""
            padded = np.pad(w.reshape(op.filters, w.shape[1], -1), ((0, tiles * rows - op.filters), (0, 0), (0, 0)))
            return np.ascontiguousarray(
                padded.reshape(tiles, rows, w.shape[1], -1).transpose(0, 2, 3, 1)
            )

        return {1: weight}

    def emit(self, op: Conv2d, point: Point, machine: CpuModel) -> Any:
        lanes, geometry = machine.lanes, _Geometry(op)
        rows, vectors = point["tile"]
        columns = vectors * lanes
        tiles = -(-op.filters // rows)
        depth = op.channels // op.groups
        blocks, groups = point["blocks"], min(point["groups"], tiles)
        block_pixels = self._block_pixels(geometry, blocks, columns)
        block_rows = -(-geometry.out_rows // blocks)
        if geometry.gapless:
            # Rounding a block up to whole panels may leave nothing for the last ones.
            blocks = -(-geometry.pixels // block_pixels)
        else:
            blocks = -(-geometry.out_rows // block_rows)
        reach = max(shift for _, shift in geometry.taps)
        start_step = block_pixels if geometry.gapless else block_rows * geometry.pitch
        # Panels may read past the last pixel: the plane is as long as the furthest read.
        plane = max((blocks - 1) * start_step + block_pixels + reach, geometry.rows * geometry.pitch)
        exact = geometry.direct and plane == geometry.pixels

        k = Kernel()
        with k:
            operands = [k.argument("X", op.inputs[0].shape)]
            operands.append(k.argument("W", (tiles, depth, len(geometry.taps), rows)))
            operands += [k.argument(o.name, o.shape) for o in op.inputs[2:]]
            y = k.argument("Y", op.output.shape)
            x, w, *extra = operands
            if exact:
                planes = k.view(x, (1, op.batch * op.channels, plane))
            else:
                planes = k.scratch((len(geometry.phases), op.batch * op.channels, plane))
                _fill_planes(k, op, geometry, planes, x, plane, lanes)
            out_pixels = op.out_height * op.out_width
            y_flat = k.view(y, (op.batch * op.filters, out_pixels))
            extra = [
                k.view(b, (op.batch * op.filters, out_pixels)) if o.name == RESIDUAL else b
                for b, o in zip(extra, op.inputs[2:], strict=True)
            ]

            def finish(value: Any, batch: Any, filter_: Any, pixel: Any, width: int) -> None:
                at = [batch * op.filters + filter_, k.ramp(pixel, width)]
                rest = iter(extra)
                for step in op.epilogue:
                    if step == BIAS:
                        value = value + k.splat(k.load(next(rest), [filter_]), width)
                    elif step == RESIDUAL:
                        value = value + k.load(next(rest), at)
                    else:
                        value = getattr(vector_math, step)(value)
                k.store(y_flat, value, at)

            def guarded(filter_: Any, body: Callable[[], None]) -> None:
                if op.filters % rows == 0:
                    body()
                else:
                    with k.when(filter_ < op.filters):
                        body()

            with k.parallel(op.batch * blocks * groups) as item:
                group = tirx.floormod(item, groups)
                block = tirx.floormod(tirx.floordiv(item, groups), blocks)
                batch = tirx.floordiv(item, groups * blocks)
                first = tirx.floordiv(group * tiles, groups)
                count = tirx.floordiv((group + 1) * tiles, groups) - first
                start = block * start_step
                strip = None if geometry.gapless else k.scratch((rows, block_pixels))

                def filter_tile(tile: Any) -> None:
                    with k.serial(block_pixels // columns) as panel:
                        acc = k.scratch((rows, columns))
                        _products(
                            k, op, geometry, acc, rows, vectors, lanes, depth, w, planes, tile,
                            batch * op.channels + (tile if op.depthwise else 0), start + panel * columns,
                        )  # fmt: skip
                        if strip is None:
                            _store_panel(k, geometry, acc, rows, columns, lanes, start + panel * columns,
                                         lambda r, p, width, value: guarded(
                                             tile * rows + r,
                                             lambda: finish(value, batch, tile * rows + r, p, width)))  # fmt: skip
                        else:
                            with k.unroll(rows) as r:
                                with k.unroll(vectors) as v:
                                    k.store(
                                        strip, k.load(acc, [r, k.ramp(v * lanes, lanes)]),
                                        [r, k.ramp(panel * columns + v * lanes, lanes)],
                                    )  # fmt: skip
                    if strip is not None:
                        valid = tirx.min(int32(block_rows), op.out_height - block * block_rows)
                        with k.serial(rows) as r:
                            def rows_of_strip() -> None:
                                with k.serial(valid) as line:
                                    for c, width in chunks(op.out_width, lanes):
                                        source = [r, k.ramp(line * geometry.pitch + c, width)]
                                        target = (block * block_rows + line) * op.out_width + c
                                        finish(k.load(strip, source), batch, tile * rows + r, target, width)

                            guarded(tile * rows + r, rows_of_strip)

                with k.serial(tiles if groups == 1 else count) as t:
                    filter_tile(first + t)
        return k.function


def _fill_planes(
    k: Kernel, op: Conv2d, geometry: _Geometry, planes: Any, x: Any, plane: int, lanes: int
) -> None:
    """Copy X into padded phases; everything around is zero."""
    top, left = op.padding[:2]
    (sh, sw), pitch = op.strides, geometry.pitch
    x_planes = k.view(x, (op.batch * op.channels, op.height * op.width))
    if geometry.patches:
        with k.parallel(op.batch * op.channels) as c:
            with k.serial(sh) as ph, k.serial(sw) as pw:
                phase = ph * sw + pw
                with k.serial(geometry.rows) as line, k.serial(pitch) as column:
                    value = k.load(x_planes, [c, (line * sh + ph) * op.width + column * sw + pw])
                    k.store(planes, value, [phase, c, line * pitch + column])
                tail = geometry.rows * pitch
                for start, width in chunks(plane - tail, lanes):
                    k.store(planes, k.splat(0.0, width), [phase, c, k.ramp(tail + start, width)])
        return
    with k.parallel(op.batch * op.channels) as c:
        for index, (ph, pw) in enumerate(geometry.phases):
            vector_loop(
                k, plane, lanes,
                lambda s, width, i=index: k.store(planes, k.splat(0.0, width), [i, c, k.ramp(s, width)]),
            )  # fmt: skip
            if geometry.direct:
                vector_loop(
                    k, geometry.pixels, lanes,
                    lambda s, width, i=index: k.store(
                        planes, k.load(x_planes, [c, k.ramp(s, width)]), [i, c, k.ramp(s, width)]
                    ),
                )  # fmt: skip
                continue
            # Input row of plane row a is a * sh + ph - top; valid rows form one range, columns likewise.
            a0, a1 = _range(geometry.rows, sh, ph - top, op.height)
            b0, b1 = _range(pitch, sw, pw - left, op.width)
            if a1 <= a0 or b1 <= b0:
                continue
            with k.serial(a1 - a0) as line:
                source = ((line + a0) * sh + (ph - top)) * op.width + (pw - left)
                target = (line + a0) * pitch

                def copy(s: Any, width: int, i: int = index, source: Any = source, target: Any = target) -> None:
                    at = tirx.Ramp(source + (s + b0) * sw, int32(sw), width) if width > 1 else source + (s + b0) * sw
                    k.store(planes, k.load(x_planes, [c, at]), [i, c, k.ramp(target + b0 + s, width)])

                vector_loop(k, b1 - b0, lanes, copy)


def _range(extent: int, step: int, offset: int, limit: int) -> tuple[int, int]:
    """All a in [0, extent) with 0 <= a * step + offset < limit, as [first, last)."""
    first = max(0, -(offset // step))
    last = min(extent, (limit - 1 - offset) // step + 1)
    return first, max(first, last)


def _products(
    k: Kernel, op: Conv2d, geometry: _Geometry, acc: Any, rows: int, vectors: int, lanes: int, depth: int,
    w: Any, planes: Any, tile: Any, first_plane: Any, pixel: Any,
) -> None:  # fmt: skip
    """acc[MR][NR] = sum over channels and taps."""

    def each(body: Callable[[Any, Any], None]) -> None:
        with k.unroll(rows) as r:
            with k.unroll(vectors) as v:
                body(r, v * lanes)

    each(lambda r, c: k.store(acc, k.splat(0.0, lanes), [r, k.ramp(c, lanes)]))

    def tap_product(channel: Any, tap: Any) -> None:
        phase, shift = (tap, 0) if geometry.patches else geometry.taps[tap]

        def fma(r: Any, c: Any) -> None:
            at = k.ramp(c, lanes)
            values = k.load(planes, [phase, first_plane + channel, k.ramp(pixel + shift + c, lanes)])
            product = k.splat(k.load(w, [tile, channel, tap, r]), lanes) * values
            k.store(acc, k.load(acc, [r, at]) + product, [r, at])

        each(fma)

    taps = len(geometry.taps)
    if geometry.patches:
        with k.serial(depth) as channel:
            with k.serial(taps) as tap:
                tap_product(channel, tap)
        return
    # Few taps leave a short body: several channels per step keep the loop overhead small.
    together = next(u for u in (4, 2, 1) if depth % u == 0 and u * taps <= 12) if taps <= 6 else 1
    with k.serial(depth // together) as step:
        for u in range(together):
            for tap in range(taps):
                tap_product(step * together + u, tap)


def _store_panel(
    k: Kernel, geometry: _Geometry, acc: Any, rows: int, columns: int, lanes: int, pixel: Any,
    put: Callable[[Any, Any, int, Any], None],
) -> None:  # fmt: skip
    """Store a panel of a gapless plane; the last panel may reach past the end."""

    def write(count: int) -> None:
        with k.unroll(rows) as r:
            for start, width in chunks(count, lanes):
                put(r, pixel + start, width, k.load(acc, [r, k.ramp(start, width)]))

    last = geometry.pixels % columns
    if last == 0:
        with k.when(pixel < geometry.pixels):
            write(columns)
    else:
        def partial() -> None:
            with k.when(pixel < geometry.pixels):
                write(last)

        k.branch(pixel + columns <= geometry.pixels, lambda: write(columns), partial)
