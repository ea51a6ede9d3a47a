"""Build: from an optimized model and its records to a checked executable and one ``.so``."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hetero_tvm.compile.dynamic.ranges import range_check
from hetero_tvm.compile.dynamic.work import open_work
from hetero_tvm.compile.exporting import export_library
from hetero_tvm.compile.fault import first_fault, in_few_bits
from hetero_tvm.compile.kernels import Packed, apply_choices, symbols, usable_choices
from hetero_tvm.compile.length_check import differences, judged_model, other_sizes, sizes_of
from hetero_tvm.compile.lift import lift_model
from hetero_tvm.compile.linking import machine
from hetero_tvm.compile.optimize import OptimizedModel
from hetero_tvm.compile.report_page import report_fragment, report_html
from hetero_tvm.compile.shares import shared_out
from hetero_tvm.compile.weights import Weights, set_apart
from hetero_tvm.errors import AccuracyError, BuildError, HeteroTVMError, LibraryError, UsageError, last_line
from hetero_tvm.host import mapped
from hetero_tvm.host.turns import Turns
from hetero_tvm.host.tvm import Executable, IRModule, relax, structural_equal, tvm, tvm_ffi
from hetero_tvm.memory.model_plan import MemoryPlan
from hetero_tvm.records.choose import Choice, default_choice
from hetero_tvm.reference import Accuracy, judge, run_reference, run_sampled, with_turned
from hetero_tvm.reference.given import checked_inputs
from hetero_tvm.relax_passes.pipeline import lower
from hetero_tvm.relax_passes.storage.concatenation import is_joined
from hetero_tvm.relax_passes.storage.live_ranges import UPPER_BOUND
from hetero_tvm.runtime.arrays import named_indices, numpy_dtype
from hetero_tvm.runtime.manifest import Manifest, TargetInfo, creation_time, current_versions, refuse_flagged
from hetero_tvm.runtime.quiet import quiet_fd2
from hetero_tvm.runtime.sessions import states_of
from hetero_tvm.runtime.signature import STEP, Step, size_of

_BY_RECORDS = (
    "nothing was exported; build with --no-shipped-records and an empty --logs to see whether a record is at "
    "fault, and report the kernel named above"
)
_IN_FLOAT32 = (
    "nothing was exported; build in float32, or with hetero_tvm.quantize, which leaves the layers in float32 "
    "that lose most (--least-cosine)"
)
"""Hints where numbers are beyond the tolerance: in float32, and in fewer bits."""


@dataclass
class BuiltModel:
    """A compiled model: run it, check it, export it.

    Parameters
    ----------
    optimized : what was compiled.
    choices : task key -> which record (or default) its kernel was built from.
    executable : TVM's virtual-machine executable.
    memory : what shares which bytes of the arena when.
    accuracy : result of the last :meth:`check`.
    facts : what is known of kernels without running them, by device and kernel (registers, ...).
    weights : large constants, where ``executable`` does not hold them itself.
    turns : of calls, which TVM's virtual machine takes one by one, and exports, which take constants back.
    device_code : what runs on a device, by the end of the name that its file would have.
    """

    optimized: OptimizedModel
    choices: Mapping[str, Choice]
    executable: Executable
    memory: MemoryPlan
    accuracy: Accuracy | None = field(default=None)
    facts: Mapping[str, Any] = field(default_factory=dict)
    weights: Weights | None = None
    symbols: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Task key -> names of its kernel, and of forms of it, in the library."""
    device_code: Mapping[str, bytes] = field(default_factory=dict)
    no_step: str = ""
    """Reason why states that grow are copied at every call; empty where they are not, or there are none."""
    turns: Turns = field(default_factory=Turns, repr=False)

    def __repr__(self) -> str:
        size = f"{len(self.optimized.tasks)} kernels, arena {self.memory.peak:,} bytes"
        return f"<BuiltModel {self.optimized.model.name!r} for {self.optimized.target.kind}: {size}>"

    def _repr_html_(self) -> str:
        return report_fragment(self)

    def to_html(self) -> str:
        """A self-contained HTML page: kernels, fusions with reasons, memory plan, machine."""
        return report_html(self)

    @functools.cached_property
    def _main(self) -> Any:
        devices, entry = self.optimized.target.running()
        return machine(self.executable, devices)[entry]

    @property
    def unrunnable(self) -> str | None:
        """Reason why this model cannot be run, and so not checked, on this machine; None when it can."""
        return self.optimized.target.unrunnable()

    def _called(self, function: Any, arguments: Iterable[Any]) -> tuple[np.ndarray, ...]:
        with self.turns.taken():
            result = function(*arguments)
            return tuple(one.numpy() for one in ([result] if hasattr(result, "numpy") else result))

    def run(self, inputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        """Run in this process; NumPy arrays by input name -> all outputs.  Threads wait for each other.

        Raises :class:`LibraryError` for an index outside of its tensor and the like.
        """
        device, specs = self.optimized.target.running()[0][0], self.optimized.signature.inputs
        inputs = checked_inputs(self.optimized.signature, inputs)
        arguments = [tvm.runtime.tensor(inputs[spec.name], device) for spec in specs]
        try:
            arrays = self._called(self._main, arguments)
        except (IndexError, ZeroDivisionError) as error:
            message = named_indices(str(error), specs, [inputs[spec.name] for spec in specs])
            raise LibraryError(f"{self.optimized.model.name} failed: {message}") from error
        checks, count = self.optimized.checks, len(self.optimized.model.signature.outputs)
        if checks:
            refuse_flagged(self.optimized.model.name, checks, map(int, arrays[count:]))
        return self.optimized.model.signature.trimmed(arrays[:count])

    def check(self, *, seed: int = 0, inputs: Mapping[str, np.ndarray] | None = None) -> Accuracy:
        """Compare with a float64 reference.

        Parameters
        ----------
        seed : of sampled inputs.
        inputs : arrays by input name, where sampled ones are not what the model is meant for.

        Raises
        ------
        AccuracyError : beyond the tolerance; names the kernel where the numbers leave the reference.
        InputError : ``inputs`` do not fit the model; lists all that is wrong.
        UsageError : ``seed`` is no whole number of at least 0.
        """
        if not isinstance(seed, int) or seed < 0:
            raise UsageError(f"seed is a whole number of at least 0, not {seed!r}")
        with mapped.given_back():
            return self._check(seed, inputs)

    def _check(self, seed: int, inputs: Mapping[str, np.ndarray] | None) -> Accuracy:
        given = inputs
        if inputs is not None:  # first: their sizes say which model judges
            inputs = checked_inputs(self.optimized.signature, inputs)
        model = judged_model(self.optimized, inputs)
        if inputs is None:
            inputs, reference = run_sampled(model, seed)
        else:
            reference = run_reference(model, inputs)
        reference = with_turned(reference, model)
        target, results = self.optimized.target, self.run(inputs)

        def verdict(results: Sequence[np.ndarray]) -> Accuracy:
            floor, cosine = target.relative_tolerance, target.least_cosine
            found = judge(results, reference, inputs, lambda: model, floor=floor, least_cosine=cosine)
            return replace(found, names=tuple(spec.name for spec in model.signature.outputs))

        self.accuracy = verdict(results)
        if self.optimized.lengths is not None:
            self._check_lengths(seed, given is None)
        elif not self.accuracy.ok:
            fault = first_fault(self.optimized, self.choices, inputs)
            raise AccuracyError(
                f"{model.name}: the compiled model's numbers are beyond the tolerance",
                problems=[*str(self.accuracy).splitlines(), fault],
                hint=_IN_FLOAT32 if in_few_bits(self.optimized) else _BY_RECORDS,
            )
        elif self.step is not None and not (stepped := verdict(self._run_step(inputs))).ok:
            raise AccuracyError(
                f"{model.name}: the numbers are beyond the tolerance where states are kept in place",
                problems=str(stepped).splitlines(),
                hint="nothing was exported; please report the model",
            )
        return self.accuracy

    def _check_lengths(self, seed: int, sampled: bool) -> None:
        """Raise what is wrong at any of the sizes that are compared; with given inputs only at theirs."""
        assert self.accuracy is not None
        problems = [] if self.accuracy.ok else str(self.accuracy).splitlines()
        if sampled:
            problems += differences(self.optimized, self.run, seed)
        if sampled and self.step is not None:
            found = differences(self.optimized, self._run_step, seed)
            problems += [f"step by step, with states in place, {line}" for line in found]
        if problems:
            raise AccuracyError(
                f"{self.optimized.model.name}: the compiled model's numbers are beyond the tolerance",
                problems=problems,
                hint="nothing was exported; with fixed shapes, what is wrong there too is told by kernel",
            )

    @property
    def step(self) -> Step | None:
        """States that the function for sessions keeps in place; None where there is no such function."""
        return None if self.optimized.step is None or self.no_step else self.optimized.step[1]

    def _run_step(self, inputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        """Results of a call as :meth:`run` gives them, by the step on buffers that hold the states."""
        step = self.step
        assert self.optimized.step is not None and step is not None
        signature, sizes = self.optimized.signature, sizes_of(self.optimized.signature, inputs)
        states = {s.input.name: s for s in states_of(signature) if s.input.name in step.room}
        arguments = {}
        for spec in self.optimized.step[0].signature.inputs:
            shape = tuple(size_of(size, sizes) for size in spec.shape)
            array = inputs.get(spec.name)
            if array is None or spec.name in states:
                array = np.full(shape, 1, numpy_dtype(spec.dtype))
            if spec.name in states:
                array[tuple(map(slice, inputs[spec.name].shape))] = inputs[spec.name]
            arguments[spec.name] = tvm.runtime.tensor(array, self.optimized.target.running()[0][0])
        function = machine(self.executable, self.optimized.target.running()[0])[STEP]
        own = iter(self._called(function, arguments.values()))
        kept = {state.place: state for state in states.values()}
        results = []
        for place, spec in enumerate(signature.results):
            if place not in kept:
                results.append(next(own))
                continue
            front = tuple(slice(size_of(size, sizes)) for size in spec.shape)
            results.append(arguments[kept[place].input.name].numpy()[front])
        return tuple(results)

    @property
    def kernels(self) -> list[dict[str, Any]]:
        """Entries, one per distinct kernel, in the order of first use (for tables and the manifest)."""
        rows, joined = [], {tuple(nodes) for nodes in self.memory.joined.values()}
        known = self.optimized.lengths
        at_sizes = {} if known is None else open_work(self.optimized.tasks_at_sizes(), known.sizes)
        for task in self.optimized.tasks:
            choice, calls = self.choices[task.key], task.calls
            if is_joined(task.workload):  # some are left out
                calls = [nodes for nodes in calls if tuple(nodes) not in joined]
            if not calls:
                continue
            rows.append(
                {
                    "kernel": task.name,
                    "calls": len(calls),
                    "flops": task.flops,
                    "bytes": task.nbytes,
                    "weight_bytes": task.weight_bytes,
                    "arithmetic": task.arithmetic,
                    "space": task.space.name if task.space else "generic",
                    "record": choice.origin,
                    "point": dict(choice.point) if choice.point is not None else None,
                    "seconds": choice.seconds,
                    "nodes": list(calls[0]),
                    "symbols": sorted(self.symbols.get(task.key, ())),
                    "call_nodes": [list(nodes) for nodes in calls],
                    **at_sizes.get(task.key, {}),
                }
            )
        return rows

    def manifest(self) -> Manifest:
        """Manifest of the library that is exported."""
        optimized = self.optimized
        return Manifest(
            name=optimized.model.name,
            signature=optimized.signature,
            target=TargetInfo.from_json(optimized.target.describe()),
            device=dict(self.facts),
            versions=current_versions(),
            kernels=self.kernels,
            memory=self.memory.to_json(),
            accuracy=[asdict(o) for o in self.accuracy.outputs] if self.accuracy else None,
            checks=self.optimized.checks,
            step=self.step,
            states={one.input.name: one.output.name for one in states_of(optimized.signature)},
            created=creation_time(),
        )

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write one ``.so`` with the manifest embedded, and ``<stem>.manifest.json`` beside it.

        ``path`` is the file, or a folder (which gets ``model.so``).  The file appears whole or not at all.

        Raises
        ------
        BuildError : the linker failed, or the folder cannot be written.
        """
        with self.turns.taken():
            return export_library(path, self.executable, self.weights, self.manifest())


def build(
    optimized: OptimizedModel,
    choices: Mapping[str, Choice],
    others: Sequence[tuple[OptimizedModel, Mapping[str, Choice]]] = (),
) -> BuiltModel:
    """Compile a model with the candidate that ``choices`` names for each kernel.

    Parameters
    ----------
    others : the models and choices of further variants of the target (see :meth:`OptimizedModel.variants`).

    Raises
    ------
    BuildError : lowering or code generation failed.
    """
    try:
        variants = [
            (variant, usable_choices(variant.tasks, chosen))
            for variant, chosen in [(optimized.variants()[0], choices), *others]
        ]
        if optimized.lengths is not None:
            variants = [(variant, shared_out(variant, chosen)) for variant, chosen in variants]
        # Shared with the step alone: it would keep all constants twice.
        packed: Packed | None = {} if optimized.step is not None else None
        parts = [_lowered(variant, chosen, len(variants) > 1, packed) for variant, chosen in variants]
        memory = parts[0][1]
        entries = [v.target.entry for v, _ in variants]
        step, no_step = _step(*variants[0], packed)
        if step is not None:
            parts.append(step)
            entries.append(STEP)
        lowered = merged([module for module, _ in parts], entries)
        found = symbols(lowered)
        weights = None
        if optimized.target.constants_apart:
            lowered, weights = set_apart(lowered)
        with quiet_fd2():
            compiled = optimized.target.compile(lowered)
    except HeteroTVMError:
        raise
    except Exception as error:  # TVM raises many kinds; none of them should reach a user as it is
        raise BuildError(
            f"compiling {optimized.model.name} for {optimized.target.kind} failed: {last_line(error)}",
            hint="set HETERO_TVM_DEBUG=1 for the whole story",
        ) from error
    return BuiltModel(
        optimized,
        variants[0][1],
        compiled.executable,
        memory,
        facts=compiled.facts,
        weights=weights or None,
        symbols=found,
        device_code=compiled.device_code,
        no_step=no_step,
    )


def _step(
    optimized: OptimizedModel, choices: Mapping[str, Choice], packed: Packed | None
) -> tuple[tuple[IRModule, MemoryPlan] | None, str]:
    """Lowered step of a model with states in place, and its plan; or None, and why it has none."""
    if optimized.step is None:
        return None, ""
    step = optimized.step[0]
    own = {task.key: choices.get(task.key) or default_choice(task, step.machine) for task in step.tasks}
    if step.lengths is not None:
        own = shared_out(step, own)
    try:
        return _lowered(step, own, False, packed), ""
    except BuildError as error:
        return None, error.message


def plan_memory(optimized: OptimizedModel, choices: Mapping[str, Choice]) -> MemoryPlan:
    """The memory plan of what :func:`build` would compile, without compiling it.

    Raises
    ------
    BuildError : lowering failed.
    """
    return _lowered(optimized.variants()[0], choices, False)[1]


def memory_by_sizes(
    optimized: OptimizedModel, choices: Mapping[str, Choice]
) -> list[tuple[dict[str, int], int]]:
    """Bytes that a call needs of the arena at some sizes of the open dimensions; none without any.

    The arena of a library is that of the largest sizes; a call of others touches as much less of it.
    """
    if optimized.lengths is None:
        return []
    module = lift_model(optimized, choices)
    found = []
    for sizes in other_sizes(optimized.lengths.symbols):
        main = module["main"].with_attr(UPPER_BOUND, sizes)
        at = module.clone()
        at.update_func(at.get_global_var("main"), main)
        found.append((sizes, lower(at, optimized.sources, optimized.target.in_place)[1].peak))
    return found


def _lowered(
    optimized: OptimizedModel,
    choices: Mapping[str, Choice],
    several: bool,
    packed: Packed | None = None,
) -> tuple[IRModule, MemoryPlan]:
    """Lowered module of one variant, with scheduled kernels, and its memory plan."""
    target = optimized.target
    if optimized.lengths is not None:
        module = target.finalize(lift_model(optimized, choices, packed))
        passes = [range_check(optimized.signature), *target.device_passes]
        return lower(module, optimized.sources, target.in_place, passes)
    suffix = target.entry.removeprefix("main") if several else ""
    module = apply_choices(optimized.module, optimized.tasks, choices, target, suffix, packed)
    return lower(module, optimized.sources, target.in_place, target.device_passes)


def merged(modules: Sequence[IRModule], entries: Sequence[str]) -> IRModule:
    """Module with the kernels of all variants; each variant's ``main`` becomes its entry, and equal
    kernels of one name are one."""
    if len(modules) == 1 and entries[0] == "main":
        return modules[0]
    functions: dict[Any, Any] = {}
    taken: dict[str, Any] = {}
    for module, entry in zip(modules, entries, strict=True):
        renamed, same = {}, set()
        for variable, function in module.functions.items():
            name = variable.name_hint
            known = functions.get(taken.get(name))
            if name.partition("_")[0] == "main":  # the entry, and other forms of it
                fresh = entry + name[4:]
            elif known is not None and structural_equal(known, function):
                renamed[variable] = taken[name]
                same.add(variable)
                continue
            else:
                suffix = entry[4:] if entry.startswith("main") else f"_{entry}"
                fresh = name if name not in taken else name + suffix
            taken[fresh] = variable if fresh == name else tvm.ir.GlobalVar(fresh)
            if fresh != name:
                renamed[variable] = taken[fresh]
        for variable, function in module.functions.items():
            if variable in same:
                continue
            if isinstance(function, relax.Function) and renamed:
                function = tvm_ffi.structural_map(
                    function, (tvm.ir.GlobalVar, lambda v, renamed=renamed: renamed.get(v, v))
                )
            variable = renamed.get(variable, variable)
            if function.attrs and "global_symbol" in function.attrs:
                function = function.with_attr("global_symbol", variable.name_hint)
            functions[variable] = function
    return tvm.IRModule(functions)
