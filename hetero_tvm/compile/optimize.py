"""Import and optimize: from a model to its fused form and its tuning tasks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from hetero_tvm.compile.dynamic.depths import depths_differ
from hetero_tvm.compile.dynamic.held import with_held_numbers
from hetero_tvm.compile.dynamic.low_ends import with_low_ends
from hetero_tvm.compile.dynamic.quotients import images_differ, with_quotients
from hetero_tvm.compile.dynamic.signature import symbolic_signature
from hetero_tvm.compile.dynamic.steps import checks_first, step_of
from hetero_tvm.compile.tasks import program_key, tasks_of
from hetero_tvm.errors import (
    BuildError,
    HeteroTVMError,
    UsageError,
    did_you_mean,
    expect,
    last_line,
    shortened,
)
from hetero_tvm.frontend import ImportedModel, Signature, Span, source_names
from hetero_tvm.frontend import import_model as _import_model
from hetero_tvm.frontend.given_lengths import GivenLengths, weighted_sizes
from hetero_tvm.frontend.onnx.graph.packed import packed_columns
from hetero_tvm.frontend.signature import GENERIC, Symbol
from hetero_tvm.host import mapped
from hetero_tvm.host.terminal import number_of, operations
from hetero_tvm.host.tvm import IRModule
from hetero_tvm.machines.base import Machine
from hetero_tvm.ops.loops.rounds import loop_of
from hetero_tvm.pages import views
from hetero_tvm.records.store import RecordFolders, RecordStore
from hetero_tvm.relax_passes.pipeline import optimize
from hetero_tvm.relax_passes.rewriting.fused import checks_of, contract_of, is_call_tir
from hetero_tvm.relax_passes.rewriting.rule import Report
from hetero_tvm.relax_passes.rewriting.sources import initial
from hetero_tvm.relax_passes.storage.precision import convert
from hetero_tvm.runtime.signature import Step
from hetero_tvm.schedules.sampled import SampledSpace
from hetero_tvm.schedules.task import Task
from hetero_tvm.targets.base import Target
from hetero_tvm.targets.precisions import canonical_precision
from hetero_tvm.targets.registry import parse_target


@dataclass(frozen=True)
class OptimizedModel(views.Shown):
    """An optimized model: what to compile, and what could be tuned.

    Parameters
    ----------
    model : what was imported.
    target : what it is compiled for.
    module : Relax whose ``main`` calls unscheduled kernels only.
    sources : source node names by variable of ``main``.
    tasks : the distinct kernels.
    report : fusions that fired and near misses, with reasons.
    lengths : the same model at other sizes, where its lengths stay open; this one has the largest.
    spaces : the user's own design spaces.
    step : the model with its states in place, and what they are; None where it keeps none so.
    alternatives : other implementations of the same operator, of which a search takes the fastest.
    """

    model: ImportedModel
    target: Target
    module: IRModule
    sources: Mapping[str, tuple[str, ...]]
    tasks: tuple[Task, ...]
    report: Report
    lengths: Lengths | None = None
    spaces: tuple[SampledSpace, ...] = ()
    step: tuple[OptimizedModel, Step] | None = None
    alternatives: tuple[OptimizedModel, ...] = ()

    def __repr__(self) -> str:
        fused = sum(self.report.fusions.values())
        counts = (("kernel", len(self.tasks)), ("fusion", fused), ("near miss", len(self.report.misses)))
        words = ", ".join(number_of(count, word) for word, count in counts)
        return f"<OptimizedModel {self.model.name!r} for {self.target.kind}: {words}>"

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            f"{self!r} is neither pickled nor copied: it holds what TVM compiles",
            hint="import and optimize the model there again, or hand on the library that export() writes",
        )

    def _view(self) -> views.View:
        rows = [(t.name, t.count, t.flops, t.space.name if t.space else "stock") for t in self.tasks]
        work = sum(task.count * task.flops for task in self.tasks)
        opened = self.model.open
        counted = "work" if opened is None else f"work at {opened.counted_at}"
        facts = [("target", self.target.kind), ("kernels", len(rows)), (counted, operations(work))]
        parts = views.fusion_parts(self.report.to_json())
        return views.View(self.model.name, facts, (views.task_table(rows), *parts))

    @property
    def signature(self) -> Signature:
        """Inputs and outputs of what is compiled."""
        return self.model.signature if self.lengths is None else self.lengths.signature

    @property
    def machine(self) -> Machine:
        """The hardware as the target's design spaces see it."""
        return self.target.machine

    def tasks_at_sizes(self) -> list[tuple[Task, ...]]:
        """Each kernel at all sizes that lengths were imported at, this model's first; none where there are
        kernels that are one at some sizes and several at others."""
        assert self.lengths is not None
        several = [self.tasks, *(other.tasks for other in self.lengths.others)]
        same = len({len(tasks) for tasks in several}) == 1
        return list(zip(*several, strict=True)) if same else []

    @property
    def checks(self) -> tuple[str, ...]:
        """Texts for the numbers behind the model's results: what is wrong where one is not 0."""
        return checks_of(self.module["main"])

    def store(self, folders: RecordFolders, device: str = "") -> RecordStore:
        """Records that fit this model's machine.

        ``device`` names the product that is measured, where the machine stands for several.
        """
        return folders.store(self.machine, self.target.record_kind, device)

    def variants(self) -> tuple[OptimizedModel, ...]:
        """Models, one per variant of the target; the model itself when there is only one."""
        targets = self.target.variants
        if targets == (self.target,):
            return (self,)
        return tuple(
            replace(self, target=target, tasks=tasks_of(self.module, self.sources, target, self.spaces))
            for target in targets
        )


