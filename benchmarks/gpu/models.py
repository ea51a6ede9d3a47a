"""Whole models in float16 beside ``torch.compile`` of the same graph."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.measure import Setup
from benchmarks.gpu.results_file import Entry, ResultsFile
from hetero_tvm.api import build_model, import_model, optimize_model, tune_model
from hetero_tvm.benchmarking.subject import save
from hetero_tvm.compile.optimize import OptimizedModel
from hetero_tvm.reference import sample_inputs

SIZES = {"batch": 8, "sequence": 512}
MODELS = ("bert-base", "gpt2-small")
TINY = "minilm-l6-tiny"
_MODES = ("max-autotune", "eager")
_TOLERANCE = 4e-2
"""Error of float16 through 12 layers, relative to the largest value; PyTorch's own error stands beside it."""
_GOAL = 1.0
_TRIALS = 2
"""Trials of a model as a multiple of ``--trials``: it has a dozen kernels.  Earlier records count."""
_MINUTES = 2.5
_PEER_SECONDS = 420.0
_RESERVE = {"tune": 200.0, "build": 90.0, "run": 45.0, "max-autotune": 150.0, "eager": 30.0}
"""Seconds that must be left for a step to be begun."""


def features(setup: Setup, results: ResultsFile, folder: Path) -> None:
    """A tiny model built and called in every way: graphs, streams, submitting, PyTorch's tensors."""

    def measure() -> dict[str, Any]:
        return Model(setup, TINY, {}, folder).ours("features")

    results.entry("smoke", f"{TINY} called in every way", measure, reserve=30.0)


def models(
    setup: Setup, results: ResultsFile, folder: Path, names: tuple[str, ...], sizes: dict[str, int]
) -> None:
    """Measure models; each step is an entry of its own, so that it is not repeated: tuning, ours, theirs.

    PyTorch's compiler runs alone: it times candidates on the same GPU, and takes all cores.
    """
    for name in names:
        model = Model(setup, name, sizes, folder)
        if not setup.small:
            seconds = min(60 * _MINUTES, results.seconds_left)
            tuned = functools.partial(model.tuned, seconds)
            if results.entry("models", f"{name} tuning", tuned, _RESERVE["tune"]) is None:
                continue  # later: times of defaults would stay in the results
        build = functools.partial(model.ours, "ours")
        ours = results.entry("models", f"{name} f16", build, _RESERVE["build"])
        for mode in _MODES:
            if mode != "eager" and setup.small:
                continue  # Inductor's C++ is not what this is about
            reserve = 0.0 if setup.small else _RESERVE[mode]
            seconds = min(_PEER_SECONDS, results.seconds_left + 30)
            theirs = functools.partial(model.theirs, mode, seconds)
            peer = results.entry("models", f"{name} torch {mode}", theirs, reserve)
            _compare(results, name, ours, mode, peer)


class Model:
    """One model of the zoo on the GPU.

    Parameters
    ----------
    sizes : batch and sequence, {} for the model's own.
    folder : where what is built goes.
    """

    def __init__(self, setup: Setup, name: str, sizes: dict[str, int], folder: Path):
        self._setup, self._name, self._sizes, self._folder = setup, name, sizes, folder

    @functools.cached_property
    def optimized(self) -> OptimizedModel:
        """The model, ready for this GPU."""
        model = import_model(f"zoo:{self._name}", **self._sizes)
        return optimize_model(model, f"cuda:{self._setup.target.machine.arch}", precision="f16")

    def tuned(self, seconds: float) -> dict[str, Any]:
        """Search its kernels for so long; what is known of them already counts."""
        trials, logs = _TRIALS * self._setup.trials, self._setup.logs
        limits = {"trials": trials, "minutes": seconds / 60}
        report = tune_model(self.optimized, **limits, logs=logs, use_shipped=False).report
        status = "ok" if report.trials or report.reused else "failed"
        return {"status": status, **{key: value for key, value in report.to_dict().items() if key != "curve"}}

    def ours(self, what: str) -> dict[str, Any]:
        """Build it from the records that there are, and run it."""
        built = build_model(self.optimized, logs=self._setup.logs, use_shipped=False)
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._ask(what, 180.0, library=str(built.export(self._folder / self._name)))

    def theirs(self, mode: str, seconds: float) -> dict[str, Any]:
        """Time PyTorch's version; its memory pools and compilers go with the process."""
        try:
            return self._ask(mode, seconds)
        finally:
            self._setup.worker.close()

    def _ask(self, what: str, seconds: float, **more: str) -> dict[str, Any]:
        request = {"do": "model", "what": what, "tolerance": _TOLERANCE, **self._files(), **more}
        return self._setup.worker.ask(request, self._setup.seconds(seconds))

    def _files(self) -> dict[str, str]:
        """Write the cleaned model and inputs for it; their paths."""
        model, inputs = self._folder / f"{self._name}.onnx", self._folder / f"{self._name}.npz"
        if not inputs.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            cleaned = self.optimized.model.onnx_model
            save(cleaned, model)
            np.savez(inputs, **sample_inputs(cleaned, 0))
        return {"model": str(model), "inputs": str(inputs)}


def _compare(results: ResultsFile, name: str, mine: Entry | None, mode: str, peer: Entry | None) -> None:
    """Put our speed relative to PyTorch's into our entry."""
    if not mine or not peer or not mine.get("seconds") or not peer.get("seconds"):
        return
    ratio = peer["seconds"] / mine["seconds"]
    mine.setdefault("speed_of", {})[f"torch {mode}"] = ratio
    if mode == "max-autotune":
        mine["goals"] = {f"torch {mode}": ratio >= _GOAL}
    results.write()
    print(f"  {name}: {ratio:.2f} x torch {mode}", flush=True)
