"""Proposers of candidates: a task's space ranked by the cost model, or MetaSchedule's evolutionary search.

What is too large to be ranked as a whole is evolved: the module that MetaSchedule sees is the unscheduled
workload and its "schedule" is one ``sample_categorical`` per knob, each annotated on the root block (so
that different points are different modules).  Traces, mutation, the population and the database are
MetaSchedule's; the kernel is emitted from the decisions by the worker.  For tasks without a design space it
is the stock ``post-order-apply`` space with the stock cost model.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hetero_tvm.errors import UsageError, last_line
from hetero_tvm.host.tvm import PrimFunc, tvm
from hetero_tvm.machines.base import Machine
from hetero_tvm.records.candidates import Candidate, default_candidate
from hetero_tvm.schedules.sampled import trace_text
from hetero_tvm.schedules.task import Task
from hetero_tvm.search import points
from hetero_tvm.search.cost_model import Description, SpaceModel, described, has_trees
from hetero_tvm.search.metaschedule import load_metaschedule

_LOGGER = logging.getLogger("hetero_tvm.search.metaschedule")
_LOGGER.setLevel(logging.ERROR)

Decisions = tuple[int, ...]
"""A point as the index of its choice of every knob that has several."""

POPULATION = 48
_GENERATIONS = 2
"""Both small: a population costs 30 to 50 ms per batch, a candidate's build 90 ms."""
_TRIES = 8
"""Populations in a row without anything new after which a space counts as exhausted."""
_ONE_RANDOM_IN = 8
_WINDOW, _MOST_NEAR = 4, 2
"""The best so many times as many points as are wanted are looked at, and so many may lie next to each other.
"""
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


