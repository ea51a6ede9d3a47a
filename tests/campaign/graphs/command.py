"""The command ``python -m tests.campaign.graphs``: generated graphs, each compiled, run and compared.

A graph is *passed*, *refused* (one of our errors), *wrong* (agrees with neither reference, beyond what
rounding explains), *broken* (any other exception, a signal, a hang) or *unjudged* (no reference runs it).
Graphs that are wrong or broken are shrunk to a minimal case and kept; with ``--open``, for which an axis of
an input has a range of sizes, their seeds tell them.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "100")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from tests.campaign.graphs.generate import generate
from tests.campaign.graphs.judge import BROKEN, PASSED, REFUSED, UNJUDGED, WRONG, Verdict, grouped, verdict
from tests.campaign.graphs.opened import judge_opened
from tests.campaign.graphs.settings import Setting, add_options
from tests.campaign.graphs.values import FLOATS
from tests.campaign.graphs.workers import Worker

KINDS = (PASSED, REFUSED, WRONG, BROKEN, UNJUDGED)


def judge_seed(setting: Setting, most: int, seed: int, floats: Sequence[str] = ()) -> Verdict:
    """The verdict on the graph of a seed, on two draws of inputs."""
    case = generate(seed, most, floats)
    return verdict(case.model, [case.draw(0), case.draw(1)], case.shapes, setting)


def judge_model(setting: Setting, task: Any) -> Verdict:
    """The verdict on a model that is given, on one draw."""
    model, draw, shapes = task
    return verdict(model, [draw], shapes, setting)


def run(
    seeds: Iterable[int],
    jobs: int,
    setting: Setting,
    most: int,
    seconds: float,
    judge: Callable[[Setting, int, int], Verdict] = judge_seed,
) -> Iterator[tuple[int, Verdict]]:
    """(seed, verdict) of every graph, as each is known, until the time is over."""
    waiting = iter(seeds)
    workers = [Worker(partial(judge, setting, most)) for _ in range(jobs)]
    end = time.monotonic() + seconds
    busy: dict[Any, Worker] = {}

    def next_task(worker: Worker) -> None:
        seed = next(waiting, None) if time.monotonic() < end else None
        if seed is None:
            worker.stop()
        else:
            worker.start(seed)
            busy[worker.connection] = worker

    try:
        for worker in workers:
            next_task(worker)
        while busy:
            # Nothing for so long is a hang, or nearly: the first that is waited for tells.
            ready = wait(list(busy), timeout=180) or list(busy)[:1]
            for connection in ready:
                worker = busy.pop(connection)
                seed = worker.task
                yield seed, worker.verdict()
                next_task(worker)
    finally:
        for worker in workers:
            worker.stop()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.graphs", description=__doc__)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1, help="seed of the first graph")
    parser.add_argument("--only", type=int, nargs="*", help="these seeds instead")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=40, help="most nodes of a graph")
    parser.add_argument("--open", action="store_true", help="with an axis of a range of sizes")
    parser.add_argument(
        "--floats", nargs="+", default=(), choices=FLOATS, help="floats of these types in turn, not drawn"
    )
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after this time")
    add_options(parser)
    parser.add_argument("--out", type=Path, help="write every verdict as JSON lines")
    parser.add_argument("--keep", type=Path, help="folder for shrunk graphs that are wrong or broken")
    options = parser.parse_args()
    seeds = options.only or range(options.seed, options.seed + options.count)
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    disagreements = 0
    begin = time.monotonic()
    with options.out.open("a") if options.out else open(os.devnull, "w") as file:
        judge = partial(judge_opened if options.open else judge_seed, floats=options.floats)
        limit = 60 * options.minutes
        setting = Setting.of(options)
        for seed, how in run(seeds, options.jobs, setting, options.nodes, limit, judge):
            counts[how.kind] += 1
            disagreements += how.note.startswith("references disagree")
            file.write(
                json.dumps({"seed": seed, "verdict": how.kind, "reason": how.reason, "note": how.note}) + "\n"
            )
            file.flush()
            if how.kind == REFUSED:
                reasons[grouped(how.reason)] += 1
            elif how.kind in (WRONG, BROKEN):
                print(f"{how.kind}: seed {seed}: {how.reason[:600]}", flush=True)
                if options.keep and not options.open:
                    from tests.campaign.graphs.shrink import keep

                    print(
                        f"  kept as {keep(seed, how, setting, options.nodes, options.keep, options.floats)}",
                        flush=True,
                    )
    total = sum(counts.values())
    taken = time.monotonic() - begin
    print(", ".join(f"{counts[kind]} {kind}" for kind in KINDS) + f" of {total} graphs in {taken:.0f} s")
    print(f"the references disagree with each other on {disagreements} graphs")
    for reason, count in reasons.most_common():
        print(f"{count:5} refused: {reason}")
    return 1 if counts[WRONG] + counts[BROKEN] else 0
