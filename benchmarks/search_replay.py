"""Searches replayed on tables: what a number of trials finds of what is known to be there."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero_tvm.records.candidates import candidate_key, default_candidate
from hetero_tvm.records.tables import Table
from hetero_tvm.schedules.base import DesignSpace
from hetero_tvm.schedules.task import Task, task_key
from hetero_tvm.search import points, pretrained
from hetero_tvm.search.cost_model import SpaceModel
from hetero_tvm.search.proposer import PointProposer

TRIALS = 64
BATCH = 8
LEAST = 128
"""Points that a table must have: of fewer, so many trials are all there is."""
STEPS = (1, 8, 16, 32, 64)
"""Numbers of trials after which it is told how far a search has come."""


class _OnTable(PointProposer):
    """The proposer of a search that may only propose what a table has."""

    def __init__(self, table: Table, task: Task, model: SpaceModel, seed: int):
        machine = table.described_machine()
        super().__init__(task, machine, machine.codegen_target(), model, seed, BATCH)
        self._table = table

    @functools.cached_property
    def _every(self) -> list[tuple[int, ...]]:
        found = (self._decisions(point) for point in self._table.each_point())
        return list(dict.fromkeys(one for one in found if one is not None))


def can_replay(table: Table, space: DesignSpace) -> bool:
    """Whether a table is large enough, and its space small enough to be ranked as a whole."""
    size = points.size(space, table.operator(), table.described_machine())
    return len(table.points) >= LEAST and size <= points.MOST


def replay(table: Table, space: DesignSpace, base: Any, seed: int) -> dict[int, float]:
    """Least time of the table as a share of the least found, after each number of :data:`STEPS` trials.

    Parameters
    ----------
    base : trees that the search begins with (see :class:`SpaceModel`), trained without this operator.
    """
    op, machine = table.operator(), table.described_machine()
    workload = op.workload()
    task = Task(task_key(workload), op.label, op, workload, space, (("",),), op.flops, op.nbytes)
    proposer = _OnTable(table, task, SpaceModel(seed, base), seed)
    later = {knob.name: knob.absent for knob in space.knobs(op, machine)}  # than the table, some of them
    seconds = {
        candidate_key({"point": {**later, **point}}): s
        for point, s in zip(table.each_point(), table.seconds, strict=True)
    }
    least = min(s for s in seconds.values() if s is not None)
    default = default_candidate(task, machine)
    proposer.set_aside(default)
    batch, best, trials, shares = [default, *proposer.propose(BATCH - 1)], np.inf, 0, {}
    while batch and trials < TRIALS:
        for candidate in batch:
            found = seconds.get(candidate_key(candidate))
            best, trials = min(best, np.inf if found is None else found), trials + 1
            proposer.learn(candidate, found)
            if trials in STEPS:
                shares[trials] = least / best
        batch = proposer.propose(min(BATCH, TRIALS - trials))
    return {step: shares.get(step, least / best) for step in STEPS}


def other_shapes(held: Table, tables: Sequence[Table]) -> list[Table]:
    """Tables of other operators than ``held``'s, which another machine may have in blocks of other sizes."""
    label = held.operator().label
    return [table for table in tables if table.operator().label != label]


def replayed(table: Table, tables: Sequence[Table], space: DesignSpace, seeds: int = 5) -> dict[str, Any]:
    """A row about one operator: the least share over some seeds, of a search that begins with trees of other
    operators, of one that begins with the estimate alone, and the mean of random trials."""
    trained = pretrained.model_of(other_shapes(table, tables), space)
    row: dict[str, Any] = {
        "space": table.space,
        "operator": table.operator().label,
        "points": len(table.points),
        "complete": table.complete,
    }
    for name, base in (("model", trained and trained.booster()), ("estimate", None)):
        found = [replay(table, space, base, seed) for seed in range(seeds)]
        row[name] = {str(step): min(one[step] for one in found) for step in STEPS}
    times = np.array([np.inf if s is None else s for s in table.seconds])
    draws = [np.random.default_rng(seed).permutation(times) for seed in range(400)]
    row["random"] = {
        str(step): float(np.mean([times.min() / drawn[:step].min() for drawn in draws])) for step in STEPS
    }
    return row


def line_of(row: dict[str, Any]) -> str:
    """A row as text."""
    parts = [f"{row['operator']:45} {row['points']:5} points{'' if row['complete'] else ' (random)'}"]
    for name in ("model", "estimate", "random"):
        parts.append(f"{name} @{'/'.join(row[name])} " + " ".join(f"{s:.1%}" for s in row[name].values()))
    return "; ".join(parts)
