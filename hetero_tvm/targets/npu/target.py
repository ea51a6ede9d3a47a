"""The NPU target: fused operators run on the NPU in regions, everything else on the CPU beside it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hetero_tvm.errors import TargetError, UsageError
from hetero_tvm.host.tvm import IRModule
from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.machines.npu.spec import NPUSpec, presets
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.relax_passes.forms.quantized.quantized_conv1d import QuantConv1dAsConv2d
from hetero_tvm.relax_passes.forms.rules import FORMS
from hetero_tvm.relax_passes.forms.run_time_checks import CheckAtRunTime
from hetero_tvm.relax_passes.forms.split import SplitAsSlices
from hetero_tvm.relax_passes.fusions.integers.quantized import FuseQuantized
from hetero_tvm.relax_passes.fusions.pool2d import FusePool2d
from hetero_tvm.relax_passes.pipeline import FUSIONS
from hetero_tvm.relax_passes.rewriting.rule import GraphPass
from hetero_tvm.runtime.library import Library
from hetero_tvm.schedules.base import DesignSpace, Point
from hetero_tvm.schedules.npu.base import NpuSpace
from hetero_tvm.schedules.npu.host import HostSpace
from hetero_tvm.targets.base import Compiled, LibraryProfile, Target
from hetero_tvm.targets.cpu.target import CpuTarget
from hetero_tvm.targets.npu.device.profile_report import profile_library
from hetero_tvm.targets.npu.spaces import NPU_SPACES
from hetero_tvm.targets.npu.tuning.tuner import NpuTuner

DEFAULT = "mobile"
_DTYPES = {"f16": "float16", "bf16": "bfloat16"}


class NpuTarget(Target):
    """An NPU of the reference family with a CPU as its host.

    Parameters
    ----------
    spec : the machine.
    precision : f16 or bf16: the type of weights and activations on the NPU; accumulators and
        statistics are float32, the model's inputs and outputs stay what they are.
    """

    kind = "npu"
    relative_tolerance = 2e-2
    least_cosine = 0.9995

    def __init__(self, spec: NPUSpec, precision: str = "f16"):
        if precision not in _DTYPES:
            raise UsageError(
                f"--precision {precision} is not available for target npu",
                hint=f"use one of {', '.join(_DTYPES)}",
            )
        self.spec = spec
        self.precision = precision
        if precision == "bf16":  # 8 bits where float16 has 11: every rounding is eight times as coarse
            self.relative_tolerance = 6e-2
        self._precision_named = False
        self._cpu = CpuTarget()

    @classmethod
    def from_variant(cls, variant: str) -> NpuTarget:
        """``npu``, ``npu:edge``, ``npu:/path/machine.toml``; ``,bf16`` behind it sets the precision.

        Raises :class:`TargetError` that lists all that is wrong, with the file's problems if it is one.
        """
        parts = [part.strip() for part in variant.split(",")] if variant else []
        precisions = [part for part in parts if part in _DTYPES]
        names = [part for part in parts if part and part not in _DTYPES]
        problems: list[str] = []
        specs = [spec for name in names if (spec := _machine(name, problems)) is not None]
        if "" in parts:
            problems.append(f"npu:{variant} has an empty part")
        problems += [
            f"npu:{variant} names {len(several)} {what}: {', '.join(several)}"
            for what, several in (("machines", names), ("precisions", precisions))
            if len(several) > 1
        ]
        if problems:
            raise TargetError(
                problems[0] if len(problems) == 1 else f"there is no target npu:{variant}",
                problems=problems if len(problems) > 1 else (),
                hint=f"npu:MACHINE or npu:MACHINE,PRECISION, with a machine of {', '.join(presets())} or the "
                f"path of a .toml file, and a precision of {', '.join(_DTYPES)}",
            )
        target = cls(specs[0] if specs else NPUSpec.preset(DEFAULT), *precisions)
        target._precision_named = bool(precisions)
        return target

    def for_stored(self, dtype: str) -> NpuTarget:
        if self._precision_named or dtype != "bfloat16":
            return self
        return self.with_precision("bf16")

    def with_precision(self, precision: str) -> NpuTarget:
        """This machine with weights and activations of another type."""
        if self._precision_named and precision != self.precision:
            raise UsageError(
                f"the target says {self.precision}, --precision says {precision}", hint="give one of them"
            )
        return NpuTarget(self.spec, precision)

    @functools.cached_property
    def machine(self) -> NpuMachine:
        return NpuMachine(self.spec, _DTYPES[self.precision], self._cpu.machine)

    @property
    def tvm_target(self) -> Any:
        return self._cpu.tvm_target

    @property
    def fusions(self) -> Sequence[GraphPass]:
        # No blocked image layouts, which the CPU adds: the NPU keeps channels last by itself.
        # Quantised products first: constants that were folded would have lost their 8 bits.
        quantized = (QuantConv1dAsConv2d(), FuseQuantized())
        # The host checks what indexes; before the forms, which compute other indices from it.
        return (*quantized, CheckAtRunTime(), *FORMS, *FUSIONS, FusePool2d(), SplitAsSlices())

    @functools.cached_property
    def spaces(self) -> Sequence[DesignSpace]:
        return (*NPU_SPACES, *(HostSpace(space) for space in self._cpu.spaces))

    def contract_of(self, function: Any, name: str, flops: int) -> FusedOp | None:
        from hetero_tvm.ops.tensor_program import TensorProgram
        from hetero_tvm.schedules.npu.tensor_program.recover import results

        return TensorProgram.of(function, name, flops) if results(function) == 1 else None

    def schedule_generic(self, function: Any) -> Any:
        return self._cpu.schedule_generic(function)

    def offload_regions(
        self, module: Any, tasks: Sequence[Any], points: Mapping[str, Point]
    ) -> tuple[Any, Sequence[Any], Mapping[str, Point]]:
        from hetero_tvm.targets.npu.regions.lowering import lower_regions

        module, _, _ = lower_regions(module, tasks, points, self)
        # What the NPU could do and is not worth the transfer runs on the host as on any CPU.
        mine = {task.key for task in tasks if isinstance(task.space, NpuSpace)}
        tasks = [self._on_host(task) if task.key in mine else task for task in tasks]
        points = {key: point for key, point in points.items() if key not in mine}
        return module, tasks, points

    def _on_host(self, task: Any) -> Any:
        hosts = (space for space in self.spaces if not isinstance(space, NpuSpace))
        space = next((s for s in hosts if s.refuses(task.op, self.machine) is None), None)
        return dataclasses.replace(task, space=space)

    def tuner(self, rpc: str | None = None) -> NpuTuner:
        if rpc is not None:
            raise UsageError("--rpc: candidates for target npu are measured on this machine only")
        return NpuTuner(self)

    @classmethod
    def profile(cls, library: Library, call: Callable[[], Any], seconds: float = 1.0) -> LibraryProfile:
        return profile_library(library, call)

    def placement(self, module: Any, tasks: Sequence[Any]) -> str:
        from hetero_tvm.targets.npu.regions.placement import place

        return str(place(module, tasks, self).placement)

    def compile(self, module: IRModule) -> Compiled:
        """The facts are the machine: a library runs on it, or on one with at least its memories."""
        facts = {"precision": self.precision, "npu": self.spec.to_json()}
        return Compiled(self._cpu.compile(module).executable, facts)

    def describe(self) -> dict[str, Any]:
        mine = {"kind": self.kind, "device": self.spec.name, "precision": self.precision, "alignment": 64}
        return {**self._cpu.describe(), **mine}


def _machine(name: str, problems: list[str]) -> NPUSpec | None:
    """The machine of a preset or a file; None, and what is wrong added to ``problems``."""
    try:
        if name.endswith(".toml") or "/" in name:
            return NPUSpec.from_toml(Path(name).expanduser())
        if name in presets():
            return NPUSpec.preset(name)
    except TargetError as error:
        problems += [f"{name}: {problem}" for problem in error.problems] or [error.message]
        return None
    problems.append(f"there is no NPU {name!r}")
    return None
