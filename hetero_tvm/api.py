"""The five verbs: import, optimize, tune, build (these four here) and load (in ``runtime``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hetero_tvm.compile.build import BuiltModel, build
from hetero_tvm.compile.implementations import chosen, implementations, tune_implementations
from hetero_tvm.compile.length_check import calls_at_lengths
from hetero_tvm.compile.optimize import OptimizedModel, import_model, optimize_model
from hetero_tvm.compile.representative import chosen_for_lengths, to_tune
from hetero_tvm.compile.truth import EndToEnd, race, untimed
from hetero_tvm.errors import UsageError, expect, expect_number
from hetero_tvm.frontend.functions.importer import import_function
from hetero_tvm.frontend.signature import ImportedModel
from hetero_tvm.host.terminal import number_of
from hetero_tvm.language.build import build_language_model
from hetero_tvm.language.embedding.build import build_embedding_model
from hetero_tvm.records.choose import Choice, choose, default_choice
from hetero_tvm.records.store import RecordFolders, RecordStore
from hetero_tvm.schedules.sampled import SampledSpace
from hetero_tvm.search.options import TuneOptions
from hetero_tvm.search.outcome import TuneReport
from hetero_tvm.search.progress import NotebookProgress, in_notebook
from hetero_tvm.targets.base import Target

__all__ = [
    "BuiltModel",
    "OptimizedModel",
    "TunedModel",
    "build_embedding_model",
    "build_language_model",
    "build_model",
    "import_model",
    "optimize_model",
    "record_store",
    "settle",
    "tune_model",
    "tune_op",
]


@dataclass(frozen=True)
class TunedModel:
    """An optimized model with the candidate chosen for each kernel, and how the search went."""

    optimized: OptimizedModel
    choices: Mapping[str, Choice]
    report: TuneReport

    def __repr__(self) -> str:
        found = sum(bool(choice.file) for choice in self.choices.values())
        kernels, trials = number_of(len(self.choices), "kernel"), number_of(self.report.trials, "trial")
        words = f"{kernels}, {found} from records, {trials}"
        return f"<TunedModel {self.optimized.model.name!r} for {self.optimized.target.kind}: {words}>"

    def _repr_html_(self) -> str:
        return self.report._repr_html_()

    def to_html(self) -> str:
        """A self-contained HTML page: roofline, kernels, curve of the search."""
        return self.report.to_html()


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
    fresh: bool = False,
    patience: float | None = None,
    on_event: Callable[[dict[str, Any]], None] | None = None,
    progress: bool | None = None,
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
    fresh : forget what records say of this model's kernels, and measure everything anew.
    patience : seconds to wait in all while other processes use the cores that kernels are timed on (CPU);
        None: 60, or a fifth of ``minutes`` where that is less.
    rpc : ``HOST:PORT`` of a machine that runs ``python -m hetero_tvm.serve``, or ``HOST:PORT:KEY`` of a
        tracker: candidates are measured there.
    on_event : called with progress dictionaries.
    progress : whether to draw a bar in a notebook; None: where ``on_event`` is not given.

    Raises
    ------
    TuningError : candidates cannot be measured at all, or the connection is lost (what was measured
        until then is recorded).
    UsageError : ``rpc`` is no address, or candidates for this target are measured here only.
    """
    expect(optimized, (OptimizedModel,), "tune_model takes what optimize_model gives", _HINTS)
    _check_logs(logs)
    expect_number(trials, (int, type(None)), "trials is a whole number, or None for no limit")
    expect_number(minutes, (int, float, type(None)), "minutes is a number, or None for no limit")
    expect_number(patience, (int, float, type(None)), "patience is a number of seconds, or None")
    expect_number(seed, (int,), "seed is a whole number")
    expect(on_event, (Callable, type(None)), "on_event is a function of one dictionary")
    given = {"trials": trials, "patience": patience, "seed": seed}
    wrong = [
        f"{name}={value} is no number of 0 or more"
        for name, value in given.items()
        if value is not None and not value >= 0
    ]
    if minutes is not None and not minutes > 0:
        wrong.append(f"minutes={minutes} leaves no time")
    if wrong:
        raise UsageError(
            ", ".join(wrong),
            hint="trials=64 is the default, trials=0 measures nothing, and minutes=5 is a limit too",
        )
    folders = RecordFolders(logs, use_shipped)
    options = TuneOptions(trials=trials, minutes=minutes, seed=seed, fresh=fresh, patience=patience)
    if on_event is None and progress is not False and trials != 0 and in_notebook():
        on_event = NotebookProgress()
    waited = 0.0

    def tune(one: OptimizedModel, part: float = 1.0) -> tuple[dict[str, Choice], TuneReport]:
        nonlocal waited
        wanted = replace(
            options,
            trials=None if trials is None else round(part * trials),
            minutes=None if minutes is None else part * minutes,
            patience=max(0.0, options.most_waiting - waited),
        )
        found = one.target.tuner(rpc).tune(to_tune(one), wanted, folders, on_event or (lambda event: None))
        waited += found.waited
        return _choices(one.variants()[0], folders), found

    if optimized.alternatives:
        reason = "they are searched on another machine" if rpc else None
        reason = reason or ("nothing is searched" if trials == 0 else untimed(optimized))
        store = optimized.store(folders)
        optimized, (choices, report) = tune_implementations(optimized, tune, store, reason)
    else:
        choices, report = tune(optimized)
    if isinstance(on_event, NotebookProgress):
        on_event.finish()
    return TunedModel(optimized, choices, report)


