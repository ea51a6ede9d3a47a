"""Signals that ask a command to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class Ending:
    """Signal that has asked for the end; None while there was none."""

    number: signal.Signals | None = None


@contextmanager
def ended_by_signals() -> Iterator[Ending]:
    """While open, SIGTERM and SIGHUP are a Ctrl-C of another name, so that nothing is left behind.

    They raise KeyboardInterrupt itself, which also TVM hands through.  A signal that is ignored (``nohup``)
    stays ignored.
    """
    ending, before = Ending(), {}

    def end(number: int, frame: Any) -> None:
        signal.signal(number, signal.SIG_DFL)  # the next one ends the process at once
        ending.number = signal.Signals(number)
        raise KeyboardInterrupt(ending.number.name)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_DFL:
                before[number] = signal.signal(number, end)
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
