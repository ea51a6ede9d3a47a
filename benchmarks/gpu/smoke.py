"""Before anything is timed: a few points of every space, at small sizes, against PyTorch.

What fails is listed, and nothing stops: each point runs in a process that is replaced when it breaks.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.gpu.book import Book
from benchmarks.gpu.case import Case, Section
from benchmarks.gpu.rows import Bench
from hetero_tvm.search.measure.workers import Job, Result, contract_spec
from hetero_tvm.targets.base import Target

_SECONDS = 40.0
_MORE_SECONDS = 60.0
"""After so long only defaults are checked: a space whose other points break the context costs minutes."""

Point = dict[str, Any]


@dataclass(frozen=True)
class Wanted:
    """One point of a small case; ``name`` says which: ``default``, ``last``, ``random``."""

    section: str
    case: Case
    name: str
    point: Point
    space: Any
    target: Target

    @property
    def label(self) -> str:
        return f"{self.case.label} {self.name}"


def points_of(space: Any, op: Any, machine: Any, more: bool) -> dict[str, Point]:
    """The default; with ``more`` the least likely choices of all knobs, and a random point, as well."""
    knobs = space.knobs(op, machine)
    found = {"default": dict(space.default(op, machine))}
    if more:
        found["last"] = {knob.name: knob.choices[-1] for knob in knobs}
        chance = random.Random(op.to_json())
        found["random"] = {knob.name: chance.choice(knob.choices) for knob in knobs}
    unique: dict[str, Point] = {}
    for name, point in found.items():
        if point not in unique.values():
            unique[name] = point
    return unique


def wanted_of(sections: Sequence[Section], base: Target, more: bool) -> tuple[list[Wanted], dict[str, Any]]:
    """The points to check, all defaults first; cases that no space serves, with the reasons."""
    found, refused = [], {}
    for section in sections:
        for case in section.small:
            target = case.target(base)
            space, reasons = target.space_for(case.op)
            if space is None:
                refused[case.label] = reasons
                continue
            points = points_of(space, case.op, target.machine, more)
            found += [Wanted(section.name, case, name, p, space, target) for name, p in points.items()]
    order = ["default", "last", "random"]
    return sorted(found, key=lambda one: order.index(one.name)), refused


def smoke(sections: Sequence[Section], bench: Bench, book: Book, more: bool) -> list[str]:
    """Check the small cases; lines about those that failed."""
    began, failed, checked = monotonic(), [], 0
    wanted, refused = wanted_of(sections, bench.target, more)
    for label, reasons in refused.items():
        book.row("smoke", label, lambda reasons=reasons: {"status": "failed", "why": f"no space: {reasons}"})
    done = {row["task"] for row in book.rows("smoke")}
    wanted = [one for one in wanted if one.label not in done]
    for one, library in zip(wanted, compile_ahead(wanted, bench), strict=True):
        if one.name != "default" and monotonic() - began > _MORE_SECONDS:
            break
        row = book.row("smoke", one.label, functools.partial(check, one, library, bench))
        checked += row is not None
        if row is not None and row["status"] != "ok":
            failed.append(f"{one.label} ({one.space.name} {one.point}): {row['status']} {row.get('why', '')}")
    seconds = monotonic() - began
    text = (
        f"smoke: {checked - len(failed)} of {checked} points are right, {len(wanted)} wanted, {seconds:.0f} s"
    )
    print("\n".join([text, *(f"  FAILED {line}" for line in failed)]), file=sys.stderr, flush=True)
    return failed


def check(one: Wanted, library: Path | Result, bench: Bench) -> dict[str, Any]:
    """The row of one point."""
    known = {"space": one.space.name, "point": one.point}
    if isinstance(library, Result):
        return {**known, "status": library.status, "why": library.text}
    request = {
        "do": "check",
        "section": one.section,
        "label": one.case.label,
        "small": True,
        "point": one.point,
    }
    return {**known, **bench.worker.ask({**request, "library": str(library)}, _SECONDS)}


def compile_ahead(wanted: Sequence[Wanted], bench: Bench) -> list[Path | Result]:
    """Compile on all cores: libraries, or why there is none."""
    jobs = []
    for number, one in enumerate(wanted):
        bench.workers.use(one.target.machine)
        bench.workers.add_task(f"smoke-{number}", contract_spec(one.case.op, one.space))
        jobs.append(Job(f"smoke-{number}", ({"point": one.point},)))
    return [library for (library,) in bench.workers.compile_all(jobs)]
