"""The part of a target that speaks: to the user, to the manifest, and of a library that ran."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from hetero_tvm.host.terminal import Console
from hetero_tvm.host.tvm import IRModule
from hetero_tvm.runtime.library import Library
from hetero_tvm.schedules.task import Task


class LibraryProfile(Protocol):
    """Profile of one call of an exported library, operator by operator."""

    def to_json(self) -> dict[str, Any]:
        """The whole profile as JSON values."""
        ...

    def show(self, to: Console | None = None, top: int = 20) -> None:
        """Print tables, by default on stdout; the ``top`` longest operators."""
        ...

    def write_trace(self, path: str | Path) -> None:
        """A Chrome/Perfetto trace (JSON)."""
        ...


class DescribedTarget(ABC):
    """Description of a target: for the user, the manifest, and of a library that ran."""

    kind: str = ""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Values for the manifest: kind, cpu (or device), isa (features that must be present), threads."""

    def findings(self) -> list[str]:
        """Lines that tell what was found on this machine, and what was not, of what the target needs."""
        return []

    @classmethod
    def devices_served(cls) -> str | None:
        """Line on what this machine can measure for others (``serve``); None: nothing of this kind."""
        return None

    def placement(self, module: IRModule, tasks: Sequence[Task]) -> str | None:
        """Line on which operators run where; None when everything runs in one place."""
        return None

    @classmethod
    def profile(cls, library: Library, call: Callable[[], Any], seconds: float = 1.0) -> LibraryProfile:
        """Profile of a ``call`` of a loaded library of this kind; ``seconds``: about how long to call.

        Raises
        ------
        UsageError : libraries of this kind carry no counters.
        """
        return library.profile_call(call, seconds)