@dataclass(frozen=True)
class Lengths:
    """An optimized model at other sizes (see :mod:`hetero_tvm.schedules.symbolic`).

    Attributes
    ----------
    symbols : open dimensions and their ranges.
    sizes : of the symbols, for the model itself and for each of ``others``.
    signature : inputs and outputs, with symbols and expressions of them for open dimensions.
    at : optimizes the model at other sizes.
    representative : the model at the sizes that kernels are to be tuned at; none where nobody said.
    """

    symbols: tuple[Symbol, ...]
    sizes: tuple[Mapping[str, int], ...]
    others: tuple[OptimizedModel, ...]
    signature: Signature
    at: Callable[[Mapping[str, int]], OptimizedModel]
    representative: tuple[Representative, ...] = ()


@dataclass(frozen=True)
class Representative:
    """An optimized model at sizes that stand for others, with their weight: the sum of all is 1."""

    sizes: Mapping[str, int]
    weight: float
    model: OptimizedModel


def import_model(
    source: Any,
    *,
    shapes: Mapping[str, Sequence[int | str | Span]] | None = None,
    batch: int | None = None,
    sequence: int | None = None,
    values: Mapping[str, Any] | None = None,
    trust: bool = False,
) -> ImportedModel:
    """Read a model: the path of an ONNX or ``.pt2`` file, ``zoo:NAME``, or an object.

    Objects are an ``onnx.ModelProto``, a ``torch.export.ExportedProgram`` or a ``torch.onnx.ONNXProgram``.

    Parameters
    ----------
    shapes : dimensions by input name; needed where the file leaves them symbolic.  A :class:`Span` is a
        dimension that stays open: one library serves all sizes in it.
    batch, sequence : sizes by role, for zoo models, symbols with such names and open dimensions of
        PyTorch programs.
    values : numbers or arrays by name, for inputs of an ONNX model that never change (a sample rate, a
        switch): they become constants, and what depends on them is folded.
    trust : whether a ``.pt2`` file may run code while it is read: only for files that you made yourself.

    Raises
    ------
    ModelError : the file is broken, uses unsupported operators (all are listed), or has open shapes.
    UsageError : the source is of no known kind.
    """
    return _import_model(source, shapes=shapes, batch=batch, sequence=sequence, values=values, trust=trust)


