"""What one candidate is, how it is named on the wire, and how it becomes a kernel.

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
from typing import Any

from hetero_tvm.errors import TuningError
from hetero_tvm.schedules.base import DesignSpace, Point, thaw

Candidate = Mapping[str, Any]

STOCK = "stock"
"""Space name of kernels that MetaSchedule's own rules schedule."""


def point_key(point: Mapping[str, Any]) -> str:
    """Canonical text of a point: equal points give equal texts, tuples and lists alike."""
    return json.dumps(point, sort_keys=True)


def candidate_key(candidate: Candidate) -> str:
    """Canonical text of a candidate, for "has this been measured?"."""
    point = candidate.get("point")
    return str(candidate.get("trace")) if point is None else point_key(point)


def space_reference(space: DesignSpace) -> str:
    """A text from which another process finds ``space``: its registered name, else ``module:Class``.

    The second form is the door for spaces outside the registry (plug-ins under development, tests):
    the class must be importable and constructible without arguments.
    """
    try:
        from hetero_tvm.schedules.registry import space_named

        if type(space_named(space.name)) is type(space):
            return space.name
    except Exception:  # no registry, or the space is not in it: the class path serves
        pass
    return f"{type(space).__module__}:{type(space).__qualname__}"


def find_space(reference: str) -> DesignSpace:
    """The inverse of :func:`space_reference`.  :class:`TuningError` when there is no such space."""
    if ":" not in reference:
        from hetero_tvm.schedules.registry import space_named

        return space_named(reference)
    module, _, name = reference.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return found()
    except (ImportError, AttributeError, TypeError) as error:
        raise TuningError(f"the design space {reference!r} cannot be loaded: {error}") from error


def type_reference(value: Any) -> str:
    return f"{type(value).__module__}:{type(value).__qualname__}"


def find_type(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


def emit(space: DesignSpace, op: Any, point: Point, machine: Any) -> Any:
    """The kernel of a point that may come from a file: it is checked against the space first."""
    point = thaw(point)
    space.check(op, point, machine)
    return space.emit(op, point, machine)


def apply_trace(workload: Any, trace: str) -> Any:
    """The module that a recorded MetaSchedule trace makes of an unscheduled workload."""
    from hetero_tvm._bootstrap import import_tvm

    import_tvm()
    from tvm import s_tir

    schedule = s_tir.Schedule(workload)
    s_tir.schedule.Trace.apply_json_to_schedule(json.loads(trace), schedule)
    return schedule.mod


def generic_schedule(workload: Any, machine: Any) -> Any:
    """The project's untuned schedule for kernels that no space knows; None when there is none."""
    try:
        from hetero_tvm.schedules.cpu.generic import schedule
    except ImportError:
        return None
    return schedule(workload, machine)
