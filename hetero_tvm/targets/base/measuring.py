"""The part of a target that runs: its tuner, its devices, how exact its numbers are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from hetero_tvm.errors import TargetError
from hetero_tvm.host.tvm import tvm
from hetero_tvm.search.measure.device_client import DeviceDoor
from hetero_tvm.search.tuner import Tuner


class MeasuredTarget(ABC):
    """Part of a target that runs, times and checks candidates and built models."""

    kind: str = ""

    relative_tolerance: float = 1e-5
    """Largest error that a check accepts, as a fraction of the largest output (see ``reference``)."""

    least_cosine: float = -1.0
    """Least cosine between an output and the reference that a check accepts."""

    device_door: DeviceDoor | None = None
    """References to code that measures in a process that owns a device, here or on another machine; None:
    the tuner measures by itself, and only here."""

    @property
    def record_kind(self) -> str:
        """Kind under which records are filed: times of a simulation are not those of the device."""
        return self.kind

    @abstractmethod
    def tuner(self, rpc: str | None = None) -> Tuner:
        """Tuner of models for this target.

        Parameters
        ----------
        rpc : address of another machine that measures (see ``search/measure/remote.py``); None: this one.

        Raises
        ------
        UsageError : candidates for this target are measured on this machine only.
        """

    @classmethod
    def variant_for(cls, device: Mapping[str, Any]) -> str:
        """The variant for a device (``MeasuredDevice.describe``).  :class:`TargetError`: there is none."""
        raise TargetError(f"target {cls.kind} is not measured on another machine")

    @property
    def entry(self) -> str:
        """Name of the library's function for this device."""
        return "main"

    def unrunnable(self) -> str | None:
        """Reason why compiled code cannot be run on this machine; None when it can."""
        return None

    def running(self) -> tuple[list[Any], str]:
        """Devices of the virtual machine, the one that computes first; the entry that runs there."""
        return [tvm.cpu()], self.entry
