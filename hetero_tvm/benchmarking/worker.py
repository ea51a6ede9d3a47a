"""One runtime in a process of its own: prepares the model, then times calls when asked.

Speaks JSON lines: commands on standard input, answers on the original standard output (what a
runtime prints goes to standard error).  ``python -m hetero_tvm.benchmarking.worker`` is started
by :mod:`hetero_tvm.benchmarking.compare`, never by hand.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from hetero_tvm.benchmarking.plain_results import plain_results
from hetero_tvm.benchmarking.runtimes import OURS, RUNTIMES, Call, Job, Prepared, version

if TYPE_CHECKING:
    from hetero_tvm.runtime import DeviceCost

_MINIMUM_RUNS = 3
_ERROR_LENGTH = 400
_CLOCK_TICK = 1 / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Serve jobs, one after another, until standard input closes."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    runtime: Prepared | None = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if "runtime" in command:
                runtime = None  # its threads and memory go before others come
                runtime = _start(command)
                cost = _json_cost(runtime.device_cost())
                _answer(answers, version=version(command["runtime"]), device_cost=cost)
            else:
                _answer(answers, **_turn(runtime, command["seconds"]))
        except Exception as error:  # any failure of a runtime is a row of the table, not a crash
            _answer(answers, error=_short(error))


def _answer(answers: TextIO, **fields: Any) -> None:
    answers.write(json.dumps(fields) + "\n")
    answers.flush()


def _short(error: Exception) -> str:
    """Kind and first words of an error; some runtimes append pages."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= _ERROR_LENGTH else text[:_ERROR_LENGTH] + " ..."


def _start(task: dict[str, Any]) -> Prepared:
    cores = tuple(task["cores"])
    os.sched_setaffinity(0, cores)  # before any import: every thread made from here on inherits it
    with np.load(task["inputs"]) as file:
        inputs = {name: file[name] for name in file.files}
    kinds = ("library", "model", "clean_model", "program")
    paths = {kind: Path(task[kind]) if task.get(kind) else None for kind in kinds}
    runtime = RUNTIMES[task["runtime"]].prepare(Job(task["runtime"], inputs, cores, **paths))
    outputs = plain_results(runtime.call(), paths["model"])
    np.savez(task["outputs"], *outputs)
    if task["runtime"] != OURS:  # ours pins its threads itself
        _spread(runtime.call, cores)
    return runtime


def _turn(runtime: Prepared, seconds: float) -> dict[str, Any]:
    """Milliseconds of each call; of a device that counts also those inside its calls, and the last cost."""
    costs: list[DeviceCost | None] = []
    milliseconds = _time(runtime.call, seconds, lambda: costs.append(runtime.device_cost()))
    inside = [1e3 * cost.call_seconds for cost in costs if cost is not None]
    return {
        "milliseconds": milliseconds,
        "device_milliseconds": inside,
        "device_cost": _json_cost(costs[-1]),
    }


def _json_cost(cost: DeviceCost | None) -> dict[str, Any] | None:
    return None if cost is None else dataclasses.asdict(cost)


def _spread(call: Call, cores: tuple[int, ...]) -> None:
    """Give each thread that computes a core of its own, as our runtime does.

    The threads that computed are found by their CPU time during some calls.  Inside one mask the
    scheduler may leave two of them on one core, which would flatter us.
    """
    before = _thread_times()
    stop = time.perf_counter() + 0.3
    call()
    while time.perf_counter() < stop:
        call()
    spent = {thread: used - before.get(thread, 0.0) for thread, used in _thread_times().items()}
    busiest = sorted(spent, key=lambda thread: -spent[thread])[: len(cores)]
    for thread, core in zip(busiest, cores, strict=False):
        if spent[thread] > _CLOCK_TICK:
            try:
                os.sched_setaffinity(thread, {core})
            except OSError:  # it ended meanwhile
                continue


def _thread_times() -> dict[int, float]:
    """CPU seconds of the threads of this process, by thread id."""
    times = {}
    for folder in Path("/proc/self/task").iterdir():
        try:
            fields = (
                (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            )
        except OSError:
            continue
        times[int(folder.name)] = (int(fields[11]) + int(fields[12])) * _CLOCK_TICK
    return times


def _time(call: Call, seconds: float, after: Callable[[], None] = lambda: None) -> list[float]:
    """Milliseconds of each call for about ``seconds``, after warm-up (not timed).

    ``after`` is called after each timed call, outside of its time.
    """
    start = time.perf_counter()
    call()
    if time.perf_counter() - start < seconds:
        call()
    clock = time.perf_counter
    milliseconds = []
    gc.collect()
    gc.disable()
    try:
        stop = clock() + seconds
        while clock() < stop or len(milliseconds) < _MINIMUM_RUNS:
            start = clock()
            call()
            milliseconds.append((clock() - start) * 1e3)
            after()
            if clock() > stop + 10 * seconds:  # a runtime that is a hundred times slower
                break
    finally:
        gc.enable()
    return milliseconds


if __name__ == "__main__":
    main()
