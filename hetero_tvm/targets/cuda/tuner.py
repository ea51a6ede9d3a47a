"""The CUDA tuner: candidates are timed on GPUs here or elsewhere; without any they are ranked unmeasured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hetero_tvm.records.store import RecordFolders
from hetero_tvm.search.device_tuning import tune_on_devices
from hetero_tvm.search.ledger import OnEvent
from hetero_tvm.search.measure.device_client import DeviceDoor
from hetero_tvm.search.measure.device_workers import open_devices
from hetero_tvm.search.options import TuneOptions
from hetero_tvm.search.outcome import TuneReport
from hetero_tvm.search.tuner import Tunable
from hetero_tvm.targets.base import Target
from hetero_tvm.targets.cuda import compilers
from hetero_tvm.targets.cuda.ranking import rank


class CudaTuner:
    """Tunes for one or several GPU architectures.

    Parameters
    ----------
    variants : one target per architecture, in the order of the model's variants.
    door : what compiles candidates, and what measures them.
    devices_here : numbers of this machine's GPUs that run one of the architectures.
    arch_on : the architecture whose code runs on a device; :class:`TargetError` where none does.
    rpc : address of the machine that measures; None for this one.
    """

    def __init__(
        self,
        variants: Sequence[Target],
        door: DeviceDoor,
        devices_here: Callable[[], Sequence[int]],
        arch_on: Callable[[Mapping[str, Any]], str],
        rpc: str | None,
    ):
        self._variants, self._door, self._rpc = variants, door, rpc
        self._devices_here, self._arch_on = devices_here, arch_on

    def start_early(self) -> None:
        """Nothing: the processes that compile start when it is known what for."""

    def tune(
        self, model: Tunable, options: TuneOptions, folders: RecordFolders, on_event: OnEvent
    ) -> TuneReport:
        """See :meth:`hetero_tvm.search.tuner.Tuner.tune`."""

        def variant_on(device: Mapping[str, Any]) -> Tunable:
            arch = self._arch_on(device)
            return next(one for one in model.variants() if one.machine.mcpu == arch)

        indices = () if self._rpc is not None else self._devices_here()
        if devices := open_devices(self._door, {}, indices, self._rpc):
            compiler = self._door.compiler
            return tune_on_devices(model, variant_on, compiler, devices, options, folders, on_event)
        return self._rank(model, options.trials, folders, on_event)

    def _rank(
        self, model: Tunable, trials: int | None, folders: RecordFolders, on_event: OnEvent
    ) -> TuneReport:
        """Candidates of every variant, ranked without measuring."""
        compilers.find()
        variants = model.variants()
        each = None if trials is None else max(1, trials // len(variants))
        whole: TuneReport | None = None
        for variant, target in zip(variants, self._variants, strict=True):
            report = rank(variant.tasks, target, each, variant.store(folders), on_event)
            if len(variants) > 1:
                for row in report.tasks:
                    row.name = f"{row.name} ({variant.machine.mcpu})"
            whole = report if whole is None else whole.joined(report)
        assert whole is not None, "a target has at least one variant"
        return whole
