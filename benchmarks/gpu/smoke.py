"""The smoke test: before anything is timed, a few points of every space, at small sizes, against PyTorch.

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

from benchmarks.gpu import sanitizer
from benchmarks.gpu.case import Case, Section
from benchmarks.gpu.measure import Setup
from benchmarks.gpu.results_file import Entry, ResultsFile
from hetero_tvm.machines.base import Machine
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.schedules.base import DesignSpace
from hetero_tvm.search.measure.service import Job, Result, contract_spec
from hetero_tvm.targets.base import Target

_SECONDS = 40.0
_MORE_SECONDS = 60.0
"""After so long only defaults are checked: a space whose other points break the context costs minutes."""

Point = dict[str, Any]


@dataclass(frozen=True)
class SmokePoint:
    """One point of a small case; ``name`` says which: ``default``, ``last``, ``random``."""

    section: str
    case: Case
    name: str
    point: Point
    space: DesignSpace
    target: Target

    @property
    def label(self) -> str:
        return f"{self.case.label} {self.name}"


def points_of(space: DesignSpace, op: FusedOp, machine: Machine, more: bool) -> dict[str, Point]:
    """The default point; with ``more`` also the least likely choices of all knobs, and a random point."""
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


def smoke_points(
    sections: Sequence[Section], base: Target, more: bool
) -> tuple[list[SmokePoint], dict[str, Any]]:
    """The points to check, all defaults first; cases that no space serves, with the reasons."""
    found: list[SmokePoint] = []
    refused: dict[str, Any] = {}
    for section in sections:
        for case in section.small:
            target = case.target(base)
            space, reasons = target.space_for(case.op)
            if space is None:
                refused[case.label] = reasons
                continue
            points = points_of(space, case.op, target.machine, more)
            found += [SmokePoint(section.name, case, name, p, space, target) for name, p in points.items()]
    order = ["default", "last", "random"]
    return sorted(found, key=lambda one: order.index(one.name)), refused


def smoke(sections: Sequence[Section], setup: Setup, results: ResultsFile, more: bool) -> list[str]:
    """Check the small cases; lines about those that failed."""
    began, failed, checked = monotonic(), [], 0
    points, refused = smoke_points(sections, setup.target, more)
    for label, reasons in refused.items():
        entry = {"status": "failed", "why": f"no space: {reasons}"}
        results.entry("smoke", label, lambda entry=entry: entry)
    done = {entry["task"] for entry in results.entries("smoke")}
    wanted = [one for one in points if one.label not in done]
    for one, library in zip(wanted, compile_ahead(wanted, setup), strict=True):
        if one.name != "default" and monotonic() - began > _MORE_SECONDS:
            break
        entry = results.entry("smoke", one.label, functools.partial(check, one, library, setup))
        checked += entry is not None
        if entry is not None and entry["status"] != "ok":
            what = f"{one.label} ({one.space.name} {one.point})"
            failed.append(f"{what}: {entry['status']} {entry.get('why', '')}")
    seconds = monotonic() - began
    text = (
        f"smoke: {checked - len(failed)} of {checked} points are right, {len(wanted)} wanted, {seconds:.0f} s"
    )
    print("\n".join([text, *(f"  FAILED {line}" for line in failed)]), file=sys.stderr, flush=True)
    sanitizer.smoke(lambda: _compiled(points, setup), setup.target.machine.arch, results)
    return failed


def _compiled(points: Sequence[SmokePoint], setup: Setup) -> list[sanitizer.Kernel]:
    """The points that compile."""
    pairs = zip(points, compile_ahead(points, setup), strict=True)
    return [
        {"name": one.label, **_named(one), "library": str(library)}
        for one, library in pairs
        if isinstance(library, Path)
    ]


def check(one: SmokePoint, library: Path | Result, setup: Setup) -> Entry:
    """Numbers of one compiled point beside PyTorch's."""
    known = {"space": one.space.name, "point": one.point}
    if isinstance(library, Result):
        return {**known, "status": library.status, "why": library.text}
    request = {"do": "check", "small": True, **_named(one), "library": str(library)}
    return {**known, **setup.worker.ask(request, _SECONDS)}


def _named(one: SmokePoint) -> dict[str, Any]:
    return {"section": one.section, "label": one.case.label, "point": one.point}


def compile_ahead(points: Sequence[SmokePoint], setup: Setup) -> list[Path | Result]:
    """Compile on all cores: libraries, or why there is none."""
    jobs = []
    for number, one in enumerate(points):
        setup.workers.use(one.target.machine)
        setup.workers.add_task(f"smoke-{number}", contract_spec(one.case.op, one.space))
        jobs.append(Job(f"smoke-{number}", ({"point": one.point},)))
    return [library for (library,) in setup.workers.compile_all(jobs)]
