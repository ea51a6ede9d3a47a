"""The command ``python -m tests.campaign.suite_changes``: changed node tests of the official ONNX suite.

Every test of one node is changed in each way of :data:`~tests.campaign.suite_changes.changes.CHANGES` (inputs
as constants, other axes, types and opsets, special values, odd and empty and open sizes, neighbours that
fuse); what ONNX Runtime or ONNX's evaluator runs is compiled, run and compared as generated graphs are.
Tests and changes are drawn by a seed, and the same seed draws the same.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from functools import cache, partial
from pathlib import Path

os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "100")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np

from tests.campaign.graphs.command import KINDS
from tests.campaign.graphs.judge import BROKEN, REFUSED, WRONG, Verdict, grouped
from tests.campaign.graphs.settings import Setting, add_options
from tests.campaign.graphs.workers import Worker
from tests.campaign.suite_changes.changes import CHANGES
from tests.campaign.suite_changes.judge import judge
from tests.campaign.suite_changes.subject import Subject

_LEFT_OUT = frozenset(
    "Bernoulli RandomNormal RandomUniform RandomNormalLike RandomUniformLike Multinomial FlexAttention "
    "ImageDecoder MelWeightMatrix Adam Adagrad Momentum Dropout".split()
)
"""Operators that give random numbers, or that the importer does not take."""

Task = tuple[str, str, int]
"""Name of a test, name of a change, number of what the change yields."""


@cache
def subjects() -> dict[str, Subject]:
    """Subject by name of its test, of the tests that are written out and have one node."""
    from tests.campaign.onnx_suite import cases

    found = {name: Subject.of(case) for name, case in cases().items() if "_expanded" not in name}
    return {name: s for name, s in found.items() if s and s.node.op_type not in _LEFT_OUT}


def changed(task: Task, seed: int) -> tuple[str, Subject]:
    """What a task changes, and the changed subject."""
    name, change, number = task
    return list(CHANGES[change](subjects()[name], np.random.default_rng(seed)))[number]


def judge_task(setting: Setting, seed: int, task: Task) -> Verdict:
    """The verdict on a task."""
    return judge(changed(task, seed)[1], setting)


def tasks(seed: int, kinds: list[str], only: str) -> list[Task]:
    """All tasks in the order of a seed: of each operator one before any has a second."""
    rng = np.random.default_rng(seed)
    found = [
        (name, change, number)
        for name, subject in subjects().items()
        if only in name
        for change in kinds
        for number in range(len(list(CHANGES[change](subject, np.random.default_rng(seed)))))
    ]
    rng.shuffle(found)
    turns: Counter[tuple[str, str]] = Counter()
    order = []
    for name, change, number in found:
        kind = (subjects()[str(name)].node.op_type, str(change))
        turns[kind] += 1
        order.append((turns[kind], (str(name), str(change), int(number))))
    return [task for _, task in sorted(order, key=lambda pair: pair[0])]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.suite_changes", description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--start", type=int, default=0, help="number of the first task")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", metavar="TEXT", help="tests whose name contains this")
    parser.add_argument("--changes", nargs="*", choices=sorted(CHANGES), default=list(CHANGES))
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after this time")
    add_options(parser)
    parser.add_argument("--out", type=Path, help="write every verdict as JSON lines")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    worker = Worker(partial(judge_task, Setting.of(options), options.seed))
    begin = time.monotonic()
    todo = tasks(options.seed, options.changes, options.only)[options.start :][: options.count]
    with options.out.open("a") if options.out else open(os.devnull, "w") as file:
        try:
            for task in todo:
                if time.monotonic() - begin > 60 * options.minutes:
                    break
                worker.start(task)
                how = worker.verdict()
                counts[how.kind] += 1
                what = changed(task, options.seed)[0]
                record = {
                    "task": task,
                    "what": what,
                    "verdict": how.kind,
                    "reason": how.reason,
                    "note": how.note,
                }
                file.write(json.dumps(record) + "\n")
                file.flush()
                if how.kind == REFUSED:
                    reasons[grouped(how.reason)] += 1
                elif how.kind in (WRONG, BROKEN):
                    print(f"{how.kind}: {task} ({what}): {how.reason[:500]}", flush=True)
        finally:
            worker.stop()
    print(", ".join(f"{counts[kind]} {kind}" for kind in KINDS) + f" in {time.monotonic() - begin:.0f} s")
    for reason, count in reasons.most_common():
        print(f"{count:5} refused: {reason}")
    return 1 if counts[WRONG] + counts[BROKEN] else 0
