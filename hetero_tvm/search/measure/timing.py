"""Timing kernels in a candidate's own process.

Threads are placed one per core by hand: TVM's own binding pins pool workers of all processes to the
same core and leaves the caller floating, and without any pinning the scheduler sometimes puts both
on one core.  Constant operands exist in several copies that are used in turn, because in a network
every weight is read once per inference and so comes from beyond L2; timing one hot copy would favour
kernels that do not prefetch.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from time import perf_counter

Call = Callable[[], None]

_SETTLED = 0.02
"""A sample this much faster than those before it says that clocks are still rising."""


def threads_now() -> set[int]:
    return {int(tid) for tid in os.listdir("/proc/self/task")}


def pin_threads(workers: Iterable[int], cores: Sequence[int]) -> None:
    """The caller to the first core, each worker thread to one of the following cores."""
    targets = cycle([*cores[1:], cores[0]])
    for tid, core in zip(sorted(workers), targets, strict=False):
        try:
            os.sched_setaffinity(tid, {core})
        except OSError:  # the thread has ended, or the container forbids it: timing is only noisier
            pass
    try:
        os.sched_setaffinity(0, {cores[0]})
    except OSError:
        pass


def bound(function: Callable[..., None], argument_sets: Sequence[Sequence[object]]) -> Call:
    """A function without arguments that calls ``function`` with the next set of arguments each time."""
    if len(argument_sets) == 1:
        only = tuple(argument_sets[0])
        return lambda: function(*only)
    turn = cycle([tuple(arguments) for arguments in argument_sets])
    return lambda: function(*next(turn))


def _repeat(call: Call, number: int) -> float:
    start = perf_counter()
    for _ in range(number):
        call()
    return (perf_counter() - start) / number


def measure(
    calls: Sequence[Call],
    budget: float = 0.014,
    repeats: int = 6,
    warm_up: float = 0.002,
    limit: float | None = None,
    once: Sequence[float] | None = None,
) -> list[float]:
    """Seconds per call of each kernel, least of several repeats taken in turn.

    Parameters
    ----------
    calls : kernels to compare; with several, their repeats alternate so that a slow spell of the
        machine hits all of them.
    budget : seconds to spend on each kernel.
    repeats : into how many pieces the budget is cut (a piece is at least one call).
    warm_up : seconds to run before the first repeat (wakes the thread pool, fills caches).
    limit : stop early when two runs of the (single) kernel show that it is slower than this.
    once : seconds that each kernel took when it ran just before; one that took longer than the warm-up
        needs no other.
    """
    once = [0.0] * len(calls) if once is None else once
    numbers, best = [], []
    end = perf_counter() + budget * len(calls)
    for call, before in zip(calls, once, strict=True):
        warm = before >= warm_up
        spent, count = (before, 1) if warm else (_repeat(call, 1), 1)
        while spent < warm_up:
            spent += _repeat(call, 1)
            count += 1
        numbers.append(max(1, int(budget / repeats / (spent / count))))
        best.append(math.inf if warm else spent / count)
    for turn in range(8 * repeats):
        for index, (call, number) in enumerate(zip(calls, numbers, strict=True)):
            best[index] = min(best[index], _repeat(call, number))
        if perf_counter() > end:
            break
        if limit is not None and len(calls) == 1 and best[0] > limit and turn + (once[0] > limit) >= 1:
            break
    return best


def settle(sample: Callable[[], float], least: float, most: float) -> None:
    """Take samples until three in a row are no faster than the best before them: clocks have risen.

    ``least`` and ``most`` are seconds to spend on that.
    """
    begin, best, stable = perf_counter(), math.inf, 0
    while perf_counter() - begin < most and (stable < 3 or perf_counter() - begin < least):
        seconds = sample()
        stable = stable + 1 if seconds > best * (1 - _SETTLED) else 0
        best = min(best, seconds)


def copies_needed(input_bytes: int, cache_bytes: int, most: int = 16) -> int:
    """Copies of the inputs so that going round them overflows ``cache_bytes`` (1 when there are none)."""
    return 1 if input_bytes == 0 else max(1, min(most, -(-2 * cache_bytes // input_bytes)))
