"""Every model of the zoo as one library for several GPU architectures; needs no GPU.

    python benchmarks/cuda_zoo.py --out results/zoo.json                      # full size, float32 and float16
    python benchmarks/cuda_zoo.py --models bert-base --precisions f16 --target cuda:sm_90

For each: seconds to import, build and export (of the clock, and of processors, which a busy machine changes
less), size of the library, kernels that use a stack (registers that spill live there), what static checks say
(launch limits; ``mma``, ``ldmatrix``, ``cp.async`` in the PTX of products), and where each kernel's schedule
comes from (a record, one of the project's spaces, a dlight rule, the generic last resort).  CUDA C++ that was
compiled before is not compiled again: ``HETERO_TVM_CACHE=$(mktemp -d)/native`` measures a first build.
A finished row is kept in the file, so that a run that is cut off goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.gpu import static_checks
from hetero_tvm import zoo
from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.compile.build import BuiltModel
from hetero_tvm.targets.cuda import codegen, compilers, toolchain

TARGET = "cuda:sm_80,sm_90"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    full = [name for name in zoo.names() if not name.endswith("-tiny")]
    parser.add_argument("--models", nargs="+", default=full, choices=zoo.names(), metavar="NAME")
    precisions = ["f32", "tf32", "f16", "bf16"]
    parser.add_argument("--precisions", nargs="+", default=["f32", "f16"], choices=precisions)
    parser.add_argument("--target", default=TARGET)
    parser.add_argument("--out", type=Path, help="JSON file to write, and to go on with")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if options.out is not None and options.out.exists():
        rows = json.loads(options.out.read_text())
    for name in options.models:
        for precision in options.precisions:
            key = {"model": name, "precision": precision, "target": options.target}
            if any(key.items() <= row.items() and "error" not in row for row in rows):
                continue
            row = {**key, **measure(name, precision, options.target)}
            rows = [old for old in rows if not key.items() <= old.items()] + [row]
            print(line(row), flush=True)
            if options.out is not None:
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if any("error" in row or row["problems"] for row in rows) else 0


def measure(name: str, precision: str, target: str) -> dict[str, Any]:
    """Build and export one model; what came of it."""
    toolchain.Toolchain.keeps_ptx = True  # the static checks read it
    clock = Clock()
    try:
        model = import_model(f"zoo:{name}")
        clock.lap("import")
        optimized = optimize_model(model, target, precision=precision)
        with codegen.collect() as modules:
            built = build_model(optimized, use_shipped=False)
        clock.lap("build")
        with tempfile.TemporaryDirectory() as folder:
            path = built.export(folder)
            size = path.stat().st_size
        clock.lap("export")
    except Exception as error:  # a model that does not build is a row, not the end of the table
        return {"error": str(error).strip().splitlines()[0]}
    spills = {
        arch: {kernel: known["stack"] for kernel, known in kernels.items() if known["stack"]}
        for arch, kernels in built.facts.items()
    }
    return {
        "seconds": clock.wall,
        "processor_seconds": clock.busy,
        "megabytes": round(size / 1e6, 1),
        "kernels": {arch: len(kernels) for arch, kernels in built.facts.items()},
        "spills": spills,
        "problems": static_checks.problems(built, modules, compilers.find()),
        "sources": sources(built),
    }


class Clock:
    """Seconds of steps: of the clock, and of processors in this process and its children."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = {}
        self.busy: dict[str, float] = {}
        self._last = self._now()

    def lap(self, name: str) -> None:
        now = self._now()
        self.wall[name], self.busy[name] = (round(b - a, 1) for a, b in zip(self._last, now, strict=True))
        self._last = now

    @staticmethod
    def _now() -> tuple[float, float]:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return time.monotonic(), sum(one.ru_utime + one.ru_stime for one in used)


def sources(built: BuiltModel) -> dict[str, int]:
    """Distinct kernels of the first architecture by where their schedule comes from."""
    target = built.optimized.variants()[0].target
    found: Counter[str] = Counter()
    for task in built.optimized.variants()[0].tasks:
        if built.choices[task.key].origin != "default":
            found["record"] += 1
        elif task.space is not None:
            found[task.space.name] += 1
        else:
            function = target.schedule_generic(task.workload)
            found[str((function.attrs or {}).get("hetero.rule", "bound already"))] += 1
    return dict(found)


def line(row: dict[str, Any]) -> str:
    """A row of the Markdown table."""
    if "error" in row:
        return f"| {row['model']} | {row['precision']} | {row['error']} | | | | | |"
    by = ", ".join(f"{count} {name}" for name, count in sorted(row["sources"].items(), key=lambda x: -x[1]))
    spills = sum(map(len, row["spills"].values()))
    seconds, kernels = round(sum(row["processor_seconds"].values())), max(row["kernels"].values(), default=0)
    facts = [seconds, row["megabytes"], kernels, spills, len(row["problems"])]
    cells = [row["model"], row["precision"], *facts, by]
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    sys.exit(main())
