"""The five verbs: import, optimize, tune, build (these four here) and load (in ``runtime``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hetero_tvm.compile.build import BuiltModel, build
from hetero_tvm.compile.optimize import OptimizedModel, import_model, optimize_model
from hetero_tvm.records.choose import Choice, choose
from hetero_tvm.records.store import RecordFolders, RecordStore
from hetero_tvm.search.options import TuneOptions
from hetero_tvm.search.outcome import TuneReport

__all__ = [
    "BuiltModel",
    "OptimizedModel",
    "TunedModel",
    "build_model",
    "import_model",
    "optimize_model",
    "record_store",
    "tune_model",
]


@dataclass(frozen=True)
class TunedModel:
    """An optimized model with the candidate chosen for each kernel, and how the search went."""

    optimized: OptimizedModel
    choices: Mapping[str, Choice]
    report: TuneReport


def record_store(
    optimized: OptimizedModel,
    logs: str | os.PathLike[str] | None = None,
    use_shipped: bool = True,
    device: str = "",
) -> RecordStore:
    """Records that fit a model's machine: in ``logs`` (default: a user data folder), then shipped ones.

    ``device`` names the product that is measured, where the machine stands for several.
    """
    return optimized.store(RecordFolders(logs, use_shipped), device)


def tune_model(
    optimized: OptimizedModel,
    *,
    trials: int | None = 64,
    minutes: float | None = None,
    logs: str | os.PathLike[str] | None = None,
    seed: int = 0,
    use_shipped: bool = True,
    rpc: str | None = None,
    on_event: Callable[[dict[str, Any]], None] | None = None,
) -> TunedModel:
    """Search schedules for the kernels of a model on this machine, its GPU, or another machine.

    Of a model for several GPU architectures the one that is there is measured.  Where there is none,
    candidates are ranked without measuring, for all of them, and the report says so.

    Parameters
    ----------
    trials : candidates in all, over the whole model; finished records count.  Where kernels overlap, as
        many whole models are timed after that.
    minutes : wall time of the search; whichever limit comes first ends it.
    logs : folder of the records, read and appended to.
    rpc : ``HOST:PORT`` of a machine that runs ``python -m hetero_tvm.serve``, or ``HOST:PORT:KEY`` of a
        tracker: candidates are measured there.
    on_event : called with progress dictionaries.

    Raises
    ------
    TuningError : candidates cannot be measured at all, or the connection is lost (what was measured
        until then is recorded).
    UsageError : ``rpc`` is no address, or candidates for this target are measured here only.
    """
    folders = RecordFolders(logs, use_shipped)
    options = TuneOptions(trials=trials, minutes=minutes, seed=seed)
    report = optimized.target.tuner(rpc).tune(optimized, options, folders, on_event or (lambda event: None))
    return TunedModel(optimized, _choices(optimized.variants()[0], folders), report)


def build_model(
    model: OptimizedModel | TunedModel,
    *,
    logs: str | os.PathLike[str] | None = None,
    use_shipped: bool = True,
) -> BuiltModel:
    """Compile: packs constants as the chosen schedules want, plans memory, generates code.

    An :class:`OptimizedModel` is built from the best records that fit, and from default points where there
    are none; a :class:`TunedModel` from its own choices.

    Raises
    ------
    BuildError : lowering or code generation failed.
    """
    optimized = model.optimized if isinstance(model, TunedModel) else model
    folders = RecordFolders(logs, use_shipped)
    first, *others = optimized.variants()
    choices = model.choices if isinstance(model, TunedModel) else _choices(first, folders)
    return build(optimized, choices, [(other, _choices(other, folders)) for other in others])


def _choices(optimized: OptimizedModel, folders: RecordFolders) -> dict[str, Choice]:
    """The best records that fit, by task."""
    return choose(optimized.tasks, optimized.machine, optimized.store(folders))
