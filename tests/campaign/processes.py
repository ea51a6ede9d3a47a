"""Processes of a campaign, found by a mark in their environment: also those that left their group."""

from __future__ import annotations

import os
import signal
import uuid
from pathlib import Path
from time import monotonic, sleep

MARK = "HETERO_TVM_CAMPAIGN"


def new_mark() -> str:
    return uuid.uuid4().hex


def marked(mark: str) -> dict[int, str]:
    """Process id -> command line of what carries the mark and is no zombie."""
    wanted, found = f"{MARK}={mark}".encode(), {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if wanted not in (entry / "environ").read_bytes():
                continue
            if (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                continue
            found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except OSError:  # ended meanwhile, or not ours to read
            continue
    return found


def parent_of(pid: int) -> int:
    """Parent's id; 0 for a process that has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def wait_until_gone(mark: str, seconds: float) -> tuple[dict[int, str], float]:
    """Marked processes that are still there after ``seconds``, and how long the last one lived."""
    start = monotonic()
    while (left := marked(mark)) and monotonic() - start < seconds:
        sleep(0.02)
    return left, monotonic() - start


def kill_all(mark: str) -> None:
    for pid in marked(mark):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def memory(pid: int) -> tuple[int, int]:
    """Resident and proportional memory of a process in bytes; (0, 0) when it has ended."""
    found = {"Rss": 0, "Pss": 0}
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in found:
                found[name] = int(rest.split()[0]) * 1024
    except OSError:
        pass
    return found["Rss"], found["Pss"]


def threads(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def descriptors(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def children(pid: int) -> list[int]:
    """Processes that a process has started and not yet reaped."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in task.read_text().split()]
        except OSError:
            continue
    return found
