"""The tuning loop.

MetaSchedule proposes (``proposer.py``); which task, how many trials, what is recorded and when to
stop is decided here rather than by MetaSchedule's ``tune_tasks``: that one commits results by batch
(a killed run loses a batch), knows no time budget, treats Ctrl-C inside its C++ loop as a crash, and
measures again what the records already know.

Order of a run: read records; start the measuring process; measure the default of every task; spend
the trials where they promise most; compare each winner with its default side by side; measure the
baseline again.  A candidate only counts as better once the comparison confirms it.
"""

from __future__ import annotations

import os
import socket
import threading
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any

from hetero_tvm.host.install import extra_command
from hetero_tvm.host.peaks import FLOAT32
from hetero_tvm.host.terminal import figure
from hetero_tvm.machines import roofs
from hetero_tvm.machines.base import Machine
from hetero_tvm.records.appending import alone_in
from hetero_tvm.records.candidates import Candidate, point_key
from hetero_tvm.records.record import BASELINE, VERIFIED
from hetero_tvm.records.store import RecordStore
from hetero_tvm.schedules.task import Task
from hetero_tvm.search import comparison, points, scheduler
from hetero_tvm.search.batches import Batches, taken_as_is
from hetero_tvm.search.interrupt import interrupt_flag
from hetero_tvm.search.ledger import Ledger, OnEvent
from hetero_tvm.search.measure.forked_workers import started_workers
from hetero_tvm.search.measure.neighbours import Neighbours
from hetero_tvm.search.measure.service import OK, Job, Result, Workers, contract_spec, generic_spec
from hetero_tvm.search.measure.spells import Spells
from hetero_tvm.search.options import TuneOptions
from hetero_tvm.search.outcome import TuneReport
from hetero_tvm.search.task_state import TaskState, candidate_of, key_of

_DRIFT = 0.10
_VERIFY_BUDGET = 0.045
"""Seconds of timing per candidate in the comparison."""
_NEAR_ROOF = 0.03
"""A kernel this close to the peak is searched no further."""
_HOPELESS = 16
"""Failed candidates after which a task without any valid one is given up."""


def tune(
    tasks: Sequence[Task],
    machine: Machine,
    options: TuneOptions,
    store: RecordStore,
    on_event: OnEvent | None = None,
    workers: Workers | None = None,
) -> TuneReport:
    """Tune the tasks of a model and record every trial in ``store``.

    Parameters
    ----------
    machine : description of the CPU; kernels are timed with ``machine.threads`` threads.
    on_event : called with dictionaries (``event`` is ``start``, ``trial``, ``waiting``, ``verify`` or
        ``done``) from this thread.
    workers : a measuring process to use and leave open; by default the one that
        :func:`~hetero_tvm.search.measure.forked_workers.start_early` began, or a new one.

    Ctrl-C ends the search cleanly: everything measured is kept, and the report says so.  Several searches
    may append to one folder of records: each learns from the others and measures nothing that they have.

    Raises :class:`TuningError` when candidates cannot be measured at all, :class:`RecordError` when
    records cannot be written.
    """
    with alone_in(store.path.parent) as alone:
        if not alone:  # equal seeds would propose equal candidates
            here = zlib.crc32(f"{socket.gethostname()} {os.getpid()}".encode())
            options = replace(options, seed=options.seed + 1 + here % (1 << 20))
        run = _Run(tasks, machine, options, store, on_event or (lambda event: None))
        if not alone:
            run.report.warnings.append(
                f"another search adds to the records in {store.path.parent}: "
                "this one draws from a seed of its own"
            )
        with interrupt_flag() as interrupted:
            return run.go(workers, interrupted)


