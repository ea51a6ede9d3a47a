"""The end of a search: is the model faster with what was found?

Kernels are tuned alone; what counts is the model, where they share caches and cores.  Both builds run in
turn in this process, so that a slow spell hits both, and calls during which other processes took the cores
do not count.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter

from hetero_tvm import host
from hetero_tvm.compile.optimize import OptimizedModel
from hetero_tvm.search.measure.disturbance import Disturbance
from hetero_tvm.search.measure.timing import threads_now

_TOLERATED = 0.02
"""Fraction of a call that others may take."""
_MARGIN = 0.005
"""A tuned model must be faster by this fraction to be kept: less is within what two builds differ by."""
_LEAST_PAIRS = 5
_MOST_PAIRS = 400


@dataclass(frozen=True)
class EndToEnd:
    """Times of one call of the default and of the tuned model, taken in turn.

    Parameters
    ----------
    default_seconds, tuned_seconds : medians.
    ratio : median over pairs of neighbouring calls of tuned / default; under 1 the tuned one is faster.
    low, high : quartiles of these ratios.
    pairs : pairs that count; with fewer than a handful nothing was measured.
    kept : ``tuned`` or ``default``: which of them is to be exported.
    """

    default_seconds: float
    tuned_seconds: float
    ratio: float
    low: float
    high: float
    pairs: int
    kept: str

    def per_call(self, calls: int) -> EndToEnd:
        """The same of one call, where each time is that of several."""
        times = (self.default_seconds / calls, self.tuned_seconds / calls)
        return replace(self, default_seconds=times[0], tuned_seconds=times[1])

    def __str__(self) -> str:
        times = f"{self.default_seconds * 1e3:.3f} ms by default, {self.tuned_seconds * 1e3:.3f} ms tuned"
        spread = f"{1 / self.ratio:.3f} x, quartiles {1 / self.high:.3f} to {1 / self.low:.3f}"
        verdict = "" if self.kept == "tuned" else "; not faster: the default is kept"
        return f"the whole model: {times} ({spread}, {self.pairs} pairs){verdict}"


def untimed(optimized: OptimizedModel) -> str | None:
    """Reason why calls in this process do not show what a model takes; None where they do."""
    unrunnable = optimized.target.unrunnable()
    if unrunnable is not None:
        return unrunnable
    # A target that measures by itself has a clock of its own, which calls here do not show.
    by_clock = optimized.target.device_door is not None and not optimized.machine.whole_models
    return None if by_clock else "its target measures by a clock of its own"


def race(
    default: Callable[[], object],
    tuned: Callable[[], object],
    seconds: float = 1.5,
    lost: Callable[[], float] | None = None,
    clock: Callable[[], float] = perf_counter,
) -> EndToEnd | None:
    """Run two models in turn for about ``seconds``; None where other processes left no pair of calls alone.

    Parameters
    ----------
    lost : core seconds that others have taken so far; None: those of this process's threads.
    """
    for call in (default, tuned):
        call()
        call()
    watch = None
    if lost is None:
        watch = Disturbance([os.getpid(), *threads_now()], host.available_cores())
        lost = watch.lost
    pairs = []
    end, last = clock() + seconds, clock() + 4 * seconds
    while (now := clock()) < last and len(pairs) < _MOST_PAIRS:
        if now > end and len(pairs) >= _LEAST_PAIRS:
            break
        first = len(pairs) % 2  # each goes first in every other pair
        times = [0.0, 0.0]
        calm = True
        for which in (first, 1 - first):
            before, start = lost(), clock()
            (default, tuned)[which]()
            times[which] = clock() - start
            calm = calm and lost() - before <= _TOLERATED * times[which]
        if calm:
            pairs.append((times[0], times[1]))
    if watch is not None:
        watch.close()
    return _judged(pairs) if len(pairs) >= _LEAST_PAIRS else None


def _judged(pairs: Sequence[tuple[float, float]]) -> EndToEnd:
    ratios = sorted(tuned / default for default, tuned in pairs)
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    ratio = median(ratios)
    kept = "tuned" if ratio < 1 - _MARGIN else "default"
    default, tuned = (median(times) for times in zip(*pairs, strict=True))
    return EndToEnd(default, tuned, ratio, low, high, len(pairs), kept)
