"""A forked candidate process: build, wait for its turn, check, time, report, exit.

Nothing here returns: the process ends by ``os._exit`` so that no destructor, no atexit handler and
no thread of a misbehaving kernel can delay it.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
from time import perf_counter
from typing import Any

import numpy as np

from hetero_tvm.runtime.arrays import fetched
from hetero_tvm.search.measure import timing
from hetero_tvm.search.measure.disturbance import Disturbance
from hetero_tvm.search.measure.prepared import Prepared, blank, fault_of, joined, tvm
from hetero_tvm.search.measure.wire import Channel

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class _Refused(Exception):
    """A candidate ended in a known way: ``args`` are status and text."""


class _Clock:
    """Wall time of a child by phase, for the report."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._last = perf_counter()

    def lap(self, phase: str) -> None:
        now = perf_counter()
        self.spent[phase] = now - self._last
        self._last = now


def confine(log_fd: int, memory: int, parent: int) -> None:
    """Make this fresh process harmless: dies with its parent, bounded memory, no core dumps, own output."""
    os.setpgid(0, 0)
    gc.disable()  # a collection would touch, and so copy, every inherited page
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before prctl took effect
        os._exit(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory:
        with open("/proc/self/statm", encoding="utf-8") as file:
            in_use = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (in_use + memory, in_use + memory))


def run(task: Prepared, job: dict[str, Any], channel: Channel) -> None:
    """Serve one job and exit.

    ``job``: ``candidates`` (compared with each other in alternation when there are several),
    ``limit`` (seconds per call beyond which a candidate need not be timed exactly, or None),
    ``budget`` (seconds of timing per candidate), ``cores``, ``cache`` (bytes that the constants
    must overflow), ``store_reference`` (the first candidate is the unscheduled workload: it is run
    once, and its result is what the others and later jobs must reproduce).

    Sends ``{"phase": "built"}``, waits for a message, then sends ``{"phase": "done", "results":
    [[status, seconds | None, text, spread, disturbed], ...], "spent": {phase: seconds}}`` (the last two
    only of what was timed).  With ``members`` the candidates
    are measured one after another instead, each with its own ``{"phase": "one", "result": ...}``.
    """
    clock = _Clock()
    built, results = _build_all(task, job)
    clock.lap("build")
    channel.send({"phase": "built"})
    if any(kernel is not None for kernel in built) or "members" in job:
        if not channel.wait(None) or not channel.receive():
            os._exit(1)
    clock.lap("wait")
    before = timing.threads_now()  # all that come now are of the pool, which all candidates share
    if "members" in job:
        _one_by_one(task, job, built, results, clock, channel, before)
    else:
        _time_all(task, job, built, results, clock, before)
        channel.send({"phase": "done", "results": results, "spent": clock.spent})
    os._exit(0)


def _one_by_one(
    task: Prepared,
    job: dict[str, Any],
    built: list[_Kernel | None],
    results: list[Any],
    clock: _Clock,
    channel: Channel,
    before: set[int],
) -> None:
    """Measure the members of a group in turn, each reported the moment it is known.

    After a kernel that went wrong while it ran, memory is not to be trusted: the rest is left to other
    processes.
    """
    for index, kernel in enumerate(built):
        one = results[index : index + 1]
        if kernel is not None:
            _time_all(task, job, [kernel], one, clock, before)
            built[index] = None  # frees its arguments
        channel.send({"phase": "one", "result": one[0], "spent": clock.spent})
        clock.spent = {}
        if kernel is not None and one[0][0] not in ("ok", "disturbed"):
            break
    channel.send({"phase": "done"})


def _build_all(task: Prepared, job: dict[str, Any]) -> tuple[list[_Kernel | None], list[list[Any] | None]]:
    """The kernels of all candidates, and what failed of them; compiled as one module when all is well."""
    modules, results = [], []
    for candidate in job["candidates"]:
        module, failure = _attempt("build_error", lambda c=candidate: _function_of(task, c))
        modules.append(module)
        results.append(failure)
    good = [index for index, module in enumerate(modules) if module is not None]
    functions, failure = _attempt("build_error", lambda: _compile(task, [modules[i] for i in good]))
    kernels: list[_Kernel | None] = [None] * len(modules)
    for place, index in enumerate(good):
        kernels[index], results[index] = _attempt(
            "build_error",
            lambda i=index, p=place: _Kernel(
                task,
                job["candidates"][i],
                job["cache"],
                functions[p] if functions is not None else _compile(task, [modules[i]])[0],
            ),
        )
    return kernels, results


def _attempt(status: str, action: Any) -> tuple[Any, list[Any] | None]:
    """(result, None), or (None, [status, None, text]) when the action raises."""
    try:
        return action(), None
    except _Refused as refusal:
        return None, [refusal.args[0], None, refusal.args[1]]
    except MemoryError:
        return None, [status, None, "out of memory"]
    except Exception as error:  # whatever a candidate raises is its own failure, not the search's
        text = f"{type(error).__name__}: {error}"
        return None, [status, None, text[-2000:]]


