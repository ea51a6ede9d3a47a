"""A model whose lengths stay open, tuned at the lengths that stand for all others.

Its kernels are searched at each of these lengths with its weight, as kernels of fixed sizes.  Of what won at
any of them, one point is built for all sizes: the one with the least weighted time.  Records name their
operator with its sizes, so those of one length serve a library of any range around it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hetero_tvm.compile.optimize import OptimizedModel, Representative
from hetero_tvm.frontend.given_lengths import sizes_text
from hetero_tvm.frontend.signature import Symbol
from hetero_tvm.machines.base import Machine
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.records.candidates import point_key
from hetero_tvm.records.choose import Choice, predates
from hetero_tvm.records.record import VERIFIED, Record
from hetero_tvm.records.store import RecordFolders, RecordStore
from hetero_tvm.schedules.base import DesignSpace, Point, thaw
from hetero_tvm.schedules.extents import Sizes, Unfit
from hetero_tvm.schedules.symbolic import Witnesses
from hetero_tvm.schedules.task import Task
from hetero_tvm.targets.base import Target

_MOST_SIZES = 16
"""Sizes that records of one kernel are looked at for, where none are given."""


@dataclass(frozen=True)
class AtLengths:
    """The distinct kernels of a model at its representative lengths, as a tuner sees them."""

    model: OptimizedModel
    tasks: tuple[Task, ...]

    @classmethod
    def of(cls, model: OptimizedModel, representative: Sequence[Representative]) -> AtLengths:
        """Kernels that several lengths share are one task, which counts for all of them."""
        found: dict[str, Task] = {}
        taken: set[str] = set()
        for one in representative:
            # What no space is for is not searched: of any length it is built as it is.
            for task in (task for task in one.model.tasks if task.space is not None):
                known = found.get(task.key)
                before = 0.0 if known is None else known.uses
                name = task.name if known is None else known.name
                while known is None and name in taken:
                    name += "_b"
                taken.add(name)
                weight = (before + one.weight * task.count) / task.count
                found[task.key] = replace(task, name=name, weight=weight)
        return cls(model, tuple(found.values()))

    @property
    def module(self) -> Any:
        return self.model.module

    @property
    def machine(self) -> Machine:
        return self.model.machine

    def variants(self) -> Sequence[AtLengths]:
        return (self,)

    def store(self, folders: RecordFolders, device: str = "") -> RecordStore:
        return self.model.store(folders, device)


def to_tune(optimized: OptimizedModel) -> OptimizedModel | AtLengths:
    """A model as a tuner is given it: with its kernels at the representative lengths, if there are some."""
    lengths = optimized.lengths
    if lengths is None or not lengths.representative:
        return optimized
    return AtLengths.of(optimized, lengths.representative)


def chosen_for_lengths(
    optimized: OptimizedModel, choices: Mapping[str, Choice], store: RecordStore
) -> dict[str, Choice]:
    """The choices, with the best point over all lengths for kernels of which records know some.

    Without representative lengths those in range count that records happen to be of, all alike: by how much
    slower a point is than the best one there.
    """
    lengths = optimized.lengths
    assert lengths is not None
    found = dict(choices)
    given = [(one.sizes, one.weight) for one in lengths.representative]
    for tasks in optimized.tasks_at_sizes():
        task = tasks[0]
        if task.space is None or len({type(one.op) for one in tasks}) > 1:
            continue
        witnesses = Witnesses(tuple(one.op for one in tasks), lengths.sizes)
        at = given or _recorded_sizes(task.space, witnesses, store, lengths.symbols)
        known = _known(task.space, witnesses, at, store, optimized.target, not given)
        if known:
            standing = found[task.key].point
            if standing is not None:
                standing = optimized.target.kept_decisions(task.space, standing)
            best = _best(task, known, standing, optimized.machine)
            if best is not None:
                found[task.key] = best
    return found


@dataclass(frozen=True)
class _Known:
    """Records of one kernel at one length: seconds by point, the winner, and the weight of the length."""

    sizes: Sizes
    weight: float
    op: FusedOp
    seconds: Mapping[str, float]
    best: Point

    def time(self, space: DesignSpace, point: Point, machine: Machine) -> float | None:
        """Seconds of a point: measured, or in proportion to the space's estimates."""
        if (seconds := self.seconds.get(point_key(point))) is not None:
            return seconds
        estimates = [space.estimate(self.op, one, machine) for one in (point, self.best)]
        if estimates[0] is None or not estimates[1]:
            return None
        return self.seconds[point_key(self.best)] * estimates[0] / estimates[1]


