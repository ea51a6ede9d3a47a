"""The gated half of an MLP: ``activation(X @ G) * (X @ U)``.

Loops: the loops of :mod:`hetero_tvm.schedules.npu.matmul.kernel` twice in one kernel.  The first product goes
through the activation to the result's place in DRAM; the second one reads it back tile by tile in its
epilogue and multiplies.

Why it is fast: nothing waits in between, since the second product starts while the first one's last tiles
are on their way out.
"""

from __future__ import annotations

import numpy as np

from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.ops.gated_matmul import GatedMatmul
from hetero_tvm.ops.matmul import BIAS, GATE, Matmul
from hetero_tvm.schedules.base import Packer, Point
from hetero_tvm.schedules.npu.base import DerivedSpace, NpuSpace
from hetero_tvm.schedules.npu.matmul.kernel import ProductEmitter
from hetero_tvm.schedules.npu.matmul.space import WholeMatmulSpace
from hetero_tvm.schedules.npu.matmul.tiles import Tiles
from hetero_tvm.schedules.npu.tiles import round_up


def _halves(op: GatedMatmul) -> tuple[Matmul, Matmul]:
    """The two products, with the steps behind each."""
    bias = (BIAS,) if op.biased else ()
    first = Matmul(op.lead, op.n, op.k, (*bias, op.activation))
    return first, Matmul(op.lead, op.n, op.k, (*bias, GATE))


def _both_halves(op: GatedMatmul) -> Matmul:
    """The product for which tiles are chosen: its epilogue takes the room that either half needs."""
    return Matmul(op.lead, op.n, op.k, (op.activation, GATE))


class NpuGatedMatmulSpace(DerivedSpace):
    """``ops.GatedMatmul`` on the NPU."""

    name = "npu.gated_matmul"
    version = 1
    operator = GatedMatmul

    def base_space(self) -> NpuSpace:
        return WholeMatmulSpace()

    def base_operator(self, op: GatedMatmul) -> Matmul:
        return _both_halves(op)

    def pack(self, op: GatedMatmul, point: Point, machine: NpuMachine) -> dict[int, Packer]:
        """G's column panels, then U's."""
        panels = self.base_space().pack(_both_halves(op), point, machine)[1]
        return {1: lambda w: np.concatenate([panels(w[:, : op.n]), panels(w[:, op.n :])])}

    def emit(self, op: GatedMatmul, point: Point, machine: NpuMachine) -> PrimFunc:
        return _GatedEmitter(op, Tiles.of(point), machine).run()


class _GatedEmitter(ProductEmitter):
    def __init__(self, op: GatedMatmul, tiles: Tiles, machine: NpuMachine):
        super().__init__(_both_halves(op), tiles, machine)
        self.gated = op

    def run(self) -> PrimFunc:
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
