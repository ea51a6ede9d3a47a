"""Search over whole models: the point that is best alone need not be best beside its neighbours.

Kernels overlap with those around them and share L1, so the cost of a choice is what the whole model takes
in the simulator.  Two phases, from the best combination known:

1. *Survey*: one kernel's choice changes at a time, and stays changed where the model is faster: the best
   point of every family of its space (say, each number of parts of a reduction), and what only shows beside
   others (whether its result stays in L1, whether it leaves room for its neighbours' loads).  What promises
   most of the model's time comes first; a second round sees the changes of the first.
2. *Evolution*: the best combinations are crossed and changed in one or two places, pairs of changes among
   them; gradient-boosted trees, fitted to all cycles of whole models so far, choose which ones are timed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

from hetero_tvm.errors import HeteroTVMError
from hetero_tvm.host.tvm import IRModule
from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.records.combinations import Combination, Found, Known
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.npu.base import NpuSpace
from hetero_tvm.schedules.task import Task
from hetero_tvm.targets.base import Target
from hetero_tvm.targets.npu.device.driver import Device, open_device
from hetero_tvm.targets.npu.tuning.choices import Choices, residency_of, without_residency
from hetero_tvm.targets.npu.tuning.evolution import Evolution, plain, text_of
from hetero_tvm.targets.npu.tuning.region_timer import RegionTimer

_RESIDENCY_GAIN = 0.02
"""Share of the model's time that the survey expects to gain by another residency of the kernel with most
calls."""
_FAMILY_GAIN = 0.06
"""Share of a kernel's own time that the survey expects to gain by the best point of a family."""
_IN_PLACE_POINTS = 4
"""Points for the surroundings of a kernel that the survey tries."""
_RESTARTS, _RESTART_RATIO = 4, 0.995
"""Most families from which the survey begins anew; time of the model with one, relative to without, below
which it does."""
_HOPELESS_RATIO = 1.02
"""Time of the model with a change, relative to without, above which the second round leaves it out."""
_MOST_IDLE = 400
"""Combinations in a row that came to known code, after which there is nothing left to find."""
_RETRIED = 8
"""Best combinations of earlier runs that are timed again when the compiler has changed since."""


def search(
    module: IRModule,
    tasks: Sequence[Task],
    target: Target,
    known: Known,
    seed: int,
    more: Callable[[], bool],
    on_trial: Callable[[Combination, float | None, float], None],
) -> Found | None:
    """The best combination; never worse than the defaults; None where nothing of the model is worth the way
    to the NPU.  See ``search/whole_model.py``."""
    machine: NpuMachine = target.machine
    second = 1e-9 / machine.spec.clock_ghz
    kernels = {
        task.key: Choices(task, machine, [(point, s / second) for point, s in known.alone.get(task.key, ())])
        for task in tasks
        if isinstance(task.space, NpuSpace)
    }

    def note(combination: Combination, cycles: float | None, best: float) -> None:
        on_trial(combination, None if cycles is None else cycles * second, best * second)

    with open_device(machine.spec) as device:
        timer = RegionTimer(module, tasks, target)
        if not timer.cycles({}, device):
            return None
        run = _Search(timer, device, kernels, seed, more, note)
        past = [(combination, s and s / second) for combination, s in known.past]
        return Found(*run.go(past), "cycles", second)


