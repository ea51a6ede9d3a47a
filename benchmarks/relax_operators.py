"""Every operator of Relax at a realistic size, beside PyTorch or NumPy.

    python benchmarks/relax_operators.py [--only PATTERN ...] [--json FILE]

Kernels are default ones, two threads on both sides.  All of ours are timed first, then all of the others', so
that no thread of one waits for work while the other computes.  ``--json`` adds to a file that exists.
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TVM_NUM_THREADS", "2")

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.relax_cases import CASES, Inputs
from hetero_tvm import host
from hetero_tvm.compile.kernels import apply_schedules
from hetero_tvm.compile.tasks import tasks_of
from hetero_tvm.host.tvm import relax, tvm
from hetero_tvm.relax_passes.pipeline import lower, optimize
from hetero_tvm.targets.registry import parse_target

_BAR = 3.0
_TARGET = parse_target("cpu")


def compiled(name: str) -> tuple[Callable[[], Any], list[np.ndarray]]:
    """A call of our function, and its inputs."""
    inputs, builder = Inputs(), relax.BlockBuilder()
    result = CASES[name].make(inputs)
    with builder.function("main", inputs.variables):
        with builder.dataflow():
            output = builder.emit_output(result)
        builder.emit_func_output(output)
    with _TARGET.scope():
        module, sources, _ = optimize(builder.get(), {}, _TARGET.fusions)
        module = apply_schedules(module, tasks_of(module, sources, _TARGET), {}, {}, _TARGET)
        module, _ = lower(_TARGET.finalize(module), None, _TARGET.in_place, _TARGET.device_passes)
        executable = _TARGET.compile(module).executable
    machine = relax.VirtualMachine(executable, tvm.cpu())
    machine.set_input("main", *(tvm.runtime.tensor(array) for array in inputs.arrays))
    return lambda: machine.invoke_stateful("main"), inputs.arrays


def milliseconds(call: Callable[[], Any], seconds: float) -> float:
    """The 10th percentile of calls."""
    call()
    call()
    times, stop = [], time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < stop:
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return float(np.percentile(times, 10))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="PATTERN", nargs="*", default=["*"])
    parser.add_argument("--seconds", type=float, default=0.04)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    names = [n for n in CASES if any(fnmatch.fnmatch(n, pattern) for pattern in options.only)]
    ours: dict[str, tuple[float, list[np.ndarray]]] = {}
    rows: dict[str, dict[str, Any]] = {}
    for name in names:
        try:
            call, arrays = compiled(name)
            ours[name] = milliseconds(call, options.seconds), arrays
        except Exception as error:  # a row of the table
            rows[name] = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    torch.set_num_threads(2)
    time.sleep(0.5)
    for name, (mine, arrays) in ours.items():
        tensors = [torch.from_numpy(array) for array in arrays]
        with torch.inference_mode():
            theirs = milliseconds(lambda t=tensors, n=name: CASES[n].peer(*t), options.seconds)
        rows[name] = {
            "ours_ms": round(mine, 4),
            "best_ms": round(theirs, 4),
            "ratio": round(mine / theirs, 3),
        }
    for name, row in sorted(rows.items(), key=lambda item: -item[1].get("ratio", 1e9)):
        print(f"{name:30} " + " ".join(f"{key} {value}" for key, value in row.items()))
    slow = [name for name, row in rows.items() if row.get("ratio", 1e9) > _BAR]
    print(f"{len(rows)} operators, {len(slow)} above {_BAR}: {' '.join(slow)}")
    if options.json:
        path, here = Path(options.json), host.detect()
        old = json.loads(path.read_text())["rows"] if path.exists() else {}
        document = {
            "machine": here.model_name,
            "microarchitecture": here.microarchitecture,
            "threads": 2,
            "date": datetime.date.today().isoformat(),
            "rows": {n: (old | rows)[n] for n in CASES if n in old | rows},
        }
        path.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
