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
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from hetero_tvm.benchmarking.runtimes import OURS, RUNTIMES, Call, Job, version

_MINIMUM_RUNS = 3
_ERROR_LENGTH = 400
_CLOCK_TICK = 1 / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Serve one job until standard input closes."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    task = json.loads(sys.stdin.readline())
    try:
        call = _start(task)
    except Exception as error:  # any failure of a runtime is a row of the table, not a crash
        _answer(answers, error=_short(error))
        return
    _answer(answers, version=version(task["runtime"]), ready=True)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            uses: list[Any] = []
            milliseconds = _time(call, command["seconds"], uses)
            _answer(answers, milliseconds=milliseconds, **_npu(uses))
        except Exception as error:
            _answer(answers, error=_short(error))
            return


def _answer(answers: TextIO, **fields: Any) -> None:
    answers.write(json.dumps(fields) + "\n")
    answers.flush()


def _short(error: Exception) -> str:
    """Kind and first words of an error; some runtimes append pages."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= _ERROR_LENGTH else text[:_ERROR_LENGTH] + " ..."


def _start(task: dict[str, Any]) -> Call:
    cores = tuple(task["cores"])
    os.sched_setaffinity(0, cores)  # before any import: every thread made from here on inherits it
    with np.load(task["inputs"]) as file:
        inputs = {name: file[name] for name in file.files}
    paths = {key: Path(task[key]) if task[key] else None for key in ("library", "model", "clean_model")}
    call = RUNTIMES[task["runtime"]].prepare(Job(task["runtime"], inputs, cores, **paths))
    outputs = [np.array(output) for output in call()]
    np.savez(task["outputs"], *outputs)
    if task["runtime"] != OURS:  # ours places its threads itself
        _spread(call, cores)
    return call


def _npu(uses: list[Any]) -> dict[str, Any]:
    """What the last call cost on an NPU, and the milliseconds that each spent in its regions."""
    if not uses:
        return {}
    return {"npu": dataclasses.asdict(uses[-1]), "npu_milliseconds": [1e3 * use.call_seconds for use in uses]}


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
    """CPU seconds by thread id of this process."""
    times = {}
    for folder in Path("/proc/self/task").iterdir():
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        times[int(folder.name)] = (int(fields[11]) + int(fields[12])) * _CLOCK_TICK
    return times


def _time(call: Call, seconds: float, uses: list[Any] | None = None) -> list[float]:
    """Milliseconds of each call for about ``seconds``, after warm-up (not timed).

    ``uses`` receives what each call cost on an NPU, where our library runs on one.
    """
    npu = getattr(call, "npu", lambda: None)
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
            if uses is not None and (use := npu()) is not None:
                uses.append(use)
            if clock() > stop + 10 * seconds:  # a runtime that is a hundred times slower
                break
    finally:
        gc.enable()
    return milliseconds


if __name__ == "__main__":
    main()
