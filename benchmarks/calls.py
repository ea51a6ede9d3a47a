"""The price of a call: microseconds per call of a tiny model, beside ONNX Runtime, with and without binding.

    python benchmarks/calls.py [--calls 20000]

"hot": calls back to back; "cold": after 2 ms of sleep each, so that threads have gone to sleep.  "one thread"
is what remains without the hand-over between threads.  Runtimes are asked in turn, in one process.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

MODEL = "minilm-l6-tiny"
_COLD_CALLS, _COLD_PAUSE, _ROUNDS = 40, 0.002, 5


def sample(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if "float" in dtype:
        return np.random.default_rng(0).standard_normal(shape).astype(dtype)
    return np.ones(shape, dtype)


def calls_of(folder: Path) -> dict[str, Callable[[], object]]:
    """Every way to call the model, by name."""
    import onnx
    import onnxruntime

    import hetero_tvm
    from hetero_tvm import zoo

    path = folder / "model.onnx"
    onnx.save(zoo.build(MODEL), path)
    model = hetero_tvm.optimize_model(hetero_tvm.import_model(path))
    library = hetero_tvm.build_model(model).export(folder)
    net, single = hetero_tvm.load(library), hetero_tvm.load(library, threads=1)
    feeds = {spec.name: sample(spec.shape, spec.dtype) for spec in net.signature.inputs}
    inputs = list(feeds.values())
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    for output in session.get_outputs():
        binding.bind_output(output.name)
    bound = net.bind()
    for name, array in feeds.items():
        bound.inputs[name][...] = array
    return {
        "hetero_tvm": lambda: net(*inputs),
        "hetero_tvm bound": bound,
        "hetero_tvm, one thread": lambda: single(*inputs),
        "onnxruntime run": lambda: session.run(None, feeds),
        "onnxruntime run_with_iobinding": lambda: session.run_with_iobinding(binding),
    }


def seconds(call: Callable[[], object], count: int, pause: float = 0.0) -> list[float]:
    times = []
    for _ in range(count):
        if pause:
            time.sleep(pause)
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def measure(count: int) -> dict[str, dict[str, list[list[float]]]]:
    """Seconds of each call, by name of the way, ``hot`` or ``cold``, and round."""
    with tempfile.TemporaryDirectory() as folder:
        calls = calls_of(Path(folder))
        taken: dict[str, dict[str, list[list[float]]]] = {name: {"hot": [], "cold": []} for name in calls}
        for _ in range(_ROUNDS):
            for name, call in calls.items():
                time.sleep(0.1)
                taken[name]["hot"].append(seconds(call, count // _ROUNDS))
                taken[name]["cold"].append(seconds(call, _COLD_CALLS, _COLD_PAUSE))
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=20000)
    options = parser.parse_args()
    taken = measure(options.calls)
    print(f"{MODEL}, us per call{'hot p10':>24}{'median':>10}{'cold p10':>12}{'median':>10}")
    for name, kinds in taken.items():
        times = [np.concatenate(kinds[kind]) for kind in ("hot", "cold")]
        figures = [1e6 * np.percentile(kind, q) for kind in times for q in (10, 50)]
        print(f"{name:<36}{figures[0]:>12.1f}{figures[1]:>10.1f}{figures[2]:>12.1f}{figures[3]:>10.1f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
