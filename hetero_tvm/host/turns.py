"""Turns of threads at what one of them has at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Threads that have a thing one after the other; one that has it may take it again."""

    def __init__(self) -> None:
        self._renew()

    def _renew(self) -> None:
        self._process, self._lock = os.getpid(), threading.RLock()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Have the thing; waits for another thread that has it."""
        if self._process != os.getpid():
            self._renew()  # a thread that had it is not in a forked process
        with self._lock:
            yield
