"""The design space of scaled dot-product attention."""

from __future__ import annotations

from typing import Any

from hetero_tvm.ops.attention import Attention
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.schedules.base import Knob, Point
from hetero_tvm.schedules.npu.attention.kernel import Emitter
from hetero_tvm.schedules.npu.attention.tiles import Tiles, estimate, fits, ranked
from hetero_tvm.schedules.npu.base import NpuSpace


class NpuAttentionSpace(NpuSpace):
    """``ops.Attention`` on the NPU."""

    name = "npu.attention"
    version = 2

    def refuses(self, op: FusedOp, machine: Any) -> str | None:
        if not isinstance(op, Attention):
            return f"is for attention, not {op.kind}"
        if not ranked(op, machine.spec):
            return f"no tile of heads of {op.head_dim} elements fits the scratchpads of {machine.spec.name}"
        return None

    def knobs(self, op: FusedOp, machine: Any) -> tuple[Knob, ...]:
        return (Knob("tiles", tuple(t.point() for t in ranked(op, machine.spec))),)

    def default(self, op: FusedOp, machine: Any) -> Point:
        return {"tiles": ranked(op, machine.spec)[0].point()}

    def features(self, op: FusedOp, point: Point, machine: Any) -> list[float]:
        speed = 1e6 / estimate(op, Tiles(*point["tiles"]), machine.spec)
        return [*map(float, point["tiles"]), speed]

    def on_chip(self, op: FusedOp) -> frozenset[int]:
        """All but the mask."""
        return frozenset({*range(len(op.shapes)), len(op.inputs)})

    def fitted(
        self, op: FusedOp, point: Point | None, machine: Any, held: frozenset[int], l1: int
    ) -> Point | None:
        spec = machine.spec
        if point is not None and fits(op, Tiles(*point["tiles"]), spec, held, l1):
            return point
        best = next((t for t in ranked(op, spec) if fits(op, t, spec, held, l1)), None)
        return None if best is None else {"tiles": best.point()}

    def cost(self, op: FusedOp, point: Point, machine: Any, held: frozenset[int]) -> float | None:
        return estimate(op, Tiles(*point["tiles"]), machine.spec, held)

    def emit(self, op: FusedOp, point: Point, machine: Any) -> Any:
        return self.emit_held(op, point, machine, frozenset())

    def emit_held(self, op: FusedOp, point: Point, machine: Any, held: frozenset[int]) -> Any:
        return Emitter(op, Tiles(*point["tiles"]), machine, held).run()
