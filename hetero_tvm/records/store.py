"""Tuning records: one JSON line per measured candidate, durable one by one.

A file belongs to one kind of target and one microarchitecture (``cpu-znver4.jsonl``).  It is only
ever appended to: each record is one write, followed by fsync, under a file lock, so several
processes may tune at once and ``kill -9`` loses no more than the trial in flight.  A line torn by a
crash is skipped with a warning; the next append starts on a fresh line.

Records are looked up in layers: the user's own first, then those shipped with the package.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import math
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from hetero_tvm.errors import RecordError
from hetero_tvm.machines.base import Machine
from hetero_tvm.records.candidates import STOCK, candidate_key
from hetero_tvm.schedules.task import Task
from hetero_tvm.version import VERSION

LOGS_VARIABLE = "HETERO_TVM_LOGS"

TRIAL = "trial"
VERIFIED = "verified"
"""Role of the record that won a side-by-side comparison with the default; beats every trial."""
BASELINE = "baseline"
"""Role of the measurements that show whether the machine drifts during a run."""
RANKED = "ranked"
"""Role of a choice that nobody has measured; any measured record beats it."""
UNMEASURED = "unmeasured"
"""Status of a record with that role."""


@dataclass(frozen=True)
class Site:
    """Validity of a record: the machine and device outside of which it is never used.

    Parameters
    ----------
    target : kind of target (``cpu``).
    mcpu : microarchitecture, LLVM's name.
    isa : digest of the ISA features that kernels were compiled and run with, and of the variant.
    threads : threads that a kernel was timed on.
    device : name of the product that it was timed on, where ``mcpu`` stands for several (GPUs of one
        architecture).  A record of another device of the same ``mcpu`` is better than none.
    """

    target: str
    mcpu: str
    isa: str
    threads: int
    device: str = ""

    @classmethod
    def of(cls, machine: Machine, target: str = "cpu", device: str = "") -> Site:
        text = ",".join(sorted(machine.features)) + f";{machine.lanes}"
        if machine.variant:
            text += f";{machine.variant}"
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        return cls(target, machine.mcpu, digest, machine.threads, device)

    def alike(self, other: Site) -> bool:
        """Whether kernels of the other site run here, as machine code."""
        return dataclasses.replace(self, device="") == dataclasses.replace(other, device="")


@dataclass(frozen=True)
class Record:
    """Record of one measurement.

    Parameters
    ----------
    key, task : identity of the workload (structural hash), and its readable name.
    space, version : design space and its version (``stock`` for MetaSchedule's own rules).
    target, mcpu, isa, threads, device : see :class:`Site`.
    point, trace : the candidate: choices of the knobs, or a MetaSchedule trace as JSON.  An empty
        point in the ``stock`` space is the untuned schedule.
    seconds : per call; None unless ``status`` is ``ok``.
    status, error : how it ended (``ok``, ``build_error``, ``run_error``, ``wrong_result``,
        ``timeout``, ``crash``; ``unmeasured``) and why.
    role : ``trial``, ``verified``, ``baseline`` or ``ranked``.
    default_seconds : in a verified record, the default's time in the same comparison.
    created : ISO time in UTC.
    tools : versions of hetero_tvm and TVM that compiled it.
    """

    key: str
    task: str
    space: str
    version: int
    target: str
    mcpu: str
    isa: str
    threads: int
    device: str = ""
    point: Mapping[str, Any] | None = None
    trace: str | None = None
    seconds: float | None = None
    status: str = "ok"
    error: str = ""
    role: str = TRIAL
    default_seconds: float | None = None
    created: str = ""
    tools: str = ""

    @property
    def ok(self) -> bool:
        return self.status == "ok" and self.seconds is not None

    @property
    def site(self) -> Site:
        return Site(self.target, self.mcpu, self.isa, self.threads, self.device)

    @property
    def candidate(self) -> str:
        """Canonical text of the candidate."""
        return candidate_key({"point": self.point, "trace": self.trace})

    def to_json(self) -> str:
        """Line of JSON; fields that say nothing are left out."""
        fields = dataclasses.asdict(self)
        return json.dumps({name: value for name, value in fields.items() if value not in (None, "")})

    @classmethod
    def from_json(cls, text: str) -> Record:
        """``ValueError`` when the text is not a record.  Fields of later versions are ignored."""
        try:
            fields = json.loads(text)
        except RecursionError:
            raise ValueError("JSON nested too deep") from None
        if not isinstance(fields, dict):
            raise ValueError("not a JSON object")
        known = {field.name for field in dataclasses.fields(cls)}
        try:
            record = cls(**{name: value for name, value in fields.items() if name in known})
        except TypeError as error:
            raise ValueError(str(error)) from None
        if wrong := [name for name, kinds in _TYPES.items() if type(getattr(record, name)) not in kinds]:
            raise ValueError(f"{', '.join(wrong)} of a wrong type")
        if record.point is None and record.trace is None:
            raise ValueError("it has neither a point nor a trace")
        times = [time for time in (record.seconds, record.default_seconds) if time is not None]
        if not all(0 < time < math.inf for time in times):
            raise ValueError("its time is not a positive number")
        if record.status == "ok" and record.seconds is None:
            raise ValueError("it is ok but has no time")
        return record


def space_identity(task: Task) -> tuple[str, int]:
    """Name and version of the space that a record of ``task`` must have."""
    return (STOCK, 1) if task.space is None else (task.space.name, task.space.version)


def new_record(task: Task, site: Site, candidate: Mapping[str, Any], **fields: Any) -> Record:
    """A record of ``task`` made now by this installation."""
    name, version = space_identity(task)
    return Record(
        key=task.key,
        task=task.name,
        space=name,
        version=version,
        **dataclasses.asdict(site),
        point=candidate.get("point"),
        trace=candidate.get("trace"),
        created=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        tools=_tools(),
        **fields,
    )


@lru_cache(maxsize=1)
def _tools() -> str:
    try:
        tvm = metadata.version("apache-tvm")
    except metadata.PackageNotFoundError:
        tvm = "?"
    return f"hetero-tvm {VERSION}, apache-tvm {tvm}"


def user_logs() -> Path:
    """The default folder for new records (environment variable ``HETERO_TVM_LOGS`` overrides it)."""
    if os.environ.get(LOGS_VARIABLE):
        return Path(os.environ[LOGS_VARIABLE])
    from platformdirs import user_data_path

    return user_data_path("hetero_tvm", appauthor=False) / "logs"


def shipped_logs() -> Path | None:
    """The read-only folder of records that came with the package; None when there is none."""
    package = resources.files("hetero_tvm")
    for folder in (package / "logs", package / ".." / "logs"):
        path = Path(str(folder))
        if path.is_dir():
            return path.resolve()
    return None


_NUMBER, _TEXT = (int, float, type(None)), (str,)
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("key", "task", "space", "target", "mcpu", "isa", "device", "status"), _TEXT),
    **dict.fromkeys(("error", "role", "created", "tools"), _TEXT),
    **dict.fromkeys(("version", "threads"), (int,)),
    **dict.fromkeys(("seconds", "default_seconds"), _NUMBER),
    "point": (dict, type(None)),
    "trace": (str, type(None)),
}
"""Types that the fields of a record may have: files are edited by hand and merged by scripts."""


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
        self._user = self._matching(read_records(self.path))
        self._shipped = [] if self._shipped_path is None else self._matching(read_records(self._shipped_path))

    def _file_name(self) -> str:
        safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in self.site.mcpu)
        return f"{self.site.target}-{safe}.jsonl"

    def _matching(self, records: Iterable[Record]) -> list[Record]:
        return [record for record in records if record.site.alike(self.site)]

    def file_of(self, layer: str) -> Path | None:
        """File of a layer: ``user`` or ``shipped``."""
        return self.path if layer == "user" else self._shipped_path

    def append(self, record: Record) -> None:
        """Add a record; on disk when this returns.  :class:`RecordError` when the file cannot be written."""
        append_line(self.path, record.to_json())
        if record.site.alike(self.site):
            self._user.append(record)

    def trials(self, task: Task) -> list[Record]:
        """The user's trials of a task with the present version of its space, failures included."""
        return [record for record in self._here(self._user, task) if record.role == TRIAL]

    def measured(self, task: Task) -> dict[str, Record]:
        """Candidate -> its trial, from both layers; of several trials of one candidate the fastest."""
        found: dict[str, Record] = {}
        for record in [*self._here(self._shipped, task), *self.trials(task)]:
            known = found.get(record.candidate)
            if record.role in (TRIAL, VERIFIED) and (known is None or _time(record) < _time(known)):
                found[record.candidate] = record
        return found

    def best(self, task: Task) -> tuple[Record, str] | None:
        """The record to build with, and its layer (``user`` or ``shipped``); None when there is none.

        A verified record beats trials, the user's layer beats the shipped one; of several verified
        ones the newest counts (it was compared with the others), of trials the fastest.  Records of this
        device come before those of others, and what was ranked without measuring comes last.
        """
        layers = [("user", self._user), ("shipped", self._shipped)]
        for pick in (self._here, self._of):
            own = [(layer, pick(records, task)) for layer, records in layers]
            for layer, records in own:
                verified = [record for record in records if record.role == VERIFIED and record.ok]
                if verified:
                    return max(verified, key=lambda record: record.created), layer
            for layer, records in own:
                trials = [record for record in records if record.role == TRIAL and record.ok]
                if trials:
                    return min(trials, key=_time), layer
        ranked = [record for record in self._of(self._user, task) if record.role == RANKED]
        return (ranked[-1], "user") if ranked else None

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

    @staticmethod
    def _of(records: list[Record], task: Task) -> list[Record]:
        identity = space_identity(task)
        return [r for r in records if r.key == task.key and (r.space, r.version) == identity]


def _time(record: Record) -> float:
    return record.seconds if record.ok else float("inf")


def read_records(path: Path) -> list[Record]:
    """Records of a file, [] when it does not exist.

    Lines that are not records are skipped; one warning tells how many and where the first is.
    :class:`RecordError` when the file cannot be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RecordError(f"the record file {path} cannot be read: {error.strerror}") from error
    records, bad = [], []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            try:
                records.append(Record.from_json(line.decode()))
            except ValueError as error:
                bad.append((number, error))
    if bad:
        number, error = bad[0]
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        text = f"{path}:{number}: skipped a line that is not a tuning record: {error}{more}"
        warnings.warn(text, stacklevel=2)
    return records


def append_line(path: Path, line: str) -> None:
    """Append one line durably.  A file that ends in the middle of a line gets a newline first."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            size = os.fstat(descriptor).st_size
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            data = b"\n" * torn + line.encode() + b"\n"
            written = os.write(descriptor, data)
            if written != len(data):
                raise OSError(28, f"only {written} of {len(data)} bytes were written")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise RecordError(
            f"the tuning record cannot be written to {path}: {error.strerror}",
            hint="pass another folder with --logs",
        ) from error
