"""Side-by-side comparison: several runtimes asked in turn, one process each; their times and outputs.

Why so: a worker thread that still spins slows the next runtime, so only one process computes at
a time, with pauses in which spinning ends; the order rotates and every runtime is asked in every
round, so that a drift of the machine hits all alike.  Medians are over all calls of all rounds: a
disturbed turn holds fewer calls and counts less.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hetero_tvm.benchmarking.latency import statistics
from hetero_tvm.benchmarking.runtimes import OURS
from hetero_tvm.host.scratch import temporary_folder
from hetero_tvm.import_path import command_of
from hetero_tvm.runtime import DeviceCost

_START_LIMIT = 900.0  # seconds; torch.compile of a large model takes minutes
_TURN_LIMIT = 300.0
_ROUNDS, _COUNTED_ROUNDS = 10, 3
"""Rounds by default, and where our latency is counted by its device: a simulator's cycles never vary."""


@dataclass(frozen=True)
class Options:
    """Settings of a comparison.

    Parameters
    ----------
    cores : cores that every runtime gets, one thread on each.
    rounds : turns of each runtime; None: 10, or 3 where our latency is counted by its device.
    seconds : timed calls per turn.
    pause : seconds between turns.
    """

    cores: tuple[int, ...]
    rounds: int | None = None
    seconds: float = 0.3
    pause: float = 0.35


@dataclass
class Result:
    """Times of one runtime.  ``status``: ``ok``, ``failed`` or ``not installed`` (see ``reason``)."""

    name: str
    status: str = "ok"
    reason: str = ""
    version: str = ""
    start_seconds: float = 0.0
    turns: list[list[float]] = field(default_factory=list)
    """Milliseconds of each call, by round."""
    ratio: float | None = None
    """Our median divided by this runtime's (below 1: we are faster)."""
    ratio_p10: float | None = None
    """Ratio of the 10th percentiles: what a busy machine disturbs least."""
    device_cost: DeviceCost | None = None
    """Cost of a call on a device that counts its own time; None where the wall time is the latency."""
    host_milliseconds: list[float] = field(default_factory=list)
    """Milliseconds of each call outside of that device."""
    max_abs_difference: float | None = None
    """Largest difference from our outputs."""
    max_rel_difference: float | None = None
    """Largest difference from our outputs, divided by the largest output."""

    @property
    def compared(self) -> np.ndarray:
        """Milliseconds that ratios are of: the wall's, or the latency with the device itself."""
        if self.device_cost is None:
            return np.concatenate(self.turns)
        return np.array([1e3 * self.device_cost.seconds + float(np.median(self.host_milliseconds))])

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {"name": self.name, "status": self.status}
        if self.status != "ok":
            return {**data, "reason": self.reason}
        return {
            **data,
            "version": self.version,
            "start_seconds": round(self.start_seconds, 3),
            **statistics(np.concatenate(self.turns)),
            "rounds_p10_ms": [float(np.percentile(turn, 10)) for turn in self.turns],
            "ratio": self.ratio,
            "ratio_p10": self.ratio_p10,
            "max_abs_difference": _json_number(self.max_abs_difference),
            "max_rel_difference": _json_number(self.max_rel_difference),
            **self._device_json(),
        }

    def _device_json(self) -> dict[str, Any]:
        cost = self.device_cost
        if cost is None:
            return {}
        latency, inside = float(self.compared[0]), 1e3 * cost.seconds
        times = {f"{cost.kind}_ms": inside, "host_ms": latency - inside, "latency_ms": latency}
        return {cost.kind: {**cost.counters, **times}}


def _json_number(value: float | None) -> float | str | None:
    """JSON has no infinity."""
    return value if value is None or np.isfinite(value) else "infinite"


@dataclass(frozen=True)
class Entry:
    """One row of a comparison: its name, the runtime, and the files that this takes.

    ``files`` has the keys ``library``, ``model`` and ``clean_model``, and ``program`` of a program of PyTorch
    (see ``runtimes.Job``).
    """

    name: str
    runtime: str
    files: dict[str, Path | None]


def compare(
    names: Sequence[str],
    inputs: dict[str, np.ndarray],
    files: dict[str, Path | None],
    options: Options,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Result]:
    """Measure runtimes ``names`` (ours first) on the same files, inputs and cores.

    A runtime that fails gets a row that says why; the others go on.
    """
    return compare_entries([Entry(name, name, files) for name in names], inputs, options, progress)


def compare_entries(
    entries: Sequence[Entry],
    inputs: dict[str, np.ndarray],
    options: Options,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Result]:
    """Measure ``entries`` on the same inputs and cores, as :func:`compare` does; the first one of our own is
    what ratios are of."""
    with temporary_folder("hetero_tvm-bench-") as folder:
        np.savez(folder / "inputs.npz", **inputs)
        workers: list[_Worker] = []
        try:
            for entry in entries:
                progress(f"starting {entry.name}")
                workers.append(_Worker(entry, folder, options))
            _measure([worker for worker in workers if worker.alive], options, progress)
        finally:
            for worker in workers:
                worker.stop()
        _finish(workers)
    return [worker.result for worker in workers]


