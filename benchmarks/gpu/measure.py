"""One case: search its space, then check and time the winner, the default and the peers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.case import COPY, Case
from benchmarks.gpu.worker import Worker
from hetero_tvm.machines.base import Machine
from hetero_tvm.ops.tensor_program import TensorProgram
from hetero_tvm.records.choose import choose_one
from hetero_tvm.records.record import VERIFIED, Site, new_record
from hetero_tvm.records.store import RecordStore
from hetero_tvm.runtime.cuda import devices as cuda_runtime
from hetero_tvm.schedules.base import DesignSpace, thaw
from hetero_tvm.schedules.task import Task, task_key
from hetero_tvm.search.loop import TuneOptions
from hetero_tvm.search.loop import tune as search
from hetero_tvm.search.measure.device_workers import DeviceWorkers, batch_size
from hetero_tvm.search.measure.service import Limits
from hetero_tvm.search.outcome import TuneReport
from hetero_tvm.targets.base import Target
from hetero_tvm.targets.cuda import kernel_facts

LIMITS = Limits(build_seconds=90.0, run_seconds=8.0, memory=1 << 40)
"""A candidate that hangs costs no more than this; nothing here runs for a second.  Address space is not
limited: a driver may reserve as much as the GPU has memory."""
_ASK_SECONDS = 120.0
_LEAST_SECONDS = 10.0
"""Time limit of a search or a request that is begun when the time is nearly over."""
_AFTER_SEARCH = 15.0
"""Seconds that a search leaves for checking and timing."""
_OVERTIME = 50.0
"""Seconds after the end of the time in which what has begun must come to its end."""
_TOLD_FAILURES = 3


@dataclass
class Setup:
    """Everything that cases are measured with.

    Parameters
    ----------
    target : of the GPU that is there.
    workers : compile and time candidates.
    worker : checks and times points, and PyTorch.
    logs : folder of tuning records.
    trials : candidates of a case whose share is 1.
    small : cases are the small ones of their sections.
    left : seconds until nothing is to be begun any more; negative afterwards.
    """

    target: Target
    workers: DeviceWorkers
    worker: Worker
    logs: Path
    trials: int
    small: bool
    left: Callable[[], float] = lambda: float("inf")

    def ask(self, what: str, section: str, case: Case, **more: Any) -> dict[str, Any]:
        """Ask the worker about a case; its answer."""
        request = {"do": what, "section": section, "label": case.label, "small": self.small, **more}
        return self.worker.ask(request, self.seconds(_ASK_SECONDS))

    def seconds(self, most: float) -> float:
        """Time limit of a request, such that the command ends soon after its time is over."""
        return max(_LEAST_SECONDS, min(most, self.left() + _OVERTIME))


def task_of(case: Case, space: DesignSpace) -> Task:
    """Kernel as a task: its key is that of the same kernel in a model, and so are its records."""
    op, workload, calls = case.op, case.op.workload(), (("benchmark",),)
    return Task(task_key(workload), op.label, op, workload, space, calls, max(1, op.flops), op.nbytes)


def store_of(target: Target, logs: Path) -> RecordStore:
    """Tuning records of the GPU that is here."""
    return RecordStore(Site.of(target.machine, target.record_kind, cuda_runtime.device().name), logs)


def measure_case(section: str, case: Case, setup: Setup) -> dict[str, Any]:
    """Measure a case; its entry, plain JSON: points and their times, the search, peers, goals."""
    target = case.target(setup.target)
    space, reasons = target.space_for(case.op)
    if space is None:
        return {"status": "refused", "why": reasons}
    task, store = task_of(case, space), store_of(target, setup.logs)
    setup.workers.use(target.machine)
    setup.workers.spent.clear()
    trials = setup.trials if setup.small else max(8, round(setup.trials * case.trials))
    seconds = max(_LEAST_SECONDS, setup.left() - _AFTER_SEARCH)
    options = TuneOptions(
        trials=trials, minutes=seconds / 60, limits=LIMITS, batch=batch_size(trials, 1, setup.workers.slots)
    )
    report = search([task], target.machine, options, store, workers=setup.workers)
    points = _points(case, task, target, store)
    timed = {name: setup.ask("time", section, case, point=point) for name, point in points.items()}
    entry: dict[str, Any] = {
        "status": "ok",
        "space": space.name,
        "precision": case.precision,
        **({} if case.op.kind == TensorProgram.kind else {"op": case.op.to_json()}),
        "flops": case.op.flops,
        "nbytes": case.op.nbytes,
        "points": {name: {"point": points[name], **_with_rates(case, timed[name])} for name in points},
        "search": _search_facts(report, store, task, trials),
    }
    entry |= verdict(points, timed, task, target.machine, store)
    if entry.get("best"):
        entry |= _rates(case, timed[entry["best"]])
    entry |= _compared(section, case, setup, entry.get("seconds"))
    return entry | families_of(case, points, timed, entry["peers"])


def verdict(
    points: dict[str, Any], timed: dict[str, Any], task: Task, machine: Machine, store: RecordStore
) -> dict[str, Any]:
    """Best of those points that are right; the entry is not ``ok`` when any is wrong.

    Where that is not the one that builds would take, a record makes it so: these checks are stricter and
    these times longer than the search's.
    """
    found: dict[str, Any] = {}
    good = {name: one for name, one in timed.items() if one["status"] == "ok"}
    for name, one in timed.items():
        if name not in good:
            why = one.get("why") or one.get("error")
            found = {"status": one["status"], "why": f"{name} {points[name]}: {why}"}
    if not good:
        return found
    best = min(good, key=lambda name: (good[name].get("seconds") or 0.0, name != "tuned"))
    found |= {"best": best, "error": good[best]["error"]}
    seconds, default = good[best].get("seconds"), good.get("default", {}).get("seconds")
    if seconds and default:
        found["default_over_best"] = default / seconds
    chosen = choose_one(task, machine, store)
    if seconds and chosen.point is not None and dict(chosen.point) != points[best]:
        times = {"seconds": seconds, "default_seconds": default or seconds}
        store.append(new_record(task, store.site, {"point": points[best]}, role=VERIFIED, **times))
    return found


def families_of(
    case: Case, points: dict[str, Any], timed: dict[str, Any], peers: dict[str, Any]
) -> dict[str, Any]:
    """Best time of each family of the space, relative to the fastest peer."""
    theirs = [one["seconds"] for one in peers.values() if isinstance(one, dict) and one.get("seconds")]
    found = {}
    for family, belongs in case.families.items():
        ours = [one["seconds"] for name, one in timed.items() if one.get("seconds") and belongs(points[name])]
        if ours:
            found[family] = {"seconds": min(ours), "speed": min(theirs) / min(ours) if theirs else None}
    return {"families": found} if found else {}


def _points(case: Case, task: Task, target: Target, store: RecordStore) -> dict[str, Any]:
    """Points to time: the tuned one, the default, and the fastest of each family; each once."""
    tuned = dict(choose_one(task, target.machine, store).point)
    default = dict(task.space.default(task.op, target.machine))
    points = {"default": default}
    if tuned != default:
        points["tuned"] = tuned
    trials = sorted((r for r in store.trials(task) if r.ok), key=lambda record: record.seconds)
    for name, belongs in case.families.items():
        found = next((thaw(r.point) for r in trials if belongs(thaw(r.point))), None)
        if found is not None and found not in points.values():
            points[name] = found
    return points


def _search_facts(report: TuneReport, store: RecordStore, task: Task, trials: int) -> dict[str, Any]:
    records = store.trials(task)
    failed = [record for record in records if not record.ok]
    return {
        "trials": len(records),
        "asked": trials,
        "stopped": report.stopped,
        "elapsed": report.elapsed,
        "start_up": report.start_up,
        "spent": report.spent,
        "drift": report.drift,
        "failures": Counter(record.status for record in failed),
        "examples": [
            {"point": record.point, "status": record.status, "why": record.error[:300]}
            for record in failed[:_TOLD_FAILURES]
        ],
    }


def _with_rates(case: Case, timed: dict[str, Any]) -> dict[str, Any]:
    return timed | (_rates(case, timed) if timed["status"] == "ok" else {})


def _rates(case: Case, timed: dict[str, Any]) -> dict[str, Any]:
    """Rates that a point reaches, and what its kernels take of a multiprocessor."""
    seconds = timed.get("seconds")
    result: dict[str, Any] = {"seconds": seconds}
    if seconds:
        result["tflops"] = case.op.flops / seconds / 1e12
        result["bytes_per_second"] = case.op.nbytes / seconds
    if timed.get("facts"):
        worst = kernel_facts.worst(timed["facts"].values())
        names = ("registers", "stack", "shared", "threads", "grid", "occupancy")
        result |= {name: worst[name] for name in names}
    return result


def _compared(section: str, case: Case, setup: Setup, seconds: float | None) -> dict[str, Any]:
    """Times of the peers, our speed relative to theirs, and which goals are met."""
    answer = setup.ask("peers", section, case)
    found: dict[str, Any] = {"peers": answer.get("peers", answer)}
    theirs = {name: one.get("seconds") for name, one in answer.get("peers", {}).items()}
    if COPY in case.goals:
        copied = setup.ask("copy", section, case, nbytes=case.op.nbytes)
        rate = copied.get("bytes_per_second")
        found["peers"][COPY] = copied
        theirs[COPY] = case.op.nbytes / rate if rate else None
    speed = {name: other / seconds for name, other in theirs.items() if other and seconds}
    goals = {name: speed[name] >= least for name, least in case.goals.items() if name in speed}
    return {**found, "speed_of": speed, "goals": goals}
