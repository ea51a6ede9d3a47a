"""The NPU's tuner: kernels alone on the simulator, then the whole model, in which kernels overlap."""

from __future__ import annotations

from dataclasses import replace

from hetero_tvm.records.store import RecordFolders
from hetero_tvm.schedules.npu.base import NpuSpace
from hetero_tvm.search.ledger import OnEvent
from hetero_tvm.search.loop import tune
from hetero_tvm.search.options import TuneOptions
from hetero_tvm.search.outcome import TuneReport
from hetero_tvm.search.tuner import Tunable
from hetero_tvm.search.whole_model import tune_whole_model
from hetero_tvm.targets.base import Target
from hetero_tvm.targets.npu.tuning.measure import SimulatedWorkers
from hetero_tvm.targets.npu.tuning.whole_model import search

_SINGLE_KERNEL_SHARE = 0.33
"""Share of the minutes of a search for kernels alone; whole models get the rest."""


class NpuTuner:
    """Tunes for one NPU; cycles are exact and the same on every host."""

    def __init__(self, target: Target):
        self._target = target

    def start_early(self) -> None:
        """Nothing: the simulator runs in this process."""

    def tune(
        self, model: Tunable, options: TuneOptions, folders: RecordFolders, on_event: OnEvent
    ) -> TuneReport:
        """See :meth:`hetero_tvm.search.tuner.Tuner.tune`."""
        store, minutes = model.store(folders), options.minutes
        tasks = [task for task in model.tasks if isinstance(task.space, NpuSpace)]
        kernels = options if minutes is None else replace(options, minutes=_SINGLE_KERNEL_SHARE * minutes)
        with SimulatedWorkers(tasks, model.machine) as workers:
            report = tune(tasks, model.machine, kernels, store, on_event, workers=workers)
        if not report.interrupted:
            if minutes is not None:
                options = replace(options, minutes=minutes - report.elapsed / 60)

            def find(known, seed, more, note):  # type: ignore[no-untyped-def]
                return search(model.module, model.tasks, self._target, known, seed, more, note)

            tune_whole_model(model, find, options, store, report, on_event)
        return report
