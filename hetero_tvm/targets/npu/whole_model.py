"""The search over whole models: what is best alone need not be best beside its neighbours.

Kernels overlap with those around them and share L1, so the cost of a choice is what the whole model takes
in the simulator.  From the best known combination, one kernel's choice changes at a time: first what only
shows beside others (whether its result stays in L1, whether it leaves room for its neighbours' loads),
then its points.  Which change comes next is what gradient-boosted trees expect most of: they learn what
kernels take in their places, starting from what they take alone.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import numpy as np

from hetero_tvm.errors import HeteroTVMError
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.npu.base import NpuSpace
from hetero_tvm.search.candidates import point_key
from hetero_tvm.search.cost_model import SpaceModel
from hetero_tvm.targets.npu.driver import open_device
from hetero_tvm.targets.npu.lowering import RegionTimer
from hetero_tvm.targets.npu.residency import PLACING

_BATCH = 8
"""Changes tried between two looks at the model of costs."""
_LEAST = 0.02
"""Of a kernel's time alone: its least time in its place, for the model."""


@dataclass
class Found:
    """The best combination, and simulated cycles of the model: by default, of the tuned points, of these."""

    points: dict[str, Point]
    default: float
    started: float
    cycles: float
    trials: int

    def __str__(self) -> str:
        ratio = self.cycles / self.default if self.default else 1.0
        return (
            f"whole model: {self.default:,.0f} cycles by default, {self.started:,.0f} with kernels tuned "
            f"alone, {self.cycles:,.0f} after {self.trials} trials of the whole ({ratio:.3f} x default)"
        )


@dataclass
class _Kernel:
    """A task in the search."""

    task: Any
    default: Point
    measured: Sequence[tuple[Point, float]]
    """Points with seconds alone, the fastest first."""
    clock: float
    """Cycles per second."""
    tried: set[str] = field(default_factory=set)

    @functools.cached_property
    def alone(self) -> float:
        """Cycles alone of the default, over all calls."""
        return self.cycles_of(self.default) or 1.0

    @functools.cached_property
    def _seconds(self) -> dict[str, float]:
        return {point_key(point): seconds for point, seconds in reversed(self.measured)}

    def cycles_of(self, point: Point) -> float | None:
        seconds = self._seconds.get(point_key(without_placing(point)))
        return None if seconds is None else seconds * self.clock * self.task.count

    def placings(self, current: Point) -> Iterator[Point]:
        """The current point placed in other ways."""
        for name in PLACING:
            for choice in (0, 1):
                if current.get(name) != choice:
                    yield {**current, name: choice}

    def points(self, current: Point) -> list[Point]:
        """Other points, placed as the current one."""
        placing = {name: current[name] for name in PLACING if name in current}
        return [{**point, **placing} for point, _ in self.measured]


def without_placing(point: Point) -> dict[str, Any]:
    """What the kernel's space knows of a point."""
    return {name: choice for name, choice in point.items() if name not in PLACING}


def search(
    module: Any,
    tasks: Sequence[Any],
    starts: Sequence[Mapping[str, Point]],
    measured: Mapping[str, Sequence[tuple[Point, float]]],
    target: Any,
    trials: int | None,
    seconds: float | None = None,
) -> Found:
    """The best combination within so many trials and so much wall time; never worse than the defaults.

    Parameters
    ----------
    starts : combinations to begin with, beside the defaults.
    measured : by task, points with the seconds that they take alone, the fastest first.
    """
    clock = target.spec.clock_ghz * 1e9
    mine = [task for task in tasks if isinstance(task.space, NpuSpace)]
    kernels = {
        task.key: _Kernel(
            task, dict(task.space.default(task.op, target.machine)), measured.get(task.key, ()), clock
        )
        for task in mine
    }  # fmt: skip
    with open_device(target.spec) as device:
        run = _Search(RegionTimer(module, tasks, target), device, kernels, target.machine)
        return run.go(starts, trials, None if seconds is None else monotonic() + seconds)


