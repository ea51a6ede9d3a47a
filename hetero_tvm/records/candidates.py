"""Candidates: what one is, how it is named on the wire, how it becomes a kernel.

A candidate is a dictionary with exactly one of the keys

``point``   choices for the knobs of a design space;
``trace``   a MetaSchedule trace as JSON, applied to the unscheduled workload;
``generic`` the project's untuned schedule for kernels that no space knows;
``plain``   the workload as it is (slow; it only serves as a reference).
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hetero_tvm.errors import TuningError
from hetero_tvm.machines.base import Machine
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.schedules.base import DesignSpace, Point, thaw
from hetero_tvm.schedules.sampled import USER
from hetero_tvm.schedules.task import Task

if TYPE_CHECKING:  # see schedules/task.py
    from hetero_tvm.host.tvm import PrimFunc

Candidate = Mapping[str, Any]

STOCK = "stock"
"""Space name of kernels that MetaSchedule's own rules schedule."""


def default_candidate(task: Task, machine: Machine) -> Candidate:
    """Candidate that a kernel is compiled to without any record."""
    if task.space is not None:
        return {"point": dict(task.space.default(task.op, machine))}
    trace = None if task.sampled is None else task.sampled.default(task.workload, machine)
    return {"generic": True} if trace is None else {"trace": trace}


def is_scheduled(space: str) -> bool:
    """Whether the candidates of a space of this name are traces: MetaSchedule's own rules, or a user's."""
    return space == STOCK or space.startswith(USER)


def point_key(point: Mapping[str, Any]) -> str:
    """Canonical text of a point: equal points give equal texts, tuples and lists alike."""
    return json.dumps(point, sort_keys=True)


def candidate_key(candidate: Candidate) -> str:
    """Canonical text of a candidate, for "has this been measured?"."""
    point = candidate.get("point")
    return str(candidate.get("trace")) if point is None else point_key(point)


def find_space(reference: str) -> DesignSpace:
    """The design space that :func:`type_reference` names: importable, constructible without arguments.

    Raises
    ------
    TuningError : there is no such class.
    """
    try:
        found = find_object(reference)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise TuningError(f"the design space {reference!r} cannot be loaded: {error}") from error
    return found


def type_reference(value: Any) -> str:
    return f"{type(value).__module__}:{type(value).__qualname__}"


def find_object(reference: str) -> Any:
    """The class or function that ``module:name`` (or ``module:Class.Inner``) names."""
    module, _, name = reference.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def emit(space: DesignSpace, op: FusedOp, point: Point, machine: Machine) -> Any:
    """The kernel of a point that may come from a file: it is checked against the space first."""
    point = thaw(point)
    space.check(op, point, machine)
    return space.emit(op, point, machine)


def apply_trace(workload: PrimFunc, trace: str) -> Any:
    """The module that a recorded MetaSchedule trace makes of an unscheduled workload."""

    from hetero_tvm.host.tvm import s_tir

    schedule = s_tir.Schedule(workload)
    s_tir.schedule.Trace.apply_json_to_schedule(json.loads(trace), schedule)
    return schedule.mod
