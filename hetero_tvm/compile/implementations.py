"""Several implementations of one operator: which is right, which is the fastest, and what was chosen before.

A kernel description, or an operator of a user's own, may come with several ways to compute it; beside them
stands the one without any fusion.  A search builds them all, leaves out what differs from the first, gives
the trials to the faster half of what is left again and again, and takes the fastest; a record keeps the
choice for later builds.  Where the operator has an ONNX form and ONNX Runtime is installed, that runtime's
own kernel is timed beside them.  It is a yardstick: a library runs alone, and so never calls it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from hetero_tvm.compile.build import BuiltModel, build
from hetero_tvm.compile.optimize import OptimizedModel
from hetero_tvm.compile.tasks import program_key
from hetero_tvm.compile.truth import EndToEnd, race
from hetero_tvm.errors import AccuracyError, HeteroTVMError
from hetero_tvm.frontend.signature import VENDOR
from hetero_tvm.records.choose import Choice, default_choice
from hetero_tvm.records.combinations import ChoiceSpace, Subject, subject_key
from hetero_tvm.records.record import VERIFIED, Record, new_record
from hetero_tvm.records.store import RecordStore
from hetero_tvm.reference.inputs import sample_inputs
from hetero_tvm.reference.unusual import takes_any_numbers, unusual_inputs
from hetero_tvm.search.outcome import ImplementationReport, TuneReport

Tuned = tuple[Mapping[str, Choice], TuneReport]
"""Choices of a search by kernel, and how it went."""

_SECONDS = 0.4
"""Length of one race between two implementations; a short one tells what differs by more than noise."""
_DISTURBED = "other processes took the cores while it was timed"
_HOPELESS = 4.0
"""Factor over the fastest default beyond which no search closes the gap."""


def _subject(optimized: OptimizedModel) -> Subject:
    """The operator where records ask for a task: all its implementations and what they compute."""
    parts = [(name, program_key(one.module)) for name, one in implementations(optimized).items()]
    return Subject(subject_key(parts), optimized.model.name, ChoiceSpace("implementations"))


def implementations(optimized: OptimizedModel) -> dict[str, OptimizedModel]:
    """Implementations of an operator by name, the one that says what is right first."""
    first = replace(optimized, alternatives=())
    return {one.model.implementation: one for one in (first, *optimized.alternatives)}


def chosen(optimized: OptimizedModel, store: RecordStore) -> OptimizedModel:
    """The implementation that an earlier search has found to be the fastest; without one, the first."""
    ways, operator = implementations(optimized), _subject(optimized)
    unfit: list[Record] = []
    kept = next(iter(ways.values()))
    for record, _ in store.best_first(operator):
        name = (record.point or {}).get("implementation")
        if isinstance(name, str) and name in ways:
            kept = ways[name]
            break
        unfit.append(record)
    if unfit:
        known = ", ".join(map(repr, ways))
        warnings.warn(
            f"{operator.name}: {unfit[0].point} in {store.path} is no choice among {known}; "
            f"{kept.model.implementation!r} is built",
            stacklevel=2,
        )
    return kept


def tune_implementations(
    optimized: OptimizedModel,
    tune: Callable[[OptimizedModel, float], Tuned],
    store: RecordStore,
    untimed: str | None = None,
) -> tuple[OptimizedModel, Tuned]:
    """Search the kernels of an operator's implementations, and choose the fastest.

    Parameters
    ----------
    tune : searches the kernels of one implementation until this part of all trials and minutes, earlier
        calls for it counted, is spent.
    untimed : reason why calls in this process say nothing of the implementations.  The one that a record
        names, or the first, is tuned then, and the report says so.
    """
    ways = implementations(optimized)
    rows = {name: ImplementationReport(name) for name in ways}
    if untimed is not None:
        for row in rows.values():
            row.note = f"not timed: {untimed}"
        kept = chosen(optimized, store)
        return _told(kept, [tune(kept, 1.0)], rows)
    inputs = sample_inputs(optimized.model)
    seen: dict[str, str] = {}
    for name, one in ways.items():
        if (twin := seen.setdefault(program_key(one.module), name)) != name:
            rows[name].note = f"the same kernels as {twin!r}"
    distinct = {name: ways[name] for name in seen.values()}
    plain = {name: built for name, one in distinct.items() if (built := _right(one, rows[name])) is not None}
    plain = _alike(plain, inputs, rows)
    if not plain:  # the check of the first says what is wrong
        first = next(iter(ways.values()))
        return _told(first, [tune(first, 1.0)], rows)
    _time(plain, inputs, rows, "default_seconds")
    plain = {name: built for name, built in plain.items() if _stays_right(built, rows[name])}
    if not plain:
        first = next(iter(ways.values()))
        return _told(first, [tune(first, 1.0)], rows)
    alive = _hopeful(list(plain), rows)
    runs: dict[str, list[Tuned]] = {name: [] for name in alive}
    spent, left = dict.fromkeys(alive, 0.0), 1.0
    while True:
        share = left if len(alive) == 1 else left / (2 * len(alive))
        for name in alive:
            spent[name] += share
            runs[name].append(tune(ways[name], spent[name]))
            rows[name].trials += runs[name][-1][1].trials
            if runs[name][-1][1].interrupted:
                return _interrupted(ways, runs, rows)
        built = {name: build(ways[name], runs[name][-1][0]) for name in alive}
        _time(built, inputs, rows, "tuned_seconds")
        alive.sort(key=lambda name: rows[name].tuned_seconds or math.inf)
        if len(alive) == 1:
            break
        left -= share * len(alive)
        alive = alive[: len(alive) // 2]
    (best,) = alive
    seconds = rows[best].tuned_seconds or rows[best].default_seconds
    if seconds is not None:
        winner = {"point": {"implementation": best}}
        store.append(new_record(_subject(optimized), store.site, winner, seconds=seconds, role=VERIFIED))
    _beside(optimized, built[best], inputs, rows)
    return _told(ways[best], [run for each in runs.values() for run in each], rows, runs[best][-1])


def _interrupted(
    ways: Mapping[str, OptimizedModel],
    runs: Mapping[str, Sequence[Tuned]],
    rows: Mapping[str, ImplementationReport],
) -> tuple[OptimizedModel, Tuned]:
    """The fastest by default of the implementations that were searched until somebody stopped the search; no
    record says so, as the others may be faster."""
    searched = [name for name, each in runs.items() if each]
    best = min(searched, key=lambda name: rows[name].default_seconds or math.inf)
    return _told(ways[best], [run for each in runs.values() for run in each], rows, runs[best][-1])


def _hopeful(names: list[str], rows: Mapping[str, ImplementationReport]) -> list[str]:
    """The implementations that a search could make the fastest; the others get a note."""
    times = {name: rows[name].default_seconds for name in names}
    least = min((time for time in times.values() if time is not None), default=math.inf)
    found = []
    for name, time in times.items():
        if time is not None and time > _HOPELESS * least:
            rows[name].note = "not tuned: far slower by default"
        else:
            found.append(name)
    return found


def _told(
    kept: OptimizedModel,
    runs: Sequence[Tuned],
    rows: Mapping[str, ImplementationReport],
    last: Tuned | None = None,
) -> tuple[OptimizedModel, Tuned]:
    """The implementation that was kept, with its last search; the report counts all of them."""
    choices, report = last or runs[-1]
    for row in rows.values():
        row.chosen = row.name == kept.model.implementation
    everything = [one for _, one in runs]
    report = replace(
        report,
        implementations=list(rows.values()),
        trials=sum(one.trials for one in everything),
        elapsed=sum(one.elapsed for one in everything),
        stopped="interrupted" if any(one.interrupted for one in everything) else report.stopped,
    )
    return kept, (choices, report)


def _right(optimized: OptimizedModel, row: ImplementationReport) -> BuiltModel | None:
    """An implementation from its default points; None where it fails, or its numbers are not the first's."""
    defaults = {task.key: default_choice(task, optimized.machine) for task in optimized.tasks}
    try:
        built = build(optimized, defaults)
        built.check()
    except HeteroTVMError as error:
        row.note = _why(error)
        return None
    return built


