"""Single operators beside ONNX Runtime, without any search.

    python benchmarks/operators.py [--only PATTERN] [--drawn 1:3] [--open first] [--json FILE]

Each case of ``operator_cases.py`` and of the three ``*_operator_cases.py`` that add to its list is built
without records and compared with ONNX Runtime: one process each, pinned to the same cores, asked in turn.
``--build`` stops before anything is timed and ``--keep`` takes what ``--folder`` holds already, so that a
busy machine may build and a quiet one measure.  ``--json`` adds to a file that exists; ``--report FILE``
prints the table of such a file.  ``--drawn`` takes cases of ``drawn_operator_cases.py`` in their stead, of
which any number shows what was looked at least.  With ``--open first`` (or ``last``) an axis of the first
input is open, from a quarter of its extent on, in the file that both get.
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import benchmarks.drawn_contraction_cases  # noqa: F401  more of KINDS
import benchmarks.drawn_move_cases  # noqa: F401  more of KINDS
import benchmarks.further_operator_cases  # noqa: F401  more of CASES
import benchmarks.model_operator_cases  # noqa: F401  more of CASES
import benchmarks.more_operator_cases  # noqa: F401  more of CASES
from benchmarks.drawn_operator_cases import drawn_cases
from benchmarks.open_sizes import WHICH, opened
from benchmarks.operator_cases import CASES, Net, build

_TOLERANCE = 2e-4
"""Largest difference from ONNX Runtime, of the largest result: some of its own kernels are not better."""
_NOTICEABLE = 0.2
"""Milliseconds below which a call's own cost is what is seen."""


@dataclass(frozen=True)
class Turns:
    """Turns of each runtime, seconds of calls in each, and seconds between them."""

    rounds: int = 4
    seconds: float = 0.05
    pause: float = 0.25


