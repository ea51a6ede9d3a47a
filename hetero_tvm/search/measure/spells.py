"""Spells: times in which other processes use the cores that kernels are to be timed on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

_CALM = 0.15
"""Others may use this fraction of the cores."""
_LOOK = 0.25
"""Seconds over which use of the cores is looked at."""


class Spells:
    """Waits for spells to end, for no longer in all than a run is willing to.

    Parameters
    ----------
    patience : seconds to wait in all.
    others : fraction of the cores that is in use while this process and its workers do nothing.
    clock : seconds, for tests.

    Attributes
    ----------
    on_look : called at every look that finds the cores in use, with the fraction that is, and with the
        seconds that are left to wait.
    """

    def __init__(
        self,
        patience: float = 60.0,
        others: Callable[[], float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._left, self._others, self._clock = patience, others or cores_in_use, clock
        self.on_look: Callable[[float, float], None] = lambda busy, left: None
        self.waited = 0.0
        """Seconds waited so far."""

    def wait(self, stop: Callable[[], bool]) -> bool:
        """Wait until the cores are free; False when the patience is used up first, or ``stop`` says so."""
        while self._left > 0 and not stop():
            before = self._clock()
            busy = self._others()
            if busy < _CALM:
                return True
            spent = self._clock() - before
            self._left -= spent
            self.waited += spent
            self.on_look(busy, max(0.0, self._left))
        return False


def cores_in_use() -> float:
    """Fraction of this process's cores that was busy during a short sleep; 0.0 where nothing tells."""
    before, start = _busy(), time.monotonic()
    time.sleep(_LOOK)
    cores = len(os.sched_getaffinity(0))
    return (_busy() - before) / (time.monotonic() - start) / cores


def _busy() -> float:
    """Seconds in which the cores that this process may use were not idle."""
    allowed = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    try:
        lines = Path("/proc/stat").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    fields = [line.split() for line in lines if line.split()[0] in allowed]
    # user nice system idle iowait irq softirq steal
    ticks = sum(sum(map(int, one[1:9])) - int(one[4]) - int(one[5]) for one in fields)
    return ticks / os.sysconf("SC_CLK_TCK")
