"""Processes that judge cases: one that dies or hangs costs its case alone."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable
from typing import Any

import psutil

from tests.campaign.graphs.judge import BROKEN, Verdict

MOST_SECONDS = 120.0
"""No graph of 45 small nodes takes as much processor time: beyond it is an endless loop."""
MOST_WAIT = 3600.0
"""Longest wait for a process that uses no processor time: a deadlock, or a machine that was halted."""
MOST_BYTES = 4 << 30
"""A process that has grown to this many bytes (compiled code is never freed) makes place for a new one."""


class Worker:
    """A child process that calls ``work`` for each task that it is sent."""

    def __init__(self, work: Callable[[Any], Verdict]):
        self._work = work
        self._child: Any = None
        self.task: Any = None

    def start(self, task: Any) -> None:
        """Send a task; the process is started when there is none."""
        if self._child is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, other = context.Pipe()
            self._log = tempfile.NamedTemporaryFile(prefix="graphs-", suffix=".log")
            self._child = context.Process(
                target=_serve, args=(self._work, other, self._log.name), daemon=True
            )
            self._child.start()
            other.close()
        self.task = task
        self._pipe.send(task)

    @property
    def connection(self) -> Any:
        """What becomes readable when the verdict is there, or the process has ended."""
        return self._pipe

    def verdict(self) -> Verdict:
        """The verdict on the task; waits for it."""
        begin, end = self._busy(), time.monotonic() + MOST_WAIT
        try:
            while not self._pipe.poll(5.0):
                used = self._busy() - begin
                if used > MOST_SECONDS or time.monotonic() > end:
                    self.stop()
                    return Verdict(BROKEN, f"hang: no result after {used:.0f} s of processor time")
            verdict, full = self._pipe.recv()
        except (EOFError, ConnectionError):
            self._child.join()
            code, said = self._child.exitcode, self._said()
            self.stop()
            return Verdict(BROKEN, f"the process ended with {code}: {said}")
        if full:
            self.stop()
        return verdict

    def _busy(self) -> float:
        """Processor time of the process so far; 0 when it has ended."""
        try:
            times = psutil.Process(self._child.pid).cpu_times()
        except psutil.Error:
            return 0.0
        return times.user + times.system

    def _said(self) -> str:
        with open(self._log.name, errors="replace") as file:
            return " ".join(file.read()[-600:].split())

    def stop(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.kill()
            self._child.join()
            self._pipe.close()
            self._log.close()
            self._child = None


def _serve(work: Callable[[Any], Verdict], pipe: Any, log: str) -> None:
    import warnings

    warnings.simplefilter("ignore")
    file = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            verdict = work(pipe.recv())
            used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            pipe.send((verdict, used > MOST_BYTES))
