"""Simulated cycles of models on the NPU: by default, and tuned with the shipped command.

    python benchmarks/npu_tuned.py MODEL:TARGET:TRIALS ... [--logs DIR] [--out results/npu-tuned.json]

Runs ``python -m hetero_tvm.tune zoo:MODEL --target TARGET --trials TRIALS`` (with an empty folder of records
unless one is given), then compiles the model twice from scratch, without records and from those that the run
left, and takes the cycles of what a library would contain.  Rows of the file with the same model and target
are replaced.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hetero_tvm import api
from hetero_tvm.records.choose import choose
from hetero_tvm.records.combinations import WholeModel
from hetero_tvm.targets.npu.device.driver import open_device
from hetero_tvm.targets.npu.regions.lowering import compile_regions

RESULTS = Path(__file__).parent / "results" / "npu-tuned.json"


def tuned(model: str, target: str, trials: int, logs: str) -> dict[str, Any]:
    """Row of a run: the command's own account, and the cycles of both builds."""
    command = [sys.executable, "-m", "hetero_tvm.tune", f"zoo:{model}", "--target", target]
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as out:
        arguments = ["--trials", str(trials), "--logs", logs, "--no-shipped-records", "--out", out, "--json"]
        done = subprocess.run([*command, *arguments], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed with status {done.returncode}: see above")
    search = json.loads(done.stdout)["search"]
    seconds = time.monotonic() - started
    optimized = api.optimize_model(api.import_model(f"zoo:{model}"), target)
    store = api.record_store(optimized, logs, use_shipped=False)
    chosen = choose(optimized.tasks, optimized.machine, store)
    points = {key: choice.point for key, choice in chosen.items() if choice.point is not None}
    default, best = cycles(optimized, {}), cycles(optimized, points)
    return {
        "model": model,
        "target": target,
        "trials": trials,
        "whole_model_trials": len(store.trials(WholeModel.of(optimized.tasks))),
        "default": round(default),
        "tuned": round(best),
        "ratio": round(best / default, 4),
        "seconds": round(seconds),
        "search_seconds": round(search["elapsed"]),
        "points": {
            task.name: points[task.key]
            for task in optimized.tasks
            if chosen[task.key].origin != "default" and task.key in points
        },
    }


def cycles(optimized: Any, points: dict[str, Any]) -> float:
    """Cycles of all regions as a library contains them."""
    with open_device(optimized.target.spec) as device:
        regions = compile_regions(optimized.module, optimized.tasks, points, optimized.target)
        return sum(device.time(device.load(region.stream)).counters.cycles for region in regions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="*", default=["minilm-l6:npu:edge:64"], metavar="MODEL:TARGET:TRIALS")
    parser.add_argument("--logs", help="folder of records to continue from")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    for run in options.runs:
        model, _, rest = run.partition(":")
        target, _, trials = rest.rpartition(":")
        with tempfile.TemporaryDirectory() as fresh:
            row = tuned(model, target, int(trials), options.logs or fresh)
        print(json.dumps(row), flush=True)
        rows = json.loads(options.out.read_text()) if options.out.exists() else []
        rows = [r for r in rows if (r["model"], r["target"]) != (model, target)]
        options.out.write_text(json.dumps([*rows, row], indent=1) + "\n")


if __name__ == "__main__":
    main()
