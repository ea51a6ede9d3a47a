"""The gated half of an MLP: ``activation(X @ G) * (X @ U)``.

Loops: the loops of :mod:`hetero_tvm.schedules.npu.matmul.kernel` twice in one kernel.  The first product goes
through the activation to the result's place in DRAM; the second one reads it back tile by tile in its
epilogue and multiplies.  Nothing waits in between: the second product starts while the first one's last
tiles are on their way out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.gated_matmul import GatedMatmul
from hetero_tvm.ops.matmul import BIAS, Matmul
from hetero_tvm.schedules.base import Knob, Packer, Point
from hetero_tvm.schedules.npu import epilogue
from hetero_tvm.schedules.npu.base import NpuSpace
from hetero_tvm.schedules.npu.matmul.kernel import Emitter
from hetero_tvm.schedules.npu.matmul.space import WholeMatmulSpace
from hetero_tvm.schedules.npu.matmul.tiles import Tiles
from hetero_tvm.schedules.npu.tiles import round_up


def _halves(op: GatedMatmul) -> tuple[Matmul, Matmul]:
    """The two products, with the steps behind each."""
    bias = (BIAS,) if op.biased else ()
    first = Matmul(op.lead, op.n, op.k, (*bias, op.activation))
    return first, Matmul(op.lead, op.n, op.k, (*bias, epilogue.GATE))


def _model(op: GatedMatmul) -> Matmul:
    """What tiles are chosen for: a product with what both halves need."""
    return Matmul(op.lead, op.n, op.k, (op.activation, epilogue.GATE))


class NpuGatedMatmulSpace(NpuSpace):
    """``ops.GatedMatmul`` on the NPU."""

    name = "npu.gated_matmul"
    version = 1

    def refuses(self, op: FusedOp, machine: Any) -> str | None:
        if not isinstance(op, GatedMatmul):
            return f"is for gated_matmul, not {op.kind}"
        return WholeMatmulSpace().refuses(_model(op), machine)

    def knobs(self, op: FusedOp, machine: Any) -> tuple[Knob, ...]:
        return WholeMatmulSpace().knobs(_model(op), machine)

    def default(self, op: FusedOp, machine: Any) -> Point:
        return WholeMatmulSpace().default(_model(op), machine)

    def check(self, op: FusedOp, point: Point, machine: Any) -> None:
        WholeMatmulSpace().check(_model(op), point, machine)

    def features(self, op: FusedOp, point: Point, machine: Any) -> list[float]:
        return WholeMatmulSpace().features(_model(op), point, machine)

    def pack(self, op: FusedOp, point: Point, machine: Any) -> dict[int, Packer]:
        """G's column panels, then U's."""
        panels = WholeMatmulSpace().pack(_model(op), point, machine)[1]
        return {1: lambda w: np.concatenate([panels(w[:, : op.n]), panels(w[:, op.n :])])}

    def emit(self, op: FusedOp, point: Point, machine: Any) -> Any:
        return _Emitter(op, Tiles(*point["tiles"]), machine).run()


class _Emitter(Emitter):
    def __init__(self, op: GatedMatmul, tiles: Tiles, machine: Any):
        super().__init__(_model(op), tiles, machine)
        self.gated = op

    def run(self) -> Any:
        op, k = self.op, self.k
        panels = op.k * round_up(op.n, self.t.tn)
        with k:
            self.x = k.argument("X", (op.m, op.k), self.dtype)
            self.w = k.argument("W", (2 * panels,), self.dtype)
            biases = [k.argument("bias", (2 * op.n,), "float32")] if self.gated.biased else []
            self.y = k.argument("Y", (op.m, op.n), self.dtype)
            first, second = _halves(self.gated)
            self.op, self.extra = first, biases
            self._panels()
            self.op, self.extra = second, [*biases, self.y]
            self.first_weight, self.first_bias = panels, op.n
            self._panels()
        return k.function
