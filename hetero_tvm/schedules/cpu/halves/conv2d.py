"""Convolution of bfloat16 on channel blocks (NCHW[x]c) of images in float32, or in bfloat16.

Loop structure::

    parallel over blocks of rows x groups of filter panels:
        the rows of X that the block reads, rounded to bfloat16                       (in L2)
        for each panel of NR filters:
            for each tile of pixels of the block:
                acc[MR][NR] = bias                                                    float32
                for each block of input channels, for each filter tap, for each pair of channels:
                    acc[p][:] += products of splat(pair of X) and the pairs of W      (vdpbf16ps)
                epilogue on the registers, stored to Y

The loops are those of ``images/conv2d_blocked.py``, with two channels a step: half of the instructions, half
of the bytes of weights and of pixels.  A pixel is rounded once for all filters and taps, or was when it was
written, where such convolutions alone read it.  All that others read stays float32, so that everything
between convolutions is as it was, and so do sums, bias and residual.
"""

from __future__ import annotations

import dataclasses
import math

from hetero_tvm.codegen.amx import TILE_ROWS
from hetero_tvm.host.peaks import BFLOAT16
from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.integers.bf16_conv2d import Bf16Conv2d
from hetero_tvm.schedules.base import DesignSpace, Knob, Packer, Point
from hetero_tvm.schedules.cpu.dots import halves_for
from hetero_tvm.schedules.cpu.halves import conv2d_matrices, conv2d_windows
from hetero_tvm.schedules.cpu.halves.conv2d_kernel import Bf16ConvKernel, HalfShape
from hetero_tvm.schedules.cpu.halves.conv2d_matrices import Bf16MatrixConvKernel, MatrixShape
from hetero_tvm.schedules.cpu.halves.conv2d_windows import Bf16WindowConvKernel
from hetero_tvm.schedules.cpu.images.blocked import PixelTile
from hetero_tvm.schedules.cpu.images.conv2d_blocked import (
    LINE,
    LINE_CYCLES,
    BlockedConv2dSpace,
    bias_packers,
    busiest_share,
    cheapest,
    plane_cycles,
    register_tiles,
    share_inside,
    tile_knobs,
)
from hetero_tvm.schedules.cpu.images.lone import default_cycles
from hetero_tvm.schedules.cpu.integers.matrix_unit import tile_cycles
from hetero_tvm.schedules.cpu.integers.product_kernel import MATRICES, VECTORS
from hetero_tvm.schedules.cpu.register_tile import RegisterTile

_PIXEL_CYCLES = 3.0
"""Cycles in which a vector of channels is rounded."""

_BROADCAST_CYCLES = 1.35
"""Cycles of a pair of channels in all lanes: tiles of one vector take that long for each product (measured,
Zen 4)."""

_SURE = {VECTORS: 0.95, MATRICES: 0.5}
"""Share of the float32 kernel's estimate that this one's must stay below, by unit.  Tiles take two to three
times as long as their instructions where another core shares the matrix unit or its power (measured on a
virtual machine), which few channels, padded to whole tiles, cannot afford beside Winograd's method."""