def _why(error: HeteroTVMError, of: str = "") -> str:
    if isinstance(error, AccuracyError):
        return f"left out: it computes something else{of} ({(error.problems or [error.message])[0]})"
    return f"left out: {error.message}"


def _alike(
    built: Mapping[str, BuiltModel],
    inputs: Mapping[str, np.ndarray],
    rows: Mapping[str, ImplementationReport],
) -> dict[str, BuiltModel]:
    """The implementations that are right for zeros, NaN and negative integers too: for those of them that
    the first one takes, where no number is an index."""
    first, *others = built or [""]
    if not others or not all(takes_any_numbers(one.optimized.module) for one in built.values()):
        return dict(built)
    kept = dict(built)
    for what, unusual in unusual_inputs(inputs).items():
        try:
            built[first].check(inputs=unusual)
        except HeteroTVMError:  # a divisor that may not be 0, say: nobody can tell what is right
            continue
        for name in [name for name in others if name in kept]:
            try:
                kept[name].check(inputs=unusual)
            except HeteroTVMError as error:
                rows[name].note = _why(error, f" for {what}")
                del kept[name]
    return kept


def _stays_right(built: BuiltModel, row: ImplementationReport) -> bool:
    """Whether its numbers are right after many calls too."""
    try:
        built.check()
    except HeteroTVMError as error:
        row.note = _why(error, " after some calls")
        row.default_seconds = None
        return False
    return True


