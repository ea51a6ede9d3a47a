"""Design spaces of the CPU beside the NPU, for what stays on the host."""

from __future__ import annotations

from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.schedules.base import DesignSpace, Knob, Packer, Point


class HostSpace(DesignSpace):
    """A CPU space that takes the host out of the NPU's machine."""

    def __init__(self, inner: DesignSpace):
        self._inner = inner
        self.name = inner.name
        self.version = inner.version

    def refuses(self, op: FusedOp, machine: NpuMachine) -> str | None:
        return self._inner.refuses(op, machine.host)

    def knobs(self, op: FusedOp, machine: NpuMachine) -> tuple[Knob, ...]:
        return self._inner.knobs(op, machine.host)

    def default(self, op: FusedOp, machine: NpuMachine) -> Point:
        return self._inner.default(op, machine.host)

    def emit(self, op: FusedOp, point: Point, machine: NpuMachine) -> PrimFunc:
        return self._inner.emit(op, point, machine.host)

    def pack(self, op: FusedOp, point: Point, machine: NpuMachine) -> dict[int, Packer]:
        return self._inner.pack(op, point, machine.host)

    def features(self, op: FusedOp, point: Point, machine: NpuMachine) -> list[float]:
        return self._inner.features(op, point, machine.host)

    def estimate(self, op: FusedOp, point: Point, machine: NpuMachine) -> float | None:
        return self._inner.estimate(op, point, machine.host)

    def canonical(self, op: FusedOp, point: Point, machine: NpuMachine) -> Point:
        return self._inner.canonical(op, point, machine.host)
