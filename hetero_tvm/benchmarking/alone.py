"""Speed of one library in a process of its own: loading, first call, latency, throughput, memory.

The process imports no compiler and nothing else that a program which only runs the library would not have, so
that its memory is what such a program takes.  ``python -m hetero_tvm.benchmarking.alone`` is started by
:func:`measure`, never by hand.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from hetero_tvm.benchmarking.latency import statistics
from hetero_tvm.errors import HeteroTVMError
from hetero_tvm.host.scratch import temporary_folder
from hetero_tvm.import_path import command_of
from hetero_tvm.runtime import Library, load
from hetero_tvm.runtime.observing import DeviceCost

_LEAST_CALLS = 5
_MOST_CALLS = 200_000
_WARM_UP_SHARE = 0.1
"""Part of the seconds that calls are made before any is timed."""
_WINDOWS = 10
_CALLS_OF_A_WINDOW = 100
"""Windows that streams are counted in, and the calls that one must hold for its rate to say anything."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a measurement.

    Parameters
    ----------
    seconds : timed calls, one after another; as long again for each number of streams.
    threads : of one call; None: what :func:`hetero_tvm.load` takes.
    streams : numbers of callers at once whose throughput is measured; the threads are divided among them.
    """

    seconds: float = 3.0
    threads: int | None = None
    streams: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Measured:
    """Speed of one library.

    Parameters
    ----------
    figures : JSON values: ``latency`` (see :func:`statistics`), ``load_ms``, ``first_call_ms``, ``streams``
        with calls per second (of all, and where others disturbed least), ``memory`` in bytes (``before``
        loading, ``loaded``, ``peak``), ``threads``.
    device_cost : cost of the last call on a device that counts its own time.
    """

    figures: dict[str, Any]
    device_cost: DeviceCost | None = None


def measure(library: Path, inputs: dict[str, np.ndarray], settings: Settings) -> Measured:
    """Measure ``library`` on ``inputs`` in a fresh process.

    Raises
    ------
    HeteroTVMError : the process failed; says with which words.
    """
    with temporary_folder("hetero_tvm-bench-") as folder:
        np.savez(folder / "inputs.npz", **inputs)
        task = {**dataclasses.asdict(settings), "library": str(library), "inputs": str(folder / "inputs.npz")}
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = command_of("hetero_tvm.benchmarking.alone", json.dumps(task))
        done = subprocess.run(command, capture_output=True, text=True, env=environment, errors="replace")
    if done.returncode != 0:
        words = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        words, _, hint = words.partition(" What to do: ")
        raise HeteroTVMError(
            f"{library.name} cannot be measured: {words.rstrip(';')}",
            hint=hint or "hetero_tvm.load tells more",
        )
    answer = json.loads(done.stdout)
    cost = answer.pop("device_cost")
    return Measured(answer, None if cost is None else DeviceCost(**cost))


def main(arguments: Sequence[str]) -> None:
    """Measure what the one argument describes; print the figures."""
    task = json.loads(arguments[0])
    with np.load(task["inputs"]) as file:
        inputs = {name: file[name] for name in file.files}
    settings = Settings(task["seconds"], task["threads"], tuple(task["streams"]))
    print(json.dumps(_measured(Path(task["library"]), inputs, settings)))


def _measured(path: Path, inputs: dict[str, np.ndarray], settings: Settings) -> dict[str, Any]:
    before = _memory("VmRSS")
    start = perf_counter()
    net = load(path, threads=settings.threads)
    loaded = perf_counter()
    after_load = _memory("VmRSS")
    values = [inputs[spec.name] for spec in net.signature.inputs]
    net(*values)
    called = perf_counter()
    times = _latencies(net, values, settings.seconds)
    memory = {"before": before, "loaded": after_load, "peak": _memory("VmHWM"), "file": path.stat().st_size}
    cost = net.device_cost()
    return {
        "threads": net.threads,
        "load_ms": 1e3 * (loaded - start),
        "first_call_ms": 1e3 * (called - loaded),
        "latency": statistics(times),
        "memory": memory,
        "streams": [_throughput(path, values, count, net.threads, settings) for count in settings.streams],
        "device_cost": None if cost is None else dataclasses.asdict(cost),
    }


def _latencies(net: Library, values: Sequence[np.ndarray], seconds: float) -> list[float]:
    """Milliseconds of each call for ``seconds``, after a warm-up."""
    stop = perf_counter() + _WARM_UP_SHARE * seconds
    while perf_counter() < stop:
        net(*values)
    times: list[float] = []
    start = perf_counter()
    stop = start + seconds
    while (start < stop or len(times) < _LEAST_CALLS) and len(times) < _MOST_CALLS:
        net(*values)
        now = perf_counter()
        times.append(1e3 * (now - start))
        start = now
    return times


def _throughput(
    path: Path, values: Sequence[np.ndarray], count: int, threads: int, settings: Settings
) -> dict[str, Any]:
    """Calls per second of ``count`` callers at once, each with a library of its own."""
    each = max(1, threads // count)
    nets = [load(path, threads=each, verify=False) for _ in range(count)]
    for net in nets:
        net(*values)
    calls = [0] * count
    ready = threading.Barrier(count + 1)
    ended = threading.Event()

    def caller(number: int) -> None:
        net = nets[number]
        ready.wait()
        while not ended.is_set():
            net(*values)
            calls[number] += 1

    callers = [threading.Thread(target=caller, args=(number,)) for number in range(count)]
    for one in callers:
        one.start()
    ready.wait()
    start = perf_counter()
    marks = [(start, sum(calls))]
    for number in range(_WINDOWS):
        ended.wait(max(0.0, start + (number + 1) * settings.seconds / _WINDOWS - perf_counter()))
        marks.append((perf_counter(), sum(calls)))
    ended.set()
    for one in callers:
        one.join()
    rate = sum(calls) / (perf_counter() - start)  # calls that were running are counted, and so is their time
    rates = {"per_second": rate, "undisturbed_per_second": _undisturbed(marks, rate)}
    return {"streams": count, "threads_each": each, **rates, "calls": calls}


def _undisturbed(marks: Sequence[tuple[float, int]], rate: float) -> float:
    """Calls per second in the windows that others disturbed least (the 90th percentile); the rate of all
    where windows hold too few calls to tell.  ``marks`` are instants with the calls made until then."""
    windows = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(marks)]
    if np.median([made for _, made in windows]) < _CALLS_OF_A_WINDOW:
        return rate
    return float(np.percentile([made / seconds for seconds, made in windows], 90))


def _memory(name: str) -> int:
    """A figure of this process's memory as the kernel keeps it, bytes."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    return 0


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except HeteroTVMError as error:
        print(str(error).replace("\n", "; "), file=sys.stderr)
        sys.exit(1)
