"""The command ``python -m tests.campaign.few_bits``: random small products and convolutions of few bits.

Each model is a product of matrices or a convolution in one of the forms in which files and ``--precision``
have few bits (:data:`~tests.campaign.few_bits.forms.FORMS`), of odd extents, with zero points and values at
the ends of their types.  Its results are compared with the definition in whole numbers and float64: a result
of 8 bits is the nearest step (ties, and what float32 cannot tell from them, may go either way), a sum of
whole numbers is equal, a float is as near as its operands were rounded.  How many models ONNX Runtime
computes otherwise is told, and no fault.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

import numpy as np

from tests.campaign.few_bits.cases import Arrays, Case
from tests.campaign.few_bits.forms import FORMS
from tests.campaign.graphs.judge import (
    BROKEN,
    PASSED,
    REFUSED,
    UNJUDGED,
    WRONG,
    Verdict,
    by_onnxruntime,
    failed_inside,
)
from tests.campaign.graphs.workers import Worker

_PROGRESS = 50
"""Models between two lines of progress."""


def case_of(seed: int) -> tuple[str, Case]:
    """The form and the case of a seed."""
    name = list(FORMS)[seed % len(FORMS)]
    return name, FORMS[name](np.random.default_rng(seed))


def fault(case: Case, draw: Arrays, result: np.ndarray) -> str | None:
    """What is wrong with a result; None when it is as near as it must be."""
    expected, room = case.exact(draw)
    if result.shape != expected.shape:
        return f"shape {result.shape}, not {expected.shape}"
    error = np.abs(result.astype(np.float64) - expected)
    wrong = ~(error <= room)
    if not wrong.any():
        return None
    at = np.unravel_index(np.where(wrong, error - room, -1).argmax(), error.shape)
    return f"{wrong.sum()} of {error.size}, worst {result[at]}, not {expected[at]:.6g} +- {room[at]:.3g}"


def judge(seed: int) -> Verdict:
    """The verdict on the model of a seed."""
    from hetero_tvm.api import build_model, import_model, optimize_model
    from hetero_tvm.errors import HeteroTVMError

    _, case = case_of(seed)
    model = case.model()
    theirs = ""
    try:
        differs = [fault(case, draw, by_onnxruntime(model, draw)[0]) for draw in case.draws]
        theirs = next((f"ONNX Runtime differs: {f}" for f in differs if f), "")
    except Exception as error:
        theirs = f"ONNX Runtime cannot run it: {type(error).__name__}"
    try:
        plan = optimize_model(import_model(model), precision=case.precision)
        built = build_model(plan, use_shipped=False)
        faults = [fault(case, draw, built.run(draw)[0]) for draw in case.draws]
    except HeteroTVMError as error:
        return Verdict(
            BROKEN if failed_inside(error) else REFUSED, " ".join(str(error).split())[:400], theirs
        )
    except Exception as error:
        return Verdict(BROKEN, f"{type(error).__name__}: {' '.join(str(error).split())[-400:]}", theirs)
    found = next((f for f in faults if f), None)
    return Verdict(WRONG, found, theirs) if found else Verdict(PASSED, note=theirs)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.few_bits", description=__doc__)
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first model; its form goes round")
    parser.add_argument("--only", type=int, nargs="*", help="these seeds instead")
    parser.add_argument("--minutes", type=float, help="end after this long, and say at which seed to go on")
    options = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    differing, begin, worker = 0, time.monotonic(), Worker(judge)
    try:
        for seed in options.only or range(options.seed, options.seed + options.count):
            if options.minutes is not None and time.monotonic() - begin > 60 * options.minutes:
                print(f"the time is over: go on with --seed {seed}", flush=True)
                break
            worker.start(seed)
            how, form = worker.verdict(), list(FORMS)[seed % len(FORMS)]
            counts[form, how.kind] += 1
            differing += how.note.startswith("ONNX Runtime differs")
            judged = sum(counts.values())
            if judged % _PROGRESS == 0:
                print(f"{judged} models, up to seed {seed}", file=sys.stderr, flush=True)
            if how.kind != PASSED:
                print(f"{how.kind}: seed {seed} ({form}): {how.reason} {how.note}", flush=True)
    finally:
        worker.stop()
    for form in FORMS:
        kinds = (PASSED, REFUSED, WRONG, BROKEN, UNJUDGED)
        print(f"{form}: " + ", ".join(f"{counts[form, kind]} {kind}" for kind in kinds if counts[form, kind]))
    taken = time.monotonic() - begin
    print(f"{sum(counts.values())} models in {taken:.0f} s; ONNX Runtime differs on {differing}")
    return int(any(kind in (WRONG, BROKEN) for _, kind in counts))
