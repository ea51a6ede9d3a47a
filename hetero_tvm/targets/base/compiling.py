"""The part of a target that makes machine code: schedules for any kernel, regions, code generation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from hetero_tvm.host.tvm import Executable, IRModule, PrimFunc, TVMTarget
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.schedules.base import DesignSpace, Point
from hetero_tvm.schedules.symbolic import Witnesses
from hetero_tvm.schedules.task import Task


@dataclass(frozen=True)
class Compiled:
    """Result of code generation.

    Parameters
    ----------
    executable : for TVM's virtual machine.
    facts : what the compiler says of each kernel, by device and kernel (registers, ...), for the manifest.
    device_code : what runs on a device, as it would be a file of its own, by the end of that file's name.
    """

    executable: Executable
    facts: Mapping[str, Any] = field(default_factory=dict)
    device_code: Mapping[str, bytes] = field(default_factory=dict)


class StepKernels(Protocol):
    """Kernels of a decoder's step, by contract (``ops/decoding/``)."""

    def rounding(self, rows: str) -> StepKernels:
        """Kernels that round rows to ``int8`` or ``int16`` beside weights of 8 bits, to ``bf16`` beside such.

        Raises
        ------
        TargetError : the target cannot.
        """

    def emit(self, op: Any) -> PrimFunc:
        """The kernel of a contract."""

    def pack(self, op: Any, weight: Any) -> list[np.ndarray]:
        """The arrays that stand for a weight among the arguments of a product's kernel."""

    def pack_bias(self, op: Any, bias: np.ndarray) -> np.ndarray:
        """The array that stands for a bias."""


class CompilingTarget(ABC):
    """Part of a target that turns scheduled kernels into machine code."""

    in_place: bool = True
    """Whether kernels may overwrite their inputs where alias analysis of sequential loops allows it."""

    loops: bool = False
    """Whether a model may have loops whose rounds are known only when they have run."""
    constants_apart: bool = False
    """Whether large constants are in the host's memory alone, so that a library may read them by itself."""

    @property
    @abstractmethod
    def tvm_target(self) -> TVMTarget:
        """The ``tvm.target.Target`` for code generation."""

    @property
    def step_kernels(self) -> StepKernels | None:
        """Kernels for language models; None where this target has none."""
        return None

    @property
    def variants(self) -> tuple[Any, ...]:
        """Targets, one per device that a library is to serve; each gets kernels and an entry of its own."""
        return (self,)

    @property
    def device_passes(self) -> Sequence[Callable[..., IRModule]]:
        """Relax passes that lowering runs after memory planning."""
        return ()

    run_time_sizes: bool = False
    """Whether kernels can have extents that are known when they run."""

    fixed_size_passes: frozenset[str] = frozenset()
    """Names of passes whose kernels serve one size, which are left out where dimensions stay open."""

    fixed_image_passes: frozenset[str] = frozenset()
    """Names of passes left out where rows or columns stay open, and not only the batch."""

    layout_passes: frozenset[str] = frozenset()
    """Names of passes that are left out there as well, where what they choose depends on the size."""

    batch_passes: frozenset[str] = frozenset()
    """Names of passes left out where the batch alone stays open, and what they choose depends on its size."""

    def run_time_kernel(self, witnesses: Witnesses, space: DesignSpace, point: Point) -> PrimFunc | None:
        """A kernel of one's own for all sizes; None: the space's kernel is lifted."""
        return None

    def space_for_run_time(self, op: FusedOp) -> DesignSpace | None:
        """The space whose kernel for all sizes serves an operator that no space serves at one size."""
        return None

    def kept_decisions(self, space: DesignSpace, point: Point) -> Point:
        """The point without what a kernel for all sizes decides when it runs."""
        return point

    def pieces(self, space: DesignSpace) -> tuple[str, ...]:
        """Knobs of a space by which its kernels share the work out among threads, and which are free to
        differ from what is best at one size when a kernel serves several."""
        return ()

    def schedule_run_time(self, function: PrimFunc, work: int) -> PrimFunc:
        """A schedule for a kernel whose extents are known when it runs; ``work`` iterations at most."""
        return function

    @abstractmethod
    def schedule_generic(self, function: PrimFunc) -> PrimFunc:
        """A schedule for a kernel that no space knows: correct for any function, never none."""

    def stamp(self, kernel: PrimFunc) -> PrimFunc:
        """The scheduled kernel with what code generation must know (a target of its own, say)."""
        return kernel

    def offload_regions(
        self, module: IRModule, tasks: Sequence[Task], points: Mapping[str, Point]
    ) -> tuple[IRModule, Sequence[Task], Mapping[str, Point]]:
        """Compile whole groups of calls for hardware with memory of its own.

        Gives the module with one call in the place of each group, and the tasks and points for what is
        left in it, which ``compile/kernels.py`` replaces by kernels one by one.
        """
        return module, tasks, points

    def finalize(self, module: IRModule) -> IRModule:
        """Passes of this target over the scheduled kernels and their calls, before memory is planned."""
        return module

    @abstractmethod
    def compile(self, module: IRModule) -> Compiled:
        """Executable of a lowered module (Relax and scheduled kernels)."""
