"""Batches of trials, and how much they are to be trusted.

Every batch begins and ends with the best candidate that its tasks have so far.  Where that one takes longer
than it is known to, the machine was in a spell: what the batch measured is taken back, the spell waited
out, and the batch measured again.  What cannot be measured at all is marked so, and a later run measures
it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from hetero_tvm.records.candidates import Candidate
from hetero_tvm.search.ledger import Ledger
from hetero_tvm.search.measure.service import DISTURBED, OK, Job, Result, Workers
from hetero_tvm.search.measure.spells import Spells
from hetero_tvm.search.task_state import TaskState, group_size

_SLOW = 2.0
"""A candidate this much slower than the best is not timed to the end."""
_SPELL = 1.15
"""The best candidate takes this much longer than it is known to: a spell."""
_ATTEMPTS = 3
_OFF = 3.0
"""A time this many times as long as the cost model predicts, or as short, is measured once more."""
_OVER_PEAK = 1.05
_SECOND_BUDGET = 0.042
"""Seconds of timing in a second look."""
_LEAST_LEARNT = 12
"""Measurements of a task before which the cost model suspects nothing."""

Trial = tuple[TaskState, Candidate]


def taken_as_is(result: Result) -> Result:
    """A result whose time counts whoever else used the cores: for searches that wait for nobody."""
    return replace(result, status=OK) if result.status == DISTURBED else result


class Batches:
    """Measures trials for a search.

    Parameters
    ----------
    spells : waits for spells to end; None where nothing else can disturb what measures (a simulator, a GPU).
    stop : says when the search must end.
    """

    def __init__(self, workers: Workers, ledger: Ledger, spells: Spells | None, stop: Callable[[], bool]):
        self._workers, self._ledger, self._spells, self._stop = workers, ledger, spells, stop
        self._noted: dict[TaskState, list[tuple[Candidate, Result, bool]]] = defaultdict(list)
        """Trials of this run, by task."""
        self._looked = False

    def run(self, trials: Sequence[Trial]) -> None:
        """Measure trials, each recorded once it is known, and learnt from once the batch is to be trusted."""
        if self._spells is None:
            for number, found in self._measure(trials, []):
                result = taken_as_is(found)
                self._ledger.record_trial(*trials[number], result)
                self._ledger.note_trial(*trials[number], result)
            return
        if not self._looked:  # the machine before the first batch; later batches look at themselves
            self._spells.wait(self._stop)
            self._looked = True
        left = list(trials)
        for attempt in range(_ATTEMPTS):
            left = self._attempt(left)
            if not left or self._stop():
                break
            if attempt + 1 < _ATTEMPTS and not self._spells.wait(self._stop):
                break
        for state, candidate in left:
            self._ledger.give_up(state, candidate)

    def measure_calmly(self, jobs: Sequence[Job]) -> dict[int, tuple[Result, ...]]:
        """Results of jobs that are no trials, by index; what was disturbed is measured again after the spell.

        Times that no attempt got undisturbed count as they are: too many seconds, but of the right kernel.
        """
        found: dict[int, tuple[Result, ...]] = {}
        left = list(range(len(jobs)))
        for attempt in range(_ATTEMPTS):
            if attempt and (self._spells is None or not self._spells.wait(self._stop)):
                break
            for place, results in self._workers.measure([jobs[number] for number in left], self._stop):
                found[left[place]] = tuple(results)
            left = [n for n in left if any(result.status == DISTURBED for result in found.get(n, ()))]
            if not left or self._stop():
                break
        return {number: tuple(map(taken_as_is, results)) for number, results in found.items()}

    def _attempt(self, trials: Sequence[Trial]) -> list[Trial]:
        """Measure a batch; returns those of its trials that were disturbed."""
        anchors = [state for state in dict.fromkeys(state for state, _ in trials) if state.best is not None]
        again = [(state, state.best_candidate) for state in anchors]
        known = [state.best for state in anchors]
        results: dict[int, Result] = {}
        slow, least = 1.0, list(known)
        for number, result in self._measure([*again, *trials, *again], again):
            place = number - len(again)
            if 0 <= place < len(trials):
                results[place] = result
                self._ledger.record_trial(*trials[place], result)
            elif result.seconds is not None:
                anchor = number if place < 0 else place - len(trials)
                slow = max(slow, result.seconds / known[anchor])
                if result.ok:
                    least[anchor] = min(least[anchor], result.seconds)
        spell = slow > _SPELL
        left = self._earlier(anchors, known, least) if not spell else []
        for place, (state, candidate) in enumerate(trials):
            result = results.get(place)
            if result is None:  # stopped
                continue
            if result.status == DISTURBED or (result.ok and spell):
                if result.ok:
                    self._ledger.take_back(state, candidate, result)
                left.append((state, candidate))
            else:
                result = self._second_look(state, candidate, result)
                counted = self._ledger.note_trial(state, candidate, result)
                self._noted[state].append((candidate, result, counted))
        return left

    def _earlier(self, anchors: list[TaskState], known: list[float], least: list[float]) -> list[Trial]:
        """Trials of this run before now, where the best of them is faster now: all were of a spell."""
        left = []
        for state, before, now in zip(anchors, known, least, strict=True):
            if now * _SPELL < before:
                for candidate, result, counted in self._noted[state]:
                    if result.ok:
                        self._ledger.take_back_noted(state, candidate, result, counted)
                        left.append((state, candidate))
                self._noted[state] = []
        return left

    def _measure(self, trials: Sequence[Trial], anchors: Sequence[Trial]) -> Iterator[tuple[int, Result]]:
        jobs = []
        for state, candidate in trials:
            anchor = any(state is one and candidate is best for one, best in anchors)
            limit = None if anchor or state.best is None else _SLOW * state.best
            jobs.append(Job(state.task.key, (candidate,), limit=limit, group_size=group_size(state.task)))
        for number, (result,) in self._workers.measure(jobs, self._stop):
            yield number, result

    # suspects ----------------------------------------------------------------------------------
    def _second_look(self, state: TaskState, candidate: Candidate, result: Result) -> Result:
        """The result, or that of a second and longer measurement where the first one is hard to believe."""
        too_fast = result.ok and self._over_peak(state, result)
        if not result.ok or not (too_fast or self._off(state, candidate, result)):
            return result
        job = Job(state.task.key, (candidate,), budget=_SECOND_BUDGET)
        second = next((found for _, (found,) in self._workers.measure([job], self._stop)), None)
        if second is None or not second.ok or (second.seconds < result.seconds) == too_fast:
            return result
        if too_fast:
            self._ledger.take_back(state, candidate, result)
        self._ledger.record_trial(state, candidate, second)
        return second

    def _over_peak(self, state: TaskState, result: Result) -> bool:
        peak = self._ledger.roofs.peak(state.task.arithmetic)
        return peak is not None and state.task.flops / result.seconds > _OVER_PEAK * peak * 1e9

    def _off(self, state: TaskState, candidate: Candidate, result: Result) -> bool:
        """Whether a time is far from what the model makes of it and of the best one."""
        if state.proposer is None or state.best is None or len(state.times) < _LEAST_LEARNT:
            return False
        expected = state.proposer.predicted(candidate, state.best_candidate)
        return expected is not None and result.seconds > _OFF * expected * state.best
