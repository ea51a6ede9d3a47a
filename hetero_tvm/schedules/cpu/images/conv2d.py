"""Direct convolution in NCHW: a register tile of filters x pixels that needs no im2col.

The trick is the *pitch*: pixels of the output are numbered with the row length of the padded input
(``p = y * pitch + x``).  Then, for stride 1, the input of filter tap (i, j) for pixel p is element
``p + i * pitch + j`` of the padded plane: consecutive pixels are consecutive in memory for every tap,
and a tile is vector loads, broadcasts and FMAs.  Pixels between the rows (x >= width) are computed
and thrown away (3% at 56 columns, 22% at 7).  Strides are reduced to this by splitting the padded
plane into its phases: tap (i, j) reads phase (i mod s, j mod s) at shift (i / s, j / s).

Loop structure::

    parallel over tiles of MR filters:  pack a weight that is not constant
    parallel over input planes:  copy into phases, with zeros around      (left out when X fits as it is)
    parallel over blocks of pixels x groups of filters:
        copy what the block reads of X, instead of all planes                 (of many channels)
        for each tile of MR filters:
            for each panel of NR pixels:
                acc[MR][NR] += W[tile, c, tap, MR] * X[c, p + shift(tap)]       over channels and taps
                rows without gaps: epilogue on the registers, stored to Y
                else:              acc -> strip[MR][pixels of the block]        (L1)
            rows with gaps: epilogue on whole rows of the strip, stored to Y

A block's input (all channels) stays in L2 while the tiles of filters pass over it.  Where each of many
channels lies on a page of its own, a panel meets a new page with every step, and each tile of filters
again: one copy of the block reads whole rows of pixels, and its panels are streams.  Weights are packed
as [tiles, C, taps, MR].  A tile has filters of one group; depthwise convolution has one filter per plane.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.schedules.base import DesignSpace, Knob, Packer, Point
from hetero_tvm.schedules.cpu.images.planes.geometry import Geometry, PixelBlocks
from hetero_tvm.schedules.cpu.images.planes.kernel import UNROLLED_TAPS, ConvKernel
from hetero_tvm.schedules.cpu.register_tile import RegisterTile

_STRIP_LIMIT = 48 << 10
"""Bytes of one strip: it should stay in L1/L2 between the products and the epilogue."""


_FAR_PLANE, _ANY_PLANES, _NEAR_PLANES, _PLANES, _MOST_WAITING = 1024, 0.08, 256, 530.0, 3.3
"""Bytes from which on planes lie on pages of their own, the share that a tile then waits for addresses, how
many planes it reads without waiting longer, for how many more it takes twice the time, and the most that it
takes longer (measured on a Xeon)."""

_ROW, _PIXEL = 12.0, {1: 0.25, 2: 0.8}
"""Cycles of a row of the planes that are filled, and of each of its pixels by the stride."""

_APART = 3.0
"""Cycles of a pixel that is read alone: of larger strides, and where filters do not overlap."""

_WRITTEN = 0.8
"""Cycles beside, of each pixel of planes that are written for all blocks and read again from beyond L2."""

_LAUNCH = 6000.0
"""Cycles of a loop of all threads beside its work."""

_LEAST_COPIED = 16
"""Channels from which on what a block reads may be copied."""

_COPIED, _FILLED = 0.25, 0.6
"""Cycles of a value that is copied to a panel before the products, and of one of a whole image's copy."""


