"""Proposers of candidates: MetaSchedule's evolutionary search over a task's space.

For a task with a design space, the module that MetaSchedule sees is the unscheduled workload and its
"schedule" is one ``sample_categorical`` per knob, each annotated on the root block (so that different
points are different modules).  Traces, mutation, the population and the database are MetaSchedule's;
the kernel is emitted from the decisions by the worker.  For other tasks it is the stock
``post-order-apply`` space with the stock cost model.
"""

from __future__ import annotations

import itertools
import json
import logging
import random
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hetero_tvm.host.tvm import PrimFunc, tvm
from hetero_tvm.machines.base import Machine
from hetero_tvm.records.candidates import Candidate
from hetero_tvm.schedules.task import Task
from hetero_tvm.search import points
from hetero_tvm.search.cost_model import SpaceModel, described
from hetero_tvm.search.metaschedule import load_metaschedule

_LOGGER = logging.getLogger("hetero_tvm.search.metaschedule")
_LOGGER.setLevel(logging.ERROR)

POPULATION = 48
_GENERATIONS = 2
"""Both small: a population costs 30 to 50 ms per batch, a candidate's build 90 ms, and spaces have
some hundred points."""
_FAILED_SECONDS = 1e10
"""MetaSchedule's own mark of a candidate without a time."""


class _Proposer:
    """Base of both proposers: the conversation with one TuneContext."""

    def __init__(
        self, workload: PrimFunc, target: dict[str, Any], name: str, seed: int, space: Any, batch: int
    ):
        self._ms = ms = load_metaschedule()
        strategy = ms.search_strategy.EvolutionarySearch(
            population_size=POPULATION,
            init_min_unmeasured=8,
            genetic_num_iters=_GENERATIONS,
            eps_greedy=0.1,
        )
        self._context = ms.TuneContext(
            mod=workload,
            target=tvm.target.Target(target),
            space_generator=space,
            search_strategy=strategy,
            task_name=name,
            logger=_LOGGER,
            rand_state=seed % (2**31 - 2) + 1,
            num_threads=1,  # the only setting with reproducible traces
        )
        self._designs = self._context.generate_design_space()
        self._database = ms.database.MemoryDatabase()
        self._workload = self._database.commit_workload(self._context.mod)
        self._batch = batch
        self._pending: Any = None
        self._started = False

    def _start(self, cost_model: Any) -> None:
        self._context.pre_tuning(
            max_trials=1 << 30,
            num_trials_per_iter=self._batch,
            design_spaces=self._designs,
            database=self._database,
            cost_model=cost_model,
        )
        self._started = True

    def _generate(self) -> list[Any] | None:
        """MetaSchedule's next candidates; None when the space has no more."""
        self._pending = self._context.generate_measure_candidates()
        return list(self._pending) if self._pending else None

    def _answer(self, seconds: Iterable[float | None]) -> list[Any]:
        """Tell MetaSchedule how the candidates of the last call of :meth:`_generate` did."""
        result = self._ms.runner.RunnerResult
        results = [result([_FAILED_SECONDS], "failed") if s is None else result([s], None) for s in seconds]
        self._context.notify_runner_results(self._pending, results)
        self._pending = None
        return results

    def _commit(self, trace: Any, seconds: float) -> None:
        record = self._ms.database.TuningRecord(trace, self._workload, [seconds], self._context.target, None)
        self._database.commit_tuning_record(record)


