"""The interface of a tuner: one for every way of finding good candidates.

Each target brings one tuner.  It may time kernels on this machine, on a device, on another machine, rank
candidates that cannot be run here, or time whole models; what it finds are records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hetero_tvm.host.tvm import IRModule
from hetero_tvm.machines.base import Machine
from hetero_tvm.records.store import RecordFolders, RecordStore
from hetero_tvm.schedules.task import Task
from hetero_tvm.search.ledger import OnEvent
from hetero_tvm.search.options import TuneOptions
from hetero_tvm.search.outcome import TuneReport


class Tunable(Protocol):
    """An optimized model as a tuner sees it.

    Attributes
    ----------
    module : Relax whose ``main`` calls unscheduled kernels only.
    tasks : its distinct kernels.
    machine : the hardware that it is compiled for.
    """

    @property
    def module(self) -> IRModule: ...
    @property
    def tasks(self) -> Sequence[Task]: ...
    @property
    def machine(self) -> Machine: ...

    def variants(self) -> Sequence[Tunable]:
        """Models, one per device that a library is to serve; the model itself when there is only one."""
        ...

    def store(self, folders: RecordFolders, device: str = "") -> RecordStore:
        """Records that fit the model's machine (see :meth:`RecordFolders.store`)."""
        ...


class Tuner(Protocol):
    """Finds candidates for the kernels of a model and records them."""

    def start_early(self) -> None:
        """Begin what takes long to start, while the model is being imported; cheap, and optional."""
        ...

    def tune(
        self, model: Tunable, options: TuneOptions, folders: RecordFolders, on_event: OnEvent
    ) -> TuneReport:
        """Tune a model; every result is a record the moment it is known.

        Raises
        ------
        TuningError : candidates cannot be measured at all, or the connection is lost (what was measured
            until then is recorded).
        """
        ...
