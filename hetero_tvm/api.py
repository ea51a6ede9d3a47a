"""The five verbs: import, optimize, tune, build (these four here) and load (in ``runtime``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hetero_tvm.build_steps import BuiltModel, build
from hetero_tvm.plan_model import Plan, import_model, optimize_model
from hetero_tvm.schedules.base import thaw
from hetero_tvm.search.bench_client import BenchClient
from hetero_tvm.search.candidates import point_key
from hetero_tvm.search.choose import Choice, choose, choose_one
from hetero_tvm.search.device_workers import DEVICE_LIMITS, DeviceWorkers, batch_size, open_benches
from hetero_tvm.search.loop import TuneOptions, tune
from hetero_tvm.search.outcome import TuneReport
from hetero_tvm.search.records import VERIFIED, RecordStore, Site, new_record, shipped_logs

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
    trials : candidates in all, over the whole model; finished records count.
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
        tasks, workers = plan.target.measuring(plan.tasks)
        before = choose(plan.tasks, plan.machine, store)
        try:
            report = tune(tasks, plan.machine, options, store, on_event, workers=workers)
        finally:
            if workers is not None:
                workers.close()
        if report.trials and not report.interrupted:
            _reconsider(plan, store, report, before, options)
    first = plan.variants()[0]
    store = record_store(first, logs, use_shipped)
    return TunedPlan(plan, choose(first.tasks, first.machine, store), report)


def _reconsider(
    plan: Plan, store: RecordStore, report: TuneReport, before: Mapping[str, Choice], options: TuneOptions
) -> None:
    """What serves the whole model best wins, by records of its own: kernels were measured alone."""
    tasks = {task.key: task for task in plan.tasks if task.space is not None}
    after = choose(tasks.values(), plan.machine, store)
    starts = [
        {key: choice.point for key, choice in one.items() if key in tasks and choice.point is not None}
        for one in (after, before)
    ]
    measured = {
        key: [
            (thaw(record.point), record.seconds)
            for record in sorted(store.measured(task).values(), key=lambda r: r.seconds or 0.0)
            if record.ok and record.point is not None and record.seconds is not None
        ]
        for key, task in tasks.items()
    }  # fmt: skip
    trials = None if options.trials is None else max(16, options.trials // 2)
    seconds = None if options.minutes is None else 20 * options.minutes
    found = plan.target.reconsider(plan.module, plan.tasks, starts, measured, trials, seconds)
    if found is None:
        return
    points, note = found
    report.notes.append(note)
    rows = {row.name: row for row in report.tasks}
    for key, point in points.items():
        task, chosen = tasks[key], after[key]
        if chosen.point is None or dict(point) == dict(chosen.point):
            continue
        default = dict(task.space.default(task.op, plan.machine))
        # A point may say more than the space's knobs: where its kernel stands in the model.
        names = {knob.name for knob in task.space.knobs(task.op, plan.machine)}
        alone = {point_key(p): s for p, s in measured[key]}
        seconds = alone.get(point_key({n: c for n, c in point.items() if n in names})) or chosen.seconds
        row = rows.get(task.name)
        store.append(
            new_record(
                task, store.site, {"point": dict(point)}, seconds=seconds, role=VERIFIED,
                default_seconds=alone.get(point_key(default)) or seconds,
            )
        )  # fmt: skip
        if row is not None:
            row.tuned_seconds, row.origin = seconds, choose_one(task, plan.machine, store).origin


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