class PointProposer(_Proposer):
    """Candidates of a design space.

    Parameters
    ----------
    task : a task with a space.
    model : cost model of that space, shared among tasks.
    seed : of sampling and mutation; one seed gives one sequence of proposals for the same results.
    batch : points that MetaSchedule generates at once.
    """

    def __init__(
        self,
        task: Task,
        machine: Machine,
        target: dict[str, Any],
        model: SpaceModel,
        seed: int,
        batch: int,
    ):
        self._task, self._machine, self._model = task, machine, model
        knobs = task.space.knobs(task.op, machine)
        self._fixed = {knob.name: knob.choices[0] for knob in knobs if len(knob.choices) == 1}
        self._knobs = [knob for knob in knobs if len(knob.choices) > 1]
        self.size = points.size(task.space, task.op, machine)
        """Number of points in the space."""
        self._features: dict[tuple[int, ...], list[float]] = {}
        self._known: dict[tuple[int, ...], float | None] = {}
        self._kernels: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._random = random.Random(seed)
        self._noise = np.random.default_rng(seed)
        if self._knobs:
            ms = load_metaschedule()
            from hetero_tvm.search.metaschedule import KnobMutator, ScoredBy

            space = ms.space_generator.ScheduleFn(
                self._sample_all, sch_rules=[], postprocs=[], mutator_probs={KnobMutator(self._random): 1.0}
            )
            super().__init__(task.workload, target, task.name, seed, space, batch)
            self._score = ScoredBy(self._score_traces)

    def _sample_all(self, schedule: Any) -> None:
        root = schedule.get_sblock("root")
        for knob in self._knobs:
            count = len(knob.choices)
            decision = schedule.sample_categorical(list(range(count)), [1.0 / count] * count)
            schedule.annotate(root, f"hetero.{knob.name}", decision)

    # points and decisions ----------------------------------------------------------------------
    def _point(self, decisions: tuple[int, ...]) -> dict[str, Any]:
        chosen = {knob.name: knob.choices[i] for knob, i in zip(self._knobs, decisions, strict=True)}
        return {**self._fixed, **chosen}

    def _decisions(self, point: Mapping[str, Any]) -> tuple[int, ...] | None:
        """Decisions of the canonical point with the same kernel; None for a point of another space."""
        try:
            point = self._task.space.canonical(self._task.op, point, self._machine)
            return tuple(knob.choices.index(point.get(knob.name, knob.absent)) for knob in self._knobs)
        except (ValueError, KeyError):
            return None

    def _canonical(self, decisions: tuple[int, ...]) -> tuple[int, ...]:
        if decisions not in self._kernels:
            self._kernels[decisions] = self._decisions(self._point(decisions)) or decisions
        return self._kernels[decisions]

    @staticmethod
    def _read(trace: Any) -> tuple[int, ...]:
        decisions = trace.decisions
        return tuple(int(decisions[i]) for i in trace.insts if i.kind.name == "SampleCategorical")

    def _trace(self, decisions: tuple[int, ...]) -> Any:
        trace = self._designs[0].trace
        samples = [i for i in trace.insts if i.kind.name == "SampleCategorical"]
        for instruction, decision in zip(samples, decisions, strict=True):
            trace = trace.with_decision(instruction, decision, remove_postproc=True)
        return trace

    def _features_of(self, decisions: tuple[int, ...]) -> list[float]:
        if decisions not in self._features:
            found = self._task.space.features(self._task.op, self._point(decisions), self._machine)
            sizes = [len(knob.choices) for knob in self._knobs]
            self._features[decisions] = described(found, decisions, sizes, self._machine)
        return self._features[decisions]

    def _score_traces(self, traces: list[Any]) -> np.ndarray:
        rows = [self._features_of(self._read(trace)) for trace in traces]
        score = self._model.score(np.asarray(rows, np.float64))
        # Points that the model cannot tell apart come in random order, not in that of the sampler.
        return np.exp(score - score.max() + 0.01 * self._noise.standard_normal(len(rows)))

    # conversation ------------------------------------------------------------------------------
    def default(self) -> Candidate:
        """The point that is measured first."""
        return {"point": dict(self._task.space.default(self._task.op, self._machine))}

    def learn(self, candidate: Candidate, seconds: float | None) -> bool:
        """Takes in a measurement, fresh or from a record: it trains the model and seeds the population.

        Returns whether it could: a point that is not of this space teaches nothing.
        """
        decisions = self._decisions(candidate["point"])
        if decisions is None:
            return False
        if decisions in self._known:
            return True
        self._known[decisions] = seconds
        self._model.add(self._task.key, self._features_of(decisions), seconds)
        if seconds is not None and self._knobs:
            self._commit(self._trace(decisions), seconds)
        return True

    def propose(self, most: int) -> list[Candidate]:
        """Up to ``most`` points that have not been measured; [] when the space is exhausted."""
        fresh: list[Candidate] = []
        while len(fresh) < most and len(self._known) + len(fresh) < self.size and self._knobs:
            if not self._started:
                self._start(self._score)
            generated = self._generate()
            if generated is None:
                break
            decisions = [self._canonical(self._read(candidate.sch.trace)) for candidate in generated]
            # MetaSchedule only wants to know that they were measured; results reach it by learn().
            self._answer(self._known.get(d) for d in decisions)
            new = [d for d in dict.fromkeys(decisions) if d not in self._known]
            fresh += [{"point": self._point(d)} for d in new]
            if new:
                break
        if not fresh:
            fresh = self._leftovers(most)
        return fresh[:most]

    def _leftovers(self, most: int) -> list[Candidate]:
        """MetaSchedule gives up a little before the last points of a small space: list those."""
        if len(self._known) >= self.size:
            return []
        every = points.every_kernel(self._task.space, self._task.op, self._machine) or ()
        rest = (point for point in every if self._decisions(point) not in self._known)
        return [{"point": dict(point)} for point in itertools.islice(rest, most)]