class Worker:
    """Process of one runtime."""

    def __init__(self, runtime: str, cores: list[int]):
        self.runtime, self._cores = runtime, cores
        threads = str(len(cores))
        variables = dict.fromkeys(("OMP_NUM_THREADS", "TVM_NUM_THREADS"), threads)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hetero_tvm.benchmarking.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **variables, "TVM_BIND_THREADS": "0"},
            text=True,
        )

    def load(self, folder: Path) -> dict[str, Any]:
        """Prepare a case; its outputs are written beside it."""
        paths = {
            "library": folder / "model.so",
            "model": folder / "model.onnx",
            "inputs": folder / "inputs.npz",
        }
        task = {key: str(path) for key, path in paths.items()}
        outputs = str(folder / f"{self.runtime}.npz")
        return self._ask(
            {"runtime": self.runtime, "cores": self._cores, "outputs": outputs, "clean_model": None, **task}
        )

    def turn(self, seconds: float) -> list[float]:
        """Milliseconds of each call."""
        return self._ask({"seconds": seconds})["milliseconds"]

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        print(json.dumps(message), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise RuntimeError(f"{self.runtime}: {answer['error']}")
        return answer

    def stop(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def prepare(net: Net, folder: Path, target: str, keep: bool, open_axis: str | None = None) -> None:
    """Write the file, the inputs and our library of a case, with an open axis where one is asked for."""
    import hetero_tvm

    library = folder / "model.so"
    if keep and library.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "inputs.npz", **net.values)
    forms = [(net.model(), None)] if open_axis is None else list(opened(net, open_axis))
    for number, (model, shapes) in enumerate(forms, 1):
        onnx.save(model, str(folder / "model.onnx"))
        try:
            imported = hetero_tvm.import_model(str(folder / "model.onnx"), shapes=shapes)
            optimized = hetero_tvm.optimize_model(imported, target)
            hetero_tvm.build_model(optimized, logs=folder / "logs", use_shipped=False).export(library)
            return
        except hetero_tvm.HeteroTVMError:
            if number == len(forms):  # none of the axes may be open
                raise


def measure(name: str, folder: Path, workers: list[Worker], settings: Turns) -> dict[str, Any]:
    """Times and numbers of a case."""
    turns: list[list[list[float]]] = [[], []]
    for worker in workers:
        worker.load(folder)
    for number in range(settings.rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            time.sleep(settings.pause)
            turns[which].append(workers[which].turn(settings.seconds))
    ours, theirs = (
        {
            "p10_ms": float(np.percentile(np.concatenate(taken), 10)),
            "min_ms": min(map(min, taken)),
            "rounds_p10_ms": [float(np.percentile(turn, 10)) for turn in taken],
        }
        for taken in turns
    )
    return {
        "case": name,
        "ratio": ours["p10_ms"] / theirs["p10_ms"],
        "ratio_min": ours["min_ms"] / theirs["min_ms"],
        "difference": difference(*(folder / f"{worker.runtime}.npz" for worker in workers)),
        "hetero_tvm": ours,
        "onnxruntime": theirs,
    }


def difference(ours: Path, theirs: Path) -> float:
    """Largest difference, of the largest result."""
    worst = 0.0
    with np.load(ours) as a, np.load(theirs) as b:
        for name in b.files:
            x, y = a[name].astype(np.float64), b[name].astype(np.float64)
            if x.shape != y.shape or not np.array_equal(np.isnan(x), np.isnan(y)):
                return math.inf
            if x.size:
                worst = max(worst, float(np.nanmax(np.abs(x - y)) / max(np.nanmax(np.abs(y)), 1e-30)))
    return worst


def report(rows: list[dict[str, Any]]) -> None:
    """Table, the slowest first, and the geometric mean."""
    for row in sorted(rows, key=lambda row: -row.get("ratio", math.inf)):
        if "error" in row:
            print(f"{row['case']:40} {row['error']}")
            continue
        wrong = "   WRONG" if row["difference"] > _TOLERANCE else ""
        ours, theirs = row["hetero_tvm"], row["onnxruntime"]
        print(
            f"{row['case']:40} {ours['p10_ms']:8.3f} ms {theirs['p10_ms']:8.3f} ms   {row['ratio']:6.3f} "
            f"{row['ratio_min']:6.3f}   {row['difference']:.0e}{wrong}"
        )
    good = [row for row in rows if "error" not in row]
    if good:
        mean = math.exp(sum(math.log(row["ratio"]) for row in good) / len(good))
        slow = [r for r in good if r["ratio"] > 1.3 and r["onnxruntime"]["p10_ms"] > _NOTICEABLE]
        print(f"{len(good)} cases, ours / ONNX Runtime: geometric mean {mean:.3f}, {len(slow)} above 1.3")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="PATTERN", nargs="*", default=["*"])
    parser.add_argument("--part", metavar="K/N", default="1/1", help="every N-th case from the K-th on")
    parser.add_argument("--drawn", metavar="FIRST:LAST", help="drawn cases of these numbers in their stead")
    parser.add_argument("--open", choices=WHICH, help="which axes of the first input are open")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--folder", metavar="FOLDER")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=0.05)
    parser.add_argument("--pause", type=float, default=0.25)
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--report", metavar="FILE")
    options = parser.parse_args()
    if options.report:
        report(json.loads(Path(options.report).read_text())["rows"])
        return 0
    first, step = (int(part) for part in options.part.split("/"))
    cases = drawn_cases(*map(int, options.drawn.split(":"))) if options.drawn else CASES
    names = [n for n in cases if any(fnmatch.fnmatch(n, f"*{pattern}*") for pattern in options.only)]
    names = names[first - 1 :: step]
    from hetero_tvm import host

    cores = list(host.available_cores())[:2]
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folders = {n: Path(options.folder or scratch) / n.replace(" ", "_") for n in names}
        for name, folder in folders.items():
            try:
                prepare(build(name, cases), folder, options.target, options.keep, options.open)
            except Exception as error:  # a row of the table
                rows[name] = {"case": name, "error": f"{type(error).__name__}: {error}".splitlines()[0]}
                print(rows[name], flush=True)
        if options.build:
            return len(rows)
        settings = Turns(options.rounds, options.seconds, options.pause)
        workers = [Worker(runtime, cores) for runtime in ("hetero_tvm", "onnxruntime")]
        for name in names:
            if name in rows:
                continue
            try:
                rows[name] = measure(name, folders[name], workers, settings)
            except RuntimeError as error:
                rows[name] = {"case": name, "error": str(error)}
        for worker in workers:
            worker.stop()
    report(list(rows.values()))
    if options.json:
        _merge(Path(options.json), rows, options)
    return 0


def _merge(path: Path, rows: dict[str, dict[str, Any]], options: argparse.Namespace) -> None:
    from hetero_tvm import host

    old = json.loads(path.read_text())["rows"] if path.exists() else []
    kept = {row["case"]: row for row in old} | rows
    here = host.detect()
    document = {
        "machine": here.model_name,
        "microarchitecture": here.microarchitecture,
        "target": options.target,
        "threads": 2,
        "date": datetime.date.today().isoformat(),
        "rows": [kept[name] for name in kept],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
