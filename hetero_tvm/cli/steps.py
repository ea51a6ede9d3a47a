"""Steps of a long command: each is named, and none is silent for longer than two seconds."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TextIO

_LONGEST_SILENCE = 2.0
"""Seconds after which a step that still runs says so."""
_WORTH_TELLING = 0.05
"""Seconds from which on the time of a step is told."""


class Steps:
    """Steps of a command, told on a stream.

    Parameters
    ----------
    count : number of steps that will come.
    quiet : say nothing.
    stream : default: stderr.
    """

    def __init__(self, count: int, quiet: bool = False, stream: TextIO | None = None):
        self._count, self._quiet = count, quiet
        self._stream = stream or sys.stderr
        self._number = 0

    @contextmanager
    def step(self, name: str, expected: float | None = None, silent: bool = True) -> Iterator[None]:
        """Name a step, and tell that it still runs, and what it took.

        Parameters
        ----------
        expected : seconds that it will take; None: nobody knows.
        silent : whether the step says nothing by itself.
        """
        self._number += 1
        label = f"[{self._number}/{self._count}] {name}"
        if self._quiet:
            yield
            return
        self._say(label if expected is None else f"{label}: about {expected:.0f} s")
        started, ended = monotonic(), threading.Event()
        clock = threading.Thread(target=self._tell, args=(label, started, ended, expected), daemon=True)
        if silent:
            clock.start()
        try:
            yield
        finally:
            ended.set()
            if silent:
                clock.join()
        seconds = monotonic() - started
        if seconds >= _WORTH_TELLING:
            self._say(f"{label}: {seconds:.1f} s")

    def _tell(self, label: str, started: float, ended: threading.Event, expected: float | None) -> None:
        """Say every two seconds that a step still runs."""
        while not ended.wait(_LONGEST_SILENCE):
            seconds = monotonic() - started
            left = (
                "" if expected is None or seconds >= expected else f", about {expected - seconds:.0f} s left"
            )
            self._say(f"{label} ... {seconds:.0f} s{left}")

    def _say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)