def _measure(workers: list[_Worker], options: Options, progress: Callable[[str], None]) -> None:
    counted = any(worker.result.device_cost is not None for worker in workers)
    rounds = options.rounds or (_COUNTED_ROUNDS if counted else _ROUNDS)
    for number in range(rounds):
        progress(f"round {number + 1} of {rounds}")
        shift = number % len(workers) if workers else 0
        for worker in workers[shift:] + workers[:shift]:
            if worker.alive:
                time.sleep(options.pause)
                worker.turn(options.seconds)


def _finish(workers: list[_Worker]) -> None:
    """Ratios and differences, with our row as the reference."""
    ours = next((w for w in workers if w.runtime == OURS and w.result.status == "ok"), None)
    reference = ours.outputs() if ours else []
    for worker in workers:
        result = worker.result
        if result.status != "ok" or ours is None:
            continue
        mine, theirs = ours.result.compared, result.compared
        result.ratio = float(np.median(mine) / np.median(theirs))
        result.ratio_p10 = float(np.percentile(mine, 10) / np.percentile(theirs, 10))
        result.max_abs_difference, result.max_rel_difference = _difference(reference, worker.outputs())


def _difference(reference: list[np.ndarray], outputs: list[np.ndarray]) -> tuple[float, float]:
    absolute = relative = 0.0
    if len(reference) != len(outputs):
        return float("inf"), float("inf")
    for a, b in zip(reference, outputs, strict=True):
        if a.shape != b.shape:
            return float("inf"), float("inf")
        if not a.size:
            continue
        wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
        with np.errstate(invalid="ignore"):
            difference = np.where(wide_a == wide_b, 0.0, np.abs(wide_a - wide_b))  # equal infinities
        if np.isnan(difference).any():
            return float("inf"), float("inf")
        largest = float(difference.max())
        absolute = max(absolute, largest)
        relative = max(relative, largest / max(float(np.abs(wide_b).max()), 1e-30))
    return absolute, relative


class _Worker:
    """Parent's side of one worker process."""

    def __init__(self, entry: Entry, folder: Path, options: Options):
        name, self.runtime = entry.name, entry.runtime
        self.result = Result(name)
        self._outputs = folder / f"{name}.npz"
        self._log = (folder / f"{name}.log").open("w+b")
        threads = str(len(options.cores))
        environment = {
            **os.environ,
            **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TVM_NUM_THREADS"), threads),
            "TVM_BIND_THREADS": "0",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        for variable in ("HETERO_TVM_THREADS", "HETERO_TVM_PIN"):
            environment.pop(variable, None)
        self._process = subprocess.Popen(
            command_of("hetero_tvm.benchmarking.worker"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            start_new_session=True,  # so that helpers of a runtime end with it
        )
        start = time.perf_counter()
        task = {
            "runtime": self.runtime,
            "inputs": str(folder / "inputs.npz"),
            "outputs": str(self._outputs),
            "cores": list(options.cores),
            **{key: str(path) if path else None for key, path in entry.files.items()},
        }
        answer = self._ask(task, _START_LIMIT)
        self.result.version = answer.get("version", "")
        self._take_cost(answer)
        self.result.start_seconds = time.perf_counter() - start

    @property
    def alive(self) -> bool:
        return self.result.status == "ok"

    def turn(self, seconds: float) -> None:
        answer = self._ask({"seconds": seconds}, _TURN_LIMIT + 20 * seconds)
        if "milliseconds" not in answer:
            return
        self.result.turns.append(answer["milliseconds"])
        if self._take_cost(answer):
            pairs = zip(answer["milliseconds"], answer["device_milliseconds"], strict=True)
            self.result.host_milliseconds += [max(0.0, whole - inside) for whole, inside in pairs]

    def _take_cost(self, answer: dict[str, Any]) -> bool:
        """Keep the cost of the last call, if its device counted one."""
        cost = answer.get("device_cost")
        if cost is not None:
            self.result.device_cost = DeviceCost(**cost)
        return cost is not None

    def outputs(self) -> list[np.ndarray]:
        with np.load(self._outputs) as file:
            return [file[name] for name in file.files]

    def stop(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            try:
                stream.close()
            except OSError:  # a write to a worker that died first
                continue

    def _ask(self, message: dict[str, Any], limit: float) -> dict[str, Any]:
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
            line = self._read_line(limit)
        except TimeoutError:
            return self._fail(f"no answer within {limit:.0f} s")
        except OSError:
            line = b""
        if not line:
            return self._fail(f"the process ended ({self._last_words()})")
        answer = json.loads(line)
        return self._fail(answer["error"]) if "error" in answer else answer

    def _read_line(self, limit: float) -> bytes:
        """Read one line of the worker; raises TimeoutError."""
        stream, stop, line = self._process.stdout.fileno(), time.monotonic() + limit, b""
        while not line.endswith(b"\n"):
            if not select.select([stream], [], [], max(0.0, stop - time.monotonic()))[0]:
                raise TimeoutError
            block = os.read(stream, 1 << 16)
            if not block:
                return b""
            line += block
        return line

    def _fail(self, reason: str) -> dict[str, Any]:
        self.result.status, self.result.reason = "failed", reason
        self.stop()
        return {}

    def _last_words(self) -> str:
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:  # its output is closed, but it hangs on the way out
            self._process.kill()
            self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f"exit status {self._process.returncode}" + (f": {lines[-1]}" if lines else "")
