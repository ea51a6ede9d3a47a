"""A tuning record: one measurement, where it is valid, and its line of JSON."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from datetime import datetime, timezone
from importlib import metadata
from typing import Any

from hetero_tvm.machines.base import Machine
from hetero_tvm.records.candidates import STOCK, candidate_key
from hetero_tvm.schedules.task import Task
from hetero_tvm.version import VERSION

TRIAL = "trial"
VERIFIED = "verified"
"""Role of the record that won a side-by-side comparison with the default; beats every trial."""
BASELINE = "baseline"
"""Role of the measurements that show whether the machine drifts during a run."""
FRESH = "fresh"
"""Role of the line from which on a task's records count; those before it were told to be forgotten."""
RANKED = "ranked"
"""Role of a choice that nobody has measured; any measured record beats it."""
UNMEASURED = "unmeasured"
"""Status of a record with that role."""
DISTURBED = "disturbed"
"""Status of a trial during which others took the cores.  It makes void what was recorded of its candidate
before."""


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
        ``timeout``, ``crash``, ``disturbed``; ``unmeasured``) and why.
    role : ``trial``, ``verified``, ``baseline``, ``ranked`` or ``fresh``.
    default_seconds : in a verified record, the default's time in the same comparison.
    spread : how far the median of the repeats lay above the least, as a fraction of it.
    disturbed : fraction of the time that other processes took; 0.0 in what is to be trusted.
    op : contract of the task as JSON, so that the record can be learned from and compiled without the model.
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
    spread: float = 0.0
    disturbed: float = 0.0
    op: str = ""
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
        return json.dumps({name: value for name, value in fields.items() if value not in (None, "", 0.0)})

    @classmethod
    def from_json(cls, text: str) -> Record:
        """``ValueError`` when the text is not a record.  Fields of later versions are ignored."""
        try:
            fields = json.loads(text)
        except RecursionError:
            raise ValueError("JSON nested too deep") from None
        if not isinstance(fields, dict):
            raise ValueError("not a JSON object")
        known = dataclasses.fields(cls)
        needed = (field.name for field in known if field.default is field.default_factory is MISSING)
        if missing := [name for name in needed if name not in fields]:
            raise ValueError(f"without {', '.join(missing)}")
        names = {field.name for field in known}
        record = cls(**{name: value for name, value in fields.items() if name in names})
        if wrong := [name for name, kinds in _TYPES.items() if type(getattr(record, name)) not in kinds]:
            raise ValueError(f"{', '.join(wrong)} of a wrong type")
        if _is_deep(record.point):
            raise ValueError("JSON nested too deep")
        if wrong := [name for name in _SHOWN if not getattr(record, name).isprintable()]:
            raise ValueError(f"{', '.join(wrong)} of characters that cannot be printed")
        if not _KIND.fullmatch(record.target) or len(record.mcpu) > _LONGEST_NAME:
            raise ValueError("its target or mcpu is no name that a file can have")
        if "\\ud" in text and _has_surrogates(fields):
            raise ValueError("text that is no Unicode")
        if record.point is None and record.trace is None:
            raise ValueError("it has neither a point nor a trace")
        times = [time for time in (record.seconds, record.default_seconds) if time is not None]
        if not all(0 < time <= sys.float_info.max for time in times):
            raise ValueError("its time is not a positive number")
        if record.status == "ok" and record.seconds is None:
            raise ValueError("it is ok but has no time")
        return record


def _is_deep(point: Any) -> bool:
    """Whether a point is nested deeper than any that a space has."""
    level = [point]
    for _ in range(_MOST_NESTED):
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return False
    return True


_MOST_NESTED = 16


def _has_surrogates(fields: Mapping[str, Any]) -> bool:
    """Whether some text is half of a pair, which no file and no terminal takes."""
    try:
        json.dumps(fields, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


_SHOWN = ("key", "task", "space", "target", "mcpu", "isa", "device", "status", "role", "created", "tools")
"""Fields that tables show and names of files are made of: nothing there that moves the cursor."""
_KIND = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:+-]{0,63}")
_LONGEST_NAME = 128
"""A file of records is named after its target and microarchitecture; a line may come from anybody."""


def space_identity(task: Task) -> tuple[str, int]:
    """Name and version of the space that a record of ``task`` must have."""
    space = task.space or task.sampled
    return (STOCK, 1) if space is None else (space.name, space.version)


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
        op="" if task.op is None else task.op.to_json(),
        created=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        tools=_tools(),
        **fields,
    )


@functools.lru_cache(maxsize=1)
def _tools() -> str:
    try:
        tvm = metadata.version("apache-tvm")
    except metadata.PackageNotFoundError:
        tvm = "?"
    return f"hetero-tvm {VERSION}, apache-tvm {tvm}"


_NUMBER, _TEXT = (int, float, type(None)), (str,)
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("key", "task", "space", "target", "mcpu", "isa", "device", "status"), _TEXT),
    **dict.fromkeys(("error", "role", "created", "tools", "op"), _TEXT),
    **dict.fromkeys(("spread", "disturbed"), (int, float)),
    **dict.fromkeys(("version", "threads"), (int,)),
    **dict.fromkeys(("seconds", "default_seconds"), _NUMBER),
    "point": (dict, type(None)),
    "trace": (str, type(None)),
}
"""Types that the fields of a record may have: files are edited by hand and merged by scripts."""


def valid(records: Sequence[Record]) -> list[Record]:
    """Records of one task, in the order of the file, without those that later ones make void."""
    found: list[Record] = []
    for record in records:
        if record.role == FRESH:
            found = [record]
        elif record.status == DISTURBED:
            # A trial that is taken back; a baseline that was disturbed says nothing of the trials before it.
            if record.role == TRIAL:
                found = [r for r in found if r.role != TRIAL or r.candidate != record.candidate]
        else:
            found.append(record)
    return found


def rank(record: Record) -> tuple[bool, float]:
    """Order of the records of one task: verified ones first, then the faster."""
    return (record.role != VERIFIED, record.seconds or math.inf)