class _Kernel:
    """A compiled candidate with its arguments, all that can be made ready before its turn comes."""

    def __init__(self, task: Prepared, candidate: dict[str, Any], cache: int, function: Any):
        self._function = function
        packed = task.packed(candidate)
        plain = [tensor.numpy() for tensor in task.tensors if tensor is not None]
        copies = timing.copies_needed(sum(array.nbytes for array in (*packed.values(), *plain)), cache)
        self.outputs = [tvm.runtime.tensor(blank(*one)) for one in task.outputs]
        self.once = 0.0
        """Seconds of the latest :meth:`run_once`."""
        self._arguments = [self._one_set(task, packed, copies > 1) for _ in range(copies)]

    def _one_set(self, task: Prepared, packed: dict[int, np.ndarray], copy: bool) -> list[Any]:
        # Activations rotate like weights: in a model another core has just written part of them, and a
        # schedule in which every thread reads all of them must pay for that here as well.
        inputs = [
            tensor
            if tensor is not None and not copy
            else tvm.runtime.tensor(packed[index] if tensor is None else tensor.numpy())
            for index, tensor in enumerate(task.tensors)
        ]
        return [*inputs, *self.outputs]

    def run_once(self) -> np.ndarray:
        start = perf_counter()
        self._function(*self._arguments[0])
        self.once = perf_counter() - start
        return self.results()

    def results(self) -> np.ndarray:
        """Results of the latest call."""
        return joined([fetched(output) for output in self.outputs])

    def call(self) -> timing.Call:
        return timing.bound(self._function, self._arguments)


def _function_of(task: Prepared, candidate: dict[str, Any]) -> Any:
    """The PrimFunc of a candidate."""
    module = task.kernel(candidate)
    if module is None:
        raise _Refused("build_error", "there is no generic schedule")
    if hasattr(module, "get_global_vars"):
        (variable,) = module.get_global_vars()
        module = module[variable]
    return module


def _compile(task: Prepared, functions: list[Any]) -> list[Any]:
    """Machine code of several PrimFuncs, compiled as one module."""
    from hetero_tvm.codegen.pipeline import compile_kernels

    names = [f"candidate_{index}" for index in range(len(functions))]
    public = {
        name: function.with_attr("global_symbol", name)
        for name, function in zip(names, functions, strict=True)
    }
    compiled = compile_kernels(tvm.IRModule(public), task.target).jit()
    return [compiled[name] for name in names]


def _time_all(
    task: Prepared,
    job: dict[str, Any],
    built: list[_Kernel | None],
    results: list[Any],
    clock: _Clock,
    before: set[int],
) -> None:
    """Check and time kernels in turn; ``before``: threads that were there when no kernel had run."""
    calls, places, once = [], [], []
    for index, kernel in enumerate(built):
        if kernel is None:
            continue
        if index == 0 and job["store_reference"]:
            seconds, failure = _attempt("run_error", lambda k=kernel: _reference(task, k))
            results[0] = failure or ["ok", seconds, ""]
            continue
        call, failure = _attempt("run_error", lambda k=kernel: _checked(task, k))
        results[index] = failure
        if call is not None:
            calls.append(call)
            places.append(index)
            once.append(kernel.once)
    clock.lap("check")
    if not calls:
        return
    workers = timing.threads_now() - before
    timing.pin_threads(workers, job["cores"])
    disturbance = Disturbance([os.getpid(), *workers], job["cores"])
    options = {"budget": job["budget"], "limit": job["limit"], "once": once, "lost": disturbance.lost}
    times, failure = _attempt("run_error", lambda: timing.measure(calls, **options))
    disturbance.close()
    for slot, index in enumerate(places):
        results[index] = failure or _timed(times[slot])
    clock.lap("time")
    # A kernel may be right on fresh memory alone, or in every other call: what the last timed call left is
    # compared as well, and one more.
    for index in () if failure else places:
        kernel = built[index]
        if fault := _fault(task, kernel.results()) or _fault(task, kernel.run_once()):
            results[index] = ["wrong_result", None, f"after the first call: {fault}"]
    clock.lap("check again")


def _timed(found: timing.Timing) -> list[Any]:
    """Fields of a :class:`~hetero_tvm.search.measure.service.Result`."""
    return ["disturbed" if found.disturbed else "ok", found.seconds, "", found.spread, found.disturbed]


def _reference(task: Prepared, kernel: _Kernel) -> float:
    """Run the unscheduled workload once, for the candidates to be compared with; returns its seconds."""
    start = perf_counter()
    task.reference[...] = kernel.run_once()
    return perf_counter() - start


def _checked(task: Prepared, kernel: _Kernel) -> timing.Call:
    """The kernel as a call without arguments, after its numbers have been compared with the reference."""
    if fault := _fault(task, kernel.run_once()):
        raise _Refused("wrong_result", fault)
    return kernel.call()


def _fault(task: Prepared, result: np.ndarray) -> str | None:
    return fault_of(result, task.reference, task.largest, task.tolerance)
