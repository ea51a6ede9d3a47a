"""The five verbs: import, optimize, tune, build (these four here) and load (in ``runtime``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hetero_tvm.build_steps import BuiltModel, build
from hetero_tvm.plan_model import Plan, import_model, optimize_model
from hetero_tvm.search.choose import Choice, choose
from hetero_tvm.search.loop import TuneOptions, tune
from hetero_tvm.search.outcome import TuneReport
from hetero_tvm.search.records import RecordStore, Site, shipped_logs

__all__ = [
    "BuiltModel",
    "Plan",
    "TunedPlan",
    "build_model",
    "import_model",
    "optimize_model",
    "record_store",
    "tune_model",
]


@dataclass(frozen=True)
class TunedPlan:
    """A plan with the candidate chosen for each kernel, and how the search went."""

    plan: Plan
    choices: Mapping[str, Choice]
    report: TuneReport


def record_store(
    plan: Plan, logs: str | os.PathLike[str] | None = None, use_shipped: bool = True
) -> RecordStore:
    """Records that fit the plan's machine: in ``logs`` (default: a user data folder), then shipped ones."""
    site = Site.of(plan.machine, plan.target.kind)
    return RecordStore(site, logs, shipped_logs() if use_shipped else None)


def tune_model(
    plan: Plan,
    *,
    trials: int | None = 64,
    minutes: float | None = None,
    logs: str | os.PathLike[str] | None = None,
    seed: int = 0,
    use_shipped: bool = True,
    on_event: Callable[[dict[str, Any]], None] | None = None,
) -> TunedPlan:
    """Search schedules for the kernels of a plan on this machine.

    Parameters
    ----------
    trials : candidates in all, over the whole model; finished records count.
    minutes : wall time of the search; whichever limit comes first ends it.
    logs : folder of the records, read and appended to.
    on_event : called with progress dictionaries.

    Raises
    ------
    TuningError : candidates cannot be measured at all.
    """
    if (ranked := plan.target.rank(plan.tasks, trials, on_event or (lambda event: None))) is not None:
        return TunedPlan(plan, *ranked)
    store = record_store(plan, logs, use_shipped)
    options = TuneOptions(trials=trials, minutes=minutes, seed=seed)
    tasks, workers = plan.target.measuring(plan.tasks)
    try:
        report = tune(tasks, plan.machine, options, store, on_event, workers=workers)
    finally:
        if workers is not None:
            workers.close()
    return TunedPlan(plan, choose(plan.tasks, plan.machine, store), report)


def build_model(
    plan: Plan | TunedPlan, *, logs: str | os.PathLike[str] | None = None, use_shipped: bool = True
) -> BuiltModel:
    """Compile: packs constants as the chosen schedules want, plans memory, generates code.

    A :class:`Plan` is built from the best records that fit, and from default points where there
    are none; a :class:`TunedPlan` from its own choices.

    Raises
    ------
    BuildError : lowering or code generation failed.
    """
    tuned, plan = (plan, plan.plan) if isinstance(plan, TunedPlan) else (None, plan)
    chosen = [
        (one, choose(one.tasks, one.machine, record_store(one, logs, use_shipped))) for one in plan.variants()
    ]
    return build(plan, tuned.choices if tuned is not None else chosen[0][1], chosen[1:])