class _Run:
    def __init__(
        self,
        tasks: Sequence[Task],
        machine: Machine,
        options: TuneOptions,
        store: RecordStore,
        on_event: OnEvent,
    ):
        self.machine, self.options = machine, options
        self.target = machine.codegen_target()
        self.ledger = Ledger(tasks, machine, options, store, on_event)
        self.states, self.report = self.ledger.states, self.ledger.report
        self.models: dict[str, Any] = {}
        self.batch = options.batch or self._default_batch()
        self.propose_seconds = 0.0
        self.spells = options.spells
        if self.spells is not None:
            self.spells.on_look = partial(self._tell_waiting, self.spells, Neighbours())
        self.baseline: TaskState | None = None
        self.baseline_seconds: float | None = None

    def _tell_waiting(self, spells: Spells, neighbours: Neighbours, busy: float, left: float) -> None:
        self.report.waited = spells.waited
        self.ledger.tell("waiting", busy=busy, left=left, busiest=neighbours.busiest())

    def _default_batch(self) -> int:
        budget = self.options.trials
        return 8 if budget is None or budget >= 16 * max(1, len(self.states)) else 4

    # the run -----------------------------------------------------------------------------------
    def go(self, workers: Workers | None, interrupted: threading.Event) -> TuneReport:
        self.interrupted = interrupted
        self.workers = workers
        if not self._anything_to_do():
            self.report.stopped = "nothing to do"
            self._measure_roofs()
            return self._finish()
        self.ledger.store.check_writable()
        own = workers is None
        options = self.options
        self.workers = workers or started_workers(self.machine, self.target, options.limits, options.seed)
        self.batches = Batches(self.workers, self.ledger, self.spells, self._stop_trials)
        try:
            self._prepare()
            self._measure_generic_defaults()
            self._first_round()
            if self.ledger.beyond_peak():
                # They were in a spell, and a low peak sends all trials to the heaviest task.
                self._measure_roofs(again=True)
            self._skip_small_generic_tasks()
            self._measure_suspects()
            self._search()
            if not interrupted.is_set():
                self._verify()
                if self.ledger.beyond_peak():
                    self._measure_roofs(again=True)  # something must have disturbed the first measurement
            for phase, seconds in self.workers.spent.items():
                self.report.spent[phase] = seconds
        finally:
            if own:
                self.workers.close()
        return self._finish()

    def _finish(self) -> TuneReport:
        self.report.spent["propose"] = self.propose_seconds
        return self.ledger.close()

    def _anything_to_do(self) -> bool:
        if self.ledger.left() > 0 and any(not self._complete(state) for state in self.states):
            return True
        return bool(self.ledger.unverified()) or self._any_suspects()

    def _any_suspects(self) -> bool:
        return self.spells is not None and any(self.ledger.suspects(state) for state in self.states)

    def _measure_suspects(self) -> None:
        """Second measurements of records that are hard to believe."""
        if self.spells is None:
            return
        for state in self.states:
            if far := self.ledger.suspects(state):
                self._trials([(state, far)])

    def _complete(self, state: TaskState) -> bool:
        """Whether records already hold every point of a task's space."""
        task = state.task
        if task.space is None:
            return False
        every = points.every_kernel(task.space, task.op, self.machine)
        return every is not None and all(point_key(point) in state.known for point in every)

    def _time_over(self) -> bool:
        """Whether the time budget is used up, but for what the final comparisons need."""
        if self.options.minutes is None:
            return False
        reserve = min(0.25 * len(self.ledger.unverified()), 0.2 * 60 * self.options.minutes)
        return monotonic() - self.ledger.started + reserve > 60 * self.options.minutes

    def _stop(self) -> bool:
        return self.interrupted.is_set()

    def _stop_trials(self) -> bool:
        return self._stop() or self._time_over()

    # phases ------------------------------------------------------------------------------------
    def _prepare(self) -> None:
        """Imports and proposers, while the measuring process starts on the other core."""
        from hetero_tvm.search import pretrained
        from hetero_tvm.search.cost_model import SpaceModel, has_trees
        from hetero_tvm.search.proposer import PointProposer, StockProposer

        if has_trees():
            import xgboost  # noqa: F401

            trained = pretrained.models_of(self.ledger.store.folders, self.ledger.store.site.target)
        else:
            trained = {}
            command = extra_command("search")
            self.report.notes.append(
                f"without XGBoost candidates are ranked less well; to install it:\n  {command}"
            )

        for index, state in enumerate(self.states):
            task, seed = state.task, self.options.seed * 10007 + index
            if task.space is None:
                self.workers.add_task(task.key, generic_spec(task.workload, self.options.generic))
                state.make = lambda t=task, s=seed: StockProposer(t, self.machine, self.target, s, self.batch)
            else:
                self.workers.add_task(task.key, contract_spec(task.op, task.space))
                model = self.models.get(task.space.name)
                if model is None:
                    base = pretrained.base_of(task.space, self.machine, trained)
                    model = self.models[task.space.name] = SpaceModel(self.options.seed, base)
                state.proposer = PointProposer(task, self.machine, self.target, model, seed, self.batch)
                self._teach(state)
        before = monotonic()
        self.workers.wait_ready()
        self.report.start_up = monotonic() - before
        self._measure_roofs()
        self.ledger.tell("start", tasks=len(self.states))

    def _teach(self, state: TaskState) -> None:
        """Let a task's proposer learn from the records there are; those that it cannot use are told."""
        learnt = [
            state.proposer.learn(candidate_of(record), record.seconds if record.ok else None)
            for record in state.known.values()
        ]
        if useless := learnt.count(False):
            self.report.warnings.append(
                f"{state.name}: {useless} of {len(learnt)} records are of no use to the search "
                "(made by another version of its space)"
            )

    def _measure_roofs(self, again: bool = False) -> None:
        known = self.machine.roofs() if self.workers is None else self.workers.roofs()
        if known is None:
            kinds = {state.task.arithmetic for state in self.ledger.states} - {FLOAT32}
            measure = roofs.measure if again else roofs.recent
            known = measure(self.machine.threads, *([kinds] if kinds else []))
        self.ledger.note_roofs(known)

    def _first_round(self) -> None:
        """The default of every task, all in one go, so that the search proper knows what matters.

        The default of the heaviest task is the baseline for drift: it is timed again at the end.
        Few tasks do not fill the processes that build side by side; proposals then fill them up.
        """
        self.ledger.take_in_others()
        with_space = [state for state in self.states if state.task.space is not None]
        self.baseline = max(with_space, key=lambda s: s.task.flops * s.task.uses, default=None)
        if self.baseline is not None and key_of(self.ledger.default_of(self.baseline)) in self.baseline.known:
            self.baseline_seconds = self._time_baseline(self.baseline)
            self.ledger.take_in_others()  # what came meanwhile is not to be proposed
        groups: list[tuple[TaskState, list[Candidate]]] = []
        for state in self.states:
            default = self.ledger.default_of(state)
            if state.task.space is not None and key_of(default) not in state.known:
                groups.append((state, [default]))
            if starts := self.ledger.starts(state):
                groups.append((state, starts))
        groups = groups[: int(min(self.ledger.left(), len(groups)))]
        spare = int(min(self.batch, self.ledger.left())) - sum(len(proposed) for _, proposed in groups)
        if groups and spare > 0 and len(groups) < len(self.states) + 1:
            heaviest = max(groups, key=lambda group: group[0].task.flops * group[0].task.uses)
            heaviest[0].proposer.set_aside(heaviest[1][0])
            heaviest[1].extend(self._propose(heaviest[0], spare))
        self._trials(groups)
        for state in self.states:
            if state.best is not None:
                state.progress.round_done(state.best)
        if self.baseline is not None and self.baseline_seconds is None:
            self.baseline_seconds = self.baseline.report.default_seconds

    def _time_baseline(self, state: TaskState) -> float | None:
        default = self.ledger.default_of(state)
        for _, (result,) in self.workers.measure([Job(state.task.key, (default,))], self._stop):
            self.ledger.record(state, default, result, BASELINE)
            return result.seconds
        return None

    def _note_drift(self, after: float | None) -> None:
        if after is None or not self.baseline_seconds:
            return
        self.report.drift = after / self.baseline_seconds - 1
        if abs(self.report.drift) > _DRIFT:
            self.report.warnings.append(
                f"the machine drifted: {self.baseline.name} took {figure(self.baseline_seconds * 1e3)} ms at "
                f"the start and {figure(after * 1e3)} ms at the end; other load makes rankings unreliable"
            )

    def _measure_generic_defaults(self) -> None:
        """References and untuned times of kernels without a space (no trials: there is no choice in them)."""
        states = [state for state in self.states if state.task.space is None]
        defaults = [self.ledger.default_of(state) for state in states]
        jobs = [
            Job(state.task.key, ({"plain": True}, default), store_reference=True, run_seconds=60.0)
            for state, default in zip(states, defaults, strict=True)
        ]
        for state in states:
            state.tunable = False
            state.report.note = "not measured"
        for index, (plain, generic) in self.batches.measure_calmly(jobs).items():
            state = states[index]
            if not plain.ok:
                state.report.note = f"no reference: {(plain.text or plain.status).splitlines()[0]}"
                continue
            state.tunable, state.report.note = True, ""
            state.report.default_seconds = generic.seconds if generic.ok else plain.seconds
            state.note_result(key_of(defaults[index]), defaults[index], state.report.default_seconds)

    def _skip_small_generic_tasks(self) -> None:
        total = sum(state.task.uses * (state.best or 0.0) for state in self.states)
        for state in self.states:
            if state.task.space is None and state.tunable:
                share = state.task.uses * (state.best or 0.0) / total if total else 0.0
                if share < self.options.generic_share and state.task.sampled is None:
                    state.tunable = False
                    state.report.note = f"not tuned: {share:.1%} of the time"
                else:
                    state.proposer = state.make()
                    self._teach(state)
            state.progress.exhausted = not state.tunable

    def _search(self) -> None:
        self.report.stopped = "trials"
        while self._trials_left():
            if self._stop():
                self.report.stopped = "interrupted"
                return
            if self._time_over():
                self.report.stopped = "time"
                return
            index = scheduler.pick([state.progress for state in self.states])
            if index is None:
                self.report.stopped = "exhausted"
                return
            state = self.states[index]
            if self._at_roofline(state):
                state.progress.exhausted = True
                state.report.note = state.report.note or f"within {_NEAR_ROOF:.0%} of the roofline"
                continue
            most = int(min(self.batch, self.ledger.left()))
            proposed = self._propose(state, most)
            if not proposed:
                state.progress.exhausted = True
                state.report.note = state.report.note or "every point measured"
                continue
            self._trials([(state, proposed)])
            state.progress.round_done(state.best if state.best is not None else float("inf"))
            if state.best is None and state.report.trials >= _HOPELESS:
                state.progress.exhausted = True
                state.report.note = f"given up: the first {state.report.trials} candidates all failed"
        if self._stop():
            self.report.stopped = "interrupted"

    def _trials_left(self) -> bool:
        """Whether trials may still be spent, after those that other searches have recorded meanwhile."""
        self.ledger.take_in_others()
        return self.ledger.left() > 0

    def _at_roofline(self, state: TaskState) -> bool:
        """Whether arithmetic is the bound and no candidate can be much faster than the best.

        Not told of what memory bounds: operands that stay in a cache pass its roofline.
        """
        peak = self.ledger.roofs.peak(state.task.arithmetic)
        bandwidth = self.ledger.roofs.bandwidth_gbs
        if peak is None or bandwidth is None or state.best is None:
            return False
        arithmetic = state.task.flops / (peak * 1e9)
        bound = arithmetic >= state.task.nbytes / (bandwidth * 1e9)
        # A kernel beyond the peak says that the peak was measured beside other load.
        return bound and arithmetic * 0.98 <= state.best <= arithmetic * (1 + _NEAR_ROOF)

    def _propose(self, state: TaskState, most: int) -> list[Candidate]:
        before = monotonic()
        proposed = state.proposer.propose(most)
        self.propose_seconds += monotonic() - before
        return proposed

    def _trials(self, groups: Sequence[tuple[TaskState, Sequence[Candidate]]]) -> None:
        """Measure candidates (see ``batches.py``)."""
        self.batches.run([(state, candidate) for state, proposed in groups for candidate in proposed])

    def _verify(self) -> None:
        """Compare each task's best candidates with its default, side by side, and record the winner.

        The default of the heaviest task is timed once more in any case, to see drift.
        """
        jobs: list[Job] = []
        owners: list[tuple[TaskState, list[Candidate]]] = []
        for state in self.ledger.unverified():
            contenders = comparison.contenders(state, self.ledger.default_of(state), self.ledger.store)
            if len(contenders) > 1 or state is self.baseline:
                jobs.append(Job(state.task.key, tuple(contenders), budget=_VERIFY_BUDGET))
                owners.append((state, contenders))
            else:  # the default is the best
                seconds = state.times[key_of(contenders[0])][0]
                self.ledger.record(state, contenders[0], Result(OK, seconds), VERIFIED, seconds)
        doubtful = self._compare(jobs, owners)
        if doubtful and self.spells is not None:
            self.spells.wait(self._stop)
            doubtful = self._compare([jobs[n] for n in doubtful], [owners[n] for n in doubtful])
        if doubtful and not self._stop():
            self.report.warnings.append(
                f"{len(doubtful)} of {len(jobs)} winners could not be compared with their defaults: other "
                "processes took the cores; the same command tries again"
            )

    def _compare(self, jobs: list[Job], owners: list[tuple[TaskState, list[Candidate]]]) -> list[int]:
        """Record the winner of each comparison; returns the indices of those that were disturbed."""
        doubtful = []
        for index, results in self.workers.measure(jobs, self._stop):
            state, contenders = owners[index]
            if self.spells is None:
                results = [taken_as_is(result) for result in results]
            elif comparison.doubtful(state, contenders, results):
                doubtful.append(index)
                continue
            if state is self.baseline:
                self._note_drift(results[0].seconds)
            self._settle(state, contenders, results)
            self.ledger.tell("verify", task=state.name)
        return doubtful

    def _settle(self, state: TaskState, contenders: list[Candidate], results: list[Result]) -> None:
        default, winner = results[0], comparison.winner(results)
        if winner is None:
            return
        self.ledger.record(state, contenders[winner], results[winner], VERIFIED, default.seconds)
        if default.ok:
            state.report.default_seconds = default.seconds
