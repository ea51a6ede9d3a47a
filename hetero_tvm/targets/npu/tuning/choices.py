"""Choices that a search for whole models has for one kernel, and the cycles that are known of them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.records.candidates import point_key
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.task import Task
from hetero_tvm.search import points
from hetero_tvm.targets.npu.regions.residency import RESIDENCY_KNOBS
from hetero_tvm.targets.npu.tuning.region_timer import Surroundings

_MOST_LISTED = 256
"""Most points of a space that are listed."""
_MOST_PER_SURROUNDINGS = 8
"""Most further points for each of the surroundings in which a call was seen."""


def without_residency(point: Point) -> dict[str, Any]:
    """The knobs of a point that the kernel's space knows."""
    return {name: choice for name, choice in point.items() if name not in RESIDENCY_KNOBS}


def residency_of(point: Point) -> dict[str, Any]:
    """The knobs of a point that say how the kernel shares L1 with others."""
    return {name: point[name] for name in RESIDENCY_KNOBS if name in point}


class Choices:
    """The points of a task.

    Parameters
    ----------
    measured : points with the cycles of the kernel alone, per call.
    """

    def __init__(self, task: Task, machine: NpuMachine, measured: Sequence[tuple[Point, float]]):
        self.task, self.machine = task, machine
        self.default: dict[str, Any] = dict(task.space.default(task.op, machine))
        self._measured = {point_key(without_residency(point)): cycles for point, cycles in measured}
        every = points.every_kernel(task.space, task.op, machine) or (point for point, _ in measured)
        listed = [self.default, *(dict(point) for point in itertools.islice(every, _MOST_LISTED))]
        unique = {point_key(point): point for point in listed}
        self.listed = sorted(unique.values(), key=self.alone)
        """Points without residency knobs, the fastest alone first."""
        self.in_place: list[Point] = []
        """Further points, for the surroundings in which the calls were seen."""
        self._seen: set[Surroundings] = set()

    def alone(self, point: Point) -> float:
        """Cycles alone over all calls: measured, or estimated from the default's."""
        return self.task.count * (self._known(point) or self._standard * self._relative(point))

    def _known(self, point: Point) -> float | None:
        return self._measured.get(point_key(without_residency(point)))

    @functools.cached_property
    def _standard(self) -> float:
        """Cycles of the default point; an estimate at half the peak where it was never measured."""
        macs = self.machine.spec.macs_per_cycle()
        return self._known(self.default) or max(1.0, self.task.flops / macs)

    def _relative(self, point: Point) -> float:
        """Estimated cycles as a multiple of the default's; 1 where the space has no estimate."""
        default, given = (self._estimate(p) for p in (self.default, point))
        return given / default if given and default else 1.0

    def _estimate(self, point: Point) -> float | None:
        return self.task.space.estimate(self.task.op, without_residency(point), self.machine)

    def _own_features(self, point: Point) -> list[float]:
        return self.task.space.features(self.task.op, without_residency(point), self.machine)

    def features(self, point: Point) -> list[float]:
        """Features for the cost model: those of the space, the residency knobs, the relative time alone."""
        residency = [float(point.get(name, -1)) for name in RESIDENCY_KNOBS]
        return [*self._own_features(point), *residency, self.alone(point) / self.alone(self.default)]

    def note_surroundings(self, surroundings: Iterable[Surroundings]) -> None:
        """Add points for the surroundings that calls have in a model."""
        task, fresh = self.task, set(surroundings) - self._seen
        self._seen |= fresh
        found = [
            task.space.in_place(task.op, self.machine, held, room, _MOST_PER_SURROUNDINGS)
            for held, room in sorted(fresh, key=lambda entry: (sorted(entry.held), entry.room))
        ]
        for point in itertools.chain.from_iterable(itertools.zip_longest(*found)):
            if point is not None and point not in self.listed and point not in self.in_place:
                self.in_place.append(point)

    def family(self, point: Point | None) -> Hashable:
        """Family of ``point``, or of the default point."""
        return self.task.space.family(without_residency(point or self.default))

    def families(self) -> dict[Hashable, list[Point]]:
        """The listed points by family, the fastest alone first."""
        found: dict[Hashable, list[Point]] = {}
        for point in self.listed:
            found.setdefault(self.family(point), []).append(point)
        return found

    def residency_changes(self, point: Point) -> list[Point]:
        """The point with one residency knob changed, in every way."""
        ways = itertools.product(RESIDENCY_KNOBS, (0, 1))
        return [{**point, name: way} for name, way in ways if point.get(name) != way]
