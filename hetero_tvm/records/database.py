"""The records of a folder as a database: found by filters, counted, merged, pruned, exchanged.

Searches only ever append to files; what rewrites one here does so under the same lock, writing a new file
beside it and putting it into place.  Searches may run meanwhile: one that appends waits for the lock, and
finds the new file.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetero_tvm.errors import RecordError, UsageError
from hetero_tvm.host.terminal import figure
from hetero_tvm.records.files import append_lines, open_locked
from hetero_tvm.records.record import TRIAL, VERIFIED, Record, valid
from hetero_tvm.records.store import read_records


@dataclass(frozen=True)
class Filter:
    """Choice of records; what is empty lets all pass.

    Parameters
    ----------
    op : a pattern of the operator or task (``matmul*``), or of the space (``cpu.matmul``).
    shape : numbers that the task's name holds in this order, ``128x768x3072``.
    target : kind of target (``cpu``).
    machine : microarchitecture, or device.
    role : ``trial``, ``verified`` ...
    """

    op: str = ""
    shape: str = ""
    target: str = ""
    machine: str = ""
    role: str = ""

    def takes(self, record: Record) -> bool:
        """Whether a record passes."""
        return (
            (not self.op or any(_like(name, self.op) for name in (record.task, record.space)))
            and (not self.shape or _has_shape(record.task, self.shape))
            and (not self.target or record.target == self.target)
            and (not self.machine or any(_like(n, self.machine) for n in (record.mcpu, record.device)))
            and (not self.role or record.role == self.role)
        )


def _like(name: str, pattern: str) -> bool:
    wanted = pattern if any(c in pattern for c in "*?[") else f"{pattern}*"
    return fnmatch.fnmatchcase(name, wanted)


def _has_shape(task: str, shape: str) -> bool:
    """``128x768`` is in ``matmul_128x768x3072_bias``, but not in ``matmul_1128x768``."""
    return re.search(rf"(?<!\d){re.escape(shape)}(?!\d)", task) is not None


def files_of(folder: Path) -> list[Path]:
    """Record files of a folder; none where there is no such folder."""
    return sorted(folder.glob("*.jsonl")) if folder.is_dir() else []


def select(folder: Path, chosen: Filter) -> list[Record]:
    """Records of a folder that pass, file by file in the order in which they were written."""
    return [record for path in files_of(folder) for record in read_records(path) if chosen.takes(record)]


TaskKey = tuple[str, str, int, Any]
"""Identity of a task on a machine: workload, space, its version, site."""


def by_task(records: Iterable[Record]) -> dict[TaskKey, list[Record]]:
    """Records of one task on one machine together, without those that later ones make void."""
    groups: dict[TaskKey, list[Record]] = defaultdict(list)
    for record in records:
        groups[(record.key, record.space, record.version, record.site)].append(record)
    return {key: valid(group) for key, group in groups.items()}


def best_of(records: Sequence[Record]) -> Record | None:
    """The newest verified record of a task, else the fastest trial; None where nothing was measured."""
    if verified := [r for r in records if r.role == VERIFIED and r.ok]:
        return max(verified, key=lambda r: r.created)
    return min((r for r in records if r.role == TRIAL and r.ok), key=lambda r: r.seconds, default=None)


def stats(records: Sequence[Record]) -> dict[str, Any]:
    """Numbers of records by space, machine, role and status, and the days they span."""
    days = sorted(record.created[:10] for record in records if record.created)
    return {
        "records": len(records),
        "tasks": len({record.key for record in records}),
        "spaces": dict(Counter(record.space for record in records)),
        "machines": dict(Counter(f"{r.target}:{r.device or r.mcpu}, {r.threads} threads" for r in records)),
        "roles": dict(Counter(record.role for record in records)),
        "statuses": dict(Counter(record.status for record in records)),
        "first": days[0] if days else None,
        "last": days[-1] if days else None,
    }


def merge(folder: Path, sources: Sequence[Path]) -> dict[str, int]:
    """Append the records of other files or folders that a folder lacks; number of new ones by file."""
    added: dict[str, int] = {}
    for source in sources:
        if not source.exists():
            raise UsageError(
                f"{source}: there is no such file or folder of records",
                hint="name a .jsonl file, or a folder of them, such as --logs of the search",
            )
        for path in [source] if source.is_file() else files_of(source):
            records = read_records(path)
            if not records and source.is_file():
                raise RecordError(f"{path} holds no records")
            added[str(path)] = add(folder, records)
    return added


def add(folder: Path, records: Sequence[Record]) -> int:
    """Append records that a folder lacks; returns how many those were."""
    count, by_file = 0, defaultdict(list)
    for record in records:
        by_file[folder / file_name(record)].append(record)
    for path, wanted in by_file.items():
        with open_locked(path) as descriptor:
            known = {record.to_json() for record in read_records(path)}
            lines = [line for line in dict.fromkeys(r.to_json() for r in wanted) if line not in known]
            append_lines(descriptor, lines)
        count += len(lines)
    return count


def file_name(record: Record) -> str:
    """Name of the file that a record belongs to."""
    safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in record.mcpu)
    return f"{record.target}-{safe}.jsonl"


def prune(
    folder: Path, keep: Callable[[Sequence[Record]], Sequence[Record]], chosen: Filter
) -> tuple[int, int]:
    """Rewrite the files of a folder without what ``keep`` leaves out of each task; records before and after.

    Only records that pass ``chosen`` may go.
    """
    before = after = 0
    for path in files_of(folder):
        with open_locked(path):
            records = read_records(path)
            touched = [record for record in records if chosen.takes(record)]
            kept = {id(r) for group in by_task(touched).values() for r in keep(group)}
            left = [r for r in records if not chosen.takes(r) or id(r) in kept]
            before, after = before + len(records), after + len(left)
            if len(left) < len(records):
                _replace(path, left)
    return before, after


def winners_only(group: Sequence[Record]) -> list[Record]:
    """The record that a build takes."""
    best = best_of(group)
    return [] if best is None else [best]


def without_void(group: Sequence[Record]) -> list[Record]:
    """Everything that counts, the failures too: they are not tried again."""
    return list(group)


def _replace(path: Path, records: Iterable[Record]) -> None:
    """Put a file with these records into place; on disk when this returns."""
    fresh = path.with_suffix(f".{os.getpid()}.new")
    try:
        with open(fresh, "w", encoding="utf-8") as file:
            file.writelines(record.to_json() + "\n" for record in records)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise RecordError(f"{path} cannot be rewritten: {error.strerror}") from error


def problems(folder: Path) -> Iterator[str]:
    """Problems of the files of a folder, one sentence each: lines that are no records, records in
    another machine's file, times that contradict each other."""
    for path in files_of(folder):
        text = path.read_bytes()
        if text and not text.endswith(b"\n"):
            yield f"{path}: the last line is torn"
        for number, line in enumerate(text.splitlines(), start=1):
            if not line.strip():
                continue
            try:
                record = Record.from_json(line.decode())
            except ValueError as error:
                yield f"{path}:{number}: not a record: {error}"
                continue
            if file_name(record) != path.name:
                yield f"{path}:{number}: {record.task} is of {record.target}:{record.mcpu}, another file"
        for group in by_task(read_records(path)).values():
            yield from (f"{path}: {text}" for text in _contradictions(group))


_FAR = 2.0


def _contradictions(group: Sequence[Record]) -> Iterator[str]:
    verified = [r for r in group if r.role == VERIFIED and r.ok]
    trials = {r.candidate: r for r in group if r.role == TRIAL and r.ok}
    for record in verified:
        alone = trials.get(record.candidate)
        if alone is not None and record.seconds > _FAR * alone.seconds:
            yield (
                f"{record.task} was verified at {figure(record.seconds * 1e3)} ms, its trial took "
                f"{figure(alone.seconds * 1e3)} ms: one of them is of a busy machine (tune with --fresh)"
            )
