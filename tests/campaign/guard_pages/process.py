"""Generated graphs in a guarded process: a line on each says that it begins, and what is wrong with it."""

from __future__ import annotations

import argparse
import time
import warnings
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from hetero_tvm import Span
from hetero_tvm.api import import_model
from hetero_tvm.errors import HeteroTVMError
from tests.campaign.graphs.generate import Case, generate
from tests.campaign.graphs.judge import UNJUDGED, by_onnxruntime, compared, difference
from tests.campaign.graphs.opened import opened_axes
from tests.campaign.graphs.settings import Setting, add_options
from tests.campaign.guard_pages.guarded import Guard, blocks_of_their_own, run
from tests.campaign.guard_pages.images import Task, network


def tasks(case: Case, opened: bool) -> list[Task]:
    """(model, shapes, draws of inputs) of a graph."""
    if not opened:
        return [(case.model, case.shapes, [case.draw(0), case.draw(1)])]
    found: list[Task] = []
    for model, name, axis, draws in opened_axes(case):
        first = next(iter(draws.values()))
        spans: dict[str, Any] = {n: [int(extent) for extent in array.shape] for n, array in first.items()}
        spans[name][axis] = Span(min(draws), max(draws))
        found.append((model, spans, list(draws.values())))
    return found


def judge(guard: Guard, setting: Setting, task: Task) -> tuple[str, str | None]:
    """How a graph ends, and what is wrong with it."""
    model, shapes, draws = task
    try:
        built = setting.built(import_model(model, shapes=shapes))
    except HeteroTVMError:
        return "refused", None
    names = [spec.name for spec in built.optimized.signature.inputs]
    for draw in draws:
        try:
            fault = run(guard, built.run, {name: draw[name] for name in names})
        except HeteroTVMError:
            return "refused", None
        fault = fault or _wrong(setting, model, draw, built.run({name: draw[name] for name in names}))
        if fault:
            sizes = ", ".join(f"{name} {list(draw[name].shape)}" for name in names)
            return "wrong", f"{fault} (at {sizes})"
    return "passed", None


def _wrong(setting: Setting, model: Any, draw: Mapping[str, np.ndarray], results: Any) -> str | None:
    """How results differ from ONNX Runtime's, and where they do from all references."""
    as_ = setting.dtypes_as(model)
    try:
        theirs = by_onnxruntime(model, draw)
    except Exception:  # it takes fewer operators than the other references
        theirs = []
    if theirs and not any(difference(a, b, as_=as_) for a, b in zip(results, theirs, strict=True)):
        return None
    fault, _ = compared(model, draw, results, setting)
    return None if fault == UNJUDGED else fault


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--until", type=float)
    parser.add_argument("--open", action="store_true")
    parser.add_argument("--arena", action="store_true")
    parser.add_argument("--images", action="store_true")
    add_options(parser)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    setting, guard = Setting.of(options), Guard()
    counts: Counter[str] = Counter()
    with blocks_of_their_own(options.arena):
        for seed in range(options.first, options.last):
            if time.monotonic() > options.until:
                break
            print("begin", seed, flush=True)
            guard.watch()
            given = (
                [network(seed, options.nodes)]
                if options.images
                else tasks(generate(seed, options.nodes), options.open)
            )
            for task in given:
                kind, fault = judge(guard, setting, task)
                counts[kind] += 1
                if fault:
                    print("fault", seed, fault, flush=True)
    ended = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    print("sum", f"{options.first}..: {ended}; {guard.blocks} blocks", flush=True)


if __name__ == "__main__":
    main()
