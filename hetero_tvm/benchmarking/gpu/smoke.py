"""Before anything is timed: a few points of every space, at small sizes, against PyTorch.

What fails is listed, and nothing stops: each point runs in a process that is replaced when it breaks.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Any

from hetero_tvm.benchmarking.gpu.book import Book
from hetero_tvm.benchmarking.gpu.case import Case, Section
from hetero_tvm.benchmarking.gpu.rows import Bench
from hetero_tvm.search.workers import Job, contract_spec

_SECONDS = 40.0

Point = dict[str, Any]


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


def smoke(sections: Sequence[Section], bench: Bench, book: Book, more: bool) -> list[str]:
    """Check the small cases; the names of those that failed."""
    wanted = []
    for section in sections:
        for case in section.small:
            target = case.target(bench.target)
            space, reasons = target.space_for(case.op)
            if space is None:
                book.row("smoke", case.label, lambda reasons=reasons: {"status": "refused", "why": reasons})
                continue
            for name, point in points_of(space, case.op, target.machine, more).items():
                wanted.append((section.name, case, name, point, target))
    compile_ahead([(case, point, target) for _, case, _, point, target in wanted], bench)
    failed = []
    for section_name, case, name, point, target in wanted:

        def check(section_name=section_name, case=case, point=point, target=target) -> dict[str, Any]:
            request = {"do": "check", "section": section_name, "label": case.label, "small": True}
            space = target.space_for(case.op)[0].name
            found = bench.worker.ask({**request, "point": point}, _SECONDS)
            return {"space": space, "point": point, **found}

        row = book.row("smoke", f"{case.label} {name}", check)
        if row is not None and row["status"] != "ok":
            failed.append(f"{row['task']} ({row['space']} at {point}): {row['status']} {row.get('why', '')}")
    checked = len(wanted) - len(failed)
    print(f"smoke: {checked} of {len(wanted)} points are right", file=sys.stderr, flush=True)
    for line in failed:
        print(f"  FAILED {line}", file=sys.stderr, flush=True)
    return failed


def compile_ahead(wanted: Sequence[tuple[Case, Point, Any]], bench: Bench) -> None:
    """Compile on all cores, so that the process on the GPU finds the machine code in the cache.

    What does not compile is told by the process that wants to run it.
    """
    jobs = []
    for number, (case, point, target) in enumerate(wanted):
        bench.workers.use(target.machine)
        name = f"smoke-{number}"
        bench.workers.add_task(name, contract_spec(case.op, target.space_for(case.op)[0]))
        jobs.append(Job(name, ({"point": point},)))
    bench.workers.compile_all(jobs)
