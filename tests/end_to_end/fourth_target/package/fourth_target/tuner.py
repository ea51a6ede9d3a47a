"""The engine's tuner: candidates take what the engine's manual says, no clock is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fourth_target.machine import Engine
from fourth_target.space import FourthMatmul
from hetero_tvm.machines.roofs import Roofs
from hetero_tvm.records.store import RecordFolders
from hetero_tvm.schedules.base import thaw
from hetero_tvm.schedules.task import Task
from hetero_tvm.search.ledger import OnEvent
from hetero_tvm.search.loop import tune
from hetero_tvm.search.measure.service import OK, Job, Result
from hetero_tvm.search.options import TuneOptions
from hetero_tvm.search.outcome import TuneReport
from hetero_tvm.search.tuner import Tunable


class ManualWorkers:
    """Answers with the manual's times (a ``Workers`` service)."""

    def __init__(self, tasks: Sequence[Task], machine: Engine):
        self._tasks = {task.key: task for task in tasks}
        self._machine = machine
        self.spent: dict[str, float] = {}

    def add_task(self, name: str, spec: Mapping[str, Any]) -> None:
        assert name in self._tasks

    def wait_ready(self) -> None:
        pass

    def roofs(self) -> Roofs:
        return self._machine.roofs()

    def close(self) -> None:
        pass

    def measure(
        self, jobs: Sequence[Job], stop: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[int, list[Result]]]:
        for index, job in enumerate(jobs):
            task = self._tasks[job.task]
            points = [thaw(candidate["point"]) for candidate in job.candidates]
            yield index, [Result(OK, task.space.cost(task.op, point, self._machine)) for point in points]


class FourthTuner:
    """Tunes what the engine runs."""

    def __init__(self, machine: Engine):
        self._machine = machine

    def start_early(self) -> None:
        pass

    def tune(
        self, model: Tunable, options: TuneOptions, folders: RecordFolders, on_event: OnEvent
    ) -> TuneReport:
        mine = [task for task in model.tasks if isinstance(task.space, FourthMatmul)]
        workers = ManualWorkers(mine, self._machine)
        return tune(mine, self._machine, options, model.store(folders), on_event, workers)