class PointProposer:
    """Candidates of a design space: the best of all its points by the cost model, or what evolution finds.

    A space of up to ``points.MOST`` points is scored as a whole, which takes less time than one generation of
    an evolution and misses nothing; of a larger one MetaSchedule's evolutionary search samples and mutates
    traces.

    Parameters
    ----------
    task : a task with a space.
    model : cost model of that space, shared among tasks.
    seed : of sampling and mutation; one seed gives one sequence of proposals for the same results.
    batch : points that are generated at once.
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
        self._all_knobs = knobs = task.space.knobs(task.op, machine)
        self._fixed = {knob.name: knob.choices[0] for knob in knobs if len(knob.choices) == 1}
        self._knobs = [knob for knob in knobs if len(knob.choices) > 1]
        self.size = points.size(task.space, task.op, machine)
        """Number of points in the space."""
        self._described: dict[Decisions, Description] = {}
        self._known: dict[Decisions, float | None] = {}
        self._kernels: dict[Decisions, Decisions] = {}
        self._aside: set[Decisions | None] = set()
        self._noise = np.random.default_rng(seed)
        self._evolution: _Evolution | None = None
        if self.size > points.MOST:
            counts = [len(knob.choices) for knob in self._knobs]
            names = [knob.name for knob in self._knobs]
            self._evolution = _Evolution(task, target, names, counts, self._score, seed, batch)

    # points and decisions ----------------------------------------------------------------------
    def _point(self, decisions: Decisions) -> dict[str, Any]:
        chosen = {knob.name: knob.choices[i] for knob, i in zip(self._knobs, decisions, strict=True)}
        return {**self._fixed, **chosen}

    def _decisions(self, point: Mapping[str, Any]) -> Decisions | None:
        """Decisions of the canonical point with the same kernel; None for a point of another space."""
        if any(point.get(knob.name, knob.absent) not in knob.choices for knob in self._knobs):
            return None
        try:
            point = self._task.space.canonical(self._task.op, point, self._machine)
            return tuple(knob.choices.index(point.get(knob.name, knob.absent)) for knob in self._knobs)
        except (ValueError, KeyError, TypeError):
            return None

    def _canonical(self, decisions: Decisions) -> Decisions:
        if decisions not in self._kernels:
            self._kernels[decisions] = self._decisions(self._point(decisions)) or decisions
        return self._kernels[decisions]

    @functools.cached_property
    def _every(self) -> list[Decisions]:
        """Decisions of every kernel of a space that is not too large."""
        ranges = (range(len(knob.choices)) for knob in self._knobs)
        return list(dict.fromkeys(map(self._canonical, itertools.product(*ranges))))

    def _description(self, decisions: Decisions) -> Description:
        if decisions not in self._described:
            task, point = self._task, self._point(decisions)
            self._described[decisions] = described(task.space, task.op, point, self._machine, self._all_knobs)
        return self._described[decisions]

    def _score(self, decisions: Sequence[Decisions]) -> np.ndarray:
        score = self._model.score([self._description(one) for one in decisions])
        # Points that the model cannot tell apart come in random order, not in that of the sampler.
        return score + 0.01 * self._noise.standard_normal(len(score))

    # conversation ------------------------------------------------------------------------------
    def default(self) -> Candidate:
        """The point that is measured first."""
        return {"point": dict(self._task.space.default(self._task.op, self._machine))}

    def set_aside(self, candidate: Candidate) -> None:
        """Do not propose a point that is about to be measured."""
        self._aside.add(self._decisions(candidate["point"]))

    def predicted(self, candidate: Candidate, beside: Candidate) -> float | None:
        """Time of a point as a multiple of that of ``beside``, as far as the model knows; None if it cannot
        say."""
        both = [self._decisions(one["point"]) for one in (candidate, beside)]
        if None in both:
            return None
        first, second = self._model.score([self._description(one) for one in both])
        return float(np.exp(second - first))

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
        self._model.add(self._task.key, self._description(decisions), seconds)
        if seconds is not None and self._evolution is not None:
            self._evolution.note(decisions, seconds)
        return True

    def forget(self, candidate: Candidate) -> None:
        """Take a measurement back, which turned out to be of a spell."""
        decisions = self._decisions(candidate["point"])
        if decisions is not None and decisions in self._known:
            del self._known[decisions]
            self._model.forget(self._task.key, self._description(decisions))

    def skip(self, candidate: Candidate) -> None:
        """Do not propose a point again, of which nothing could be learnt."""
        if (decisions := self._decisions(candidate["point"])) is not None:
            self._known.setdefault(decisions, None)

    def propose(self, most: int) -> list[Candidate]:
        """Up to ``most`` points that have not been measured; [] when the space is exhausted."""
        if self._evolution is None:
            found = self._best_of_all(most)
        else:
            found = self._evolved(most)
        return [{"point": self._point(one)} for one in found]

    def _best_of_all(self, most: int) -> list[Decisions]:
        """The best points by the model, but few that differ from each other in one knob only."""
        rest = [one for one in self._every if one not in self._known and one not in self._aside]
        if not rest:
            return []
        order = np.argsort(-self._score(rest), kind="stable")
        return _diverse([rest[index] for index in order], most, self._noise)

    def _evolved(self, most: int) -> list[Decisions]:
        for _ in range(_TRIES):
            generated = self._evolution.generate()
            if generated is None:
                break
            kernels = [self._canonical(decisions) for decisions in generated]
            self._evolution.answer([self._known.get(one) for one in kernels])
            taken = self._known.keys() | self._aside
            if fresh := [one for one in dict.fromkeys(kernels) if one not in taken]:
                return fresh[:most]
        return []


def _diverse(ranked: Sequence[Decisions], most: int, dice: np.random.Generator) -> list[Decisions]:
    """``most`` points from the top of a ranking, of different neighbourhoods, and one in eight from anywhere.

    A point that differs in one knob from one already chosen says little that this one does not: only two
    of a neighbourhood go along.
    """
    count = most - most // _ONE_RANDOM_IN
    chosen: list[Decisions] = []
    for one in ranked[: _WINDOW * most]:
        if len(chosen) < count and sum(_near(one, other) for other in chosen) < _MOST_NEAR:
            chosen.append(one)
    taken = set(chosen)
    chosen += [one for one in ranked if one not in taken][: count - len(chosen)]
    taken = set(chosen)
    rest = [one for one in ranked if one not in taken]
    picked = dice.permutation(len(rest))[: most - len(chosen)]
    return [*chosen, *(rest[index] for index in picked)]


def _near(one: Decisions, other: Decisions) -> bool:
    return sum(a != b for a, b in zip(one, other, strict=True)) <= 1


class _Evolution(_Proposer):
    """MetaSchedule's evolutionary search over the knobs of a space that is too large to be listed."""

    def __init__(
        self,
        task: Task,
        target: dict[str, Any],
        names: Sequence[str],
        counts: Sequence[int],
        score: Callable[[Sequence[Decisions]], np.ndarray],
        seed: int,
        batch: int,
    ):
        self._names, self._counts, self._score = names, counts, score
        ms = load_metaschedule()
        from hetero_tvm.search.metaschedule import KnobMutator, ScoredBy

        mutators = {KnobMutator(random.Random(seed)): 1.0}
        space = ms.space_generator.ScheduleFn(
            self._sample_all, sch_rules=[], postprocs=[], mutator_probs=mutators
        )
        super().__init__(task.workload, target, task.name, seed, space, batch)
        self._model = ScoredBy(self._score_traces)

    def _sample_all(self, schedule: Any) -> None:
        root = schedule.get_sblock("root")
        for name, count in zip(self._names, self._counts, strict=True):
            decision = schedule.sample_categorical(list(range(count)), [1.0 / count] * count)
            schedule.annotate(root, f"hetero.{name}", decision)

    @staticmethod
    def _read(trace: Any) -> Decisions:
        decisions = trace.decisions
        return tuple(int(decisions[i]) for i in trace.insts if i.kind.name == "SampleCategorical")

    def _score_traces(self, traces: list[Any]) -> np.ndarray:
        score = self._score([self._read(trace) for trace in traces])
        return np.exp(score - score.max())

    def note(self, decisions: Decisions, seconds: float) -> None:
        """Let a measured point be a parent."""
        trace = self._designs[0].trace
        samples = [i for i in trace.insts if i.kind.name == "SampleCategorical"]
        for instruction, decision in zip(samples, decisions, strict=True):
            trace = trace.with_decision(instruction, decision, remove_postproc=True)
        self._commit(trace, seconds)

    def generate(self) -> list[Decisions] | None:
        """The next points, which may be known ones; None when there are no more."""
        if not self._started:
            self._start(self._model)
        generated = self._generate()
        return None if generated is None else [self._read(candidate.sch.trace) for candidate in generated]

    def answer(self, seconds: Iterable[float | None]) -> None:
        """Say what is known of the points just generated; results reach the population by :meth:`note`."""
        self._answer(seconds)


