"""Build: from an optimized model and its records to a checked executable and one ``.so``."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hetero_tvm.compile.dynamic.ranges import range_check
from hetero_tvm.compile.exporting import export_library
from hetero_tvm.compile.fault import first_fault
from hetero_tvm.compile.kernels import apply_choices, symbols, usable_choices
from hetero_tvm.compile.length_check import differences, judged_model, other_sizes
from hetero_tvm.compile.lift import lift_model
from hetero_tvm.compile.linking import machine
from hetero_tvm.compile.optimize import OptimizedModel
from hetero_tvm.compile.report_page import report_fragment, report_html
from hetero_tvm.compile.shares import shared_out
from hetero_tvm.compile.weights import Weights, set_apart
from hetero_tvm.errors import AccuracyError, BuildError, HeteroTVMError, LibraryError, last_line
from hetero_tvm.host import mapped
from hetero_tvm.host.tvm import Executable, IRModule, relax, tvm, tvm_ffi
from hetero_tvm.memory.model_plan import MemoryPlan
from hetero_tvm.records.choose import Choice
from hetero_tvm.reference import (
    Accuracy,
    Reference,
    compare,
    rounds,
    run_reference,
    sample_inputs,
    with_rounding,
)
from hetero_tvm.reference.given import checked_inputs
from hetero_tvm.relax_passes.pipeline import lower
from hetero_tvm.relax_passes.storage.concatenation import is_joined
from hetero_tvm.relax_passes.storage.live_ranges import UPPER_BOUND
from hetero_tvm.runtime.manifest import Manifest, TargetInfo, current_versions, refuse_flagged
from hetero_tvm.runtime.quiet import quiet_fd2


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

    def run(self, inputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        """Run in this process; NumPy arrays by input name -> all outputs.

        Raises :class:`LibraryError` for an index outside of its tensor and the like.
        """
        device = self.optimized.target.running()[0][0]
        inputs = checked_inputs(self.optimized.signature, inputs)
        specs = self.optimized.signature.inputs
        arguments = [tvm.runtime.tensor(inputs[spec.name], device) for spec in specs]
        try:
            result = self._main(*arguments)
        except (IndexError, ZeroDivisionError) as error:
            raise LibraryError(f"{self.optimized.model.name} failed: {error}") from error
        tensors = [result] if hasattr(result, "numpy") else list(result)
        arrays = tuple(tensor.numpy() for tensor in tensors)
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
        """
        given, model = inputs, judged_model(self.optimized, inputs)
        if inputs is None:
            inputs = sample_inputs(model, seed)
        else:
            inputs = checked_inputs(model.signature, inputs)
        mapped.release()
        reference = run_reference(model, inputs)
        target, results = self.optimized.target, self.run(inputs)

        def verdict(reference: Reference) -> Accuracy:
            floor, cosine = target.relative_tolerance, target.least_cosine
            return compare(results, reference, floor=floor, least_cosine=cosine)

        self.accuracy = verdict(reference)
        if not self.accuracy.ok and rounds(model):
            self.accuracy = verdict(with_rounding(reference, model, inputs))
        if self.optimized.lengths is not None:
            self._check_lengths(seed, given is None)
        elif not self.accuracy.ok:
            fault = first_fault(self.optimized, self.choices, inputs)
            raise AccuracyError(
                f"{model.name}: the compiled model's numbers are beyond the tolerance",
                problems=[*str(self.accuracy).splitlines(), fault],
                hint="nothing was exported; build with --no-shipped-records and an empty --logs to see "
                "whether a record is at fault, and report the kernel named above",
            )
        return self.accuracy

    def _check_lengths(self, seed: int, sampled: bool) -> None:
        """Raise what is wrong at any of the sizes that are compared; with given inputs only at theirs."""
        assert self.accuracy is not None
        problems = [] if self.accuracy.ok else str(self.accuracy).splitlines()
        if sampled:
            problems += differences(self.optimized, self.run, seed)
        if problems:
            raise AccuracyError(
                f"{self.optimized.model.name}: the compiled model's numbers are beyond the tolerance",
                problems=problems,
                hint="nothing was exported; build with fixed shapes, which names the kernel at fault",
            )

    @property
    def kernels(self) -> list[dict[str, Any]]:
        """Entries, one per distinct kernel, in the order of first use (for tables and the manifest)."""
        rows, joined = [], {tuple(nodes) for nodes in self.memory.joined.values()}
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
                    "space": task.space.name if task.space else "generic",
                    "record": choice.origin,
                    "point": dict(choice.point) if choice.point is not None else None,
                    "seconds": choice.seconds,
                    "nodes": list(calls[0]),
                    "symbols": sorted(self.symbols.get(task.key, ())),
                    "call_nodes": [list(nodes) for nodes in calls],
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
            accuracy=[dataclasses.asdict(o) for o in self.accuracy.outputs] if self.accuracy else None,
            checks=self.optimized.checks,
            created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        )

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write one ``.so`` with the manifest embedded, and ``<stem>.manifest.json`` beside it.

        ``path`` is the file, or a folder (which gets ``model.so``).  The file appears whole or not
        at all.

        Raises
        ------
        BuildError : the linker failed, or the folder cannot be written.
        """
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
        parts = [_lowered(variant, chosen, len(variants) > 1) for variant, chosen in variants]
        memory = parts[0][1]
        lowered = merged([module for module, _ in parts], [v.target.entry for v, _ in variants])
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
    )


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
    optimized: OptimizedModel, choices: Mapping[str, Choice], several: bool
) -> tuple[IRModule, MemoryPlan]:
    """Lowered module of one variant, with scheduled kernels, and its memory plan."""
    target = optimized.target
    if optimized.lengths is not None:
        module = target.finalize(lift_model(optimized, choices))
        passes = [range_check(optimized.signature), *target.device_passes]
        return lower(module, optimized.sources, target.in_place, passes)
    suffix = target.entry.removeprefix("main") if several else ""
    module = apply_choices(optimized.module, optimized.tasks, choices, target, suffix)
    return lower(module, optimized.sources, target.in_place, target.device_passes)


def merged(modules: Sequence[IRModule], entries: Sequence[str]) -> IRModule:
    """Module with the kernels of all variants; each variant's ``main`` becomes its entry."""
    if len(modules) == 1 and entries[0] == "main":
        return modules[0]
    functions, taken = {}, set()
    for module, entry in zip(modules, entries, strict=True):
        renamed = {}
        for variable in module.functions:
            name = variable.name_hint
            if name.partition("_")[0] == "main":  # the entry, and other forms of it
                fresh = entry + name[4:]
            else:
                fresh = name if name not in taken else name + entry[4:]
            taken.add(fresh)
            if fresh != name:
                renamed[variable] = tvm.ir.GlobalVar(fresh)
        for variable, function in module.functions.items():
            if isinstance(function, relax.Function) and renamed:
                function = tvm_ffi.structural_map(
                    function, (tvm.ir.GlobalVar, lambda v, renamed=renamed: renamed.get(v, v))
                )
            variable = renamed.get(variable, variable)
            if function.attrs and "global_symbol" in function.attrs:
                function = function.with_attr("global_symbol", variable.name_hint)
            functions[variable] = function
    return tvm.IRModule(functions)