class _Search:
    def __init__(
        self,
        timer: RegionTimer,
        device: Device,
        kernels: Mapping[str, Choices],
        seed: int,
        more: Callable[[], bool],
        on_trial: Callable[[Combination, float | None, float], None],
    ):
        self.timer, self.device, self.kernels = timer, device, kernels
        self.more, self.on_trial = more, on_trial
        self.evolution = Evolution(kernels, seed)
        self.archive: dict[str, tuple[Combination, float | None]] = {}
        self.best: tuple[float, Combination] = (float("inf"), {})
        self.idle = 0
        self.restarted: set[tuple[str, Hashable]] = set()
        """Pairs (kernel, family) from which the survey has begun anew."""
        self.total = sum(kernel.alone(kernel.default) for kernel in kernels.values())
        self.large = sorted(kernels, key=lambda key: -kernels[key].alone(kernels[key].default))

    def go(self, past: Sequence[tuple[Combination, float | None]]) -> tuple[Combination, float, float]:
        """Best combination, cycles by default, and its cycles."""
        default = self.timer.cycles({}, self.device)
        self._resume(default, past)
        for combination in itertools.chain([self._alone()], self._survey()):
            if not self.more():
                break
            self._try(combination)
        self._in_place()
        while self.more() and self.idle < _MOST_IDLE and (batch := self.evolution.next(self.archive)):
            for combination in batch:
                if self.more():
                    self._try(combination)
        return self._simplified(), default, self.best[0]

    # what is known ---------------------------------------------------------------------------------
    def _resume(self, default: float, past: Sequence[tuple[Combination, float | None]]) -> None:
        """Begin with the records since the default took as many cycles as now.

        If there are none, the best ones of earlier runs are timed again, whatever the budget: an old record
        must not win.
        """
        begin = max((n for n, (combination, _) in enumerate(past) if not combination), default=len(past))
        true = past[begin:]
        best = min(((cycles, one) for one, cycles in true if cycles), key=lambda e: e[0], default=None)
        if best is not None and _equal(true[0][1], default) and _equal(self._cycles(best[1]), best[0]):
            for combination, cycles in true:
                self._learn(combination, cycles)
            return
        self._learn({}, default)
        self.on_trial({}, default, default)
        for combination, _ in sorted((e for e in past if e[1]), key=lambda e: e[1])[:_RETRIED]:
            self._try(combination)

    def _learn(self, combination: Combination, cycles: float | None) -> None:
        self.archive[text_of(combination)] = combination, cycles
        self.evolution.learn(combination, cycles)
        if cycles is not None and cycles < self.best[0]:
            self.best = cycles, combination

    # trials ----------------------------------------------------------------------------------------
    def _cycles(self, combination: Combination) -> float | None:
        try:
            return self.timer.cycles(combination, self.device)
        except HeteroTVMError:
            return None

    def _try(self, combination: Combination) -> float | None:
        """Cycles of a combination; None: it failed.  One that comes to known code is no trial."""
        combination = plain(combination, self.kernels)
        if (found := self.archive.get(text_of(combination))) is not None:
            return found[1]
        before = self.timer.simulated
        cycles = self._cycles(combination)
        self._learn(combination, cycles)
        self.idle += 1
        if cycles is None or self.timer.simulated > before:
            self.idle = 0
            self.on_trial(combination, cycles, self.best[0])
        return cycles

    def _simplified(self) -> Combination:
        """Best combination without the changes that change no code."""
        cycles, best = self.best
        for key, point in self.best[1].items():
            fewer = [{n: c for n, c in point.items() if n != name} for name in residency_of(point)]
            for change in (self.kernels[key].default, without_residency(point), *fewer):
                simpler = plain({**best, key: change}, self.kernels)
                try:
                    same = self.timer.cycles(simpler, None) == cycles
                except (LookupError, HeteroTVMError):
                    same = False
                if same:
                    best = simpler
                    break
        return best

    # the survey ------------------------------------------------------------------------------------
    def _alone(self) -> Combination:
        """Combination of the points that are fastest alone."""
        return {key: kernel.listed[0] for key, kernel in self.kernels.items()}

    def _survey(self) -> Iterator[Combination]:
        first, more = self._changes(0, 1), self._changes(1, 3)
        yield from self._climb(self.best[1], first)
        # Where another family of a kernel is better than its default, its own best surroundings.
        for _ in range(_RESTARTS):
            if (restart := self._next_restart()) is None:
                break
            key, combination = restart
            yield (without := plain({**combination, key: self.kernels[key].default}, self.kernels))
            before = self._known(without)
            if before is not None and self._known(combination) < _RESTART_RATIO * before:
                yield from self._climb(combination, [change for change in first if change[0] != key])
        yield from self._climb(self.best[1], [*first, *more, *self._in_place()])

    def _climb(self, best: Combination, changes: Sequence[tuple[str, Point]]) -> Iterator[Combination]:
        """Combinations with one change after another from ``best``; a change that makes it faster stays."""
        least = self._known(best) or float("inf")
        hopeless = set()
        for _ in range(2):
            before = least
            for n, (key, change) in enumerate(changes):
                current = best.get(key, self.kernels[key].default)
                combination = plain({**best, key: {**current, **change}}, self.kernels)
                if n in hopeless or text_of(combination) in self.archive:
                    continue
                yield combination
                cycles = self._known(combination)
                if cycles is None or cycles > least * _HOPELESS_RATIO:
                    hopeless.add(n)
                elif cycles < least:
                    least, best = cycles, combination
            if least == before:
                return

    def _next_restart(self) -> tuple[str, Combination] | None:
        """A kernel, and the best combination with a family of its points from which no climb began; None:
        there is none."""
        default = self._known({})
        found: dict[tuple[str, Hashable], tuple[float, str]] = {}
        for text, (combination, cycles) in self.archive.items():
            if cycles is None or cycles >= default:
                continue
            for key, kernel in self.kernels.items():
                family = kernel.family(combination.get(key))
                if family != kernel.family(self.best[1].get(key)):
                    found[key, family] = min(found.get((key, family), (cycles, text)), (cycles, text))
        fresh = [(cycles, of, text) for of, (cycles, text) in found.items() if of not in self.restarted]
        if not fresh:
            return None
        _, restart, text = min(fresh, key=lambda entry: entry[0])
        self.restarted.add(restart)
        return restart[0], self.archive[text][0]

    def _known(self, combination: Combination) -> float | None:
        return self.archive.get(text_of(combination), (None, None))[1]

    def _changes(self, begin: int, end: int) -> list[tuple[str, Point]]:
        """Pairs (kernel, change): ranks ``begin`` to ``end`` of every family's points, and residency changes
        if ``begin`` is 0; the largest expected gain of the model first."""
        found: list[tuple[float, str, Point]] = []
        most = max(kernel.task.count for kernel in self.kernels.values())
        for key, kernel in self.kernels.items():
            share = kernel.alone(kernel.default) / self.total
            for change in kernel.residency_changes({}) if begin == 0 else ():
                found.append((_RESIDENCY_GAIN * kernel.task.count / most, key, change))
            for family in kernel.families().values():
                for point in [p for p in family if p != kernel.default][begin:end]:
                    gain = 1 - kernel.alone(point) / kernel.alone(kernel.default)
                    found.append((share * max(gain, _FAMILY_GAIN), key, point))
        return [(key, change) for _, key, change in sorted(found, key=lambda entry: -entry[0])]

    def _in_place(self) -> list[tuple[str, Point]]:
        """Points for the surroundings that the kernels have now, the largest kernels first."""
        self._cycles(self.best[1])
        for key, surroundings in self.timer.surroundings.items():
            if key in self.kernels:
                self.kernels[key].note_surroundings(surroundings)
        return [(key, point) for key in self.large for point in self.kernels[key].in_place[:_IN_PLACE_POINTS]]


def _equal(a: float | None, b: float | None) -> bool:
    return a is not None and b is not None and abs(a - b) <= 1e-9 * b