class StockProposer(_Proposer):
    """Candidates of MetaSchedule's own rules, or of a user's space, for kernels that none of ours knows."""

    size = float("inf")

    def __init__(self, task: Task, machine: Machine, target: dict[str, Any], seed: int, batch: int):
        from hetero_tvm.search.metaschedule import stock_space

        ms = load_metaschedule()
        self._sampled = sampled = task.sampled
        space = stock_space(None if sampled is None else lambda schedule: sampled(schedule, machine))
        self._default = default_candidate(task, machine)
        super().__init__(task.workload, target, task.name, seed, space, batch)
        if has_trees():
            self._model = ms.cost_model.XGBModel(num_warmup_samples=16, num_tuning_cores=1)
        else:
            self._model = ms.cost_model.RandomModel()
        self._seconds: dict[str, float | None] = {}
        self._proposed: dict[str, Any] = {}

    def default(self) -> Candidate:
        return self._default

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

    def forget(self, candidate: Candidate) -> None:
        """Take a measurement back, which turned out to be of a spell."""
        self._seconds.pop(candidate.get("trace", ""), None)

    def skip(self, candidate: Candidate) -> None:
        """Do not propose a trace again, of which nothing could be learnt."""
        self._seconds.setdefault(candidate.get("trace", ""), None)

    def predicted(self, candidate: Candidate, beside: Candidate) -> None:
        """None: the stock model ranks what it proposes, and says nothing about two traces."""

    def propose(self, most: int) -> list[Candidate]:
        self._finish()
        if not self._started:
            self._start(self._model)
        for _ in range(4):
            generated = self._generated()
            if generated is None:
                return []
            self._proposed = {trace_text(candidate.sch.trace): candidate for candidate in generated}
            fresh = [text for text in self._proposed if text not in self._seconds]
            if fresh:
                return [{"trace": text} for text in fresh[:most]]
            self._finish()
        return []

    def _generated(self) -> list[Any] | None:
        """MetaSchedule's next candidates.  :class:`UsageError`: a user's space fails with other decisions."""
        try:
            return self._generate()
        except Exception as error:  # TVM's, of whatever step the space takes
            if self._sampled is None:
                raise
            raise UsageError(
                f"the design space {self._sampled.name} fails with other decisions than its own: "
                f"{last_line(error)}",
                hint="loops of one iteration vanish when a block is moved, and get_loops then gives fewer: "
                "move it with preserve_unit_loops=True, or sample no tile of 1",
            ) from error

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
