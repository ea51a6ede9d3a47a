"""Timing kernels in a candidate's own process.

Kernels run on the pool of exported libraries, its threads placed one per core by hand: where the scheduler
moves them, times vary more.  Constant operands exist in several copies that are used in turn, because in a
network every weight is read once per inference and so comes from beyond L2; timing one hot copy would favour
kernels that do not prefetch.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from statistics import median
from time import perf_counter

from hetero_tvm.search.measure.disturbance import LostSeconds

Call = Callable[[], None]

_TOLERATED = 0.02
"""Fraction of a repeat that others may take: less than what repeats differ by anyway."""
_ENOUGH = 3
"""Undisturbed repeats that are wanted of each kernel."""
_TOO_FEW = 4
"""A repeat that ends this many times too soon has too few calls: something disturbed the guess."""
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


@dataclass(frozen=True)
class Timing:
    """Timing of one kernel.

    Parameters
    ----------
    seconds : per call, the least of the repeats that nothing disturbed; of all, where each was.
    spread : how far the median of these repeats lies above the least, as a fraction of it.
    disturbed : fraction of the time that other processes or guests took from the best repeat; 0.0 where it
        is to be trusted.
    """

    seconds: float
    spread: float = 0.0
    disturbed: float = 0.0


@dataclass
class _Samples:
    """Repeats of one kernel, ``number`` calls each: those left alone, and others with what they lost.

    ``piece`` is what a repeat is meant to take, in seconds.
    """

    call: Call
    number: int
    piece: float
    clean: list[float] = field(default_factory=list)
    disturbed: list[tuple[float, float]] = field(default_factory=list)

    def add(self, lost: LostSeconds) -> None:
        """Run one more repeat; where it is over too soon, all begin again with more calls in each.

        Calls that waited for a core while the kernel was warmed make it look slow.  Repeats of a call or two
        would then time how long a cold one takes, many times what a kernel of less than a microsecond does.
        """
        before = lost()
        seconds = _repeat(self.call, self.number)
        share = (lost() - before) / max(seconds * self.number, 1e-9)
        if self.piece > _TOO_FEW * self.number * seconds > 0:
            self.number = int(self.piece / seconds)
            self.clean, self.disturbed = [], []
            self.add(lost)
        elif share <= _TOLERATED:
            self.clean.append(seconds)
        else:
            self.disturbed.append((seconds, min(1.0, share)))

    def enough(self, turn: int) -> bool:
        """Whether what counts after ``turn`` repeats says how fast the kernel is once the budget is spent.

        One repeat is enough of a slow kernel alone: where short ones waited while they were warmed, the first
        repeat is late already, and others that came in between are not seen before their tick is over.
        """
        return len(self.clean) >= (_ENOUGH if self.number > 1 else min(turn, _ENOUGH))

    @property
    def least(self) -> float:
        """Seconds that a call takes at least, as far as is known: what others took does not count."""
        return min([*self.clean, *(seconds * (1 - share) for seconds, share in self.disturbed)])

    def timing(self) -> Timing:
        """Result of all repeats together."""
        if self.clean:
            least = min(self.clean)
            return Timing(least, median(self.clean) / least - 1)
        seconds, share = min(self.disturbed)
        return Timing(seconds, median(s for s, _ in self.disturbed) / seconds - 1, share)


def _repeat(call: Call, number: int) -> float:
    start = perf_counter()
    for _ in range(number):
        call()
    return (perf_counter() - start) / number


def _nothing_lost() -> float:
    return 0.0


def measure(
    calls: Sequence[Call],
    budget: float = 0.014,
    repeats: int = 6,
    warm_up: float = 0.002,
    limit: float | None = None,
    once: Sequence[float] | None = None,
    lost: LostSeconds = _nothing_lost,
    patience: float = 20.0,
) -> list[Timing]:
    """Time kernels: the least of several repeats taken in turn, of those that had the machine to themselves.

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
    lost : core seconds that others have taken so far; a repeat during which it grows does not count.
    patience : how many budgets to spend at most until each kernel has some repeats that count.
    """
    once = [0.0] * len(calls) if once is None else once
    samples = []
    end = perf_counter() + budget * len(calls)
    last = end + (patience - 1) * budget * len(calls)
    for call, before in zip(calls, once, strict=True):
        spent, count = (before if before >= warm_up else _repeat(call, 1)), 1
        while spent < warm_up:
            spent += _repeat(call, 1)
            count += 1
        piece = budget / repeats
        samples.append(_Samples(call, max(1, int(piece / (spent / count))), piece))
    for turn in range(1, int(8 * repeats * patience)):
        for one in samples:
            one.add(lost)
        now = perf_counter()
        if now > last or (now > end and all(one.enough(turn) for one in samples)):
            break
        if turn >= 8 * repeats and all(len(one.clean) >= _ENOUGH for one in samples):
            break
        if (
            limit is not None
            and len(calls) == 1
            and samples[0].least > limit
            and turn + (once[0] > limit) > 1
        ):
            break
    return [one.timing() for one in samples]


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
