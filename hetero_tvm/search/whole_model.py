"""The last stage of tuning where kernels overlap: combinations of points, timed as whole models."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from hetero_tvm.records.choose import choose
from hetero_tvm.records.combinations import Combination, Found, Known, WholeModel, combination_of
from hetero_tvm.records.record import VERIFIED, new_record
from hetero_tvm.records.store import RecordStore
from hetero_tvm.schedules.base import thaw
from hetero_tvm.schedules.task import Task
from hetero_tvm.search.interrupt import interrupt_flag
from hetero_tvm.search.ledger import OnEvent
from hetero_tvm.search.options import TuneOptions
from hetero_tvm.search.outcome import TuneReport
from hetero_tvm.search.tuner import Tunable

OnCombination = Callable[[Combination, float | None, float], None]
"""Callback for every whole model timed: combination, seconds (None: it failed), the least so far."""

FindCombination = Callable[[Known, int, Callable[[], bool], OnCombination], Found | None]
"""Search over combinations of points: ``(known, seed, more, on_trial)``, where ``more()`` says whether
another whole model may be timed.  Gives the combination with which the model is fastest; None: no opinion."""


def tune_whole_model(
    optimized: Tunable,
    find: FindCombination,
    options: TuneOptions,
    store: RecordStore,
    report: TuneReport,
    on_event: OnEvent,
) -> None:
    """Search combinations for a model in which kernels overlap; every trial is recorded.

    Parameters
    ----------
    find : the target's search.
    options : ``trials`` whole models in all, recorded ones count; ``minutes`` for this stage.
    report : of the search for kernels alone; what this stage finds is added.

    Ctrl-C ends the stage cleanly; the report then says so.
    """
    start = monotonic()
    model = WholeModel.of(optimized.tasks)
    recorded = store.trials(model)
    # The default begins every series: those before it were timed with another compiler.
    begin = max((n for n, record in enumerate(recorded) if not record.point), default=0)
    left = None if options.trials is None else options.trials - len(recorded[begin:])
    count = 0

    def note(combination: Combination, seconds: float | None, best: float) -> None:
        nonlocal count
        count += 1
        result = {"seconds": seconds} if seconds else {"status": "build_error"}
        store.append(new_record(model, store.site, {"point": combination}, **result))
        on_event(
            {
                "event": "whole",
                "task": model.name,
                "trials": count,
                "of": left,
                "total_seconds": best,
                "elapsed": monotonic() - start,
                "minutes": options.minutes,
            }
        )

    with interrupt_flag() as interrupted:

        def more() -> bool:
            late = options.minutes is not None and monotonic() - start > 60 * options.minutes
            return not (late or interrupted.is_set() or (left is not None and count >= left))

        if more() or recorded:  # also to see whether what is recorded is still true
            past = [(combination_of(record), record.seconds) for record in recorded]
            known = Known({task.key: _alone(task, store) for task in optimized.tasks}, past)
            seed = options.seed + len(recorded)
            found = find(known, seed, more, note)
            if found is not None:
                _settle(model, found, store)
                report.notes.append(f"{found}, {count} trials of the whole, {len(recorded)} in records")
    if interrupted.is_set():
        report.stopped = "interrupted"
    report.elapsed += monotonic() - start
    _tell(optimized, store, report)


def _settle(model: WholeModel, found: Found, store: RecordStore) -> None:
    """The record to build from, unless it is there."""
    best, default = found.best * found.second, found.default * found.second
    last = store.verified(model)
    if last is None or combination_of(last) != dict(found.combination):
        winner = {"point": found.combination}
        store.append(
            new_record(model, store.site, winner, seconds=best, role=VERIFIED, default_seconds=default)
        )


def _alone(task: Task, store: RecordStore) -> list[tuple[dict[str, Any], float]]:
    """Points that were measured alone, with their seconds."""
    if task.space is None:
        return []
    records = store.measured(task).values()
    return [(thaw(r.point), r.seconds) for r in records if r.ok and r.point is not None]


def _tell(optimized: Tunable, store: RecordStore, report: TuneReport) -> None:
    """Writes into the report, per kernel, what it will be built from."""
    tasks = {task.name: task for task in optimized.tasks}
    choices = choose(optimized.tasks, optimized.machine, store)
    for row in report.tasks:
        choice = choices[tasks[row.name].key]
        row.origin = choice.origin
        row.tuned_seconds = choice.seconds or row.default_seconds
