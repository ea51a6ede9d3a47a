"""Points whose kernels serve all sizes: work that is shared out among threads at every one of them.

A point is chosen for the largest sizes.  How many pieces it cuts the work into may not serve others: eight
images keep two threads busy with one piece each, a single image does not.  Nor may what a default says about
the method: weights that are transformed for eight images are four times as many bytes, for which a single
one waits.  Of such defaults, those of the other sizes are looked at too; what was measured keeps its method.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

from hetero_tvm.compile.length_check import other_sizes
from hetero_tvm.compile.optimize import OptimizedModel
from hetero_tvm.machines.base import Machine
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.records.choose import DEFAULT, Choice
from hetero_tvm.schedules.base import DesignSpace, Point
from hetero_tvm.schedules.extents import Sizes, Unfit
from hetero_tvm.schedules.symbolic import Witnesses
from hetero_tvm.schedules.task import Task

_METHOD = "method"
"""Knob of spaces with several ways to compute the same."""
_GAIN = 0.97
"""Share of the time, by the spaces' estimates, from which a point is left for another."""


def shared_out(optimized: OptimizedModel, choices: Mapping[str, Choice]) -> dict[str, Choice]:
    """The choices, with other numbers of pieces where these are estimated to be faster over all sizes."""
    lengths = optimized.lengths
    assert lengths is not None
    found = dict(choices)
    at = _sizes(optimized)
    for tasks in optimized.tasks_at_sizes():
        task, choice = tasks[0], found.get(tasks[0].key)
        if task.space is None or choice is None or choice.point is None:
            continue
        knobs = optimized.target.pieces(task.space)
        others = choice.origin == DEFAULT and _METHOD in choice.point
        contracts = _contracts(tasks, lengths.sizes, at, optimized.machine) if knobs else []
        if not contracts:
            continue
        ranges = ", ".join(map(str, lengths.symbols))
        if choice.origin == DEFAULT:
            if (point := task.space.of_all_sizes(contracts, optimized.machine)) is not None:
                found[task.key] = dataclasses.replace(choice, point=point, origin=f"default for {ranges}")
                continue
        point = _best(task.space, contracts, choice.point, others, knobs, optimized)
        if point is not None:
            kept = all(point[name] == choice.point.get(name) for name in point if name not in knobs)
            origin = f"{choice.origin}, {'in pieces ' if kept else ''}for {ranges}"
            found[task.key] = dataclasses.replace(choice, point=point, origin=origin, seconds=None)
    return found


def _sizes(optimized: OptimizedModel) -> list[Sizes]:
    """Sizes that count: both ends, and powers of two of all symbols between them."""
    assert optimized.lengths is not None
    symbols = optimized.lengths.symbols
    found = other_sizes(symbols)
    size = 1
    while size < max(s.high for s in symbols):
        between: dict[str, int] = {s.name: s.nearest(size) for s in symbols}
        if between not in found:
            found.append(between)
        size *= 2
    return found


def _best(
    space: DesignSpace,
    contracts: Sequence[FusedOp],
    point: Point,
    others: bool,
    knobs: Sequence[str],
    optimized: OptimizedModel,
) -> Point | None:
    """The point with the least geometric mean of its estimated times; None when it is the given one.

    ``others``: the defaults of other sizes are looked at too.
    """
    machine = optimized.machine

    def time(candidate: Point) -> float:
        estimates = [space.estimate(op, candidate, machine) for op in contracts]
        return sum(math.log(max(one, 1e-12)) for one in estimates if one is not None)

    kept = [point]
    if others:
        kept += [p for op in contracts if _has(space, contracts, p := space.default(op, machine), machine)]
    candidates = [
        {**one, **dict(zip(knobs, values, strict=True))}
        for one in kept
        for values in _choices(space, contracts, knobs, optimized)
    ]
    if not candidates:
        return None
    best = min(candidates, key=time)
    return best if math.exp((time(best) - time(point)) / len(contracts)) < _GAIN else None


def _contracts(
    tasks: Sequence[Task], sizes: Sequence[Sizes], at: Sequence[Sizes], machine: Machine
) -> list[FusedOp]:
    """Contracts of one call ``at`` sizes, from those at the model's; none where one has no kernel."""
    space, ops = tasks[0].space, [task.op for task in tasks]
    assert space is not None
    if any(type(op) is not type(ops[0]) for op in ops):
        return []
    try:
        witnesses = Witnesses(tuple(ops), tuple(sizes))
        contracts = [witnesses.at(one) for one in at]
    except Unfit:
        return []
    return [] if any(space.refuses(op, machine) for op in contracts) else contracts


def _has(space: DesignSpace, contracts: Sequence[FusedOp], point: Point, machine: Machine) -> bool:
    """Whether every size has a point."""
    try:
        for op in contracts:
            space.check(op, point, machine)
    except ValueError:
        return False
    return True


def _choices(
    space: DesignSpace, contracts: Sequence[FusedOp], knobs: Sequence[str], optimized: OptimizedModel
) -> list[tuple[int, ...]]:
    """Values of the knobs that every size has, all combinations."""
    each = []
    for name in knobs:
        known = [
            next(
                (set(knob.choices) for knob in space.knobs(op, optimized.machine) if knob.name == name), set()
            )
            for op in contracts
        ]
        each.append(sorted(set.intersection(*known)))
    return list(itertools.product(*each))