def _known(
    space: DesignSpace,
    witnesses: Witnesses,
    at: Sequence[tuple[Sizes, float]],
    store: RecordStore,
    target: Target,
    alike: bool,
) -> list[_Known]:
    """Records of a kernel at these sizes; points that differ in what a call decides are one.

    ``alike``: lengths count by their best time, and not by the seconds that a longer one has more of.
    """
    found = []
    for sizes, weight in at:
        try:
            op = witnesses.at(sizes)
        except Unfit:
            return []
        seconds: dict[str, float] = {}
        winner: Record | None = None
        for record in store.of_operator(space, op):
            key = point_key(target.kept_decisions(space, thaw(record.point)))
            if record.role == VERIFIED:
                seconds[key], winner = record.seconds, record
            elif key not in seconds or record.seconds < seconds[key]:
                seconds[key] = record.seconds
        if seconds:
            best = min(seconds, key=lambda key: seconds[key])
            point = thaw(json.loads(best)) if winner is None else thaw(winner.point)
            point = target.kept_decisions(space, point)
            weight = weight / seconds[point_key(point)] if alike else weight
            found.append(_Known(sizes, weight, op, seconds, point))
    return found


def _best(task: Task, known: Sequence[_Known], standing: Point | None, machine: Machine) -> Choice | None:
    """The point with the least weighted time, of those that won somewhere and, if measured, the one that
    stands."""
    space = task.space
    assert space is not None
    points = [one.best for one in known]
    if standing is not None and any(point_key(standing) in one.seconds for one in known):
        points.append(standing)
    scored = []
    for point in {point_key(point): point for point in points}.values():
        try:
            space.check(task.op, point, machine)
        except (ValueError, TypeError):
            continue
        if predates(task, point, machine):
            continue
        times = [one.time(space, point, machine) for one in known]
        if None not in times:
            scored.append((sum(t * one.weight for t, one in zip(times, known, strict=True)), point))
    if not scored:
        return None
    _, point = min(scored, key=lambda pair: pair[0])
    at = ", ".join(sizes_text(one.sizes) for one in known)
    return Choice(point, None, f"records at {at}")


def _recorded_sizes(
    space: DesignSpace, witnesses: Witnesses, store: RecordStore, symbols: Sequence[Symbol]
) -> list[tuple[Sizes, float]]:
    """Sizes in range that records of the kernel are of, each with the weight 1."""
    if len(symbols) != 1:
        return []
    (symbol,) = symbols
    texts = store.operators(space)
    numbers = dict.fromkeys(n for text in texts for n in _numbers(json.loads(text)))
    found: list[tuple[Sizes, float]] = []
    for size in numbers:
        if size in symbol.sizes and len(found) < _MOST_SIZES:
            with contextlib.suppress(Unfit, ValueError, ArithmeticError):
                if witnesses.at({symbol.name: size}).to_json() in texts:
                    found.append(({symbol.name: size}, 1.0))
    return found


def _numbers(value: Any) -> Iterator[int]:
    """Positive whole numbers anywhere in an operator's fields, each of which may be a length."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _numbers(one)
    elif isinstance(value, int) and not isinstance(value, bool) and value > 0:
        yield value
