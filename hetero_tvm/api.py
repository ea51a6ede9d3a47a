"""The five verbs: import, optimize, tune, build (these four here) and load (in ``runtime``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hetero_tvm.compile.build import BuiltModel, build
from hetero_tvm.compile.optimize import Plan, import_model, optimize_model
from hetero_tvm.records.choose import Choice, choose
from hetero_tvm.records.store import RecordStore, Site, shipped_logs
from hetero_tvm.search.loop import TuneOptions, tune
from hetero_tvm.search.measure.device_client import BenchClient
from hetero_tvm.search.measure.device_workers import DEVICE_LIMITS, DeviceWorkers, batch_size, open_benches
from hetero_tvm.search.outcome import TuneReport
from hetero_tvm.search.whole_model import tune_together

_ALONE = 0.33
"""Of the minutes of a search: for kernels alone, where whole models are timed too."""

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
    plan: Plan,
    logs: str | os.PathLike[str] | None = None,
    use_shipped: bool = True,
    device: str = "",
) -> RecordStore:
    """Records that fit the plan's machine: in ``logs`` (default: a user data folder), then shipped ones.

    ``device`` names the product that is measured, where the plan's machine stands for several.
    """
    site = Site.of(plan.machine, plan.target.record_kind, device)
    return RecordStore(site, logs, shipped_logs() if use_shipped else None)


def tune_model(
    plan: Plan,
    *,
    trials: int | None = 64,
    minutes: float | None = None,
    logs: str | os.PathLike[str] | None = None,
    seed: int = 0,
    use_shipped: bool = True,
    rpc: str | None = None,
    on_event: Callable[[dict[str, Any]], None] | None = None,
) -> TunedPlan:
    """Search schedules for the kernels of a plan on this machine, its GPU, or another machine.

    Of a plan for several GPU architectures the one that is there is measured.  Where there is none,
    candidates are ranked without measuring, for all of them, and the report says so.

    Parameters
    ----------
    trials : candidates in all, over the whole model; finished records count.  Where kernels overlap, as
        many whole models are timed after that.
    minutes : wall time of the search; whichever limit comes first ends it.
    logs : folder of the records, read and appended to.
    rpc : ``HOST:PORT`` of a machine that runs ``python -m hetero_tvm.serve``, or ``HOST:PORT:KEY`` of a
        tracker: candidates are measured there.
    on_event : called with progress dictionaries.

    Raises
    ------
    TuningError : candidates cannot be measured at all, or the connection is lost (what was measured
        until then is recorded).
    """
    on_event = on_event or (lambda event: None)
    options = TuneOptions(trials=trials, minutes=minutes, seed=seed)
    if benches := open_benches(plan.target, rpc):
        options = replace(options, limits=DEVICE_LIMITS)
        report = tune_on_device(plan, benches, options, logs, use_shipped, on_event)
    elif (report := _ranked(plan, trials, logs, use_shipped, on_event)) is None:
        store = record_store(plan, logs, use_shipped)
        report = _measured(plan, options, store, on_event)
    first = plan.variants()[0]
    store = record_store(first, logs, use_shipped)
    return TunedPlan(plan, choose(first.tasks, first.machine, store), report)


def _measured(
    plan: Plan, options: TuneOptions, store: RecordStore, on_event: Callable[[dict[str, Any]], None]
) -> TuneReport:
    """Kernels alone, then, where they overlap, the whole model."""
    tasks, workers = plan.target.measuring(plan.tasks)
    together = getattr(plan.machine, "whole_models", False)
    alone, minutes = options, options.minutes
    if together and minutes is not None:
        alone = replace(options, minutes=_ALONE * minutes)
    try:
        report = tune(tasks, plan.machine, alone, store, on_event, workers=workers)
    finally:
        if workers is not None:
            workers.close()
    if together and not report.interrupted:
        if minutes is not None:
            options = replace(options, minutes=minutes - report.elapsed / 60)
        tune_together(plan, options, store, report, on_event)
    return report


def tune_on_device(
    plan: Plan,
    benches: list[BenchClient],
    options: TuneOptions,
    logs: str | os.PathLike[str] | None,
    use_shipped: bool,
    on_event: Callable[[dict[str, Any]], None],
) -> TuneReport:
    """Tune the variant of a plan that runs on the given devices, which are closed afterwards."""
    device = benches[0].device
    try:
        target = plan.target.variant_on(device)
        variant = next(one for one in plan.variants() if one.machine == target.machine)
        tasks = [task for task in variant.tasks if task.space is not None]
        # A CPU's microarchitecture says all; of a GPU's architecture there are many products.
        product = "" if device["name"] == device["arch"] else device["name"]
        store = record_store(variant, logs, use_shipped, product)
        compiler, limits = target.offload[0], options.limits
        workers = DeviceWorkers(benches, variant.machine, compiler, limits, seed=options.seed)
        options = replace(options, batch=batch_size(options.trials, len(tasks), workers.slots))
    except BaseException:
        for bench in benches:
            bench.close()
        raise
    with workers:
        report = tune(tasks, variant.machine, options, store, on_event, workers=workers)
    several = f"{len(benches)} x " if len(benches) > 1 else ""
    report.notes.append(f"measured on {several}{device['name']}, code for {variant.machine.mcpu}")
    others = [one.machine.mcpu for one in plan.variants() if one.machine != target.machine]
    if others:
        report.warnings.append(
            f"only {variant.machine.mcpu} was measured: {', '.join(others)} keep their records or defaults"
        )
    return report


def _ranked(
    plan: Plan,
    trials: int | None,
    logs: str | os.PathLike[str] | None,
    use_shipped: bool,
    on_event: Callable[[dict[str, Any]], None],
) -> TuneReport | None:
    """Candidates of every variant ranked without measuring; None for a target that measures."""
    variants = plan.variants()
    each = None if trials is None else max(1, trials // len(variants))
    whole: TuneReport | None = None
    for variant in variants:
        store = record_store(variant, logs, use_shipped)
        report = variant.target.rank(variant.tasks, each, store, on_event)
        if report is None:
            return None
        if len(variants) > 1:
            for row in report.tasks:
                row.name = f"{row.name} ({variant.machine.mcpu})"
        whole = report if whole is None else whole.joined(report)
    return whole


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
