"""Tuning beside a process that eats all cores for ten seconds at a time: the same winners, or no winners.

    python -m tests.campaign.busy_neighbour [--trials 24] [--period 10]

Tunes a few kernels twice, on an idle machine and beside that process, each time with records of its own, and
then times both winners of each kernel side by side.  Exit status 1 when a winner of the busy run is more than
3% slower and the run did not say that it could not measure.  The machine should otherwise be idle.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile

from hetero_tvm.cli.common import load_target
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.records.choose import choose_one
from hetero_tvm.records.record import Site
from hetero_tvm.records.store import RecordStore
from hetero_tvm.schedules.task import Task, task_key
from hetero_tvm.search.loop import tune
from hetero_tvm.search.measure.forked_workers import ForkedWorkers
from hetero_tvm.search.measure.service import Job, contract_spec
from hetero_tvm.search.measure.spells import Spells
from hetero_tvm.search.options import TuneOptions

_NEIGHBOUR = """
import multiprocessing, sys, time
period = float(sys.argv[1])
def eat():
    while True:
        end = time.time() + period
        while time.time() < end:
            pass
        time.sleep(period)
for _ in range(multiprocessing.cpu_count()):
    multiprocessing.Process(target=eat, daemon=True).start()
time.sleep(1e6)
"""
_SLOWER = 0.03


def tasks() -> list[Task]:
    target = load_target("cpu", None)
    found = []
    for op in (Matmul((64,), 256, 256, ("bias",)), Matmul((128,), 768, 768, ("bias",)), Softmax((512,), 512)):
        space = next(space for space in target.spaces if space.refuses(op, target.machine) is None)
        workload = op.workload()
        found.append(
            Task(task_key(workload), op.label, op, workload, space, (("node",),), op.flops, op.nbytes)
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--period", type=float, default=10.0, metavar="SECONDS")
    options = parser.parse_args()
    machine, listed = load_target("cpu", None).machine, tasks()
    site, winners, told = Site.of(machine), {}, False
    with tempfile.TemporaryDirectory() as folder:
        for name in ("idle", "busy"):
            neighbour = None
            if name == "busy":
                command = [sys.executable, "-c", _NEIGHBOUR, str(options.period)]
                neighbour = subprocess.Popen(command, start_new_session=True)
            try:
                store = RecordStore(site, f"{folder}/{name}")
                report = tune(listed, machine, TuneOptions(trials=options.trials, spells=Spells()), store)
            finally:
                if neighbour is not None:
                    os.killpg(neighbour.pid, signal.SIGKILL)  # it and what it started
                    neighbour.wait()
            told = bool(report.disturbed or any("could not" in text for text in report.warnings))
            print(f"{name}: {report.trials} trials in {report.elapsed:.1f} s, {report.waited:.1f} s waited, "
                  f"{report.disturbed} not measured", *report.warnings, sep="\n  ")  # fmt: skip
            winners[name] = {task.key: choose_one(task, machine, store) for task in listed}
    worst = 0.0
    with ForkedWorkers(machine) as workers:
        for task in listed:
            pair = tuple({"point": dict(winners[name][task.key].point)} for name in ("idle", "busy"))
            workers.add_task(task.key, contract_spec(task.op, task.space))
            ((_, (idle, busy)),) = workers.measure([Job(task.key, pair, budget=0.1)])
            ratio = busy.seconds / idle.seconds
            worst = max(worst, ratio - 1 if pair[0] != pair[1] else 0.0)
            print(
                f"{task.name}: idle {idle.seconds * 1e3:.4f} ms, busy {ratio:.3f} of it",
                *(f"{name}: {one['point']}" for name, one in zip(winners, pair, strict=True)),
                sep="\n  ",
            )
    right = worst <= _SLOWER or told
    print(
        "the same winners"
        if worst <= _SLOWER
        else f"{worst:.1%} slower" + (", and it said so" if told else "")
    )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
