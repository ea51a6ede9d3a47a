"""The logical cores that this process may really use."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def available_cores() -> tuple[int, ...]:
    """Ids of the logical cores that this process may really use, ascending, at least one.

    The affinity mask, cut to the CPU quota of the control groups around this process (both
    versions, every level).  A broken quota is rounded down: threads that spin for one another
    lose more to throttling than the fraction of a core could give.  When the quota takes
    cores away, siblings of a core that is already in the list go first.
    """
    cores = _affinity()
    quota = cpu_quota()
    if quota is None or quota >= len(cores):
        return cores
    count = max(1, int(quota + 1e-6))
    first = _first_siblings(cores)
    ranked = [*first, *(core for core in cores if core not in first)]
    return tuple(sorted(ranked[:count]))


def cpu_quota(proc: Path = Path("/proc"), root: Path = Path("/")) -> float | None:
    """The tightest CPU limit of the control groups around this process, in cores, or None.

    ``proc`` and ``root`` stand in for the real trees in tests.
    """
    limits = [_group_limit(folder, version) for folder, version in _cpu_groups(proc, root)]
    return min((limit for limit in limits if limit is not None), default=None)


def _affinity() -> tuple[int, ...]:
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def _first_siblings(cores: Sequence[int]) -> tuple[int, ...]:
    """The lowest id of each physical core among ``cores``."""
    seen: set[frozenset[int]] = set()
    first = []
    for core in cores:
        text = read_text(Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"))
        siblings = frozenset(parse_cores(text)) if text else frozenset({core})
        if siblings not in seen:
            seen.add(siblings)
            first.append(core)
    return tuple(first)


def parse_cores(text: str) -> list[int]:
    """Ids in a list as Linux writes it: ``0-2,8`` gives ``[0, 1, 2, 8]``; raises :class:`ValueError`."""
    ids: list[int] = []
    for part in filter(None, text.strip().split(",")):
        low, _, high = part.partition("-")
        ids.extend(range(int(low), int(high or low) + 1))
    return ids


def _cpu_groups(proc: Path, root: Path) -> list[tuple[Path, int]]:
    """Folders (with their cgroup version) that may limit this process, leaf to top."""
    mounts: dict[int, tuple[str, Path]] = {}  # version -> (path of the mount in the hierarchy, folder)
    for line in (read_text(proc / "self/mountinfo") or "").splitlines():
        fields, _, rest = line.partition(" - ")
        kind, *more = rest.split()
        inner, folder = fields.split()[3:5]
        if kind == "cgroup2":
            mounts.setdefault(2, (inner, root / folder.lstrip("/")))
        elif kind == "cgroup" and "cpu" in more[-1].split(","):
            mounts.setdefault(1, (inner, root / folder.lstrip("/")))
    groups: list[tuple[Path, int]] = []
    for line in (read_text(proc / "self/cgroup") or "").splitlines():
        number, controllers, path = line.split(":", 2)
        version = 2 if number == "0" and not controllers else 1
        if version not in mounts or (version == 1 and "cpu" not in controllers.split(",")):
            continue
        inner, folder = mounts[version]
        # In a container the mount may show a subtree only, while the path is the host's.
        if inner != "/" and (path + "/").startswith(inner + "/"):
            path = path[len(inner) :]
        parts = [part for part in path.split("/") if part and part != ".."]
        groups += [(folder.joinpath(*parts[:depth]), version) for depth in range(len(parts), -1, -1)]
    return groups


def _group_limit(folder: Path, version: int) -> float | None:
    """CPU limit of one control group, in cores; None where it sets none."""
    try:
        if version == 2:
            quota, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
            if quota == "max":
                return None
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text(encoding="utf-8")
            period = (folder / "cpu.cfs_period_us").read_text(encoding="utf-8")
        limit = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
    return limit if limit > 0 else None


def busy_load(cores: int) -> float | None:
    """Load average where others use so much of ``cores`` that times are too long and uneven; None: calm."""
    load = os.getloadavg()[0]
    return load if load > 0.5 + 0.25 * cores else None


def read_text(path: Path) -> str | None:
    """Content of a file of the kernel; None where there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
