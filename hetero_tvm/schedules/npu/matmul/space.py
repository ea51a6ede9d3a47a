"""The design space of products with constant weights."""

from __future__ import annotations

from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.schedules.base import Packer, Point
from hetero_tvm.schedules.npu import epilogue
from hetero_tvm.schedules.npu.base import RankedSpace
from hetero_tvm.schedules.npu.matmul.choices import fitted, in_place, ranked, too_large
from hetero_tvm.schedules.npu.matmul.cost import estimate, queue_cycles
from hetero_tvm.schedules.npu.matmul.kernel import ProductEmitter
from hetero_tvm.schedules.npu.matmul.roles import on_chip, roles
from hetero_tvm.schedules.npu.matmul.split import SplitProductEmitter
from hetero_tvm.schedules.npu.matmul.tiles import STATIONARY, Tiles, column_panels, fits


class NpuMatmulSpace(RankedSpace):
    """``ops.Matmul`` on the NPU."""

    name = "npu.matmul"
    version = 1
    operator = Matmul
    splits = True
    """Whether some tiles cut the reduction into parts."""

    def unsupported(self, op: Matmul, machine: NpuMachine) -> str | None:
        return epilogue.supported(op.epilogue) or too_large(op, machine.spec)

    def ranked(self, op: Matmul, machine: NpuMachine) -> list[tuple[int | str, ...]]:
        return [t.choice() for t in ranked(op, machine.spec) if self.splits or t.parts == 1]

    def check(self, op: Matmul, point: Point, machine: NpuMachine) -> None:
        """A record may name any tiles that fit, also ones that today's ranking leaves out."""
        value, lengths = point.get("tiles"), (8, 9) if self.splits else (8,)
        possible = isinstance(value, tuple) and len(value) in lengths
        if not possible or not fits(op, Tiles.of(point), machine.spec):
            raise ValueError(f"{self.name}: tiles={value!r} do not fit {machine.spec.name}")

    def features(self, op: Matmul, point: Point, machine: NpuMachine) -> list[float]:
        tiles = Tiles.of(point)
        cycles = queue_cycles(op, tiles, machine.spec)
        stationary, speed = float(STATIONARY.index(tiles.stationary)), 1e6 / estimate(op, tiles, machine.spec)
        sizes = map(float, (*tiles.sizes, tiles.parts))
        return [*cycles.queues, cycles.ends, stationary, *sizes, speed]

    def estimate(self, op: Matmul, point: Point, machine: NpuMachine) -> float | None:
        return estimate(op, Tiles.of(point), machine.spec)

    def family(self, point: Point) -> tuple[str, int]:
        """The operand that stays in L1, and the parts into which the reduction is cut."""
        tiles = Tiles.of(point)
        return tiles.stationary, tiles.parts

    def pack(self, op: Matmul, point: Point, machine: NpuMachine) -> dict[int, Packer]:
        tn, dtype = Tiles.of(point).tn, machine.numpy_dtype
        return {1: lambda w: column_panels(w, tn, dtype)}

    def on_chip(self, op: Matmul) -> frozenset[int]:
        return on_chip(op)

    def on_chip_at(self, op: Matmul, point: Point | None) -> frozenset[int]:
        """Indices as for any point, but none where the reduction is cut: its parts meet in DRAM."""
        cut = point is not None and Tiles.of(point).parts > 1
        return frozenset() if cut else self.on_chip(op)

    def fitted(
        self, op: Matmul, point: Point | None, machine: NpuMachine, held: frozenset[int], l1: int
    ) -> Point | None:
        return fitted(op, point, machine.spec, roles(op, held), l1)

    def in_place(
        self, op: Matmul, machine: NpuMachine, held: frozenset[int], l1: int, most: int
    ) -> list[Point]:
        return in_place(op, machine.spec, roles(op, held), l1, most)

    def cost(self, op: Matmul, point: Point, machine: NpuMachine, held: frozenset[int]) -> float | None:
        return estimate(op, Tiles.of(point), machine.spec, roles(op, held))

    def emit_held(self, op: Matmul, point: Point, machine: NpuMachine, held: frozenset[int]) -> PrimFunc:
        tiles, panels, copied = Tiles.of(point), point.get("panels"), point.get("copied", 0)
        if tiles.parts > 1:
            return SplitProductEmitter(op, tiles, machine, panels).run()
        return ProductEmitter(op, tiles, machine, roles(op, held), panels, copied=copied).run()


class WholeMatmulSpace(NpuMatmulSpace):
    """The tiles of products for emitters that do not cut the reduction."""

    splits = False
