"""State of one task in the tuning loop, and the names that candidates and records share."""

from __future__ import annotations

from typing import Any

from hetero_tvm.records.candidates import Candidate, candidate_key, is_scheduled
from hetero_tvm.records.record import Record
from hetero_tvm.schedules.base import thaw
from hetero_tvm.schedules.task import Task
from hetero_tvm.search import scheduler
from hetero_tvm.search.outcome import TaskReport

_SHARED_PROCESS_JOBS, _SHARED_PROCESS_BYTES = 4, 64 << 20
"""Candidates of a task that one process may build, when their operands are no larger than this."""


class TaskState:
    """State of one task during a run."""

    def __init__(self, task: Task, report: TaskReport):
        self.task = task
        self.report = report
        self.proposer: Any = None
        self.progress = scheduler.Progress(task.uses)
        self.make: Any = None
        """Makes the proposer of a generic task, once it is known to be worth it."""
        self.known: dict[str, Record] = {}
        self.best: float | None = None
        self.times: dict[str, tuple[float, Candidate]] = {}
        """Valid candidates with their times: canonical text -> (seconds, candidate)."""
        self.tunable = True

    def forget(self, candidate: Candidate) -> None:
        """Take a time back."""
        self.times.pop(key_of(candidate), None)
        self.best = min((seconds for seconds, _ in self.times.values()), default=None)
        if self.proposer is not None:
            self.proposer.forget(candidate)

    @property
    def best_candidate(self) -> Candidate | None:
        """The fastest one that is known."""
        return min(self.times.values(), key=lambda one: one[0], default=(None, None))[1]

    @property
    def name(self) -> str:
        return self.task.name

    def note_result(self, key: str, candidate: Candidate, seconds: float | None) -> None:
        if seconds is not None:
            if key not in self.times or seconds < self.times[key][0]:
                self.times[key] = (seconds, candidate)
            if self.best is None or seconds < self.best:
                self.best = seconds


def candidate_of(record: Record) -> Candidate:
    """Candidate of a record, its point as the space's knobs have it."""
    if record.trace is not None:
        return {"trace": record.trace}
    return {"generic": True} if is_scheduled(record.space) else {"point": thaw(record.point or {})}


def key_of(candidate: Candidate) -> str:
    return candidate_key({"point": {}} if "generic" in candidate else candidate)


def group_size(task: Task) -> int:
    """Jobs of a task that may share a child process: stock schedules are less trusted, and share none."""
    return _SHARED_PROCESS_JOBS if task.space is not None and task.nbytes <= _SHARED_PROCESS_BYTES else 1
