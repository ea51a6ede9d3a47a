"""Whole models in float16 beside ``torch.compile`` of the same graph."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from hetero_tvm.api import build_model, import_model, optimize_model, tune_model
from hetero_tvm.benchmarking.gpu.book import Book
from hetero_tvm.benchmarking.gpu.rows import Bench

SIZES = {"batch": 8, "sequence": 512}
MODELS = ("bert-base", "gpt2-small")
TINY = "minilm-l6-tiny"
_MODES = ("max-autotune", "eager")
_TOLERANCE = 4e-2
"""Of float16 through 12 layers, relative to the largest value; PyTorch's own error stands beside it."""
_GOAL = 1.0
_TRIALS = 2
"""Times ``--trials``: a model has a dozen kernels.  Records of earlier rows count."""
_MINUTES = 2.5
_PEER_SECONDS = 420.0
_RESERVE = {"tune": 200.0, "build": 90.0, "run": 45.0, "max-autotune": 150.0, "eager": 30.0}
"""Seconds that must be left for a step to be begun."""


def features(bench: Bench, book: Book, folder: Path) -> None:
    """A tiny model built and called in every way: graphs, streams, submitting, PyTorch's tensors."""

    def measure() -> dict[str, Any]:
        library = _built(bench, TINY, {}, folder)
        request = {"do": "model", "what": "features", "name": TINY, "sizes": {}, "library": library}
        return bench.worker.ask({**request, "tolerance": _TOLERANCE}, 120.0)

    book.row("smoke", f"{TINY} called in every way", measure, reserve=30.0)


def models(bench: Bench, book: Book, folder: Path, names: tuple[str, ...], sizes: dict[str, int]) -> None:
    """Each step is a row of its own, so that what is done is not done again: tuning, our times, theirs.

    PyTorch's compiler runs alone: it times candidates on the same GPU, and takes all cores.
    """
    for name in names:
        request = {"do": "model", "name": name, "sizes": sizes, "tolerance": _TOLERANCE}

        def tuned(name: str = name) -> dict[str, Any]:
            return _tuned(bench, name, sizes, min(_MINUTES, book.seconds_left / 60))

        def ours(name: str = name, request: dict[str, Any] = request) -> dict[str, Any]:
            library = _built(bench, name, sizes, folder)
            return bench.worker.ask({**request, "what": "ours", "library": library}, 180.0)

        if not bench.small:
            book.row("models", f"{name} tuning", tuned, reserve=_RESERVE["tune"])
        mine = book.row("models", f"{name} f16", ours, reserve=_RESERVE["build"])
        for mode in _MODES:

            def theirs(mode: str = mode, request: dict[str, Any] = request) -> dict[str, Any]:
                found = bench.worker.ask(
                    {**request, "what": mode}, min(_PEER_SECONDS, book.seconds_left + 30)
                )
                bench.worker.close()  # its memory pools and compilers go with the process
                return found

            if mode != "eager" and bench.small:
                continue  # Inductor's C++ is not what this is about
            reserve = 0.0 if bench.small else _RESERVE[mode]
            peer = book.row("models", f"{name} torch {mode}", theirs, reserve=reserve)
            _compare(book, name, mine, mode, peer)


def _compare(book: Book, name: str, mine: Any, mode: str, peer: Any) -> None:
    """Our speed relative to PyTorch's into our row."""
    if not mine or not peer or not mine.get("seconds") or not peer.get("seconds"):
        return
    ratio = peer["seconds"] / mine["seconds"]
    mine.setdefault("speed_of", {})[f"torch {mode}"] = ratio
    if mode == "max-autotune":
        mine["goals"] = {f"torch {mode}": ratio >= _GOAL}
    book.write()
    print(f"  {name}: {ratio:.2f} x torch {mode}", flush=True)


@functools.lru_cache(maxsize=1)
def _plan(arch: str, name: str, sizes: tuple[tuple[str, int], ...]) -> Any:
    model = import_model(f"zoo:{name}", **dict(sizes))
    return optimize_model(model, f"cuda:{arch}", precision="f16")


def _plan_on(bench: Bench, name: str, sizes: dict[str, int]) -> Any:
    return _plan(bench.target.machine.arch, name, tuple(sizes.items()))


def _tuned(bench: Bench, name: str, sizes: dict[str, int], minutes: float) -> dict[str, Any]:
    plan, trials = _plan_on(bench, name, sizes), _TRIALS * bench.trials
    report = tune_model(plan, trials=trials, minutes=minutes, logs=bench.logs, use_shipped=False).report
    status = "ok" if report.trials or report.reused else "failed"
    return {"status": status, **{key: value for key, value in report.to_dict().items() if key != "curve"}}


def _built(bench: Bench, name: str, sizes: dict[str, int], folder: Path) -> str:
    """The path of the model's library, built from the records that there are."""
    built = build_model(_plan_on(bench, name, sizes), logs=bench.logs, use_shipped=False)
    folder.mkdir(parents=True, exist_ok=True)
    return str(built.export(folder / name))
