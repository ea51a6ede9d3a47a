"""Tables of measured points, collected so that other load on the machine does not end up in them.

Every window times a few candidates and the space's default side by side.  A window in which the default is
far slower than it is known to be was disturbed: it is thrown away and comes again.  What is written is each
candidate's ratio to the default beside it, times the default's least time, once two windows agree on it, the
calmest that do; what never agrees with itself is left out.  One window is enough where nothing varied in it,
and for what is far from the best.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import NamedTuple

from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.records.candidates import point_key
from hetero_tvm.records.tables import Table
from hetero_tvm.schedules.base import DesignSpace, Point
from hetero_tvm.search import points
from hetero_tvm.search.measure.forked_workers import ForkedWorkers
from hetero_tvm.search.measure.service import CRASH, DISTURBED, TIMEOUT, Job, Result, contract_spec

_WINDOW = 8
"""Candidates beside the default in one window."""
_DRIFT = 0.6
"""A window counts when its default takes no longer than this above the least of all windows."""
_STEADY = 0.04
"""One window is enough where the repeats of default and candidate lie this close together."""
_SLOW = 1.7
"""One window is enough for a point that takes this many times the best one's time."""
_ATTEMPTS = 5
_LEAST_GAIN = 0.1
"""Attempts go on while one brings this share of the points that the one before has left."""
_AGREE = 0.12
"""Two windows must agree on a point this far; where caches are shared with strangers, many do not."""
_FINAL, _FINAL_BUDGET = 11, 0.03
"""The best so many are timed once more, all side by side and longer."""


def sample(space: DesignSpace, op: FusedOp, machine: CpuModel, most: int) -> tuple[list[Point], bool]:
    """The default, then all other kernels of a space, or ``most`` random ones; and whether these are all."""
    default = space.canonical(op, space.default(op, machine), machine)
    every = [
        point for point in points.all_kernels(space, op, machine) if point_key(point) != point_key(default)
    ]
    complete = len(every) < most
    if not complete:
        every = random.Random(0).sample(every, most - 1)
    return [default, *every], complete


def collect(
    space: DesignSpace, op: FusedOp, machine: CpuModel, workers: ForkedWorkers, most: int = 64
) -> Table:
    """Measure a table."""
    listed, complete = sample(space, op, machine, most)
    name = f"{space.name} {op.label}"
    workers.add_task(name, contract_spec(op, space))
    ratios, least = _windows(name, listed, workers)
    complete = complete and len(ratios) == len(listed)
    listed = [listed[index] for index, _ in ratios]
    seconds: list[float | None] = [None if ratio is None else ratio * least for _, ratio in ratios]
    order = sorted((s, i) for i, s in enumerate(seconds) if s is not None and i)
    best = [0, *(index for _, index in order[:_FINAL])]
    for ratio, index in zip(_final(name, [listed[i] for i in best], workers), best, strict=True):
        if ratio is not None:
            seconds[index] = ratio * least
    return Table.of(
        space.name, space.version, op, machine, listed, seconds, default=0, complete=complete,
        created=datetime.now(timezone.utc).strftime("%Y-%m-%d"),
    )  # fmt: skip


class _Seen(NamedTuple):
    """A candidate in one window: the default's seconds beside it, its ratio to them, and how both varied."""

    default: float
    ratio: float
    spread: float


def _windows(
    name: str, listed: Sequence[Point], workers: ForkedWorkers
) -> tuple[list[tuple[int, float | None]], float]:
    """Indices of points with their times as multiples of the first one's, and its least time."""
    seen: dict[int, list[_Seen]] = defaultdict(list)
    failed: set[int] = set()
    ended: Counter[int] = Counter()  # times that a candidate's process ended early, which others may cause
    least, left = float("inf"), list(range(1, len(listed)))
    for attempt in range(_ATTEMPTS):
        groups = [left[i : i + _WINDOW] for i in range(0, len(left), _WINDOW)] or [[]]
        jobs = [_job(name, [listed[i] for i in (0, *group)]) for group in groups]
        for number, (default, *results) in workers.measure(jobs):
            if default.seconds is None or default.status == DISTURBED:
                continue
            least = min(least, default.seconds)
            for index, result in zip(groups[number], results, strict=True):
                if result.status in (TIMEOUT, CRASH):
                    ended[index] += 1
                elif result.seconds is None:
                    failed.add(index)
                elif result.ok:
                    ratio, spread = result.seconds / default.seconds, max(default.spread, result.spread)
                    seen[index].append(_Seen(default.seconds, ratio, spread))
        found = _agreed(seen, least)
        failed |= {index for index in left if ended[index] > 1 and not seen[index]}
        before = len(left)
        left = [index for index in left if index not in failed and index not in found]
        random.Random(len(left)).shuffle(left)  # other neighbours in the next windows
        if not left or (attempt and before - len(left) < _LEAST_GAIN * before):
            break
    found |= {0: 1.0} | dict.fromkeys(failed)
    return sorted(found.items()), least


def _agreed(seen: Mapping[int, Sequence[_Seen]], least: float) -> dict[int, float]:
    """Ratios by index, of those that calm windows agree on."""
    calm = {
        index: sorted(one for one in windows if one.default <= least * (1 + _DRIFT))
        for index, windows in seen.items()
    }
    best = min((one.ratio for windows in calm.values() for one in windows), default=1.0)
    found = {}
    for index, windows in calm.items():
        ratios = [one.ratio for one in windows]
        steady = [one.ratio for one in windows if one.spread <= _STEADY]
        pairs = [(min(a, b), max(a, b)) for a, b in itertools.combinations(ratios, 2)]
        agreeing = [low for low, high in pairs if high <= low * (1 + _AGREE)]
        if steady or agreeing:
            found[index] = (steady or agreeing)[0]
        elif ratios and min(ratios) > _SLOW * best:
            found[index] = ratios[0]
    return found


def _final(name: str, listed: Sequence[Point], workers: ForkedWorkers) -> list[float | None]:
    """Ratios of the best points to the first one, from the calmest of a few long windows."""
    best: tuple[float, list[Result]] = (float("inf"), [])
    for _, results in workers.measure([_job(name, listed, _FINAL_BUDGET)]):
        doubt = max(result.disturbed for result in results)
        if results[0].seconds is not None and doubt < best[0]:
            best = doubt, results
    if not best[1] or best[0] > 0:
        return [None] * len(listed)
    return [None if r.seconds is None else r.seconds / best[1][0].seconds for r in best[1]]


def _job(name: str, listed: Sequence[Point], budget: float = 0.014) -> Job:
    return Job(name, tuple({"point": point} for point in listed), budget=budget, run_seconds=60.0)
