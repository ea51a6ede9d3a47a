"""Products with a constant matrix, with the epilogue in the same kernel."""

from __future__ import annotations

import dataclasses

from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.machines.gpu import GpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.schedules.base import Knob, Packer, Point
from hetero_tvm.schedules.cuda.products.fragments import element_for, element_of
from hetero_tvm.schedules.cuda.products.matmul_kernel import matmul
from hetero_tvm.schedules.cuda.products.packing import packed
from hetero_tvm.schedules.cuda.products.space import TiledProductSpace
from hetero_tvm.schedules.cuda.products.tiles import Problem, Tile, estimate, tiles
from hetero_tvm.schedules.cuda.values import oversized


class CudaMatmulSpace(TiledProductSpace):
    """Products of :class:`Matmul` on tensor cores (float16, bfloat16; float32 as tf32 when that precision
    was asked for), else with float32 multiply-adds (see :mod:`.product`).

    Knob ``tile``: see :class:`TiledProductSpace`.  Knob ``splits``: parts of the reduction that different
    blocks sum up; a second kernel adds the parts, in order, and applies the epilogue.  W is packed as its
    transpose [n, k], with zeros up to whole tiles, rounded to tf32 where that multiplies.
    """

    name = "cuda.matmul"
    version = 2

    def refuses(self, op: FusedOp, machine: GpuModel) -> str | None:
        if not isinstance(op, Matmul):
            return f"it serves matmul, not {op.kind}"
        if element_for(op.dtype, machine.features) is None or op.dtype == "int8":
            return f"it multiplies float16, bfloat16 and float32, not {op.dtype}"
        return oversized(op)

    def problem(self, op: Matmul, machine: GpuModel) -> Problem:
        element = element_of(op.dtype, machine)
        return Problem(op.m, op.n, op.k, element.size, bool(element.mma))

    def knobs(self, op: Matmul, machine: GpuModel) -> tuple[Knob, ...]:
        return (*super().knobs(op, machine), Knob("splits", _splits(self.problem(op, machine), machine)))

    def default(self, op: Matmul, machine: GpuModel) -> Point:
        problem = self.problem(op, machine)
        found = [
            (split_estimate(problem, tile, splits, machine), order, tile, splits)
            for order, tile in enumerate(tiles(problem, machine))
            for splits in _splits(problem, machine)
            if not tile.group  # no one has timed these
        ]
        _, _, tile, splits = min(found, key=lambda entry: entry[:2])
        return {"tile": tile.choice, "splits": splits}

    def emit(self, op: Matmul, point: Point, machine: GpuModel) -> PrimFunc:
        return matmul(op, Tile.of(point["tile"]), element_of(op.dtype, machine), point["splits"])

    def pack(self, op: Matmul, point: Point, machine: GpuModel) -> dict[int, Packer]:
        tile, element = Tile.of(point["tile"]), element_of(op.dtype, machine)
        return {1: lambda w: packed(w, tile, element)}

    def features(self, op: Matmul, point: Point, machine: GpuModel) -> list[float]:
        tile, splits = Tile.of(point["tile"]), point["splits"]
        plain = super().features(op, point, machine)
        return [*plain, float(splits), split_estimate(self.problem(op, machine), tile, splits, machine)]


def _splits(problem: Problem, machine: GpuModel) -> tuple[int, ...]:
    """Numbers of parts to choose from: several only where few tiles have long reductions."""
    smallest = -(-problem.m // 64) * -(-problem.n // 64)
    if smallest >= machine.sms or problem.k * problem.size < 2048:
        return (1,)
    return tuple(n for n in (1, 2, 4, 8) if problem.k * problem.size >= 1024 * n)


def split_estimate(problem: Problem, tile: Tile, splits: int, machine: GpuModel) -> float:
    """:func:`estimate` of a reduction in parts: shorter, more blocks, and the parts to add up."""
    if splits == 1:
        return estimate(problem, tile, machine)
    part = dataclasses.replace(problem, k=-(-problem.k // splits), batch=splits)
    launch = 4000.0  # cycles
    moved = 8 * splits * problem.m * problem.n / (48 * machine.sms)
    return estimate(part, tile, machine) + launch + moved
