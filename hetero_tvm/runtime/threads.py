"""Number of threads that a library runs on, and the cores that they are pinned to.

TVM keeps one pool of workers per *calling thread*, made at that thread's first parallel launch
and never larger afterwards.  So the size is settled before the first launch, and the workers are
pinned from inside a launch, where each knows its own index.

The calling thread takes part as worker 0: a thread of ours (:mod:`hetero_tvm.runtime.runner`), because
threads inherit the mask of the thread that makes them, and a caller that is kept on one core would pin
every later thread of NumPy or PyTorch to that core.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from hetero_tvm import host
from hetero_tvm.errors import LibraryError, UsageError
from hetero_tvm.host.cores import parse_cores
from hetero_tvm.runtime.tvm_runtime import TVMRuntime

THREADS_VARIABLE = "HETERO_TVM_THREADS"
PIN_VARIABLE = "HETERO_TVM_PIN"
_TVM_VARIABLE = "TVM_NUM_THREADS"
_SET_MOST = "_ZN3tvm7runtime9threading17SetMaxConcurrencyEi"  # (0: what the variable says)
_MODE_BIG = 1  # runtime.config_threadpool: plain workers, no pinning of its own

_ParallelLambda = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


@dataclass(frozen=True)
class ThreadPinning:
    """A pool of ``threads`` workers, worker *i* pinned to ``cores[i]`` (None: the scheduler decides)."""

    threads: int
    cores: tuple[int, ...] | None = None


def choose_pinning(threads: int | None = None, pin: bool | Iterable[int] | None = None) -> ThreadPinning:
    """Number of threads and their cores, from arguments and environment.

    Threads: ``threads``, else ``$HETERO_TVM_THREADS``, else the length of a list of cores, else
    one per available core.  Cores: ``pin``, else ``$HETERO_TVM_PIN`` (``0`` no, ``1`` yes, or
    core ids such as ``2,3`` or ``4-7``; a lone core 0 or 1 is written ``0,``).  By default the
    threads are pinned when they are as many as the cores of this process; when they are fewer,
    or a quota hides cores, other processes may sit on any of them and the scheduler knows better.

    Raises :class:`UsageError` for impossible requests.
    """
    if pin is None:
        pin = _pin_from_environment()
    listed = None if pin is None or isinstance(pin, bool) else tuple(int(core) for core in pin)
    available = host.available_cores()
    count = threads if threads is not None else _threads_from_environment()
    if count is None:
        count = len(listed) if listed else len(available)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise UsageError(f"threads must be a whole number of at least 1, got {count!r}")
    most = max(os.cpu_count() or 1, len(available))
    if listed is None and not pin and count > most:
        raise UsageError(
            f"{count} threads were asked for, the limit on this machine is {most}, one per core",
            hint=f"threads={len(available)}, or {THREADS_VARIABLE}={len(available)}",
        )
    if listed is not None:
        return ThreadPinning(count, _checked(listed, count))
    if pin is False or count == 1 and pin is None:
        return ThreadPinning(count)
    if count > len(available):
        if pin:
            raise UsageError(
                f"{count} threads cannot be pinned to {len(available)} available cores",
                hint=f"threads={len(available)}, or pin=False",
            )
        return ThreadPinning(count)
    whole = count == len(available) == len(os.sched_getaffinity(0))
    return ThreadPinning(count, available[:count] if pin or whole else None)


def _threads_from_environment() -> int | None:
    text = os.environ.get(THREADS_VARIABLE, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10) or int(text) < 1:
        raise UsageError(f"{THREADS_VARIABLE}={text!r} is not a whole number of at least 1")
    return int(text)


def _pin_from_environment() -> bool | tuple[int, ...] | None:
    text = os.environ.get(PIN_VARIABLE, "").strip()
    if text in ("", "0", "1"):
        return {"": None, "0": False, "1": True}[text]
    try:
        return tuple(parse_cores(text))
    except ValueError:
        raise UsageError(
            f"{PIN_VARIABLE}={text!r} is not 0, 1, or a list of core ids", hint=f"{PIN_VARIABLE}=2,3"
        ) from None


def _checked(cores: tuple[int, ...], count: int) -> tuple[int, ...]:
    """The first ``count`` of ``cores``; raises :class:`UsageError` where they cannot be had."""
    allowed = os.sched_getaffinity(0)
    problems = [f"core {core} is not available to this process" for core in cores if core not in allowed]
    if len(set(cores)) != len(cores):
        problems.append("a core is listed twice")
    if len(cores) < count:
        problems.append(f"{count} threads need {count} cores, {len(cores)} are listed")
    if problems:
        raise UsageError(
            f"cannot pin to cores {list(cores)}",
            problems=problems,
            hint=f"choose among {sorted(allowed)}",
        )
    return cores[:count]


class _PoolState(threading.local):
    """State of the pool of one calling thread."""

    pinning: ThreadPinning | None = None  # that the workers have now
    size: int = 0  # workers at creation; 0: not started by us
    pinned: bool = False
    forked: bool = False


_state = _PoolState()
_starting = threading.Lock()


def _after_fork_in_child() -> None:
    # The child has this thread's pool as memory, but not the workers: a launch would wait forever.
    global _starting
    _starting = threading.Lock()
    _state.forked = _state.size > 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def attach(runtime: TVMRuntime, pinning: ThreadPinning) -> None:
    """Give the calling thread's pool the size and cores of ``pinning``; nearly free when it already does.

    Raises :class:`LibraryError` when the pool was started with fewer workers, or when this
    process was forked from one whose pool was running.
    """
    if _state.pinning is pinning and not _state.forked:
        return
    if _state.forked:
        raise LibraryError(
            "this process was forked after a library had run in its parent: the worker threads are gone",
            hint="load and call it in a new thread, or start processes with multiprocessing's 'spawn'",
        )
    if _state.pinning == pinning:
        return
    used = _start(runtime, pinning.threads)
    _state.size = max(_state.size, used)
    if used != pinning.threads:
        runtime.function("runtime.config_threadpool")(_MODE_BIG, pinning.threads)
        used = runtime.function("runtime.NumThreads")()
    if used < pinning.threads:
        raise LibraryError(
            f"{pinning.threads} threads were asked for, but TVM's pool in this thread runs {used} at most",
            hint=f"set {THREADS_VARIABLE} before the first call into TVM, load the library with the most "
            "threads first, or use a new thread; more threads than cores are never started",
        )
    _pin_workers(runtime, pinning)
    _state.pinning = pinning


def _start(runtime: TVMRuntime, threads: int) -> int:
    """Start this thread's pool, if it is not running, with at least ``threads`` workers; gives its size.

    A larger ``$TVM_NUM_THREADS`` stands: a pool can be lowered later, never raised, and TVM
    compares the variable with 1 at each launch, so it must not fall below any pool's size.
    """
    before = os.environ.get(_TVM_VARIABLE, "")
    if not before.isdecimal() or int(before) < threads:
        os.environ[_TVM_VARIABLE] = str(threads)
    make = runtime.function("runtime.NumThreads")
    limit = getattr(runtime.library, _SET_MOST, None)
    if limit is None:
        return make()
    # More workers would idle beside these.  What other threads launch while the limit is 1 runs on the
    # thread that launches it.
    with _starting:
        limit(threads)
        try:
            return make()
        finally:
            limit(0)


def _pin_workers(runtime: TVMRuntime, pinning: ThreadPinning) -> None:
    """Set each worker's affinity mask from inside a launch, where it knows its index."""
    if pinning.threads == 1 or (pinning.cores is None and not _state.pinned):
        return
    free = os.sched_getaffinity(0)
    masks = [{core} for core in pinning.cores] if pinning.cores else [free] * pinning.threads

    def pin(index: int, _environment: int, _data: int) -> int:
        if index > 0:  # index 0 is the caller, see `runner.py`
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, masks[index])
        return 0

    runtime.library.TVMBackendParallelLaunch(_ParallelLambda(pin), None, pinning.threads)
    _state.pinned = pinning.cores is not None