def tune_op(
    op: Any,
    *,
    target: str | Target = "cpu",
    name: str | None = None,
    spaces: Iterable[SampledSpace] = (),
    trials: int | None = 64,
    minutes: float | None = None,
    logs: str | os.PathLike[str] | None = None,
    seed: int = 0,
    use_shipped: bool = True,
    fresh: bool = False,
    patience: float | None = None,
    on_event: Callable[[dict[str, Any]], None] | None = None,
    progress: bool | None = None,
) -> TunedModel:
    """Search schedules for one operator of your own; :func:`build_model` makes a library of the result.

    >>> A, B = te.placeholder((512, 256), name="A"), te.placeholder((256, 512), name="B")
    >>> k = te.reduce_axis((0, 256), name="k")
    >>> C = te.compute((512, 512), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    >>> tuned = hetero_tvm.tune_op([A, B, C], name="product", trials=32)
    >>> hetero_tvm.build_model(tuned).export("product.so")

    Parameters
    ----------
    op : a TensorIR function (``tvm.tirx.PrimFunc``: inputs, then results), a list of ``te`` tensors in the
        same order, a Relax function, or a module with a Relax ``main``.  Shapes are fixed.  A dictionary
        of several such operators by name stands for one: the first says what is right, the trials are shared
        between them, and the fastest is taken (``report.implementations`` has the times).
    name : of the operator and its library; by default the function's own.
    spaces : design spaces of your own for its kernels (:func:`hetero_tvm.design_space`); other kernels are
        searched in this project's spaces, or by MetaSchedule's own rules.
    target : see :func:`optimize_model`; what follows ``spaces``: see :func:`tune_model`.

    Raises
    ------
    UsageError : ``op`` is none of these, or a space fails on its kernel.
    ModelError : the operator has open shapes, or parameters in another order (all are listed).
    """
    spaces = tuple(spaces)
    for space in spaces:
        expect(space, (SampledSpace,), "spaces are functions decorated with hetero_tvm.design_space")
    optimized = optimize_model(import_function(op, name=name), target, spaces=spaces)
    tasks = [task for one in implementations(optimized).values() for task in one.tasks]
    unused = [space.name for space in spaces if all(task.sampled is not space for task in tasks)]
    if unused:
        raise UsageError(
            f"no kernel of {optimized.model.name} is of the names that {', '.join(unused)} is for",
            hint=f"its kernels: {', '.join(dict.fromkeys(task.name for task in tasks))}",
        )
    tuned = tune_model(
        optimized,
        trials=trials,
        minutes=minutes,
        logs=logs,
        seed=seed,
        use_shipped=use_shipped,
        fresh=fresh,
        patience=patience,
        on_event=on_event,
        progress=progress,
    )
    for task, found in zip(tuned.optimized.tasks, tuned.report.tasks, strict=False):
        if task.sampled is not None and tuned.report.stopped == "exhausted" and found.trials == 1:
            tuned.report.warnings.append(_ONE_CANDIDATE.format(task.sampled.name))
    return tuned


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
    takes = "build_model takes what optimize_model or tune_model gives"
    expect(model, (OptimizedModel, TunedModel), takes, _HINTS)
    _check_logs(logs)
    optimized = model.optimized if isinstance(model, TunedModel) else model
    folders = RecordFolders(logs, use_shipped)
    if optimized.alternatives:
        optimized = chosen(optimized, optimized.store(folders))
    first, *others = optimized.variants()
    choices = model.choices if isinstance(model, TunedModel) else _choices(first, folders)
    return build(optimized, choices, [(other, _choices(other, folders)) for other in others])


def settle(tuned: TunedModel, built: BuiltModel) -> tuple[BuiltModel, EndToEnd | str]:
    """The faster of a tuned model and the same model from default points, run side by side, and their times.

    A reason instead of times where there is nothing to compare: no kernel beat its default, or the model
    cannot be run here, or other processes let nobody measure (the tuned one is given then).
    """
    optimized = tuned.optimized
    defaults = {task.key: default_choice(task, optimized.machine) for task in optimized.tasks}
    same = all(
        (choice.point, choice.trace) == (defaults[key].point, defaults[key].trace)
        for key, choice in built.choices.items()
        if key in defaults
    )
    if same:
        return built, "every kernel is the default one"
    if (reason := untimed(optimized)) is not None:
        return built, reason
    if len(optimized.variants()) > 1:
        return built, "the library holds code for several devices"
    plain = build(optimized, defaults)
    calls = calls_at_lengths(optimized)
    found = race(lambda: [plain.run(each) for each in calls], lambda: [built.run(each) for each in calls])
    if found is None:
        return built, "other processes took the cores; the same command tries again"
    found = found.per_call(len(calls))
    return (plain if found.kept == "default" else built), found


_ONE_CANDIDATE = (
    "all candidates of {} are one program: a candidate replays the steps of the schedule with other "
    "decisions, not the Python between them, so what is sampled must go to a step as it is (no int() of it)"
)

_HINTS = {
    ImportedModel: "first hetero_tvm.optimize_model(model, target=...)",
    str: "first hetero_tvm.import_model(path), then hetero_tvm.optimize_model(model, target=...)",
    os.PathLike: "first hetero_tvm.import_model(path), then hetero_tvm.optimize_model(model, target=...)",
    TunedModel: "it is tuned: hetero_tvm.build_model(tuned); to go on, tune its `optimized`",
    BuiltModel: "it is built: its verbs are check, run and export",
}
"""Advice for arguments that belong to another step."""


def _check_logs(logs: object) -> None:
    expect(logs, (str, os.PathLike, type(None)), "logs is the path of a folder of records")


def _choices(optimized: OptimizedModel, folders: RecordFolders) -> dict[str, Choice]:
    """The best records that fit, by task; of all lengths where they stay open."""
    store = optimized.store(folders)
    found = choose(optimized.tasks, optimized.machine, store)
    return found if optimized.lengths is None else chosen_for_lengths(optimized, found, store)
