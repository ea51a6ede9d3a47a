"""The books of one search: what each task is known to take, what was recorded, what is left to spend."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

from hetero_tvm.machines.base import Machine
from hetero_tvm.machines.roofs import Roofs
from hetero_tvm.records.candidates import Candidate, default_candidate
from hetero_tvm.records.choose import choose_one
from hetero_tvm.records.record import TRIAL, VERIFIED, new_record
from hetero_tvm.records.store import RecordStore
from hetero_tvm.schedules.task import Task
from hetero_tvm.search.cost_model import described
from hetero_tvm.search.measure.service import DISTURBED, Result
from hetero_tvm.search.options import TuneOptions
from hetero_tvm.search.outcome import TaskReport, TuneReport
from hetero_tvm.search.task_state import TaskState, candidate_of, key_of

_FAR = 5.0
"""A recorded time this many times the expected one is looked at again."""
_MOST_SUSPECTS = 16
_MOST_STARTS = 2
"""Winners of other machines that a task begins with."""

OnEvent = Callable[[dict[str, Any]], None]


class Ledger:
    """Tasks with their results, the records behind them, and the report that comes of it.

    Parameters
    ----------
    tasks : of the model.
    machine : whose default points the tasks start from.
    store : every measurement is appended to it the moment it is known.
    on_event : is told of every trial.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        machine: Machine,
        options: TuneOptions,
        store: RecordStore,
        on_event: OnEvent,
    ):
        self.machine, self.options, self.store, self.on_event = machine, options, store, on_event
        self.started = monotonic()
        self.states = [
            TaskState(task, TaskReport(task.name, task.count, task.flops, task.nbytes, weight=task.weight))
            for task in tasks
        ]
        self.report = TuneReport([state.report for state in self.states], logs=str(store.path))
        self.roofs = Roofs(None, None)
        self.foreign: Counter = Counter()
        """Machine -> points of its records that tasks began with."""
        if options.fresh:
            for task in tasks:
                store.forget(task)
        self.counted = sum(len({r.candidate for r in store.trials(task)}) for task in tasks)
        """Trials of these tasks that were recorded by this or earlier runs."""
        self._read_records()

    def _read_records(self) -> None:
        for state in self.states:
            known = self.store.measured(state.task)
            state.known = known
            for key, record in known.items():
                candidate = candidate_of(record)
                counts = record.ok and self._fits(state.task, candidate)
                state.note_result(key, candidate, record.seconds if counts else None)
            if (key := key_of(self.default_of(state))) in known and known[key].ok:
                state.report.default_seconds = known[key].seconds
            state.report.reused = len(known)
            self.report.reused += len(known)

    def _fits(self, task: Task, candidate: Candidate) -> bool:
        """Whether a space has the point of a record: what another version of it or an editor wrote is no time
        that others could be measured by."""
        if task.space is None or "point" not in candidate:
            return True
        try:
            task.space.check(task.op, candidate["point"], self.machine)
        except (ValueError, TypeError):
            return False
        return True

    def take_in_others(self) -> None:
        """Trials that other searches have recorded since: known, counted and learned from like our own."""
        states = {state.task.key: state for state in self.states}
        for record in self.store.refresh():
            state = states.get(record.key)
            if state is None or record not in self.store.trials(state.task):
                continue
            candidate = candidate_of(record)
            seconds = record.seconds if record.ok and self._fits(state.task, candidate) else None
            state.known.setdefault(record.candidate, record)
            state.note_result(record.candidate, candidate, seconds)
            if state.proposer is not None:
                state.proposer.learn(candidate, seconds)
            state.report.reused += 1
            self.report.reused += 1
            self.counted += 1

    def default_of(self, state: TaskState) -> Candidate:
        """Candidate that a task is compiled to without a search."""
        return default_candidate(state.task, self.machine)

    # what is left ------------------------------------------------------------------------------
    def left(self) -> float:
        """Trials that may still be spent."""
        return float("inf") if self.options.trials is None else self.options.trials - self.counted

    def unverified(self) -> list[TaskState]:
        """Tasks with trials of this user that no comparison has followed."""
        return [
            state
            for state in self.states
            if state.times and self.store.trials(state.task) and not self.store.verified(state.task)
        ]

    def beyond_peak(self) -> bool:
        """Whether a kernel is faster than what was measured as the machine's peak."""
        return any(
            s.best is not None
            and s.task.flops / s.best > 1e9 * (self.roofs.peak(s.task.arithmetic) or math.inf)
            for s in self.states
        )

    def starts(self, state: TaskState) -> list[Candidate]:
        """Points that won on other machines and were never measured here, the most promising first."""
        task, found = state.task, {}
        if task.space is None or state.times:
            return []
        for record in self.store.neighbours(task):
            candidate = candidate_of(record)
            if not self._fits(task, candidate):
                continue
            key = key_of(candidate)
            if key != key_of(self.default_of(state)) and key not in found:
                found[key] = candidate
                self.foreign[f"{record.device or record.mcpu}, {record.threads} threads"] += 1
        return list(found.values())[:_MOST_STARTS]

    def suspects(self, state: TaskState) -> list[Candidate]:
        """Recorded points that took far longer than their estimates say, and were measured once: what a noisy
        spell leaves in records that nothing else tells apart."""
        task, best = state.task, state.best_candidate
        if task.space is None or best is None:
            return []
        times = Counter(record.candidate for record in self.store.trials(task))
        far = []
        for key, record in state.known.items():
            if times[key] == 1 and record.ok and self._fits(task, candidate_of(record)):
                expected = state.best * max(1.0, self._relative(state, candidate_of(record), best))
                if record.seconds > _FAR * expected:
                    far.append((record.seconds / expected, key, candidate_of(record)))
        return [candidate for *_, candidate in sorted(far, key=lambda one: -one[0])[:_MOST_SUSPECTS]]

    def _relative(self, state: TaskState, candidate: Candidate, beside: Candidate) -> float:
        """Estimated time of a point as a multiple of another's."""
        space, op = state.task.space, state.task.op
        try:
            pair = (described(space, op, one["point"], self.machine).estimate for one in (candidate, beside))
            return next(pair) / next(pair)
        except (ValueError, KeyError):  # a point of another version of the space
            return float("inf")

    # entries -----------------------------------------------------------------------------------
    def note_roofs(self, found: Roofs) -> None:
        """Peaks of the machine; the higher of several measurements counts."""
        self.roofs = self.roofs.or_higher(found)
        self.report.peak_gflops = self.roofs.peak_gflops
        self.report.bandwidth_gbs = self.roofs.bandwidth_gbs
        self.report.other_peaks = dict(self.roofs.others)
        cached = self.roofs.cached
        self.report.cache_gbs = None if cached is None else cached.gbs
        tasks = [state.task for state in self.states]
        stay = cached is not None and cached.keeps((task.weight_bytes, task.uses) for task in tasks)
        for state in self.states:
            task = state.task
            state.report.roof_seconds = self.roofs.least_seconds(
                task.flops, task.nbytes, task.arithmetic, 0 if stay else task.weight_bytes
            )
            state.progress.floor = state.report.roof_seconds or 0.0

    def record_trial(self, state: TaskState, candidate: Candidate, result: Result) -> None:
        """Keep a measurement that is just known."""
        self.record(state, candidate, result, TRIAL)

    def take_back(self, state: TaskState, candidate: Candidate, result: Result) -> None:
        """Say that a trial that was recorded is not to be trusted: the record that says so makes it void."""
        self.record(state, candidate, replace(result, status=DISTURBED), TRIAL)
        state.forget(candidate)
        if key_of(candidate) == key_of(self.default_of(state)):
            state.report.default_seconds = None

    def give_up(self, state: TaskState, candidate: Candidate) -> None:
        """Count a trial that could not be measured.  A later run proposes it again."""
        if state.proposer is not None:
            state.proposer.skip(candidate)
        self.counted += 1
        self.report.trials += 1
        self.report.disturbed += 1
        state.report.trials += 1
        state.report.failures[DISTURBED] += 1

    def take_back_noted(self, state: TaskState, candidate: Candidate, result: Result, counted: bool) -> None:
        """Take back a trial that has been noted: it is to be measured or given up, and counts then.

        ``counted`` : what :meth:`note_trial` said of it.
        """
        self.take_back(state, candidate, result)
        self.counted -= counted
        self.report.trials -= 1
        state.report.trials -= 1

    def note_trial(self, state: TaskState, candidate: Candidate, result: Result) -> bool:
        """A trial that counts: learned from, and told.  False where it is a known one, measured again."""
        key = key_of(candidate)
        seconds = result.seconds if result.ok else None
        new = key not in state.known and key not in state.times
        self.counted += new
        state.note_result(key, candidate, seconds)
        if state.proposer is not None:
            state.proposer.learn(candidate, seconds)
        if state.report.default_seconds is None and key == key_of(self.default_of(state)):
            state.report.default_seconds = seconds
        self.report.trials += 1
        state.report.trials += 1
        if not result.ok:
            state.report.failures[result.status] += 1
        total = self._known_total()
        if total is not None:
            point = (round(monotonic() - self.started, 4), self.report.trials, total)
            self.report.curve = with_point(self.report.curve, point)
        self.tell(
            "trial",
            task=state.name,
            status=result.status,
            seconds=seconds,
            best_seconds=state.best,
            flops=state.task.flops,
            peak_gflops=self.roofs.peak(state.task.arithmetic),
            text=result.text,
        )
        return new

    def record(
        self,
        state: TaskState,
        candidate: Candidate,
        result: Result,
        role: str,
        default_seconds: float | None = None,
    ) -> None:
        """Append a measurement to the store."""
        record = new_record(
            state.task,
            self.store.site,
            {"point": {}} if "generic" in candidate else candidate,
            seconds=result.seconds if result.ok or result.status == DISTURBED else None,
            status=result.status,
            error=result.text,
            spread=round(result.spread, 4),
            disturbed=round(result.disturbed, 4),
            role=role,
            default_seconds=default_seconds,
        )
        self.store.append(record)

    def tell(self, event: str, **facts: Any) -> None:
        """Pass an event on, with the totals of the run so far."""
        self.on_event(
            {
                "event": event,
                "peak_gflops": self.roofs.peak_gflops,
                **facts,
                "trials": self.report.trials,
                "of": None if self.options.trials is None else int(self.left()) + self.report.trials,
                "elapsed": monotonic() - self.started,
                "waited": self.report.waited,
                "minutes": self.options.minutes,
                "total_seconds": self._known_total(),
            }
        )

    def _known_total(self) -> float | None:
        """Best known seconds of all kernels together, once each has a time."""
        timed = [s for s in self.states if s.task.space is not None or s.best is not None]
        return None if any(s.best is None for s in timed) else sum(s.task.uses * s.best for s in timed)

    def close(self) -> TuneReport:
        """The report, with what each task will be built from."""
        for state in self.states:
            choice = choose_one(state.task, self.machine, self.store)
            state.report.origin = choice.origin
            found = self.store.best(state.task)
            verified = found is not None and found[0].role == VERIFIED and found[0].default_seconds
            if verified and choice.seconds is not None:
                # Both of one comparison: times of different spells say nothing about each other.
                state.report.tuned_seconds = choice.seconds
                state.report.default_seconds = found[0].default_seconds
            else:
                state.report.tuned_seconds = choice.seconds or state.report.default_seconds
                state.report.compared = choice.seconds is None
        report = self.report
        for machine, count in self.foreign.items():
            plural = "kernel" if count == 1 else "kernels"
            report.notes.append(f"began with the winners of {count} {plural} on another machine ({machine})")
        if report.disturbed:
            report.warnings.append(
                f"{report.disturbed} of {report.trials} trials could not be measured: other processes took "
                "the cores; the same command measures them when the machine is idle"
            )
        if report.interrupted:
            report.warnings.append("interrupted: finished trials are kept, winners were not verified")
        report.elapsed = monotonic() - self.started
        self.tell("done")
        return report


def with_point(
    curve: list[tuple[float, int, float]], point: tuple[float, int, float]
) -> list[tuple[float, int, float]]:
    """A curve of the best time so far (elapsed, trial, seconds) with one more point; it never rises.

    Where a trial was taken back, its number comes again, and what was best with it was no time to trust:
    points of that number go, and those before are at least as slow as what is best without it.
    """
    _, trial, total = point
    return [*((when, n, max(best, total)) for when, n, best in curve if n < trial), point]
