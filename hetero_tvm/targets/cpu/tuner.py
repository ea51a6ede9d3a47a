"""The CPU's tuner: candidates are timed in forked processes of this machine, or on another machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.records.store import RecordFolders
from hetero_tvm.search.device_tuning import tune_on_devices
from hetero_tvm.search.ledger import OnEvent
from hetero_tvm.search.loop import tune
from hetero_tvm.search.measure.device_client import DeviceDoor
from hetero_tvm.search.measure.device_workers import open_devices
from hetero_tvm.search.measure.forked_workers import start_early
from hetero_tvm.search.measure.spells import Spells
from hetero_tvm.search.options import TuneOptions
from hetero_tvm.search.outcome import TuneReport
from hetero_tvm.search.tuner import Tunable

GENERIC = "hetero_tvm.schedules.cpu.generic:schedule"
"""Untuned schedule of kernels without a space, for the processes that time them."""


class CpuTuner:
    """Tunes for one CPU.

    Parameters
    ----------
    machine : the CPU that kernels are compiled for.
    door : what measures on another machine.
    check_device : raises :class:`TargetError` where a device cannot run what is built for ``machine``.
    rpc : address of the machine that measures; None for this one.
    """

    def __init__(
        self,
        machine: CpuModel,
        door: DeviceDoor,
        check_device: Callable[[Mapping[str, Any]], None],
        rpc: str | None,
    ):
        self._machine, self._door, self._check_device, self._rpc = machine, door, check_device, rpc

    def start_early(self) -> None:
        """Begin starting the process that forks candidates."""
        if self._rpc is None:
            start_early(self._machine)

    def tune(
        self, model: Tunable, options: TuneOptions, folders: RecordFolders, on_event: OnEvent
    ) -> TuneReport:
        """See :meth:`hetero_tvm.search.tuner.Tuner.tune`."""
        options = replace(options, generic=GENERIC)
        if self._rpc is None:
            options = replace(options, spells=options.spells or Spells(options.most_waiting))
            return tune(model.tasks, model.machine, options, model.store(folders), on_event)
        threads = str(self._machine.threads)
        environment = {"HETERO_TVM_THREADS": threads, "HETERO_TVM_PIN": "0", "OPENBLAS_NUM_THREADS": threads}

        def variant_on(device: Mapping[str, Any]) -> Tunable:
            self._check_device(device)
            return model

        devices = open_devices(self._door, environment, (), self._rpc)
        return tune_on_devices(model, variant_on, self._door.compiler, devices, options, folders, on_event)
