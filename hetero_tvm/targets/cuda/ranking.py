"""Ranking of candidates without running them: by the cost model, and by facts of the compiled code.

Nothing is measured here.  The cost model (the space's own estimate, bent by whatever was measured on
this architecture) says which points to compile.  A candidate counts when its machine code fits the
multiprocessor (registers, shared memory) and keeps its registers (no stack: spills live there); among
those the model's order decides, and more resident warps break near ties.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import numpy as np

from hetero_tvm import host
from hetero_tvm.errors import HeteroTVMError
from hetero_tvm.records.choose import choose_one
from hetero_tvm.records.record import RANKED, UNMEASURED, new_record
from hetero_tvm.records.store import RecordStore
from hetero_tvm.schedules.base import Knob, Point, thaw
from hetero_tvm.schedules.task import Task
from hetero_tvm.search.cost_model import Description, SpaceModel, described
from hetero_tvm.search.ledger import OnEvent
from hetero_tvm.search.outcome import TaskReport, TuneReport
from hetero_tvm.targets.base import Target
from hetero_tvm.targets.cuda import codegen, kernel_facts
from hetero_tvm.targets.cuda.kernel_facts import Facts

WARNING = (
    "NOTHING WAS MEASURED: there is no GPU here that runs this; candidates were ranked by the cost model "
    "and by registers, stack, shared memory and occupancy of their machine code"
)
_MOST_SCORED = 20000
"""Points of a space that are given a score at most."""
_NEAR = 4
"""First candidates of the model's order, among which occupancy decides."""


def rank(
    tasks: Sequence[Task],
    target: Target,
    trials: int | None,
    store: RecordStore,
    on_event: OnEvent,
) -> TuneReport:
    """Choose, for each task, the candidate that its machine code speaks for.

    The choices become records that are marked as not measured (``ranked``); a build takes them where
    there is nothing better.

    Parameters
    ----------
    trials : candidates to compile in all; None for 8 per task.
    store : where records go, and whose measured ones train the cost model.

    Returns
    -------
    A report without times that says so.
    """
    began = monotonic()
    spaced = [task for task in tasks if task.space is not None]
    shares = _shares(spaced, 8 * len(spaced) if trials is None else trials)
    models = trained(spaced, target, store)
    rows, count = [], 0

    def tell(event: str, **facts: str) -> None:
        spent = {"elapsed": monotonic() - began, "trials": count, "of": sum(shares.values())}
        on_event({"event": event, **facts, **spent})

    for task in tasks:
        row = TaskReport(task.name, task.count, task.flops, task.nbytes)
        rows.append(row)
        if task.space is None:
            row.note = "no space: scheduled by rule"
            continue
        if not shares[task.key]:
            row.note = "no trial left: its default or its record"
            row.origin = choose_one(task, target.machine, store).origin
            continue
        points = candidates(task, target, models[task.space.name], shares[task.key])
        with ThreadPoolExecutor(len(host.available_cores())) as pool:
            found = list(pool.map(lambda point, task=task: known_of(task, point, target), points))
        count += len(points)
        row.trials = len(points)
        row.failures.update(why for why in map(refusal, found) if why)
        best = pick(found)
        if best is None:
            row.note = "no candidate without spills"
        elif not store.best(task) or store.best(task)[0].role == RANKED:
            fields = {"status": UNMEASURED, "role": RANKED}
            store.append(new_record(task, store.site, {"point": points[best]}, **fields))
            row.note = _told(found[best])
        row.origin = choose_one(task, target.machine, store).origin
        tell("ranked", task=task.name)
    tell("done")
    elapsed = monotonic() - began
    return TuneReport(rows, trials=count, elapsed=elapsed, warnings=[WARNING], logs=str(store.path))


def _shares(tasks: Sequence[Task], trials: int) -> dict[str, int]:
    """Candidates of each task: the same for all, what is left over to those with the most work."""
    base, extra = divmod(trials, max(1, len(tasks)))
    most = sorted(tasks, key=lambda task: -(task.flops + task.nbytes) * task.count)
    return {task.key: base + (place < extra) for place, task in enumerate(most)}


def trained(tasks: Sequence[Task], target: Target, store: RecordStore) -> dict[str, SpaceModel]:
    """Cost models by space, trained with whatever was measured on GPUs of this architecture."""
    models: dict[str, SpaceModel] = {}
    for task in tasks:
        model = models.setdefault(task.space.name, SpaceModel())
        knobs = task.space.knobs(task.op, target.machine)
        for record in store.measured(task).values():
            point = thaw(record.point)
            if all(point.get(knob.name) in knob.choices for knob in knobs):
                indices = [knob.choices.index(point[knob.name]) for knob in knobs]
                model.add(task.key, _described(task, knobs, indices, target), record.seconds)
    return models


def _described(task: Task, knobs: Sequence[Knob], indices: Sequence[int], target: Target) -> Description:
    """Description of a point for the cost model, given by the index of each choice."""
    return described(task.space, task.op, _point(knobs, indices), target.machine, knobs)


def _point(knobs: Sequence[Knob], indices: Sequence[int]) -> dict[str, Any]:
    """The point of these choices."""
    return {knob.name: knob.choices[index] for knob, index in zip(knobs, indices, strict=True)}


def candidates(task: Task, target: Target, model: SpaceModel, most: int) -> list[dict[str, Any]]:
    """Points of a task's space by the cost model, the fastest first; the default is always among them."""
    default = dict(task.space.default(task.op, target.machine))
    knobs = task.space.knobs(task.op, target.machine)
    every = itertools.product(*(range(len(knob.choices)) for knob in knobs))
    scored = list(itertools.islice(every, _MOST_SCORED))
    rows = [_described(task, knobs, indices, target) for indices in scored]
    order = np.argsort(-model.score(rows), kind="stable")[:most]
    points = [_point(knobs, scored[index]) for index in order]
    if default not in points:
        points = [*points[: most - 1], default]
    return points


def known_of(task: Task, point: Point, target: Target) -> Facts | str:
    """Facts of a candidate's kernel, or the reason why there is none."""
    try:
        kernel = target.stamp(task.space.emit(task.op, point, target.machine))
        with codegen.collect() as made:
            codegen.compile_kernels(kernel, target.tvm_target)
        return kernel_facts.worst(kernel_facts.of_module(made[0]).values())
    except HeteroTVMError as error:
        return error.message
    except Exception as error:  # TVM raises many kinds; one bad candidate must not end the ranking
        return str(error).strip().splitlines()[-1]


def refusal(known: Facts | str) -> str | None:
    """Kind of failure of a candidate that does not count; None when it does."""
    if isinstance(known, str):
        return "build_error"
    if known["stack"]:
        return "spills"
    return None if known["occupancy"] is None or known["occupancy"] > 0 else "does_not_fit"


def pick(found: Sequence[Facts | str]) -> int | None:
    """Index of the best candidate; None when none counts."""
    valid = [index for index, known in enumerate(found) if refusal(known) is None]
    if not valid:
        return None
    near = [index for index in valid if index < valid[0] + _NEAR]
    return max(near, key=lambda index: (min(found[index]["occupancy"] or 0.0, 0.25), -index))


def _told(known: Facts) -> str:
    """The chosen candidate's facts, for the report."""
    occupancy = "" if known["occupancy"] is None else f", occupancy {known['occupancy']:.0%}"
    return f"{known['registers']} registers, {known['shared'] / 1024:.0f} KB shared{occupancy}"
