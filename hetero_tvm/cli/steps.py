"""Steps of a long command: each is named, and none is silent for longer than two seconds."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from time import monotonic
from typing import TextIO

from hetero_tvm.host.cores import busy_load

_LONGEST_SILENCE = 2.0
"""Seconds after which a step that still runs says so."""
_WORTH_TELLING = 0.05
"""Seconds from which on the time of a step is told."""
_TELLER = """
import json, os, select, time
step = None
while True:
    if select.select([0], [], [], step and step["silence"])[0]:
        line = os.read(0, 65536)
        if not line:
            break
        step, started = json.loads(line), time.monotonic()
        os.write(1, b"!")
    else:
        seconds = time.monotonic() - started
        left = (step["expected"] or 0) - seconds
        text = f"{step['label']} ... {seconds:.0f} s"
        os.write(2, (text + (f", about {left:.0f} s left" if left > 0 else "") + chr(10)).encode())
"""
"""Program that tells how long a step has run: a thread cannot while the compiler holds Python's lock."""


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
        self._teller: subprocess.Popen[bytes] | None = None

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
        started = monotonic()
        with self._telling(label, expected) if silent else nullcontext():
            yield
        seconds = monotonic() - started
        if seconds >= _WORTH_TELLING:
            self._say(f"{label}: {seconds:.1f} s")

    @contextmanager
    def _telling(self, label: str, expected: float | None) -> Iterator[None]:
        """Tell every two seconds that a step still runs: by a process, or by a thread where the stream is
        only an object of this one."""
        teller = self._started_teller()
        if teller is not None:
            task = {"label": label, "expected": expected, "silence": _LONGEST_SILENCE}
            _ask(teller, task)
            try:
                yield
            finally:
                _ask(teller, None)
            return
        ended = threading.Event()
        clock = threading.Thread(target=self._tell, args=(label, monotonic(), ended, expected), daemon=True)
        clock.start()
        try:
            yield
        finally:
            ended.set()
            clock.join()

    def _started_teller(self) -> subprocess.Popen[bytes] | None:
        """The process that tells, which ends with this one; None where it cannot be had."""
        if self._teller is None:
            try:
                self._teller = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _TELLER],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._stream.fileno(),
                    start_new_session=True,  # Ctrl-C is for the command
                )
            except (OSError, ValueError, AttributeError, io.UnsupportedOperation):
                return None
            weakref.finalize(self, _end, self._teller)
        return self._teller if self._teller.poll() is None else None

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


def _ask(teller: subprocess.Popen[bytes], step: dict[str, object] | None) -> None:
    """Name the step that begins (None: it has ended), and wait until that is known."""
    assert teller.stdin is not None and teller.stdout is not None
    try:
        teller.stdin.write(json.dumps(step).encode())
        teller.stdin.flush()
        teller.stdout.read(1)
    except OSError:  # somebody ended it: the command goes on in silence
        return


def _end(teller: subprocess.Popen[bytes]) -> None:
    """Let the process end, and take leave of it."""
    assert teller.stdin is not None and teller.stdout is not None
    try:
        teller.stdin.close()
    except OSError:  # it is gone already
        pass
    teller.stdout.close()
    teller.wait()


def warn_when_busy(threads: int) -> None:
    """Say that others use the cores where times will show it."""
    if (load := busy_load(threads)) is not None:
        print(
            f"warning: the machine is busy (load {load:.1f}); times will be too long and uneven",
            file=sys.stderr,
        )