def optimize_model(
    model: ImportedModel,
    target: str | Target = "cpu",
    *,
    disable: Iterable[str] = (),
    dump_ir: str | os.PathLike[str] | None = None,
    precision: str | None = None,
    spaces: Iterable[SampledSpace] = (),
    lengths: GivenLengths | None = None,
) -> OptimizedModel:
    """Fuse the graph for a target and divide it into kernels.

    Parameters
    ----------
    target : ``KIND[:VARIANT]``, for example ``cpu`` (this machine) or ``cpu:znver3``.
    disable : names of fusions to switch off.
    precision : ``f32``, ``f16`` (also ``fp16``, ``float16``) and so on, where the target has it; None for
        what the model is stored in, where the target has that, or else the target's own.
    dump_ir : folder for the Relax module after each pass, as numbered TVMScript files.
    spaces : design spaces of your own (:func:`hetero_tvm.design_space`) for kernels of yours.
    lengths : of a model with a range of sizes, those that its kernels are tuned and chosen for, with
        weights: ``{16: 0.2, 128: 0.8}``, or ``[({"batch": 1, "sequence": 16}, 0.2), ...]`` where several
        dimensions are open.

    Raises
    ------
    TargetError : the target is unknown.
    UsageError : ``disable`` names no fusion, the target has no such ``precision``, ``dump_ir`` cannot
        be written, or ``lengths`` are not in the model's ranges.
    BuildError : a pass failed.
    """
    expect(
        model,
        (ImportedModel,),
        "optimize_model takes what import_model gives",
        {
            str: "hetero_tvm.optimize_model(hetero_tvm.import_model(...))",
            os.PathLike: "hetero_tvm.optimize_model(hetero_tvm.import_model(...))",
            OptimizedModel: "it is optimized: tune_model and build_model take it as it is",
        },
    )
    expect(target, (str, Target), "target is a text such as 'cpu', 'cpu:znver3' or 'cuda:sm_90'")
    disable = [disable] if isinstance(disable, str) else disable
    expect(disable, (Iterable,), "disable is a list of names of fusions")
    expect(dump_ir, (str, os.PathLike, type(None)), "dump_ir is the path of a folder")
    expect(precision, (str, type(None)), "precision is a text such as 'f32'")
    spaces = tuple(spaces)
    for space in spaces:
        expect(space, (SampledSpace,), "spaces are functions decorated with hetero_tvm.design_space")
    target = parse_target(target)
    if precision is None:
        target = target.for_stored(model.stored)
    else:
        target = target.with_precision(canonical_precision(precision))
    if target.takes_packed and (packed := packed_columns(model.source)) is not None:
        target = target.for_packed(packed)
    disabled = frozenset(disable)
    for name in disabled:
        expect(name, (str,), "disable is a list of names of fusions")
    known = {rule.name for rule in target.fusions}
    if unknown := sorted(disabled - known):
        guesses = [guess for name in unknown if (guess := did_you_mean(name, known))]
        raise UsageError(
            f"there are no fusions called {', '.join(unknown)}",
            hint=" ".join([*guesses, f"known: {', '.join(sorted(known))}"]),
        )
    if model.open is not None and not target.run_time_sizes:
        raise UsageError(
            f"--target {target.kind} has kernels for fixed shapes only",
            hint="give one size for each dimension; ranges are for --target cpu",
        )
    if model.open is not None:
        disabled |= target.fixed_size_passes
        model = with_held_numbers(with_low_ends(with_quotients(model)))
        images = images_differ(model)
        target = target.for_ranges(images)
        if images:
            disabled |= target.fixed_image_passes
    optimized = _optimized(model, target, disabled, None if dump_ir is None else Path(dump_ir), spaces)
    mapped.settle()
    if lengths is not None and model.open is None:
        raise UsageError(
            f"{model.name} has no open dimension that lengths could be of",
            hint="give one a range: --shape NAME=1x8..256",
        )
    if model.open is None:
        if model.implementation:
            others = [_optimized(each, target, disabled, None, spaces) for each in model.alternatives]
            generic = _optimized(replace(model, implementation=GENERIC), target, known, None, spaces)
            made = {program_key(other.module) for other in (optimized, *others)}
            if program_key(generic.module) not in made:
                others.append(generic)
            return replace(optimized, alternatives=tuple(others))
        step = step_of(model, optimized.signature) if target.run_time_sizes else None
        if step is None:
            return optimized
        stepping = _checked_first(_optimized(step[0], target, disabled, None, spaces))
        return optimized if stepping is None else replace(optimized, step=(stepping, step[1]))
    weighted = () if lengths is None else weighted_sizes(lengths, model.open.symbols)

    views = True

    def optimize_one(one: ImportedModel) -> OptimizedModel:
        return _optimized(one, target, disabled, None, spaces, views)

    optimized = _open(model, optimized, optimize_one)
    if not _viewed_alike(optimized):
        views = False
        optimized = _open(model, optimize_one(model), optimize_one)
    others = [] if optimized.lengths is None else [one.module for one in optimized.lengths.others]
    if depths_differ([optimized.module, *others]):
        disabled |= {"attention"}
        optimized = _open(model, optimize_one(model), optimize_one)
    by_size = target.layout_passes if images else target.batch_passes
    if images and not by_size <= disabled and not _laid_out_alike(optimized):
        target = target.for_ranges(images, alike=True)
        optimized = _open(model, optimize_one(model), optimize_one)
    if not by_size <= disabled and not _laid_out_alike(optimized):
        disabled |= by_size
        optimized = _open(model, optimize_one(model), optimize_one)
    known = optimized.lengths
    assert known is not None
    representative = tuple(Representative(sizes, weight, known.at(sizes)) for sizes, weight in weighted)
    optimized = replace(optimized, lengths=replace(known, representative=representative))
    step = step_of(model, known.signature)
    if step is None:
        return optimized

    def optimize_step(one: ImportedModel) -> OptimizedModel:
        return _checked_first(optimize_one(one)) or optimize_one(one)

    stepping = _checked_first(optimize_one(step[0]))
    if stepping is None:
        return optimized
    return replace(optimized, step=(_open(step[0], stepping, optimize_step), step[1]))


