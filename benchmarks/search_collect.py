"""Tables of measured points, collected so that other load on the machine does not end up in them.

Every window times a few candidates and the space's default side by side.  A window in which the default is
slower than it is known to be was disturbed: it is thrown away and comes again.  What is written is each
candidate's ratio to the default beside it, times the default's least time, once two windows agree on it; what
never agrees with itself is left out.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timezone

from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.records.candidates import point_key
from hetero_tvm.records.tables import Table
from hetero_tvm.schedules.base import DesignSpace, Point
from hetero_tvm.search import points
from hetero_tvm.search.measure.forked_workers import ForkedWorkers
from hetero_tvm.search.measure.service import DISTURBED, Job, Result, contract_spec

_WINDOW = 8
"""Candidates beside the default in one window."""
_DRIFT = 0.25
"""A window counts when its default takes no longer than this above the least of all windows."""
_ATTEMPTS = 2
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
    seconds = [None if ratio is None else ratio * least for _, ratio in ratios]
    order = sorted((s, i) for i, s in enumerate(seconds) if s is not None and i)
    best = [0, *(index for _, index in order[:_FINAL])]
    for ratio, index in zip(_final(name, [listed[i] for i in best], workers), best, strict=True):
        if ratio is not None:
            seconds[index] = ratio * least
    return Table.of(
        space.name, space.version, op, machine, listed, seconds, default=0, complete=complete,
        created=datetime.now(timezone.utc).strftime("%Y-%m-%d"),
    )  # fmt: skip


def _windows(
    name: str, listed: Sequence[Point], workers: ForkedWorkers
) -> tuple[list[tuple[int, float | None]], float]:
    """Indices of points with their times as multiples of the first one's, and its least time."""
    seen: dict[int, list[tuple[float, float]]] = defaultdict(list)  # (default's seconds beside it, ratio)
    failed: set[int] = set()
    least, left = float("inf"), list(range(1, len(listed)))
    for _ in range(_ATTEMPTS):
        groups = [left[i : i + _WINDOW] for i in range(0, len(left), _WINDOW)] or [[]]
        jobs = [_job(name, [listed[i] for i in (0, *group)]) for group in groups]
        for number, (default, *results) in workers.measure(jobs):
            if default.seconds is None or default.status == DISTURBED:
                continue
            least = min(least, default.seconds)
            for index, result in zip(groups[number], results, strict=True):
                if result.seconds is None:
                    failed.add(index)
                elif result.ok:
                    seen[index].append((default.seconds, result.seconds / default.seconds))
        agreed = {index: _agreed(seen[index], least) for index in left}
        left = [index for index in left if index not in failed and agreed[index] is None]
        random.Random(len(left)).shuffle(left)  # other neighbours in the next windows
        if not left:
            break
    ratios = [(index, _agreed(seen[index], least)) for index in range(1, len(listed)) if index not in failed]
    kept = [(index, ratio) for index, ratio in ratios if ratio is not None]
    return [(0, 1.0), *kept, *((index, None) for index in sorted(failed))], least


def _agreed(seen: Sequence[tuple[float, float]], least: float) -> float | None:
    """Least of two ratios from calm windows that agree; None where there are no such two."""
    calm = sorted(ratio for default, ratio in seen if default <= least * (1 + _DRIFT))
    return next((a for a, b in itertools.pairwise(calm) if b <= a * (1 + _AGREE)), None)


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
