"""Neighbours: other processes that use the cores, by name, for those who wait for them to end."""

from __future__ import annotations

import os
from pathlib import Path


def processor_seconds(pid: int, folder: Path = Path("/proc")) -> float | None:
    """Processor time that a process and those that it has waited for have used; None where none is shown."""
    try:
        text = (folder / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return sum(_ticks(text)) / os.sysconf("SC_CLK_TCK")


def _ticks(stat: str) -> list[int]:
    """Processor time of a process and that of its children, each in user and in system mode."""
    # 4711 (name, which may hold anything) S ... utime stime cutime cstime: fields 14 to 17
    return [int(field) for field in stat.rpartition(")")[2].split()[11:15]]


class Neighbours:
    """Tells which process used the cores most since it was asked last.

    Parameters
    ----------
    folder : where the system shows processes.
    """

    def __init__(self, folder: Path = Path("/proc")) -> None:
        self._folder, self._before = folder, dict[int, int]()

    def busiest(self) -> str:
        """``python3, pid 4711``; empty at the first call, and where the system shows no other process."""
        before, names = self._before, dict[int, str]()
        self._before = {}
        for folder in self._folder.iterdir():
            if not folder.name.isdigit() or int(folder.name) == os.getpid():
                continue
            try:
                text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:  # it has ended, or is not ours to look at
                continue
            self._before[int(folder.name)] = sum(_ticks(text)[:2])
            names[int(folder.name)] = text.rpartition(")")[0].partition("(")[2]
        spent = {pid: ticks - before[pid] for pid, ticks in self._before.items() if pid in before}
        most = max(spent, key=spent.__getitem__, default=None)
        return "" if most is None or not spent[most] else f"{names[most]}, pid {most}"
