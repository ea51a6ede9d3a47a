"""Tuning records: one JSON line per measured candidate, durable one by one.

A file belongs to one kind of target and one microarchitecture (``cpu-znver4.jsonl``).  It is only
ever appended to: each record is one write, followed by fsync, under a file lock, so several
processes may tune at once and ``kill -9`` loses no more than the trial in flight.  A line torn by a
crash is skipped with a warning; the next append starts on a fresh line.

Records are looked up in layers: the user's own first, then those shipped with the package.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from hetero_tvm.errors import RecordError
from hetero_tvm.host.folders import user_data
from hetero_tvm.machines.base import Machine
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.records.appending import append_line, lines_between, unwritable
from hetero_tvm.records.record import (
    FRESH,
    RANKED,
    TRIAL,
    UNMEASURED,
    VERIFIED,
    Record,
    Site,
    new_record,
    rank,
    space_identity,
    valid,
)
from hetero_tvm.schedules.base import DesignSpace
from hetero_tvm.schedules.task import Task

LOGS_VARIABLE = "HETERO_TVM_LOGS"


def user_logs() -> Path:
    """The default folder for new records (environment variable ``HETERO_TVM_LOGS`` overrides it)."""
    if os.environ.get(LOGS_VARIABLE):
        return Path(os.environ[LOGS_VARIABLE])
    return user_data() / "logs"


def shipped_logs() -> Path | None:
    """The read-only folder of records that came with the package; None when there is none."""
    package = resources.files("hetero_tvm")
    for folder in (package / "logs", package / ".." / "logs"):
        path = Path(str(folder))
        if path.is_dir():
            return path.resolve()
    return None


@dataclass(frozen=True)
class RecordFolders:
    """Folders that records are read from and written to.

    Parameters
    ----------
    logs : folder of the user's records, read and appended to; None for the user's data folder.
    use_shipped : whether records that came with the package are read as well.
    """

    logs: str | os.PathLike[str] | None = None
    use_shipped: bool = True

    def store(self, machine: Machine, kind: str, device: str = "") -> RecordStore:
        """Records that fit a machine.

        Parameters
        ----------
        kind : record kind of the target (see ``MeasuredTarget.record_kind``).
        device : name of the product that is measured, where the machine stands for several.
        """
        shipped = shipped_logs() if self.use_shipped else None
        return RecordStore(Site.of(machine, kind, device), self.logs, shipped)


class RecordStore:
    """The records of one microarchitecture: the user's file, and below it the shipped one.

    Parameters
    ----------
    site : where records must be valid to be seen.  With no ``device`` in it, records of every device
        count; with one, those of others only where there are no others.
    logs : folder of the user's records; None for the default folder.
    shipped : folder of the read-only layer; None for no such layer.
    """

    def __init__(
        self,
        site: Site,
        logs: str | os.PathLike[str] | None = None,
        shipped: str | Path | None = None,
    ):
        self.site = site
        self.path = Path(logs if logs is not None else user_logs()) / self._file_name()
        self._shipped_path = None if shipped is None else Path(shipped) / self._file_name()
        records, self._seen = _read(self.path)
        self._user = self._matching(records)
        self._of_others: list[Record] = []
        self._shipped = [] if self._shipped_path is None else self._matching(read_records(self._shipped_path))

    def _file_name(self) -> str:
        safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in self.site.mcpu)
        return f"{self.site.target}-{safe}.jsonl"

    def _matching(self, records: Iterable[Record]) -> list[Record]:
        return [record for record in records if record.site.alike(self.site)]

    @property
    def folders(self) -> list[Path]:
        """Folders of the layers, the user's first."""
        return [path.parent for path in (self.path, self._shipped_path) if path is not None]

    def neighbours(self, task: Task) -> list[Record]:
        """Winners of a task on other machines: where a search may start, but nothing to build from.

        One per machine; those of this microarchitecture with another number of threads first.
        """
        best: dict[Site, Record] = {}
        for record in self._foreign:
            if record.key == task.key and (record.space, record.version) == space_identity(task):
                known = best.get(record.site)
                if record.ok and (known is None or rank(record) < rank(known)):
                    best[record.site] = record
        return sorted(best.values(), key=lambda r: (r.mcpu != self.site.mcpu, rank(r)))

    @functools.cached_property
    def _foreign(self) -> list[Record]:
        """Records of the same kind of target in all files of the layers, that do not fit here."""
        paths = [
            path for folder in self.folders for path in sorted(folder.glob(f"{self.site.target}-*.jsonl"))
        ]
        every = (record for path in paths for record in read_records(path))
        return [r for r in every if not r.site.alike(self.site) and r.target == self.site.target]

    def forget(self, task: Task) -> None:
        """Let no record of a task count that was made before now."""
        marker = new_record(task, self.site, {"point": {}}, status=UNMEASURED, role=FRESH)
        self.append(marker)

    def file_of(self, layer: str) -> Path | None:
        """File of a layer: ``user`` or ``shipped``."""
        return self.path if layer == "user" else self._shipped_path

    def append(self, record: Record) -> None:
        """Add a record; on disk when this returns.  :class:`RecordError` when the file cannot be written."""
        begin, end = append_line(self.path, record.to_json())
        self._read_others(begin)
        self._seen = end
        if record.site.alike(self.site):
            self._user.append(record)

    def refresh(self) -> list[Record]:
        """Records that other processes have appended and that were not given here before."""
        self._read_others(None)
        fresh, self._of_others = self._of_others, []
        return fresh

    def _read_others(self, end: int | None) -> None:
        """Read what others have appended since, whole lines up to ``end`` (None: of the file)."""
        data = lines_between(self.path, self._seen, end)
        self._seen += len(data)
        records, _ = _parsed(data)  # lines that are none were told, or will be, by who reads the whole file
        fresh = self._matching(records)
        self._user += fresh
        self._of_others += fresh

    def check_writable(self) -> None:
        """:class:`RecordError` when records could not be added, told before anything is measured."""
        if (obstacle := unwritable(self.path)) is not None:
            raise RecordError(
                f"tuning records cannot be written to {self.path}: {obstacle} cannot be written to",
                hint="name another folder: --logs, or logs= in Python",
            )

    def trials(self, task: Task) -> list[Record]:
        """The user's trials of a task with the present version of its space, failures included."""
        return [record for record in self._here(self._user, task) if record.role == TRIAL]

    def measured(self, task: Task) -> dict[str, Record]:
        """Candidate -> its trial, from both layers; of several trials of one candidate the fastest."""
        found: dict[str, Record] = {}
        shipped = [] if self._forgotten(task) else self._here(self._shipped, task)
        for record in [*shipped, *self.trials(task)]:
            known = found.get(record.candidate)
            if record.role in (TRIAL, VERIFIED) and (known is None or _time(record) < _time(known)):
                found[record.candidate] = record
        return found

    def operators(self, space: DesignSpace) -> list[str]:
        """Operators, as JSON, that there are records of with the present version of a space."""
        identity = space.name, space.version
        every = [*self._shipped, *self._user]
        return list(dict.fromkeys(r.op for r in every if (r.space, r.version) == identity and r.op))

    def of_operator(self, space: DesignSpace, op: FusedOp) -> list[Record]:
        """Measured points of an operator with the present version of a space, shipped ones first.

        Other than by task, an operator is found that no model here has: the same one at another length.
        """
        identity, text = (space.name, space.version), op.to_json()
        found = []
        for layer in (self._shipped, self._user):
            own = [r for r in layer if r.op == text and (r.space, r.version) == identity]
            if any(record.role == FRESH for record in own):
                found = []
            found += [r for r in valid(own) if r.ok and r.point is not None and r.role in (TRIAL, VERIFIED)]
        return found

    def best(self, task: Task) -> tuple[Record, str] | None:
        """The record to build with, and its layer (``user`` or ``shipped``); None when there is none."""
        return next(self.best_first(task), None)

    def best_first(self, task: Task) -> Iterator[tuple[Record, str]]:
        """Records to build with, the best first, and their layers (``user`` or ``shipped``).

        A verified record beats trials, the user's layer beats the shipped one; of several verified
        ones the last counts (it was compared with the others), of trials the fastest.  Records of this
        device come before those of others, and what was ranked without measuring comes last.
        """
        layers = [("user", self._user), ("shipped", self._shipped)]
        seen: set[int] = set()
        for pick in (self._here, self._of):
            own = [
                (layer, [r for r in pick(records, task) if id(r) not in seen]) for layer, records in layers
            ]
            seen.update(id(record) for _, records in own for record in records)
            for layer, records in own:  # in the order of the file: clocks may go backwards
                yield from ((r, layer) for r in reversed(records) if r.role == VERIFIED and r.ok)
            for layer, records in own:
                trials = [record for record in records if record.role == TRIAL and record.ok]
                yield from ((record, layer) for record in sorted(trials, key=_time))
        yield from ((r, "user") for r in reversed(self._of(self._user, task)) if r.role == RANKED)

    def verified(self, task: Task) -> Record | None:
        """The user's newest verified record when no trial is newer than it."""
        newest = None
        for record in self._here(self._user, task):  # in the order of the file
            if record.role == VERIFIED:
                newest = record
            elif record.role == TRIAL:
                newest = None
        return newest

    def _here(self, records: list[Record], task: Task) -> list[Record]:
        """Records of a task on this device; on any, where the site names none."""
        found = self._of(records, task)
        return found if not self.site.device else [r for r in found if r.device == self.site.device]

    def _forgotten(self, task: Task) -> bool:
        """Whether :meth:`forget` was called for a task, in this or an earlier run."""
        return any(record.role == FRESH and record.key == task.key for record in self._user)

    @staticmethod
    def _of(records: list[Record], task: Task) -> list[Record]:
        identity = space_identity(task)
        found = [r for r in records if r.key == task.key and (r.space, r.version) == identity]
        if task.space is not None:
            found = [r for r in found if r.point is not None]  # no foreign trace
        return valid(found)


