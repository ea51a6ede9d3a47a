"""Simulated cycles of a whole model for many choices of points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hetero_tvm.host.tvm import IRModule
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.task import Task
from hetero_tvm.targets.base import Target
from hetero_tvm.targets.npu.device.driver import Device
from hetero_tvm.targets.npu.regions.binding import L1Full
from hetero_tvm.targets.npu.regions.compile_region import Settled
from hetero_tvm.targets.npu.regions.graph_region import GraphRegion, divided
from hetero_tvm.targets.npu.regions.placement import place
from hetero_tvm.targets.npu.regions.region import KernelCache


class Surroundings(NamedTuple):
    """State of L1 around one call of a kernel."""

    held: frozenset[int]
    """Operands that stay in L1 (the result's index is behind the last one)."""
    room: int
    """Bytes of L1 for the kernel's own part."""


class RegionTimer:
    """Simulated cycles of all regions of a module, for one choice of points after another.

    Kernels are generated once per point, and what comes to the same code is simulated once.
    """

    def __init__(self, module: IRModule, tasks: Sequence[Task], target: Target):
        self._placed = place(module, tasks, target)
        self._ops = {task.key: task.op for task in tasks}
        self._cache = KernelCache(target.machine, contents=False)
        self._known: dict[Any, float | L1Full] = {}
        self.simulated = 0
        """Number of regions that were simulated."""
        self.surroundings: dict[str, set[Surroundings]] = {}
        """Surroundings of the calls of every task, with the points that were timed last."""

    def cycles(self, points: Mapping[str, Point], device: Device | None) -> float:
        """Cycles of the whole model; without a device, only of code that was simulated before.

        Raises
        ------
        BuildError, DriverError : there is no such model.
        LookupError : it was not simulated before, and there is no device.
        """
        self.surroundings = {}
        return sum(
            piece.first_that_fits(lambda settled, region=piece: self._time(region, settled, device))
            for piece in divided(self._placed, points, self._cache)
            if isinstance(piece, GraphRegion)
        )

    def _time(self, region: GraphRegion, settled: Settled, device: Device | None) -> float:
        key = (region.name, settled.key())
        if key not in self._known:
            if device is None:
                raise LookupError("this code was not simulated")
            try:
                program = device.load(region.emit(settled).stream)
                self.simulated += 1
                self._known[key] = device.time(program).counters.cycles
                device.unload(program)
            except L1Full as error:
                self._known[key] = error
        if isinstance(found := self._known[key], L1Full):
            raise found
        for step in settled.steps:
            if step.op != self._ops.get(step.task):  # a part of it
                continue
            operands = frozenset(index for index in step.held if index <= len(step.operands))
            self.surroundings.setdefault(step.task, set()).add(Surroundings(operands, step.room))
        return found