class StockProposer(_Proposer):
    """Candidates of MetaSchedule's own rules, for kernels that no space knows."""

    size = float("inf")

    def __init__(self, task: Task, target: dict[str, Any], seed: int, batch: int):
        from hetero_tvm.search.metaschedule import stock_space

        ms = load_metaschedule()
        super().__init__(task.workload, target, task.name, seed, stock_space(), batch)
        self._model = ms.cost_model.XGBModel(num_warmup_samples=16, num_tuning_cores=1)
        self._seconds: dict[str, float | None] = {}
        self._proposed: dict[str, Any] = {}

    def default(self) -> Candidate:
        return {"generic": True}

    @staticmethod
    def _text(trace: Any) -> str:
        return json.dumps(trace.as_json(), default=_plain)

    def learn(self, candidate: Candidate, seconds: float | None) -> bool:
        """Takes in a measurement; returns whether it could: some traces no longer apply to the workload."""
        text = candidate.get("trace")
        if text is None or text in self._seconds:
            return True
        self._seconds[text] = seconds
        # One that was proposed is answered with its batch, by finish().
        if text not in self._proposed and seconds is not None:
            try:
                schedule = tvm.s_tir.Schedule(self._context.mod)
                tvm.s_tir.schedule.Trace.apply_json_to_schedule(json.loads(text), schedule)
            except Exception:  # TVM raises many kinds: the trace was made by another version
                return False
            self._commit(schedule.trace, seconds)
        return True

    def propose(self, most: int) -> list[Candidate]:
        self._finish()
        if not self._started:
            self._start(self._model)
        for _ in range(4):
            generated = self._generate()
            if generated is None:
                return []
            self._proposed = {self._text(candidate.sch.trace): candidate for candidate in generated}
            fresh = [text for text in self._proposed if text not in self._seconds]
            if fresh:
                return [{"trace": text} for text in fresh[:most]]
            self._finish()
        return []

    def _finish(self) -> None:
        """Report the last batch to MetaSchedule and train its model on it."""
        if self._pending is None:
            return
        pending = self._pending
        seconds = [self._seconds.get(text) for text in self._proposed]
        for candidate, s in zip(self._proposed.values(), seconds, strict=True):
            if s is not None:
                self._commit(candidate.sch.trace, s)
        if len(seconds) == len(pending):
            results = self._answer(seconds)
            self._model.update(self._context, pending, results)
        else:  # equal traces in one batch: their results cannot be told apart
            self._answer([None] * len(pending))
        self._proposed = {}


def _plain(value: Any) -> Any:
    """TVM's containers and numbers as JSON."""
    if hasattr(value, "items"):
        return dict(value.items())
    if hasattr(value, "__iter__"):
        return list(value)
    return getattr(value, "value", str(value))
