"""Choosing candidates without running them: the space's own estimate, and facts of the compiled code.

Nothing is measured here.  A candidate counts when its machine code fits the multiprocessor (registers,
shared memory) and keeps its registers (no stack: spills live there); among those, a space lists the
likely ones first, and more resident warps break near ties.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

from hetero_tvm import host
from hetero_tvm.errors import HeteroTVMError
from hetero_tvm.schedules.base import Point
from hetero_tvm.search.choose import Choice
from hetero_tvm.search.outcome import TaskReport, TuneReport
from hetero_tvm.targets.base import Target
from hetero_tvm.targets.cuda import codegen, facts

WARNING = (
    "nothing was measured: candidates were ranked by estimates and by registers, stack, shared memory "
    "and occupancy of their machine code"
)
_NEAR = 4
"""Candidates of a space's order among which occupancy decides."""


def rank(
    tasks: Sequence[Any], target: Target, trials: int | None, on_event: Callable[[dict[str, Any]], None]
) -> tuple[dict[str, Choice], TuneReport]:
    """The candidate of each task that its machine code speaks for.

    Parameters
    ----------
    trials : candidates to compile in all; None for 8 per task.

    Returns
    -------
    A choice per task key, and a report without times that says so.
    """
    began = monotonic()
    spaced = [task for task in tasks if task.space is not None]
    each = max(1, (8 * len(spaced) if trials is None else trials) // max(1, len(spaced)))
    choices, rows, count = {}, [], 0
    for task in tasks:
        row = TaskReport(task.name, task.count, task.flops, task.nbytes)
        rows.append(row)
        if task.space is None:
            choices[task.key] = Choice(None, None, "default")
            row.note = "no space: scheduled by rule"
            continue
        points = list(itertools.islice(candidates(task, target), each))
        with ThreadPoolExecutor(len(host.available_cores())) as pool:
            found = list(pool.map(lambda point, task=task: known_of(task, point, target), points))
        count += len(points)
        row.trials = len(points)
        row.failures.update(why for why in map(refusal, found) if why)
        best = pick(found)
        origin = "default" if best in (None, 0) else "ranked, not measured"
        choices[task.key] = Choice(points[best or 0], None, origin)
        row.origin = origin
        row.note = "no candidate without spills" if best is None else _told(found[best])
        on_event({"event": "ranked", "task": task.name, "trials": count})
    report = TuneReport(rows, trials=count, elapsed=monotonic() - began, warnings=[WARNING], logs="none")
    return choices, report


def candidates(task: Any, target: Target) -> Any:
    """Points of a task's space: the default, then all combinations, the likely choices first."""
    default = dict(task.space.default(task.op, target.machine))
    yield default
    knobs = task.space.knobs(task.op, target.machine)
    for values in itertools.product(*(knob.choices for knob in knobs)):
        point = dict(zip((knob.name for knob in knobs), values, strict=True))
        if point != default:
            yield point


def known_of(task: Any, point: Point, target: Target) -> dict[str, Any] | str:
    """Facts of a candidate's kernel, or why there is none."""
    try:
        kernel = target.stamp(task.space.emit(task.op, point, target.machine))
        with codegen.collect() as made:
            codegen.compile_kernels(kernel, target.tvm_target)
        return facts.worst(facts.of_module(made[0]).values())
    except HeteroTVMError as error:
        return error.message
    except Exception as error:  # TVM raises many kinds; one bad candidate must not end the ranking
        return str(error).strip().splitlines()[-1]


def refusal(known: dict[str, Any] | str) -> str | None:
    """Why a candidate does not count; None when it does."""
    if isinstance(known, str):
        return "build_error"
    if known["stack"]:
        return "spills"
    return None if known["occupancy"] is None or known["occupancy"] > 0 else "does_not_fit"


def pick(found: Sequence[dict[str, Any] | str]) -> int | None:
    """Index of the best candidate; None when none counts."""
    valid = [index for index, known in enumerate(found) if refusal(known) is None]
    if not valid:
        return None
    near = [index for index in valid if index < valid[0] + _NEAR]
    return max(near, key=lambda index: (min(found[index]["occupancy"] or 0.0, 0.25), -index))


def _told(known: dict[str, Any]) -> str:
    occupancy = "" if known["occupancy"] is None else f", occupancy {known['occupancy']:.0%}"
    return f"{known['registers']} registers, {known['shared'] / 1024:.0f} KB shared{occupancy}"
