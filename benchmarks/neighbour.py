"""Our latency beside a busy process: quiet, and with one core taken half away; ONNX Runtime likewise.

    python benchmarks/neighbour.py [--rounds 12] [--seconds 0.4] [--other TREE FOLDER] [--json FILE]

Two cases, MiniLM-L6 (128 tokens) and one convolution of 1 to 2 ms, on two cores.  Each runtime is a process
of its own; they are asked in turn, quiet and beside a process that computes on the second core without end.
The figures of a round are the medians of its calls; the table has the median over the rounds and their spread
(quartiles), and p10 over all calls for the quiet times.  A turn in which processes of others took more than
a tenth of a core is asked again; where that never ends, it counts, and the table says how many did.

--other names another source tree of this project, and a folder with the libraries that it has built
(NAME/model.so for each case), so that two versions can be compared in the same minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

CASES = ("minilm-l6", "conv")
_ROOT = Path(__file__).resolve().parents[1]
_FOREIGN, _ATTEMPTS = 0.1, 8
_PAUSE = 0.3
"""Seconds after a turn, in which threads of other runtimes stop spinning."""


def convolution() -> Any:
    """An ONNX model of one convolution, 0.5 GFLOP."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(0.05 * rng.standard_normal((128, 64, 3, 3), dtype=np.float32), "w")
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64, 56, 56]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 128, 56, 56]),
    ]
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    graph = helper.make_graph([node], "conv", ends[:1], ends[1:], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def sample(shape: list[int], dtype: str) -> np.ndarray:
    """An input of a model."""
    rng = np.random.default_rng(0)
    if "float" in dtype:
        return rng.standard_normal(shape).astype(dtype)
    return np.ones(shape, dtype)


# --- a runtime's own process ----------------------------------------------------------------------
def serve(runtime: str, path: str) -> None:
    """Answer each line (a number of seconds) with the milliseconds of the calls made in that time."""
    if runtime == "onnxruntime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 2
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        types = {"tensor(float)": "float32", "tensor(int64)": "int64"}
        feeds = {i.name: sample(i.shape, types[i.type]) for i in session.get_inputs()}

        def call() -> None:
            session.run(None, feeds)
    else:
        from hetero_tvm.runtime import load

        net = load(path)
        inputs = [sample(list(spec.shape), spec.dtype) for spec in net.signature.inputs]

        def call() -> None:
            net(*inputs)

    for _ in range(3):
        call()
    print("ready", flush=True)
    for line in sys.stdin:
        end, times = time.perf_counter() + float(line), []
        while not times or times[-1][1] < end:
            start = time.perf_counter()
            call()
            times.append((start, time.perf_counter()))
        print(json.dumps([1e3 * (stop - start) for start, stop in times]), flush=True)


def machine_seconds() -> float:
    """CPU seconds that all processes have used so far, and what the machine's host took away."""
    user, nice, system, _, _, *others = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9])
    return (user + nice + system + sum(others)) / os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Runtime:
    """Parent's side of such a process."""

    def __init__(self, name: str, runtime: str, path: Path, cores: list[int], tree: Path = _ROOT):
        self.name, self.disturbed = name, 0
        self.times: dict[str, list[list[float]]] = {"quiet": [], "busy": []}
        clean = {key: value for key, value in os.environ.items() if not key.startswith("HETERO_TVM_")}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", runtime, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**clean, "PYTHONPATH": str(tree)},
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        if self._process.stdout.readline().strip() != "ready":
            raise SystemExit(f"{name} did not start")

    def turn(self, when: str, seconds: float, beside: int = 0) -> None:
        """Time calls; ``beside`` is the process that is meant to disturb them."""
        for _ in range(_ATTEMPTS):
            ours = [self._process.pid, os.getpid(), *([beside] if beside else [])]
            start, everybody, own = time.monotonic(), machine_seconds(), sum(map(cpu_seconds, ours))
            self._process.stdin.write(f"{seconds}\n")
            self._process.stdin.flush()
            times = json.loads(self._process.stdout.readline())
            foreign = machine_seconds() - everybody - (sum(map(cpu_seconds, ours)) - own)
            if foreign < _FOREIGN * (time.monotonic() - start) + 0.02:
                break
        else:
            self.disturbed += 1
        self.times[when].append(times)

    def stop(self) -> None:
        self._process.stdin.close()
        self._process.wait()


