"""What every suite of benchmarks is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.measured import Row

ROOT = Path(__file__).resolve().parents[2]
_T = TypeVar("_T")


@dataclass
class Setup:
    """Settings of a run, and what its cases share.

    Parameters
    ----------
    quick : few cases and rounds.
    folder : what is built, for later cases and later runs with ``--keep``.
    peers : runtimes to compare with.
    """

    quick: bool
    folder: Path
    peers: tuple[str, ...]
    stack: ExitStack = field(default_factory=ExitStack)
    _shared: dict[str, Any] = field(default_factory=dict)

    def shared(self, name: str, make: Callable[[], _T]) -> _T:
        """What the first case that asked for it has made."""
        if name not in self._shared:
            self._shared[name] = make()
        return self._shared[name]


@dataclass(frozen=True)
class Suite:
    """A suite.

    Parameters
    ----------
    name : as ``--only`` takes it.
    about : what its figures say.
    cases : names of the cases, given whether the run is quick; none: the suite is left out.
    run : measures one case.
    timed : whether others on the machine can disturb its figures.
    """

    name: str
    about: str
    cases: Callable[[bool], Sequence[str]]
    run: Callable[[str, Setup], Iterable[Row]]
    timed: bool = True


@dataclass(frozen=True)
class Used:
    """What a command printed and used: seconds of wall and processors, bytes of its largest process."""

    document: dict[str, Any]
    seconds: float
    processor_seconds: float
    peak_bytes: int


def command(*arguments: str) -> Used:
    """Run a command of ours with ``--json``, and account for it and all processes that it waited for.

    Raises
    ------
    RuntimeError : it failed; has its last words.
    """
    full = [sys.executable, "-m", *arguments, "--json", "-q"]
    started = time.perf_counter()
    with subprocess.Popen(full, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        output, errors = process.stdout.read(), process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - started
    if process.returncode:
        words = errors.decode(errors="replace").strip().splitlines() or [f"status {process.returncode}"]
        raise RuntimeError(f"{arguments[0]}: {words[0]}")
    cpu = usage.ru_utime + usage.ru_stime
    return Used(json.loads(output), seconds, cpu, usage.ru_maxrss * 1024)