class Conv2dSpace(DesignSpace):
    """Knobs: register tile (filters, pixel vectors), blocks of pixels, groups that filters are cut into, and
    whether the pixels of a block are copied."""

    name = "cpu.conv2d"
    version = 1

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if type(op) is not Conv2d:
            return "not a convolution"
        if not op.plain:
            return f"the images are not all plain NCHW: {op.x_layout} to {op.y_layout}"
        if min(*op.output.shape, op.channels, *op.kernel) < 1:
            return "an extent is zero"
        taps = op.kernel[0] * op.kernel[1]
        looped = Geometry(op).patches or op.strides == (1, 1)
        if taps > UNROLLED_TAPS and not looped:
            return f"{taps} filter taps, at most {UNROLLED_TAPS}"
        return None

    def knobs(self, op: Conv2d, machine: CpuModel) -> tuple[Knob, ...]:
        tiles = []
        for vectors in (2, 1, 3, 4, 6):
            for rows in (8, 12, 6, 4, 14, 10, 5, 3, 2, 1):
                if RegisterTile(rows, vectors).fits(machine) and rows <= op.filters // op.groups:
                    tiles.append((rows, vectors))
        groups = sorted({g for g in (1, machine.threads, 2 * machine.threads) if g <= op.filters})
        return (
            Knob("tile", tuple(tiles)),
            Knob("blocks", _block_choices(Geometry(op), machine)),
            Knob("groups", tuple(groups)),
            Knob("copied", (False, True) if _may_copy(op) else (False,), absent=False),
        )

    def default(self, op: Conv2d, machine: CpuModel) -> Point:
        tiles, blocks, groups, copied = (knob.choices for knob in self.knobs(op, machine))
        geometry = Geometry(op)
        points = [
            {"tile": t, "blocks": b, "groups": g, "copied": c}
            for t in tiles
            for b in blocks
            for g in groups
            for c in copied
        ]
        return min(points, key=lambda point: _cost(op, geometry, point, machine))

    def features(self, op: Conv2d, point: Point, machine: CpuModel) -> list[float]:
        geometry, tile = Geometry(op), RegisterTile.of(point["tile"])
        blocks = PixelBlocks(geometry, point["blocks"], tile.columns(machine.lanes))
        work = blocks.count * point["groups"] * op.batch
        ideal = op.flops / 2 / machine.lanes / machine.fma_units / machine.threads
        sizes = [math.log2(op.channels), math.log2(op.filters), math.log2(geometry.pixels)]
        registers = [tile.rows, tile.vectors, tile.rows * tile.vectors]
        pieces = [blocks.count, point["groups"], work % machine.threads]
        waste = [blocks.pixels * blocks.count / geometry.pixels, op.filters % tile.rows / tile.rows]
        block_bytes = math.log2(blocks.pixels * op.channels * 4 / machine.l2)
        cost = ideal / _cost(op, geometry, point, machine)
        copied = float(point.get("copied", False))
        return [*sizes, len(geometry.taps), *registers, *pieces, *waste, block_bytes, copied, cost]

    def estimate(self, op: Conv2d, point: Point, machine: CpuModel) -> float:
        return _cost(op, Geometry(op), point, machine)

    def pack(self, op: Conv2d, point: Point, machine: CpuModel) -> dict[int, Packer]:
        if not op.constant_weight:
            return {}  # the kernel packs it
        rows = RegisterTile.of(point["tile"]).rows
        filters = op.filters // op.groups
        tiles = -(-filters // rows)

        def weight(w: np.ndarray) -> np.ndarray:
            """[O, C, KH, KW] -> [tiles, C, taps, MR], zero filters after those of each group."""
            flat = w.reshape(op.groups, filters, w.shape[1], -1)
            padded = np.pad(flat, ((0, 0), (0, tiles * rows - filters), (0, 0), (0, 0)))
            by_tile = padded.reshape(op.groups * tiles, rows, w.shape[1], -1)
            return np.ascontiguousarray(by_tile.transpose(0, 2, 3, 1))

        return {1: weight}

    def emit(self, op: Conv2d, point: Point, machine: CpuModel) -> PrimFunc:
        tile = RegisterTile.of(point["tile"])
        blocks = PixelBlocks(Geometry(op), point["blocks"], tile.columns(machine.lanes))
        copied = point.get("copied", False)
        return ConvKernel(op, tile, blocks, point["groups"], machine.lanes, copied).emit()


def _block_choices(geometry: Geometry, machine: CpuModel) -> tuple[int, ...]:
    """Numbers of blocks that the pixels may be cut into, each of at least two vectors or one row."""
    panels = max(1, geometry.pixels // (2 * machine.lanes))
    most = panels if geometry.gapless else geometry.out_rows
    return tuple(b for b in (1, 2, 4, 7, 8, 14, 16, 28, 32, 56, 112) if b <= most)


@functools.lru_cache(maxsize=8)
def _of_two_units(machine: CpuModel) -> CpuModel:
    """The machine with two FMA units at least; kept, since a default weighs a thousand points."""
    return dataclasses.replace(machine, fma_units=max(2.0, machine.fma_units))


def _cost(op: Conv2d, geometry: Geometry, point: Point, machine: CpuModel) -> float:
    """Cycles of one call on the busiest thread: issue of the tiles, waste, balance, cache spills."""
    tile, groups = RegisterTile.of(point["tile"]), point["groups"]
    rows, vectors, columns = tile.rows, tile.vectors, tile.columns(machine.lanes)
    blocks = PixelBlocks(geometry, point["blocks"], columns)
    tiles = op.groups * -(-(op.filters // op.groups) // rows)
    depth = len(geometry.taps) * (op.channels // op.groups)
    # Taps read at odd offsets: a vector load then touches two cache lines, one of 64 bytes always.
    load_cycles = 1.3 * (1.0 if machine.lanes >= 16 else machine.load_cycles)
    # A tile that keeps two FMA units busy suits a CPU with one, as hypervisors make some appear, as well.
    two_units = _of_two_units(machine)
    per_k = tile.step_cycles(two_units, load_cycles) * two_units.fma_units / machine.fma_units
    if geometry.taps[1:]:
        per_k *= machine.shifted_loads
    panel = per_k * depth + 30 + 2.0 * rows * vectors
    work = blocks.count * groups * op.batch
    busiest = -(-work // machine.threads) * -(-tiles // groups)
    block_bytes = blocks.pixels * 4 * (op.channels // op.groups)
    spill = 1.0 + 0.5 * max(0.0, 1.0 - machine.l2 / 2 / block_bytes)
    reread = 0.05
    if op.out_height == 1 and not geometry.direct:
        # The channels of a row lie far apart, each phase again: pages and sets run out before the cache.
        spill = 1.0 + max(0.0, 1.0 - machine.l2 / 4 / (block_bytes * len(geometry.phases)))
        reread = 0.01
        # Groups of filters write whole rows, blocks of pixels a part of every row.
        spill += 0.05 * (blocks.count > 1)
    weights_reread = 1.0 + reread * (blocks.count - 1) * (op.filters * depth * 4 > machine.l2 / 2)
    strip_spill = 1.0 if geometry.gapless or rows * blocks.pixels * 4 <= _STRIP_LIMIT else 1.3
    if point.get("copied", False):
        spill += 0.1 * max(0.0, 1.0 - machine.l2 / 8 / block_bytes)
    products = busiest * blocks.pixels / columns * panel * spill * weights_reread * strip_spill
    if point.get("copied", False):
        lines, width = blocks.rows + geometry.rows - geometry.out_rows, geometry.pitch
        if geometry.out_rows == 1:
            lines, width = 1, blocks.pixels + geometry.reach
        return products + -(-work // machine.threads) * op.channels * _copied(op, geometry, lines, width)
    filled = op.batch * op.channels * geometry.pixels / machine.threads * _FILLED
    if not geometry.direct:
        filled = 0.0 if op.depthwise else _filling(op, geometry, machine)
    elif blocks.plane == geometry.pixels:
        filled = 0.0
    return products * (1.0 + _waiting(op) / len(geometry.taps)) + filled


def _copied(op: Conv2d, geometry: Geometry, lines: int, width: int) -> float:
    """Cycles in which a channel's pixels for a block are copied."""
    if geometry.direct:
        return width * _COPIED
    return len(geometry.phases) * lines * (_ROW + width * _PIXEL.get(op.strides[1], _APART))


def _filling(op: Conv2d, geometry: Geometry, machine: CpuModel) -> float:
    """Cycles in which the input is copied into planes, on the busiest thread."""
    pixel = _APART if geometry.patches else _PIXEL.get(op.strides[1], _APART)
    planes = op.batch * op.channels
    busiest = -(-planes // machine.threads) if geometry.patches else planes / machine.threads
    written = 4 * planes * len(geometry.phases) * geometry.rows * geometry.pitch
    beyond = max(0.0, 1.0 - machine.l2 / 2 / written)
    row = _ROW + geometry.pitch * (pixel + _WRITTEN * beyond)
    return busiest * len(geometry.phases) * geometry.rows * row + _LAUNCH


def _may_copy(op: Conv2d) -> bool:
    """Whether what a block reads of the image may be copied beside it."""
    geometry = Geometry(op)
    if op.groups > 1 or op.channels < _LEAST_COPIED or geometry.patches:
        return False
    if geometry.direct:
        return _far_planes(op)
    return not geometry.gapless or geometry.rows == 1


def _waiting(op: Conv2d) -> float:
    """Time that a tile waits for addresses of planes, by what it takes otherwise."""
    if not _far_planes(op):
        return 0.0
    return _ANY_PLANES + min(max(0.0, (op.channels - _NEAR_PLANES) / _PLANES), _MOST_WAITING)


def _far_planes(op: Conv2d) -> bool:
    """Whether the planes that a tile reads lie on pages of their own."""
    return op.groups == 1 and 4 * Geometry(op).pixels >= _FAR_PLANE