@contextlib.contextmanager
def busy(core: int) -> Iterator[int]:
    """A process that computes on a core without end."""
    process = subprocess.Popen(
        [sys.executable, "-c", "while True: pass"], preexec_fn=lambda: os.sched_setaffinity(0, {core})
    )
    try:
        time.sleep(0.1)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def measure(runtimes: list[Runtime], cores: list[int], rounds: int, seconds: float) -> None:
    for number in range(rounds):
        shift = number % len(runtimes)
        turns = runtimes[shift:] + runtimes[:shift]
        for runtime in turns:
            time.sleep(_PAUSE)
            runtime.turn("quiet", seconds)
        for runtime in turns:
            with busy(cores[1]) as neighbour:
                time.sleep(_PAUSE)
                runtime.turn("busy", 2 * seconds, neighbour)


def rows(case: str, runtimes: list[Runtime]) -> list[dict[str, Any]]:
    made = []
    for runtime in runtimes:
        row: dict[str, Any] = {"case": case, "runtime": runtime.name, "disturbed": runtime.disturbed}
        for when, turns in runtime.times.items():
            medians = [float(np.median(turn)) for turn in turns]
            low, middle, high = np.percentile(medians, [25, 50, 75])
            row[when] = {"median_ms": middle, "quartiles_ms": [low, high], "rounds": len(turns)}
            row[when]["p10_ms"] = float(np.percentile(np.concatenate(turns), 10))
            row[when]["p90_ms"] = float(np.percentile(np.concatenate(turns), 90))
        row["ratio"] = row["busy"]["median_ms"] / row["quiet"]["median_ms"]
        made.append(row)
    return made


def show(row: dict[str, Any]) -> str:
    def part(when: str) -> str:
        low, high = row[when]["quartiles_ms"]
        return f"{row[when]['median_ms']:8.3f} ({low:.3f} to {high:.3f})"

    return (
        f"{row['case']:<12}{row['runtime']:<14} quiet {part('quiet')} p10 {row['quiet']['p10_ms']:.3f}"
        f"   busy {part('busy')} p90 {row['busy']['p90_ms']:.3f} ms"
        f"   x {row['ratio']:.2f}   disturbed turns: {row['disturbed']}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=0.4, help="of calls per turn")
    parser.add_argument("--libraries", type=Path, help="folder with NAME/model.so; built when missing")
    parser.add_argument("--other", nargs=2, type=Path, metavar=("TREE", "FOLDER"))
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    if options.serve:
        serve(*options.serve)
        return 0
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise SystemExit("two cores are needed")
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for case in options.case or CASES:
            model = Path(scratch) / f"{case}.onnx"
            library = (options.libraries or Path(scratch)) / case / "model.so"
            prepare(case, model, library)
            runtimes = [
                Runtime("hetero_tvm", "ours", library, cores),
                Runtime("onnxruntime", "onnxruntime", model, cores),
            ]
            if options.other:
                tree, folder = options.other
                runtimes.append(Runtime("other", "ours", folder / case / "model.so", cores, tree.resolve()))
            measure(runtimes, cores, options.rounds, options.seconds)
            for runtime in runtimes:
                runtime.stop()
            for row in rows(case, runtimes):
                found.append(row)
                print(show(row), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n")
    return 0


def prepare(case: str, model: Path, library: Path) -> None:
    """Write the model and build its library, where that is missing."""
    import onnx

    from hetero_tvm import zoo

    onnx.save(convolution() if case == "conv" else zoo.build(case), model)
    if not library.exists():
        command = [sys.executable, "-m", "hetero_tvm.build", str(model), "--out", str(library.parent), "-q"]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(_ROOT)})


if __name__ == "__main__":
    raise SystemExit(main())
