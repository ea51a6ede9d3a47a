"""The design space of operators that are one tiled product: one knob, the tile."""

from __future__ import annotations

from abc import abstractmethod

from hetero_tvm.machines.gpu import GpuModel
from hetero_tvm.ops.batch_matmul import BatchMatmul
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.gated_matmul import GatedMatmul
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.schedules.base import DesignSpace, Knob, Point
from hetero_tvm.schedules.cuda.products.tiles import Problem, Tile, choices, features_of, tiles

ProductOp = Matmul | GatedMatmul | BatchMatmul | Conv2d


class TiledProductSpace(DesignSpace):
    """Points of a tiled product (see :mod:`.product`).

    Knob ``tile``: (rows, columns, depth, warps down, warps across, stages), and 4 at the end for warp groups
    (see :class:`.tiles.Tile`).
    """

    @abstractmethod
    def problem(self, op: ProductOp, machine: GpuModel) -> Problem:
        """The product that ``op`` is."""

    def knobs(self, op: ProductOp, machine: GpuModel) -> tuple[Knob, ...]:
        return (Knob("tile", choices(tiles(self.problem(op, machine), machine))),)

    def default(self, op: ProductOp, machine: GpuModel) -> Point:
        return {"tile": tiles(self.problem(op, machine), machine)[0].choice}

    def features(self, op: ProductOp, point: Point, machine: GpuModel) -> list[float]:
        return features_of(self.problem(op, machine), Tile.of(point["tile"]), machine)