class Bf16Conv2dSpace(DesignSpace):
    """Knobs: unit that multiplies, register tile (rows, columns, filter vectors), blocks of rows, groups of
    panels.

    The matrix unit (``conv2d_matrices.py``) has tiles of its own; it alone takes plain images, of few
    channels (``conv2d_windows.py``).
    """

    name = "cpu.bf16_conv2d"
    version = 2

    def arithmetic(self, op: FusedOp, machine: CpuModel) -> str:
        return BFLOAT16

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, Bf16Conv2d):
            return "not a convolution of bfloat16"
        if halves_for(machine) is None:
            return "the machine does not multiply bfloat16"
        shape = HalfShape(op, machine.lanes)
        if shape.straddled or not (shape.x.blocked or conv2d_windows.applies(op, machine)):
            return "neighbouring channels do not lie in blocks of one group"
        return BlockedConv2dSpace().refuses(op.plain_form, machine)

    def knobs(self, op: Bf16Conv2d, machine: CpuModel) -> tuple[Knob, ...]:
        shape = HalfShape(op, machine.lanes)
        vectors, matrices = shape.x.blocked, conv2d_matrices.applies(op, machine)
        units = (VECTORS,) * vectors + (MATRICES,) * matrices
        return Knob("unit", units), *tile_knobs(shape, machine)

    def default(self, op: Bf16Conv2d, machine: CpuModel) -> Point:
        best = cheapest(self.knobs(op, machine), lambda point: self.estimate(op, point, machine))
        return self.canonical(op, best, machine)

    def canonical(self, op: Bf16Conv2d, point: Point, machine: CpuModel) -> Point:
        if point["unit"] == VECTORS:
            return point
        return {
            **point,
            "tile": next(register_tiles(HalfShape(op, machine.lanes), machine)),
        }  # it has its own

    def features(self, op: Bf16Conv2d, point: Point, machine: CpuModel) -> list[float]:
        shape, tile = HalfShape(op, machine.lanes), PixelTile.of(point["tile"])
        ideal = op.flops / 4 / machine.lanes / machine.fma_units / machine.threads
        work = point["blocks"] * point["groups"] * op.batch
        sizes = [math.log2(op.channels), math.log2(op.filters), math.log2(shape.height * shape.width)]
        registers = [tile.rows, tile.columns, tile.vectors, tile.pixels * tile.vectors]
        pieces = [float(point["unit"] == MATRICES), point["blocks"], point["groups"], work % machine.threads]
        rests = [shape.width % tile.columns, shape.height % tile.rows]
        weights = math.log2(shape.depth * tile.vectors * machine.lanes * 2 / machine.l1)
        estimate = ideal / self.estimate(op, point, machine)
        return [*sizes, len(shape.taps), *registers, *pieces, *rests, weights, estimate]

    def estimate(self, op: Bf16Conv2d, point: Point, machine: CpuModel) -> float:
        """Cycles on the busiest thread: rounding, issue of the tiles, waste, balance, cache traffic."""
        groups, matrices = point["groups"], point["unit"] == MATRICES
        kernel = _matrix_kernel(op, machine) if matrices else Bf16ConvKernel
        shape = kernel.shape_of(op, machine)
        tile = shape.tile if isinstance(shape, MatrixShape) else PixelTile.of(point["tile"])
        dot = halves_for(machine)
        assert dot is not None
        panels = -(-shape.filter_blocks // tile.vectors)
        units = shape.tile_units(tile.rows, tile.columns)
        blocks, groups = min(point["blocks"], units), min(groups, panels)
        words = shape.depth / shape.per_word * share_inside(op)
        extent = shape.width if shape.flat else shape.height
        copied = shape.copied_pixels(-(-extent // blocks)) * shape.copied_planes
        block_bytes = copied * shape.pixel_bytes
        panel_bytes = shape.depth * tile.vectors * machine.lanes * 2

        def cycles(height: int, width: int) -> float:
            pixels = height * width
            if isinstance(shape, MatrixShape):
                pairs, single = divmod(shape.tiles_of(height, width), 2)
                two, one = (RegisterTile(many * TILE_ROWS, tile.vectors) for many in (2, 1))
                products = pairs * tile_cycles(two, shape.steps) + single * tile_cycles(one, shape.steps)
                return products + 5.0 * pixels * tile.vectors
            lines = min(LINE, shape.pixel_bytes * shape.copied_steps[1]) / LINE / shape.words
            lines /= len(shape.taps)
            fetch = LINE_CYCLES * lines * pixels if block_bytes > machine.l1 / 2 else 0.0
            step = RegisterTile(pixels, tile.vectors)
            per_word = max(
                step.step_cycles(machine, machine.load_cycles, fetch),
                pixels * tile.vectors * dot.cycles / machine.fma_units,
                _BROADCAST_CYCLES * pixels + machine.load_cycles * tile.vectors,
            )
            if panel_bytes > machine.l1 / 2:
                per_word += 0.3 * tile.vectors * machine.lanes / 16
            return per_word * words + 30 + 2.5 * pixels * tile.vectors

        share = busiest_share(panels, groups, units, blocks, op.batch, machine)
        rounding = copied * _PIXEL_CYCLES * blocks * groups  # every group rounds for itself
        weights_bytes = panel_bytes * panels
        beyond = max(0.0, 1.0 - machine.kept_l2 / (block_bytes + panel_bytes))
        reread = beyond * block_bytes * blocks * (panels - 1) / 12
        reread += weights_bytes * (blocks - 1) * (weights_bytes / groups > machine.kept_l2 / 1.5) / 12
        total = plane_cycles(shape, tile, cycles) * panels + rounding + reread
        return total * op.batch * share + 300.0 * blocks * groups * op.batch / machine.threads

    def pack(self, op: Bf16Conv2d, point: Point, machine: CpuModel) -> dict[int, Packer]:
        shape, vectors = HalfShape(op, machine.lanes), PixelTile.of(point["tile"]).vectors
        weights: dict[int, Packer] = {1: lambda w: shape.pack_weight(w.view("uint16"), vectors)}
        if point["unit"] == MATRICES:
            tiled = _matrix_kernel(op, machine).shape_of(op, machine)
            vectors, weights = tiled.tile.vectors, {1: lambda w: tiled.pack_panels(w.view("uint16"))}
        return weights | bias_packers(shape, vectors)

    def emit(self, op: Bf16Conv2d, point: Point, machine: CpuModel) -> PrimFunc:
        tile = PixelTile.of(point["tile"])
        kernel = _matrix_kernel(op, machine) if point["unit"] == MATRICES else Bf16ConvKernel
        return kernel(op, tile, point["blocks"], point["groups"], machine).emit()


def _matrix_kernel(op: Bf16Conv2d, machine: CpuModel) -> type[Bf16MatrixConvKernel]:
    """Kernel of a convolution on the matrix unit."""
    return Bf16WindowConvKernel if conv2d_windows.applies(op, machine) else Bf16MatrixConvKernel


def half_cycles(op: Conv2d, machine: CpuModel) -> float | None:
    """Cycles that a convolution on channel blocks surely takes when it is rounded to bfloat16; None where it
    cannot be."""
    space, rounded = Bf16Conv2dSpace(), Bf16Conv2d.of(op)
    if space.refuses(rounded, machine) is not None:
        return None
    point = space.default(rounded, machine)
    return space.estimate(rounded, point, machine) / _SURE[point["unit"]]


def halves_pay(op: Conv2d, machine: CpuModel) -> bool:
    """Whether the products of bfloat16 take less time than those of float32, whatever the batch."""
    one = dataclasses.replace(op, batch=op.least_batch)
    after, before = half_cycles(one, machine), default_cycles(BlockedConv2dSpace(), one, machine)
    return after is not None and before is not None and after < before