def _time(
    built: Mapping[str, BuiltModel],
    inputs: Mapping[str, np.ndarray],
    rows: Mapping[str, ImplementationReport],
    which: str,
) -> None:
    """Note what each implementation takes: all beside the first of them, in turn with it."""
    names = list(built)
    others: Sequence[str] = names[1:] or names
    base = built[names[0]]
    scale = None
    for name in others:
        found = _raced(lambda: base.run(inputs), lambda name=name: built[name].run(inputs))
        if found is None:
            rows[name].note = _DISTURBED
            continue
        rows[name].note = ""
        # Races are of different moments: each time is told by its ratio to the first one's in that race.
        scale = scale or found.default_seconds
        setattr(rows[names[0]], which, scale)
        setattr(rows[name], which, scale * found.ratio if name != names[0] else scale)


def _raced(first: Callable[[], object], second: Callable[[], object]) -> EndToEnd | None:
    return race(first, second, _SECONDS)


def _beside(
    optimized: OptimizedModel,
    best: BuiltModel,
    inputs: Mapping[str, np.ndarray],
    rows: dict[str, ImplementationReport],
) -> None:
    """Time the runtime's own kernel beside the fastest implementation, where it is there."""
    if optimized.target.kind != "cpu" or optimized.model.source is None:
        return
    try:
        import onnxruntime
    except ImportError:
        return
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = optimized.machine.threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 4
    model = optimized.model.source.whole().SerializeToString()
    row = ImplementationReport(VENDOR, note="a yardstick: libraries run alone")
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        session.run(None, dict(inputs))
    except Exception as error:  # its own kinds, many of them for operators that it does not have
        row.note = f"does not run this: {str(error).strip().splitlines()[0][:80]}"
        rows[VENDOR] = row
        return
    found = _raced(lambda: best.run(inputs), lambda: session.run(None, dict(inputs)))
    if found is not None:
        mine = rows[best.optimized.model.implementation]
        row.default_seconds = found.ratio * (mine.tuned_seconds or found.default_seconds)
        rows[VENDOR] = row
