"""Time that a process wanted a core and had none: what makes a measurement of a kernel worthless.

The Linux scheduler counts, per thread, the nanoseconds in which it was ready to run and another ran
(``/proc/self/task/TID/schedstat``), and per core the time that a hypervisor gave to another guest
(``steal`` in ``/proc/stat``).  Both are exact for other processes of this machine, however short the
moment, where a load average tells of minutes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

LostSeconds = Callable[[], float]
"""Seconds of cores that have been lost to others so far; only differences mean something."""


class Disturbance:
    """Time that the threads of this process lose to other processes and other guests.

    Parameters
    ----------
    threads : thread ids whose waiting counts.
    cores : cores on which time that the hypervisor takes counts.

    Where the kernel tells nothing (a container may hide it), nothing is ever lost.
    """

    def __init__(self, threads: Iterable[int], cores: Iterable[int]):
        self._files = []
        for thread in threads:
            try:
                self._files.append(os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                pass
        self._cores = {f"cpu{core}".encode() for core in cores}
        self._tick = 1.0 / os.sysconf("SC_CLK_TCK")
        try:
            self._stat = os.open("/proc/stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._stat = None

    def lost(self) -> float:
        """See :data:`LostSeconds`: waiting threads and stolen cores added up."""
        return sum(map(_run_delay, self._files)) + self._stolen()

    def close(self) -> None:
        for file in (*self._files, *(() if self._stat is None else (self._stat,))):
            os.close(file)
        self._files, self._stat = [], None

    def _stolen(self) -> float:
        if self._stat is None:
            return 0.0
        fields = (line.split() for line in os.pread(self._stat, 1 << 14, 0).splitlines())
        return self._tick * sum(int(f[8]) for f in fields if f and f[0] in self._cores and len(f) > 8)


def _run_delay(file: int) -> float:
    """Seconds that a thread has waited for a core."""
    try:
        fields = os.pread(file, 128, 0).split()
        return int(fields[1]) * 1e-9
    except (OSError, IndexError, ValueError):  # the thread has ended, or statistics are off
        return 0.0
