"""Choice of the candidate that each kernel of a model is built with."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hetero_tvm.machines.base import Machine
from hetero_tvm.records.candidates import default_candidate, point_key
from hetero_tvm.records.combinations import best_combination
from hetero_tvm.records.record import RANKED, VERIFIED, Record
from hetero_tvm.records.store import RecordStore
from hetero_tvm.schedules.base import thaw
from hetero_tvm.schedules.task import Task

DEFAULT = "default"


@dataclass(frozen=True)
class Choice:
    """A candidate for one task.

    Parameters
    ----------
    point, trace : the candidate; both None for a generic kernel without a record.
    origin : where it comes from, readable: ``default``, ``record 2026-11-21 (verified)``, ...
    seconds : its recorded time per call; None when it was never measured.
    file : where the record is; empty for a default.
    """

    point: Mapping[str, Any] | None
    trace: str | None
    origin: str
    seconds: float | None = None
    file: str = ""


def choose(tasks: Iterable[Task], machine: Machine, store: RecordStore) -> dict[str, Choice]:
    """Choices by task key: the best record that fits this machine, else the space's default.

    Where kernels overlap (``machine.whole_models``), what is best alone may make a model slower: there only
    combinations count that were timed in this very model.
    """
    if machine.whole_models:
        return _together(list(tasks), machine, store)
    return {task.key: choose_one(task, machine, store) for task in tasks}


def _together(tasks: Sequence[Task], machine: Machine, store: RecordStore) -> dict[str, Choice]:
    """The best combination of the model; none when it has a point that its space no longer knows."""
    chosen = {task.key: default_choice(task, machine) for task in tasks}
    found = best_combination(tasks, store)
    if found is None:
        return chosen
    combination, record, layer = found
    for task in tasks:
        point = combination.get(task.key)
        if point is None:
            continue
        try:
            task.space.check(task.op, point, machine)
        except ValueError:
            return {task.key: default_choice(task, machine) for task in tasks}
        seconds = _alone(task, point, machine, store)
        chosen[task.key] = Choice(point, None, _origin(record, layer, store), seconds)
    return chosen


def _alone(task: Task, point: Mapping[str, Any], machine: Machine, store: RecordStore) -> float | None:
    """Seconds of the kernel alone, whatever the point says beyond the space's knobs."""
    names = {knob.name for knob in task.space.knobs(task.op, machine)}
    record = store.measured(task).get(point_key({n: c for n, c in point.items() if n in names}))
    return record.seconds if record is not None and record.ok else None


def default_choice(task: Task, machine: Machine) -> Choice:
    """The candidate of a task without any record."""
    default = default_candidate(task, machine)
    return Choice(default.get("point"), default.get("trace"), DEFAULT)


def choose_one(task: Task, machine: Machine, store: RecordStore) -> Choice:
    """See :func:`choose`.  A record whose point the space no longer knows counts as none, and so does one
    that is older than a decision of today's default."""
    unfit: list[tuple[Record, Exception]] = []
    chosen: Choice | None = None
    for record, layer in store.best_first(task):
        file = str(store.file_of(layer))
        if task.space is None:  # an empty point says that the untuned schedule won
            return Choice(None, record.trace, _origin(record, layer, store), record.seconds, file)
        point = thaw(record.point or {})
        try:
            task.space.check(task.op, point, machine)
        except (ValueError, TypeError) as error:
            if layer != "user":  # a shipped one may come from a machine with other caches
                break
            unfit.append((record, error))
            continue
        if not predates(task, point, machine):
            chosen = Choice(point, None, _origin(record, layer, store), record.seconds, file)
        break
    if unfit:
        record, error = unfit[0]
        more = f", and {len(unfit) - 1} more do not" if len(unfit) > 1 else ""
        warnings.warn(
            f"{task.name}: {_origin(record, 'user', store)} in {store.file_of('user')} does not fit ({error})"
            f"{more}; the kernel gets " + ("its default" if chosen is None else "the best of the others"),
            stacklevel=2,
        )
    return chosen or default_choice(task, machine)


def predates(task: Task, point: Mapping[str, Any], machine: Machine) -> bool:
    """Whether a point was chosen before its space had a decision that today's default makes use of: it won
    over another default, and may be slower than this one."""
    default = task.space.default(task.op, machine)
    knobs = task.space.knobs(task.op, machine)
    return any(k.name not in point and default.get(k.name, k.absent) != k.absent for k in knobs)


def _origin(record: Record, layer: str, store: RecordStore) -> str:
    if record.role == RANKED:
        return f"ranked {record.created[:10]}, not measured"
    kind = "record" if layer == "user" else "shipped record"
    verified = ", verified" if record.role == VERIFIED else ""
    elsewhere = record.device and record.device != store.site.device
    return f"{kind} {record.created[:10]}{verified}" + (f", of {record.device}" if elsewhere else "")