def _time(record: Record) -> float:
    return record.seconds if record.ok else float("inf")


def read_records(path: Path) -> list[Record]:
    """Records of a file, [] when it does not exist.

    Lines that are not records are skipped; one warning tells how many and where the first is.
    :class:`RecordError` when the file cannot be read.
    """
    return _read(path)[0]


def _read(path: Path) -> tuple[list[Record], int]:
    """Records of a file, and how many of its bytes need not be read again."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise RecordError(
            f"the record file {path} cannot be read: {error.strerror}",
            hint="name another folder: --logs, or logs= in Python",
        ) from error
    records, bad = _parsed(data)
    if bad:
        number, error = bad[0]
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        text = f"{path}:{number}: skipped a line that is not a tuning record: {error}{more}"
        warnings.warn(text, stacklevel=3)
    # A last line without an end is read again once it has one, unless it is a record as it is.
    torn = not data.endswith(b"\n") and bad and bad[-1][0] == data.count(b"\n") + 1
    return records, data.rfind(b"\n") + 1 if torn else len(data)


def _parsed(data: bytes) -> tuple[list[Record], list[tuple[int, ValueError]]]:
    """Records in the lines of a file, and what is wrong with the others: (number, why)."""
    records, bad = [], []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            try:
                records.append(Record.from_json(line.decode()))
            except ValueError as error:
                bad.append((number, error))
    return records, bad