class _Search:
    def __init__(self, timer: RegionTimer, device: Any, kernels: dict[str, _Kernel], machine: Any):
        self.timer, self.device, self.kernels, self.machine = timer, device, kernels, machine
        self.models: dict[str, SpaceModel] = {}
        self.count = 0

    def go(
        self, starts: Sequence[Mapping[str, Point]], trials: int | None, deadline: float | None
    ) -> Found:
        defaults: dict[str, Point] = {key: kernel.default for key, kernel in self.kernels.items()}
        self.best = self.first = self._cycles(defaults) or 0.0
        self.points = dict(defaults)
        started = self.best
        for start in starts:
            points = {**defaults, **{key: start[key] for key in defaults if key in start}}
            if points in (defaults, self.points):
                continue
            cycles = self._cycles(points)
            if start is starts[0]:
                started = cycles or self.best
            if cycles is not None and cycles < self.best:
                self.best, self.points = cycles, points
        self.count = 0
        while self.kernels and (batch := self._next()):
            for key, point in batch:
                if (trials is not None and self.count >= trials) or (deadline and monotonic() > deadline):
                    return self._found(started)
                self._try(key, point)
        return self._found(started)

    def _found(self, started: float) -> Found:
        return Found(self.points, self.first, started, self.best, self.count)

    def _cycles(self, points: Mapping[str, Point]) -> float | None:
        self.count += 1
        try:
            return self.timer.cycles(points, self.device)
        except HeteroTVMError:
            return None

    def _try(self, key: str, point: Point) -> None:
        kernel = self.kernels[key]
        kernel.tried.add(point_key(point))
        cycles = self._cycles({**self.points, key: point})
        alone = kernel.cycles_of(point)
        if alone is not None:
            here = None if cycles is None else max(kernel.alone + cycles - self.best, _LEAST * kernel.alone)
            self._model(kernel).add(key, self._features(kernel, point), here)
        if cycles is not None and cycles < self.best:
            self.best, self.points = cycles, {**self.points, key: point}

    def _next(self) -> list[tuple[str, Point]]:
        """The changes to try next: of placing, of the longest kernels first, and points that promise most."""
        order = sorted(self.kernels.items(), key=lambda entry: entry[1].alone, reverse=True)
        placed = [
            (key, point)
            for key, kernel in order
            for point in kernel.placings(self.points[key])
            if point_key(point) not in kernel.tried
        ]
        hopes: list[tuple[float, int, str, Point]] = []
        for key, kernel in order:
            fresh = [p for p in kernel.points(self.points[key]) if point_key(p) not in kernel.tried]
            fresh = [p for p in fresh if p != self.points[key]]
            if not fresh:
                continue
            rows = [self._features(kernel, point) for point in [self.points[key], *fresh]]
            score = self._model(kernel).score(np.asarray(rows, np.float64))
            gains = kernel.alone * (1 - np.exp(score[0] - score[1:]))
            hopes += [(-gain, n, key, p) for n, (gain, p) in enumerate(zip(gains, fresh, strict=True))]
        hopes.sort(key=lambda hope: hope[:3])
        placed = placed[: _BATCH // 2]
        return placed + [(key, point) for _, _, key, point in hopes[: _BATCH - len(placed)]]

    def _model(self, kernel: _Kernel) -> SpaceModel:
        return self.models.setdefault(kernel.task.space.name, SpaceModel())

    def _features(self, kernel: _Kernel, point: Point) -> list[float]:
        """What the space says of the point, how it is placed, and its speed alone."""
        task = kernel.task
        own = task.space.features(task.op, without_placing(point), self.machine)
        placing = [float(point.get(name, -1)) for name in PLACING]
        return [*own, *placing, 1.0 / (kernel.cycles_of(point) or kernel.alone)]
