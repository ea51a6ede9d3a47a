"""The points of a design space, one for each kernel."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from hetero_tvm.machines.base import Machine
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.records.candidates import point_key
from hetero_tvm.schedules.base import DesignSpace, Point

MOST = 4096
"""Larger spaces are not listed."""


def size(space: DesignSpace, op: FusedOp, machine: Machine) -> int:
    """Combinations of all choices; several may stand for one kernel."""
    return math.prod(len(knob.choices) for knob in space.knobs(op, machine))


def every_kernel(space: DesignSpace, op: FusedOp, machine: Machine) -> Iterator[Point] | None:
    """The canonical points, each once, one by one; None for a space too large to list."""
    return None if size(space, op, machine) > MOST else all_kernels(space, op, machine)


def all_kernels(space: DesignSpace, op: FusedOp, machine: Machine) -> Iterator[Point]:
    """The canonical points of a space of any size, one by one."""
    knobs = space.knobs(op, machine)
    names = [knob.name for knob in knobs]
    seen: set[str] = set()
    for choices in itertools.product(*(knob.choices for knob in knobs)):
        point = space.canonical(op, dict(zip(names, choices, strict=True)), machine)
        if (key := point_key(point)) not in seen:
            seen.add(key)
            yield point
