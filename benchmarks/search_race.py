"""CPU seconds in which our search reaches what MetaSchedule, as it comes with TVM, finds in 256 trials.

    python benchmarks/search_race.py run --out DIR [--only LABEL ...] [--trials 256]      hours of CPU
    python benchmarks/search_race.py compare --out DIR [--json FILE]                      on an idle machine

``run`` searches each operator twice, each time in a process of its own: with this project's spaces and 64
trials, and with ``tune_tir`` as it comes, on the same unscheduled TensorIR (its builder is given 90 s for a
candidate, as it imports for 25 s).  What counts is CPU seconds of all processes, imports included, so that
other load matters little.  ``compare`` times the best stock kernels and each of our best ones so far, in
turn, and tells the first that is as fast.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from hetero_tvm.cli.common import load_target
from hetero_tvm.ops.attention import Attention
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.task import Task, task_key
from hetero_tvm.targets.cpu.tuner import GENERIC

OURS = 64
"""Trials of our search."""


def operators() -> dict[str, FusedOp]:
    """Operators by label."""
    listed = [
        Matmul((128,), 768, 768, ("bias",)),
        Matmul((64,), 256, 256, ("bias", "relu")),
        Conv2d(1, 64, 28, 28, 64, (3, 3), padding=(1, 1, 1, 1), epilogue=("bias", "relu")),
        Attention(1, 12, 128, 128, 32, 0.2, 12, packed=True),
        Softmax((1536,), 128),
    ]
    return {op.label: op for op in listed}


def cpu_seconds() -> float:
    """CPU seconds of this process and of all that it has started, the living and the ended."""
    tick, rows = os.sysconf("SC_CLK_TCK"), {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            rows[int(entry.name)] = int(fields[1]), sum(map(int, fields[11:15])) / tick
    total, family = 0.0, [os.getpid()]
    while family:
        one = family.pop()
        total += rows[one][1]
        family += [pid for pid, (parent, _) in rows.items() if parent == one]
    return total


def task_of(op: FusedOp) -> Task:
    """The operator as a task, with the space that serves it."""
    target = load_target("cpu", None)
    space = next(space for space in target.spaces if space.refuses(op, target.machine) is None)
    workload = op.workload()
    return Task(task_key(workload), op.label, op, workload, space, (("",),), op.flops, op.nbytes)


def search_ours(op: FusedOp) -> dict[str, Any]:
    """Points that were the best so far, with the CPU seconds after which they were known."""
    from hetero_tvm.records.record import Site
    from hetero_tvm.records.store import RecordStore
    from hetero_tvm.search.loop import tune
    from hetero_tvm.search.measure.spells import Spells
    from hetero_tvm.search.options import TuneOptions

    machine, task = load_target("cpu", None).machine, task_of(op)
    steps: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        store = RecordStore(Site.of(machine), folder)

        def note(event: dict[str, Any]) -> None:
            if event["event"] == "trial" and event["status"] == "ok":
                best = min((r for r in store.trials(task) if r.ok), key=lambda record: record.seconds)
                if not steps or steps[-1]["point"] != best.point:
                    steps.append({"trials": event["trials"], "cpu": cpu_seconds(), "point": best.point})

        tune([task], machine, TuneOptions(trials=OURS, spells=Spells()), store, note)
    return {"steps": steps, "cpu": cpu_seconds()}


def search_stock(op: FusedOp, trials: int) -> dict[str, Any]:
    """The best traces of ``tune_tir``, and its CPU seconds."""
    from hetero_tvm.host.tvm import meta_schedule as ms
    from hetero_tvm.host.tvm import tvm
    from hetero_tvm.schedules.sampled import trace_text

    target = tvm.target.Target(load_target("cpu", None).machine.codegen_target())
    module = tvm.IRModule({"main": op.workload().with_attr("global_symbol", "main")})
    with tempfile.TemporaryDirectory() as folder:
        builder = ms.builder.LocalBuilder(timeout_sec=90.0)
        database = ms.tune_tir(module, target, folder, max_trials_global=trials, builder=builder)
        (workload,) = {record.workload for record in database.get_all_tuning_records()}
        best = database.get_top_k(workload, 3)
        count = len(database.get_all_tuning_records())
    found = [{"trace": trace_text(r.trace), "seconds": [float(s) for s in r.run_secs]} for r in best]
    return {"best": found, "records": count, "cpu": cpu_seconds()}


def compare(op: FusedOp, ours: dict[str, Any], stock: dict[str, Any]) -> dict[str, Any]:
    """Least seconds of several turns of each candidate, and the first of ours that beats all stock ones."""
    from hetero_tvm.search.measure.forked_workers import ForkedWorkers
    from hetero_tvm.search.measure.service import Job, contract_spec, generic_spec

    target, task = load_target("cpu", None), task_of(op)
    steps = ours["steps"]
    candidates = [("ours", {"point": step["point"]}) for step in steps]
    candidates += [("stock", {"trace": one["trace"]}) for one in stock["best"]]
    seconds = [float("inf")] * len(candidates)
    with ForkedWorkers(target.machine) as workers:
        workers.add_task("ours", contract_spec(op, task.space))
        workers.add_task("stock", generic_spec(task.workload, GENERIC))
        # A stock kernel is checked against the unscheduled one, which is slow: once.
        plain = Job("stock", ({"plain": True},), store_reference=True, run_seconds=80.0)
        for _, (result,) in workers.measure([plain]):
            if not result.ok:
                raise SystemExit(f"{op.label}: {result.text}")
        for _ in range(3):
            jobs = [Job(name, (one,), budget=0.05) for name, one in candidates]
            for index, (result,) in workers.measure(jobs):
                if result.ok:
                    seconds[index] = min(seconds[index], result.seconds)
    best = min(seconds[len(steps) :])
    reached = next((n for n, s in enumerate(seconds[: len(steps)]) if s <= best), None)
    return {
        "operator": op.label,
        "stock": {"ms": best * 1e3, "records": stock["records"], "cpu": stock["cpu"]},
        "ours": {"ms": min(seconds[: len(steps)]) * 1e3, "cpu": ours["cpu"]},
        "default_ms": seconds[0] * 1e3,
        "reached": None if reached is None else {k: steps[reached][k] for k in ("trials", "cpu")},
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("run", "compare", "ours", "stock"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[], metavar="LABEL")
    parser.add_argument("--trials", type=int, default=256)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for label, op in operators().items():
        paths = {name: options.out / f"{label}.{name}.json" for name in ("ours", "stock")}
        if options.only and label not in options.only:
            continue
        if options.command == "run":
            for name, path in paths.items():
                if not path.exists():
                    command = [sys.executable, __file__, name, "--out", str(options.out), "--only", label]
                    subprocess.run([*command, "--trials", str(options.trials)], check=True)
        elif options.command == "compare":
            if all(path.exists() for path in paths.values()):
                both = {name: json.loads(path.read_text()) for name, path in paths.items()}
                rows.append(compare(op, **both))
                print(json.dumps(rows[-1]), flush=True)
        else:  # one side, in this process
            found = search_ours(op) if options.command == "ours" else search_stock(op, options.trials)
            paths[options.command].write_text(json.dumps(found))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