def _checked_first(step: OptimizedModel) -> OptimizedModel | None:
    """The step with its checks in front; None where one of them depends on what is written."""
    module = checks_first(step.module)
    return None if module is None else replace(step, module=module)


def _open(
    model: ImportedModel, optimized: OptimizedModel, optimize_one: Callable[[ImportedModel], OptimizedModel]
) -> OptimizedModel:
    """An optimized model with itself at the other sizes that its model was imported at."""
    opened = model.open
    assert opened is not None
    others = tuple(map(optimize_one, opened.others))
    signatures = [one.model.signature for one in (optimized, *others)]
    signature = symbolic_signature(signatures, opened.sizes, opened.symbols)
    found = Lengths(
        opened.symbols, opened.sizes, others, signature, lambda sizes: optimize_one(opened.at(sizes))
    )
    return replace(optimized, lengths=found)


def _viewed_alike(optimized: OptimizedModel) -> bool:
    """Whether kernels and views are at the same steps at all sizes of a model that has as many at each."""
    assert optimized.lengths is not None

    def kernels(one: OptimizedModel) -> list[bool]:
        blocks = one.module["main"].body.blocks
        return [is_call_tir(binding.value) for block in blocks for binding in block.bindings]

    first, *others = (kernels(one) for one in (optimized, *optimized.lengths.others))
    return all(len(other) != len(first) or other == first for other in others)


def _laid_out_alike(optimized: OptimizedModel) -> bool:
    """Whether a model has the same steps, on images of the same layouts, at all of its sizes."""
    assert optimized.lengths is not None

    def steps(one: OptimizedModel) -> list[tuple[Any, ...]]:
        found = []
        for block in one.module["main"].body.blocks:
            for value in (binding.value for binding in block.bindings):
                op = contract_of(one.module[value.args[0]]) if is_call_tir(value) else None
                layouts = (getattr(op, name, None) for name in ("x_layout", "y_layout", "residual_layout"))
                found.append((type(op), *layouts))
        return found

    first = steps(optimized)
    return all(steps(other) == first for other in optimized.lengths.others)


def _optimized(
    model: ImportedModel,
    target: Target,
    disabled: frozenset[str],
    dump_ir: Path | None,
    spaces: tuple[SampledSpace, ...],
    views: bool = True,
) -> OptimizedModel:
    """Fuse a model with fixed shapes; without ``views`` fused operators that only reshape stay kernels."""
    _refuse_loops(model, target)
    more = {} if dump_ir is None else {"observe": _Dump(dump_ir)}
    try:
        with target.scope():
            sources = initial(model.module, source_names)
            module, sources, report = optimize(
                model.module, sources, target.fusions, disabled, views=views, **more
            )
            if (dtype := target.graph_dtype) != "float32":
                module, sources = convert(module, sources, dtype)
        tasks = tasks_of(module, sources, target, spaces)
    except HeteroTVMError:
        raise
    except Exception as error:  # TVM raises many kinds; none of them should reach a user as it is
        raise BuildError(
            f"optimizing {model.name} for {target.kind} failed: {last_line(error)}",
            hint="HETERO_TVM_DEBUG=1 tells the whole story; --dump-ir DIR writes the graph after each pass, "
            "and --disable FUSION leaves one out",
        ) from error
    return OptimizedModel(model, target, module, sources, tasks, report, spaces=spaces)


def _refuse_loops(model: ImportedModel, target: Target) -> None:
    """Refuse loops whose rounds are known only when they have run, for a target that has none."""
    functions = model.module.functions.values()
    names = list(dict.fromkeys(loop[0] for function in functions if (loop := loop_of(function))))
    if names and not target.loops:
        raise BuildError(
            f"{model.name} has loops, which {target.kind} does not run",
            problems=shortened([f"node {name!r} (Loop)" for name in names]),
            hint="build for --target cpu, or export the model with the loop's rounds written out",
        )


class _Dump:
    """Writes the module after each pass to ``FOLDER/NN_PASS.py``."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._count = 0

    def __call__(self, name: str, module: Callable[[], IRModule]) -> None:
        path = self._folder / f"{self._count:03}_{name}.py"
        self._count += 1
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path.write_text(module().script(show_meta=False), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error}", hint="give another --dump-ir") from error
