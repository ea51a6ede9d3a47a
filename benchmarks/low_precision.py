"""8-bit models beside ONNX Runtime's and OpenVINO's, on the same quantised file, and their bars.

    python benchmarks/low_precision.py [resnet50 mobilenetv2 ...] [--threads 1] [--rounds 20]

Every model is quantised once by ONNX Runtime (static, QDQ, scales by column; its weights are drawn, so
accuracy is not judged here), and the file goes to all three.  Runtimes are asked in turn, in one process; the
figure is the least time of all rounds, with one thread that of the process's CPU, in which neighbours on a
shared machine do not count.  Bars are ours by the best of the others; those of machines with dot products of
bytes (VNNI) are lower.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

BARS = {
    "minilm-l6": (0.80, 0.85),
    "bert-base": (0.80, 0.85),
    "vit-b16": (0.80, 0.85),
    "mobilenetv2": (0.90, 0.85),
    "resnet50": (1.00, 0.85),
}
"""Model -> most that our time may be by the best peer's: with AVX2, with VNNI."""

_DRAWN = 4


def samples(model) -> list[dict[str, np.ndarray]]:
    """Drawn inputs to find ranges on."""
    from hetero_tvm.reference import sample_inputs

    return [sample_inputs(model, seed) for seed in range(_DRAWN)]


def calls_of(name: str, threads: int, folder: Path) -> tuple[dict[str, Callable[[], object]], list[str]]:
    """Calls of the quantised model by runtime, and its kernels of lower precision, counted."""
    import onnx
    import onnxruntime
    import openvino

    import hetero_tvm
    from hetero_tvm.compile.calibration import Calibration

    plain = hetero_tvm.import_model(f"zoo:{name}")
    drawn = samples(plain)
    calibration = Calibration(plain, drawn)
    path = folder / f"{name}.onnx"
    onnx.save(calibration.quantized(), path)
    plan = hetero_tvm.optimize_model(hetero_tvm.import_model(path), "cpu")
    kinds = [
        task.op.kind if task.op is not None else "other" for task in plan.tasks for _ in range(task.count)
    ]
    net = hetero_tvm.load(hetero_tvm.build_model(plan).export(folder / name), threads=threads)

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    core = openvino.Core()
    settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1}
    request = core.compile_model(core.read_model(path), "CPU", settings).create_infer_request()
    feeds = drawn[0]
    return {
        "ours": lambda: net(**feeds) if all(key.isidentifier() for key in feeds) else net(*feeds.values()),
        "onnxruntime": lambda: session.run(None, feeds),
        "openvino": lambda: request.infer(feeds),
    }, [f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds))]


def measure(name: str, threads: int, rounds: int, folder: Path) -> tuple[dict[str, list[float]], list[str]]:
    """Seconds of a call by runtime and round, and the kernels of lower precision, counted.

    With one thread they are those of the process's CPU, in which neighbours do not count.
    """
    clock = time.process_time if threads == 1 else time.perf_counter
    calls, kinds = calls_of(name, threads, folder)
    taken: dict[str, list[float]] = {runtime: [] for runtime in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for runtime, call in calls.items():
            start = clock()
            call()
            taken[runtime].append(clock() - start)
    return taken, kinds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=list(BARS), help=f"of {', '.join(BARS)}")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    if arguments.threads == 1:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    from hetero_tvm.schedules.cpu.integers.dots import dot_for
    from hetero_tvm.targets.registry import parse_target

    vnni = dot_for(parse_target("cpu").machine).name == "dot4"
    for name in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            taken, kinds = measure(name, arguments.threads, arguments.rounds, Path(folder))
        best = {runtime: min(seconds) for runtime, seconds in taken.items()}
        ratio = best["ours"] / min(seconds for runtime, seconds in best.items() if runtime != "ours")
        bar = BARS[name][vnni]
        times = ", ".join(f"{runtime} {1e3 * seconds:.2f} ms" for runtime, seconds in best.items())
        print(f"{name}: {times}; ratio {ratio:.2f}, bar {bar:.2f}: {'held' if ratio <= bar else 'MISSED'}")
        print(f"  kernels: {', '.join(kinds)}", flush=True)


if __name__ == "__main__":
    main()
