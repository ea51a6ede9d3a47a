"""The design space of products with constant weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.schedules.base import Knob, Packer, Point
from hetero_tvm.schedules.npu import epilogue
from hetero_tvm.schedules.npu.base import NpuSpace
from hetero_tvm.schedules.npu.matmul.choices import fitted, in_place, ranked, too_large
from hetero_tvm.schedules.npu.matmul.cost import estimate, queue_cycles
from hetero_tvm.schedules.npu.matmul.kernel import Emitter
from hetero_tvm.schedules.npu.matmul.roles import on_chip, roles
from hetero_tvm.schedules.npu.matmul.split import SplitEmitter
from hetero_tvm.schedules.npu.matmul.tiles import STATIONARY, Tiles, fits
from hetero_tvm.schedules.npu.tiles import round_up


class NpuMatmulSpace(NpuSpace):
    """``ops.Matmul`` on the NPU."""

    name = "npu.matmul"
    version = 1
    splits = True
    """Whether some tiles cut the reduction into parts."""

    def refuses(self, op: FusedOp, machine: Any) -> str | None:
        if not isinstance(op, Matmul):
            return f"is for matmul, not {op.kind}"
        return epilogue.supported(op.epilogue) or too_large(op, machine.spec)

    def knobs(self, op: FusedOp, machine: Any) -> tuple[Knob, ...]:
        tiles = (t for t in ranked(op, machine.spec) if self.splits or t.parts == 1)
        return (Knob("tiles", tuple(t.point() for t in tiles)),)

    def default(self, op: FusedOp, machine: Any) -> Point:
        return {"tiles": ranked(op, machine.spec)[0].point()}

    def check(self, op: FusedOp, point: Point, machine: Any) -> None:
        """A record may name any tiles that fit, also ones that today's ranking leaves out."""
        value, sizes = point.get("tiles"), (8, 9) if self.splits else (8,)
        possible = isinstance(value, tuple) and len(value) in sizes
        if not possible or not fits(op, Tiles(*value), machine.spec):
            raise ValueError(f"{self.name}: tiles={value!r} do not fit {machine.spec.name}")

    def features(self, op: FusedOp, point: Point, machine: Any) -> list[float]:
        tiles = Tiles(*point["tiles"])
        parts = queue_cycles(op, tiles, machine.spec)
        return [*parts, float(STATIONARY.index(tiles.stationary)), *map(float, point["tiles"][1:8]),
                float(tiles.parts), 1e6 / estimate(op, tiles, machine.spec)]  # fmt: skip

    def family(self, point: Point) -> tuple[str, int]:
        """What stays in L1, and into how many parts the reduction is cut."""
        tiles = Tiles(*point["tiles"])
        return tiles.stationary, tiles.parts

    def pack(self, op: FusedOp, point: Point, machine: Any) -> dict[int, Packer]:
        """Column panels of the weights one after the other, each contiguous: a tile of a stream is one run.
        The last panel is as wide as the others."""
        from hetero_tvm.machines.npu.numbers import numpy_dtype

        tn = Tiles(*point["tiles"]).tn
        dtype = numpy_dtype(machine.short)

        def panels(w: np.ndarray) -> np.ndarray:
            wide = np.zeros((w.shape[0], round_up(w.shape[1], tn)), dtype)
            wide[:, : w.shape[1]] = w
            return wide.reshape(w.shape[0], -1, tn).transpose(1, 0, 2).reshape(-1)

        return {1: panels}

    def emit(self, op: FusedOp, point: Point, machine: Any) -> Any:
        return self.emit_held(op, point, machine, frozenset())

    def on_chip(self, op: FusedOp) -> frozenset[int]:
        return on_chip(op)

    def on_chip_at(self, op: FusedOp, point: Point | None) -> frozenset[int]:
        """Parts of a reduction meet in DRAM."""
        cut = point is not None and Tiles(*point["tiles"]).parts > 1
        return frozenset() if cut else self.on_chip(op)

    def fitted(
        self, op: FusedOp, point: Point | None, machine: Any, held: frozenset[int], l1: int
    ) -> Point | None:
        return fitted(op, point, machine.spec, roles(op, held), l1)

    def in_place(
        self, op: FusedOp, machine: Any, held: frozenset[int], l1: int, most: int
    ) -> list[Point]:
        return in_place(op, machine.spec, roles(op, held), l1, most)

    def cost(self, op: FusedOp, point: Point, machine: Any, held: frozenset[int]) -> float | None:
        return estimate(op, Tiles(*point["tiles"]), machine.spec, roles(op, held))

    def emit_held(self, op: FusedOp, point: Point, machine: Any, held: frozenset[int]) -> Any:
        tiles, copied = Tiles(*point["tiles"]), point.get("copied", 0)
        if tiles.parts > 1:
            return SplitEmitter(op, tiles, machine, point.get("panels")).run()
        return Emitter(op, tiles, machine, roles(op, held), point.get("panels"), copied=copied).run()


class WholeMatmulSpace(NpuMatmulSpace):
    """The tiles of products for emitters that do not cut the reduction."""

    splits = False
