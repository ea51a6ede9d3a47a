"""The tuner's end of a process that measures, on this machine or another one."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetero_tvm.errors import TuningError
from hetero_tvm.host.scratch import temporary_folder
from hetero_tvm.search.measure.peer import Peer, PeerLost

DEVICE_MODULE = "hetero_tvm.search.measure.device_process"
_PREPARE_SECONDS = 300.0


@dataclass(frozen=True)
class DeviceDoor:
    """References to the code that compiles candidates for a device and measures them on it.

    Parameters
    ----------
    compiler : ``module:function`` that makes a shared library of a kernel: ``(PrimFunc, machine, path) ->
        facts``.
    device : ``module:Class`` of its :class:`hetero_tvm.search.measure.device.MeasuredDevice`.
    """

    compiler: str
    device: str


class DeviceClient(ABC):
    """Device that measures candidates, one job at a time.

    Requests are ``{"do": "prepare", "task", "spec"}`` and ``{"do": "measure", "task", "spec",
    "candidates", "libraries", "budget", "limit"}``; the answer to the second is ``{"results": [[status,
    seconds, text], ...], "broken": whether the process can still use its device}``.
    """

    def __init__(self) -> None:
        self.device: dict[str, Any] = {}
        """Description of the device, after :meth:`open`."""
        self._known: set[tuple[int, str]] = set()

    @abstractmethod
    def open(self) -> dict[str, Any]:
        """Reach the device.  :class:`TuningError` says why it cannot be had."""

    @abstractmethod
    def close(self) -> None:
        """End it; candidates in flight are lost."""

    @abstractmethod
    def _ask(self, message: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """An answer, or :class:`PeerLost`; the next request then finds a new process."""

    @abstractmethod
    def _generation(self) -> int:
        """Number of the present process: a new one knows no tasks."""

    def _ship(self, library: Path) -> str:
        """Name of a compiled candidate where the device's process finds it."""
        return str(library)

    @abstractmethod
    def restart(self) -> None:
        """Replace the process: its context is broken."""

    def _discard(self, library: str) -> None:  # noqa: B027
        """The candidate is no longer needed there."""

    def measure(
        self,
        task: str,
        spec: Mapping[str, Any],
        candidates: Sequence[Any],
        libraries: Sequence[Path],
        budget: float,
        limit: float | None,
        seconds: float,
    ) -> list[list[Any]]:
        """Check and time candidates side by side; ``[status, seconds, text]`` for each."""
        shipped = []
        try:
            if (self._generation(), task) not in self._known:
                reply = self._ask({"do": "prepare", "task": task, "spec": spec}, _PREPARE_SECONDS)
                if "failed" in reply:
                    return [["build_error", None, f"preparing failed: {reply['failed']}"]] * len(candidates)
                self._known.add((self._generation(), task))
            shipped = [self._ship(library) for library in libraries]
            message = {
                "do": "measure",
                "task": task,
                "spec": spec,
                "candidates": list(candidates),
                "libraries": shipped,
                "budget": budget,
                "limit": limit,
            }
            reply = self._ask(message, seconds)
        except PeerLost as lost:
            status = "timeout" if lost.hung else "crash"
            return [[status, None, str(lost)[:800]]] * len(candidates)
        for name in shipped:
            self._discard(name)
        if "failed" in reply:
            return [["run_error", None, reply["failed"]]] * len(candidates)
        if reply["broken"]:
            self.restart()
        return reply["results"]


class LocalDevice(DeviceClient):
    """A process on this machine.

    Parameters
    ----------
    device : ``module:Class`` of its :class:`hetero_tvm.search.measure.device.MeasuredDevice`.
    index : number of the device.
    environment : variables that it needs (the size of a thread pool, say).
    """

    def __init__(self, device: str, index: int = 0, environment: Mapping[str, str] | None = None):
        super().__init__()
        self._open = ExitStack()
        scratch = self._open.enter_context(temporary_folder("hetero_tvm-device-"))
        hello = {
            "device": device,
            "index": index,
            "scratch": str(scratch),
            "sys_path": [path or str(Path.cwd()) for path in sys.path],
        }
        self.peer = Peer(DEVICE_MODULE, hello, environment)

    def open(self) -> dict[str, Any]:
        try:
            self.peer.start()
        except PeerLost as lost:
            raise TuningError(f"the measuring process does not start: {lost}") from None
        if "failed" in self.peer.welcome:
            self.close()
            raise TuningError(f"the measuring process cannot use its device: {self.peer.welcome['failed']}")
        self.device = self.peer.welcome["device"]
        return self.device

    def close(self) -> None:
        self.peer.close()
        self._open.close()

    def restart(self) -> None:
        self.peer.close()

    def _generation(self) -> int:
        if not self.peer.running:
            self.peer.start()
        return self.peer.generation

    def _ask(self, message: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        return self.peer.ask(message, seconds)
