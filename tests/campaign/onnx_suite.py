"""``python -m tests.campaign.onnx_suite``: the official ONNX backend suite, case by case, on the CPU target.

Each case is a model with inputs and expected outputs, as ``onnx.backend.test`` ships them.  A case is
*passed*, *refused* (one of our errors: the reason is kept), *wrong* (numbers beyond the case's own
tolerance), or *broken* (any other exception, or the end of the process).  Forked processes work through their
shares of the cases; one that dies costs the case that it was at, and a new one goes on after it.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

PASSED, REFUSED, WRONG, BROKEN = "passed", "refused", "wrong", "broken"


def cases(pattern: str = "") -> dict[str, Any]:
    """Name -> case of the suite's node tests and small whole graphs whose name contains ``pattern``."""
    from onnx.backend.test.loader import load_model_tests

    warnings.simplefilter("ignore")  # the suite computes infinities on purpose
    kinds = ("node", "simple", "pytorch-converted", "pytorch-operator")
    return {case.name: case for kind in kinds for case in load_model_tests(kind=kind) if pattern in case.name}


def data_sets(case: Any) -> Iterator[tuple[list[Any], list[Any]]]:
    """Inputs and expected outputs of a case, in order."""
    if case.model_dir is None:
        yield from case.data_sets
        return
    for folder in sorted(Path(case.model_dir).glob("test_data_set_*")):
        yield _values(folder, "input"), _values(folder, "output")


def _values(folder: Path, kind: str) -> list[Any]:
    files = sorted(folder.glob(f"{kind}_*.pb"), key=lambda path: int(path.stem.partition("_")[2]))
    values = []
    for file in files:
        tensor = onnx.TensorProto()
        tensor.ParseFromString(file.read_bytes())
        values.append(numpy_helper.to_array(tensor))
    return values


def _array(value: Any) -> np.ndarray:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def outcome(case: Any) -> tuple[str, str]:
    """How a case ends, and why."""
    from hetero_tvm.api import build_model, import_model, optimize_model
    from hetero_tvm.errors import HeteroTVMError
    from tests.campaign.graphs.judge import failed_inside

    try:
        model = case.model or onnx.load(Path(case.model_dir) / "model.onnx")
        built = build_model(optimize_model(import_model(model)), use_shipped=False)
        names = [spec.name for spec in built.optimized.model.signature.inputs]
        given = [value.name for value in model.graph.input]
        for inputs, expected in data_sets(case):
            arrays = dict(zip(given, map(_array, inputs), strict=False))
            results = built.run({name: np.array(arrays[name], order="C") for name in names})
            for index, (result, truth) in enumerate(zip(results, map(_array, expected), strict=True)):
                if fault := difference(result, truth, case.rtol, case.atol):
                    return WRONG, f"output {index}: {fault}"
    except HeteroTVMError as error:
        return BROKEN if failed_inside(error) else REFUSED, " ".join(str(error).split())[:400]
    except Exception as error:
        return BROKEN, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return PASSED, ""


def difference(result: np.ndarray, truth: np.ndarray, rtol: float, atol: float) -> str | None:
    """What is wrong with an output; None when it is within the case's tolerance.

    That is at least one unit in the last place of the output's largest value.  The suite's bfloat16 numbers
    are rounded after every step, and up to one unit off the exact ones; ours are rounded once, half a unit.
    Sums near zero of float32 numbers are no closer to zero than the largest of them is rounded.
    """
    if result.shape != truth.shape:
        return f"shape {result.shape}, not {truth.shape}"
    if result.dtype != truth.dtype:
        return f"dtype {result.dtype}, not {truth.dtype}"
    if truth.dtype.kind in "biuOSU":
        return None if np.array_equal(result, truth) else "other values"
    a, b = result.astype(np.float64), truth.astype(np.float64)
    if np.allclose(a, b, rtol=rtol, atol=max(atol, _unit(b, truth.dtype)), equal_nan=True):
        return None
    with np.errstate(invalid="ignore"):
        return f"largest difference {np.nanmax(np.abs(a - b), initial=0.0):.3g}, or NaN or infinity elsewhere"


def _unit(truth: np.ndarray, dtype: np.dtype) -> float:
    """Unit in the last place of the largest finite value."""
    largest = float(np.abs(truth[np.isfinite(truth)]).max(initial=0))
    bits = {"bfloat16": 7, "float16": 10, "float32": 23, "float64": 52}.get(dtype.name)
    return 2.0 ** (math.floor(math.log2(largest)) - bits) if largest and bits else 0.0


_CASES: dict[str, Any] = {}


def _work(names: list[str], writer: Connection) -> None:
    for name in names:
        writer.send((name, *outcome(_CASES[name])))


def run(pattern: str, processes: int) -> Iterator[tuple[str, str, str]]:
    """(case, outcome, reason) of every case, as each is known; a process that dies breaks its case alone."""
    _CASES.update(cases(pattern))
    names = sorted(_CASES)
    warnings.simplefilter("ignore")
    left = dict(map(_started, (names[start::processes] for start in range(min(processes, len(names))))))
    while left:
        for reader in wait(list(left)):
            child, share = left[reader]
            try:
                yield reader.recv()
                share.pop(0)
            except EOFError:
                child.join()
                del left[reader]
                if share:
                    yield share.pop(0), BROKEN, f"the process ended with {child.exitcode}"
                if share:
                    left.update([_started(share)])


def _started(share: list[str]) -> tuple[Connection, tuple[BaseProcess, list[str]]]:
    """Process that works through a share of the cases, by the end of the pipe that its outcomes come from."""
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    child = context.Process(target=_work, args=(list(share), writer))
    child.start()
    writer.close()
    return reader, (child, share)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.onnx_suite", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name contains this")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write every outcome as JSON lines")
    options = parser.parse_args()
    import hetero_tvm.api  # once, before the forks  # noqa: F401

    counts: Counter[str] = Counter()
    with options.out.open("w") if options.out else open("/dev/null", "w") as file:
        for name, how, why in run(options.only, options.processes):
            counts[how] += 1
            file.write(json.dumps({"case": name, "outcome": how, "reason": why}) + "\n")
            file.flush()
            if how in (WRONG, BROKEN):
                print(f"{how}: {name}: {why}", flush=True)
    print(", ".join(f"{counts[how]} {how}" for how in (PASSED, REFUSED, WRONG, BROKEN)))
    return 1 if counts[WRONG] + counts[BROKEN] else 0


if __name__ == "__main__":
    sys.exit(main())
