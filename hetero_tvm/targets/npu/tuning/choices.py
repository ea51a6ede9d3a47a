"""What a search for whole models may choose for one kernel, and what is known of it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from hetero_tvm.records.candidates import point_key
from hetero_tvm.schedules.base import Point
from hetero_tvm.search import points
from hetero_tvm.targets.npu.regions.residency import PLACING

_MOST = 256
"""Points of a space that are listed."""
_IN_PLACE = 8
"""And so many for every place in which a call was seen."""


def without_placing(point: Point) -> dict[str, Any]:
    """What the kernel's space knows of a point."""
    return {name: choice for name, choice in point.items() if name not in PLACING}


def placing_of(point: Point) -> dict[str, Any]:
    return {name: point[name] for name in PLACING if name in point}


class Choices:
    """The points of a task.

    Parameters
    ----------
    measured : points with their cycles alone, per call.
    """

    def __init__(self, task: Any, machine: Any, measured: Sequence[tuple[Point, float]]):
        self.task, self.machine = task, machine
        self.default: dict[str, Any] = dict(task.space.default(task.op, machine))
        self._measured = {point_key(without_placing(point)): cycles for point, cycles in measured}
        every = points.every_kernel(task.space, task.op, machine) or (point for point, _ in measured)
        listed = [self.default, *(dict(point) for point in itertools.islice(every, _MOST))]
        unique = {point_key(point): point for point in listed}
        self.listed = sorted(unique.values(), key=self.alone)
        """Without placing, what is fastest alone first."""
        self.in_place: list[Point] = []
        """Further ones, for the places in which the calls were seen."""
        self._places: set[tuple[frozenset[int], int]] = set()

    def alone(self, point: Point) -> float:
        """Cycles alone over all calls: measured, or estimated from the default's."""
        return self.task.count * (self._known(point) or self._standard * self._relative(point))

    def _known(self, point: Point) -> float | None:
        return self._measured.get(point_key(without_placing(point)))

    @functools.cached_property
    def _standard(self) -> float:
        """Cycles of the default; where it was never measured, of a product at half the peak."""
        macs = self.machine.spec.macs_per_cycle()
        return self._known(self.default) or max(1.0, self.task.flops / macs)

    def _relative(self, point: Point) -> float:
        """What the space estimates, as a multiple of the default's time; its last feature is speed."""
        default, given = (self._own_features(p) for p in (self.default, point))
        return default[-1] / given[-1] if given and given[-1] > 0 else 1.0

    def _own_features(self, point: Point) -> list[float]:
        return self.task.space.features(self.task.op, without_placing(point), self.machine)

    def features(self, point: Point) -> list[float]:
        """For the model of costs: what the space says, how the point is placed, its time alone."""
        placed = [float(point.get(name, -1)) for name in PLACING]
        return [*self._own_features(point), *placed, self.alone(point) / self.alone(self.default)]

    def note_places(self, places: Iterable[tuple[frozenset[int], int]]) -> None:
        """Where the calls stand in a model: points for there."""
        task, fresh = self.task, set(places) - self._places
        self._places |= fresh
        found = [
            task.space.in_place(task.op, self.machine, held, room, _IN_PLACE)
            for held, room in sorted(fresh, key=lambda place: (sorted(place[0]), place[1]))
        ]
        for point in itertools.chain.from_iterable(itertools.zip_longest(*found)):
            if point is not None and point not in self.listed and point not in self.in_place:
                self.in_place.append(point)

    def family(self, point: Point | None) -> Hashable:
        """Of a point; of the default where there is none."""
        return self.task.space.family(without_placing(point or self.default))

    def families(self) -> dict[Hashable, list[Point]]:
        """The listed points by family, what is fastest alone first."""
        found: dict[Hashable, list[Point]] = {}
        for point in self.listed:
            found.setdefault(self.family(point), []).append(point)
        return found

    def placings(self, point: Point) -> list[Point]:
        """The point placed in other ways, one change each."""
        ways = itertools.product(PLACING, (0, 1))
        return [{**point, name: way} for name, way in ways if point.get(name) != way]
