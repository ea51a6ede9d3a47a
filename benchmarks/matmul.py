"""Single matrix products: share of the FMA peak that a micro-benchmark measures in the same run.

    python benchmarks/matmul.py [--trials 32] [--json FILE] [MxKxN ...]

Each product is tuned with the given number of trials (0: the default point), then timed with
rotating inputs, interleaved with the peak measurement.  Prints GFLOP/s, per cent of peak and the
tuning throughput (unique, valid, checked trials per second of search wall time).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile

from hetero_tvm import host
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.records.record import Site
from hetero_tvm.records.store import RecordStore
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.cpu.products.matmul import MatmulSpace
from hetero_tvm.schedules.task import Task, task_key
from hetero_tvm.search.loop import TuneOptions, tune
from hetero_tvm.search.measure.forked_workers import ForkedWorkers, start_early
from hetero_tvm.search.measure.service import Job, contract_spec
from hetero_tvm.targets.registry import parse_target

SHAPES = ("128x384x1536", "1024x1024x1024", "197x768x3072", "7x768x2048", "128x768x768", "1x2048x1000")


def task_of(shape: str) -> Task:
    """Task of ``MxKxN``, a plain product of float32 matrices."""
    m, k, n = (int(extent) for extent in shape.split("x"))
    op = Matmul((m,), n, k)
    workload = op.workload()
    calls = (("product",),)
    return Task(task_key(workload), op.label, op, workload, MatmulSpace(), calls, op.flops, op.nbytes)


def measure(task: Task, point: Point, machine: CpuModel, rounds: int = 5) -> tuple[float, float]:
    """Best seconds of the kernel and best peak in GFLOP/s, asked in turn."""
    best, peak = float("inf"), 0.0
    with ForkedWorkers(machine) as workers:
        workers.add_task(task.name, contract_spec(task.op, task.space))
        for _ in range(rounds):
            peak = max(peak, host.measure_peak(machine.threads))
            for _, results in workers.measure([Job(task.name, ({"point": point},))]):
                best = min([best, *(result.seconds for result in results if result.ok)])
    if best == float("inf"):
        raise RuntimeError(f"{task.name}: the kernel was never measured")
    return best, peak


def tuned(task: Task, machine: CpuModel, trials: int) -> tuple[Point, float | None]:
    """Best point after a search from nothing (without trials: the default), and trials per second."""
    point = dict(task.space.default(task.op, machine))
    if not trials:
        return point, None
    start_early(machine)
    with tempfile.TemporaryDirectory() as logs:
        store = RecordStore(Site.of(machine), logs)
        report = tune([task], machine, TuneOptions(trials=trials), store)
        record = store.best(task)
    return dict(record[0].point) if record else point, report.trials_per_second


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shapes", nargs="*", default=SHAPES, metavar="MxKxN")
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    machine = parse_target("cpu").machine
    rows = []
    for shape in options.shapes or SHAPES:
        task = task_of(shape)
        point, rate = tuned(task, machine, options.trials)
        seconds, peak = measure(task, point, machine)
        gflops = task.flops / seconds / 1e9
        row = {"shape": shape, "gflops": gflops, "peak": peak, "share": gflops / peak, "trials_per_s": rate}
        rows.append({**row, "point": dict(point)})
        speed = f"{rate:5.1f} trials/s" if rate else "no search"
        share = f"{gflops / peak:6.1%} of {peak:.1f}"
        print(f"{shape:16} {gflops:6.1f} GFLOP/s  {share}  {speed}  {point}", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            document = {"machine": json.loads(machine.to_json()), "trials": options.trials, "rows": rows}
            json.dump(document, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
