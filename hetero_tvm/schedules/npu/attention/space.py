"""The design space of scaled dot-product attention."""

from __future__ import annotations

from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.ops.attention import Attention
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.npu.attention.kernel import AttentionEmitter
from hetero_tvm.schedules.npu.attention.tiles import Tiles, estimate, fits, ranked
from hetero_tvm.schedules.npu.base import RankedSpace


class NpuAttentionSpace(RankedSpace):
    """``ops.Attention`` on the NPU."""

    name = "npu.attention"
    version = 2
    operator = Attention

    def unsupported(self, op: Attention, machine: NpuMachine) -> str | None:
        if not ranked(op, machine.spec):
            return f"no tile of heads of {op.head_dim} elements fits the scratchpads of {machine.spec.name}"
        return None

    def ranked(self, op: Attention, machine: NpuMachine) -> list[tuple[int | str, ...]]:
        return [t.choice() for t in ranked(op, machine.spec)]

    def features(self, op: Attention, point: Point, machine: NpuMachine) -> list[float]:
        tiles = Tiles.of(point)
        return [*map(float, tiles.choice()), 1e6 / estimate(op, tiles, machine.spec)]

    def estimate(self, op: Attention, point: Point, machine: NpuMachine) -> float | None:
        return estimate(op, Tiles.of(point), machine.spec)

    def on_chip(self, op: Attention) -> frozenset[int]:
        """Operands without the mask."""
        return frozenset({*range(len(op.shapes)), len(op.inputs)})

    def fitted(
        self, op: Attention, point: Point | None, machine: NpuMachine, held: frozenset[int], l1: int
    ) -> Point | None:
        spec = machine.spec
        if point is not None and fits(op, Tiles.of(point), spec, held, l1):
            return point
        best = next((t for t in ranked(op, spec) if fits(op, t, spec, held, l1)), None)
        return None if best is None else {"tiles": best.choice()}

    def cost(self, op: Attention, point: Point, machine: NpuMachine, held: frozenset[int]) -> float | None:
        return estimate(op, Tiles.of(point), machine.spec, held)

    def emit_held(self, op: Attention, point: Point, machine: NpuMachine, held: frozenset[int]) -> PrimFunc:
        return AttentionEmitter(op, Tiles.of(point), machine, held).run()
