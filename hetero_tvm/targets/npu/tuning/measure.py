"""Measuring on the NPU: cycles of the simulator, exact and the same on every host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from hetero_tvm.errors import HeteroTVMError
from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.machines.roofs import Roofs
from hetero_tvm.schedules.base import Point, thaw
from hetero_tvm.schedules.npu.base import NpuSpace
from hetero_tvm.schedules.task import Task
from hetero_tvm.search.measure.service import Job, Result
from hetero_tvm.targets.npu.device.driver import Device
from hetero_tvm.targets.npu.regions.region import CompiledRegion, KernelCache, RegionBuilder

OK, BUILD_ERROR = "ok", "build_error"


def kernel_region(space: NpuSpace, op: Any, point: Point, machine: NpuMachine) -> CompiledRegion:
    """Program of one kernel, its operands as they lie between kernels (contents do not matter)."""
    builder = RegionBuilder("kernel", machine, KernelCache(machine))
    program = builder.cache.of_space(space, op, point)
    # Whatever is not the result or another activation is a constant for the synchronisation.
    packed = space.pack(op, point, machine)
    tensors = []
    for n, (operand, size) in enumerate(zip(op.inputs, program.bytes, strict=False)):
        if n in packed or operand.constant:
            tensors.append(builder.constant(np.zeros(size, np.uint8)))
        else:
            tensors.append(builder.device_tensor(operand.name, size, "input"))
    tensors += [builder.constant(np.zeros_like(table)) for table in space.tables(op, point, machine)]
    tensors += [builder.fresh(*own) for own in space.scratch(op, point, machine)]
    tensors.append(builder.device_tensor("result", program.bytes[-1], "output"))
    builder.call(program, tensors, op.label)
    return builder.finish()


def cycles(space: NpuSpace, op: Any, point: Point, machine: NpuMachine, device: Device) -> float:
    """Simulated cycles of one kernel alone."""
    program = device.load(kernel_region(space, op, point, machine).stream)
    try:
        return device.time(program).counters.cycles
    finally:
        device.unload(program)


class SimulatedWorkers:
    """Workers that time candidates on the simulator: no process, no noise, no time limit.

    Parameters
    ----------
    tasks : those that will be asked for, all with an NPU space.
    """

    def __init__(self, tasks: Sequence[Task], machine: NpuMachine):
        self._tasks = {task.key: task for task in tasks}
        self._machine = machine
        self._device: Device | None = None
        self._known: dict[Any, Result] = {}
        self.spent: dict[str, float] = {}

    def __enter__(self) -> SimulatedWorkers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._device is not None:
            self._device.close()
            self._device = None

    def add_task(self, name: str, spec: dict[str, Any]) -> None:
        """Tasks are known already."""

    def roofs(self) -> Roofs:
        """Peaks of the NPU that is simulated."""
        return self._machine.roofs()

    def wait_ready(self) -> None:
        if self._device is None:
            self._device = Device(self._machine.spec)

    def measure(
        self, jobs: Sequence[Job], stop: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[int, list[Result]]]:
        """See :meth:`hetero_tvm.search.measure.service.Workers.measure`."""
        self.wait_ready()
        for index, job in enumerate(jobs):
            if stop():
                return
            yield index, [self._result(job.task, candidate) for candidate in job.candidates]

    def _result(self, name: str, candidate: Any) -> Result:
        task, point = self._tasks[name], thaw(candidate["point"])
        key = (name, tuple(sorted(point.items())))
        if key not in self._known:
            try:
                task.space.check(task.op, point, self._machine)
                taken = cycles(task.space, task.op, point, self._machine, self._device)
                self._known[key] = Result(OK, taken / (self._machine.spec.clock_ghz * 1e9))
            except (HeteroTVMError, ValueError) as error:
                self._known[key] = Result(BUILD_ERROR, None, str(error))
        return self._known[key]
