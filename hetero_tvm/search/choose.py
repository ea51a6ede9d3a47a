"""Which candidate each kernel of a model is built with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hetero_tvm.schedules.base import thaw
from hetero_tvm.search.records import RANKED, VERIFIED, Record, RecordStore

DEFAULT = "default"


@dataclass(frozen=True)
class Choice:
    """A candidate for one task.

    Parameters
    ----------
    point, trace : the candidate; both None for a generic kernel without a record.
    origin : where it comes from, readable: ``default``, ``record 2026-11-21 (verified)``, ...
    seconds : its recorded time per call; None when it was never measured.
    """

    point: Mapping[str, Any] | None
    trace: str | None
    origin: str
    seconds: float | None = None


def choose(tasks: Iterable[Any], machine: Any, store: RecordStore) -> dict[str, Choice]:
    """For each task (by key) the best record that fits this machine, else the space's default."""
    return {task.key: choose_one(task, machine, store) for task in tasks}


def choose_one(task: Any, machine: Any, store: RecordStore) -> Choice:
    """See :func:`choose`.  A record whose point the space no longer knows counts as none."""
    found = store.best(task)
    if found is not None:
        record, layer = found
        if task.space is None:  # an empty point says that the untuned schedule won
            return Choice(None, record.trace, _origin(record, layer, store), record.seconds)
        point = thaw(record.point or {})
        try:
            task.space.check(task.op, point, machine)
        except ValueError:
            pass
        else:
            return Choice(point, None, _origin(record, layer, store), record.seconds)
    if task.space is None:
        return Choice(None, None, DEFAULT)
    return Choice(dict(task.space.default(task.op, machine)), None, DEFAULT)


def _origin(record: Record, layer: str, store: RecordStore) -> str:
    if record.role == RANKED:
        return f"ranked {record.created[:10]}, not measured"
    kind = "record" if layer == "user" else "shipped record"
    verified = ", verified" if record.role == VERIFIED else ""
    elsewhere = record.device and record.device != store.site.device
    return f"{kind} {record.created[:10]}{verified}" + (f", of {record.device}" if elsewhere else "")
