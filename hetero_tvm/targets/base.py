"""What a target is.

A target brings its graph passes, its design spaces, and how to compile; nothing outside its own file
knows its name, but for the registry (``registry.py``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from hetero_tvm.errors import TargetError, UsageError
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.records.combinations import Combination, Found, Known
from hetero_tvm.records.store import RecordStore
from hetero_tvm.relax_passes.rewriting.rule import GraphPass
from hetero_tvm.schedules.base import DesignSpace, Point
from hetero_tvm.search.outcome import TuneReport


class Target(ABC):
    """One concrete target: a kind and the variant that it is built for."""

    kind: str = ""

    relative_tolerance: float = 1e-5
    """Largest error that a check accepts, as a fraction of the largest output (see ``reference``)."""

    least_cosine: float = -1.0
    """Least cosine between an output and the reference that a check accepts."""

    @property
    def record_kind(self) -> str:
        """Kind under which records are filed: times of a simulation are not those of the device."""
        return self.kind

    @property
    def variants(self) -> tuple[Target, ...]:
        """One target per device that a library is to serve; each gets kernels and an entry of its own."""
        return (self,)

    @property
    def entry(self) -> str:
        """Name of the library's function for this device."""
        return "main"

    def unrunnable(self) -> str | None:
        """Why what is compiled cannot be run on this machine; None when it can."""
        return None

    def running(self) -> tuple[list[Any], str]:
        """Devices of the virtual machine, the one that computes first; the entry that runs there."""
        from hetero_tvm.host.tvm import tvm

        return [tvm.cpu()], self.entry

    in_place: bool = True
    """Whether kernels may overwrite their inputs where alias analysis of sequential loops allows it."""

    @property
    def device_passes(self) -> Sequence[Any]:
        """Relax passes that lowering runs after memory planning."""
        return ()

    precision: str = "f32"
    """What fused operators take and give: ``f32``, or ``f16`` (arithmetic stays float32)."""

    def rank(
        self,
        tasks: Sequence[Any],
        trials: int | None,
        store: RecordStore,
        on_event: Callable[[dict[str, Any]], None],
    ) -> TuneReport | None:
        """Choose candidates where they cannot be run: records without times in ``store``, and a report.

        None for a target whose candidates are measured.
        """
        return None

    def findings(self) -> list[str]:
        """Lines that tell what was found on this machine, and what was not, of what the target needs."""
        return []

    offload: tuple[str, str] | None = None
    """What measures candidates in a process that owns a device, here or on another machine: the function
    that compiles one, ``(PrimFunc, machine, path) -> facts``, and the class of the device
    (:class:`hetero_tvm.search.measure.device.BenchDevice`), each as ``module:name``.  None: only
    :meth:`measuring` measures."""

    def offload_environment(self) -> dict[str, str]:
        """Variables of the process that owns the device."""
        return {}

    def devices_here(self) -> Sequence[int]:
        """Numbers of this machine's devices that measure through :attr:`offload`."""
        return ()

    def variant_on(self, device: Mapping[str, Any]) -> Target:
        """The variant that runs on a device (see ``BenchDevice.describe``).  :class:`TargetError`: none."""
        raise TargetError(f"target {self.kind} is not measured on another machine")

    @property
    def graph_dtype(self) -> str:
        """Type that the graph is converted to for this target (``relax_passes/storage/precision.py``)."""
        return "float32"

    def with_precision(self, precision: str) -> Target:
        """This target at another precision.  :class:`UsageError` when it has none but its own."""
        if precision != self.precision:
            raise UsageError(
                f"--precision {precision} is not available for target {self.kind}",
                hint=f"use --precision {self.precision}, the default",
            )
        return self

    def for_stored(self, dtype: str) -> Target:
        """The precision for a model whose weights are stored as ``dtype``, where none is asked for."""
        return self

    def scope(self) -> AbstractContextManager[Any]:
        """Open while operators become TensorIR: sort and scan differ from one kind of device to another."""
        return nullcontext()

    def stamp(self, kernel: Any) -> Any:
        """The scheduled kernel with what code generation must know (a target of its own, say)."""
        return kernel

    @property
    @abstractmethod
    def machine(self) -> Any:
        """The hardware as this target's design spaces see it (JSON through ``to_json``)."""

    @property
    @abstractmethod
    def tvm_target(self) -> Any:
        """The ``tvm.target.Target`` for code generation."""

    @property
    @abstractmethod
    def fusions(self) -> Sequence[GraphPass]:
        """Fusion rules of the optimize pipeline, in order."""

    @property
    @abstractmethod
    def spaces(self) -> Sequence[DesignSpace]:
        """Design spaces, tried in order."""

    @abstractmethod
    def schedule_generic(self, function: Any) -> Any:
        """A schedule for a kernel that no space knows: correct for any function, never none."""

    def finalize(self, module: Any) -> Any:
        """Passes of this target over the scheduled kernels and their calls, before memory is planned."""
        return module

    @abstractmethod
    def compile(self, module: Any) -> Any:
        """From a lowered module (Relax and scheduled kernels) to a ``relax.VMExecutable``."""

    def compile_with_facts(self, module: Any) -> tuple[Any, dict[str, Any]]:
        """:meth:`compile`, and what the compiler says of each kernel, by device and kernel."""
        return self.compile(module), {}

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """For the manifest: kind, cpu (or device), isa (features that must be present), threads."""

    def offload_regions(
        self, module: Any, tasks: Sequence[Any], points: Mapping[str, Point]
    ) -> tuple[Any, Sequence[Any], Mapping[str, Point]]:
        """Compile whole groups of calls for hardware with memory of its own.

        Gives the module with one call in the place of each group, and the tasks and points for what is
        left in it, which ``compile.kernels`` replaces by kernels one by one.
        """
        return module, tasks, points

    measured_here: bool = True
    """Whether the search times candidates on this machine's CPU."""

    def measuring(self, tasks: Sequence[Any]) -> tuple[Sequence[Any], Any]:
        """The tasks that can be tuned, and what measures their candidates (None: processes of this CPU)."""
        return tasks, None

    def reconsider(
        self,
        module: Any,
        tasks: Sequence[Any],
        known: Known,
        seed: int,
        more: Callable[[], bool],
        on_trial: Callable[[Combination, float | None, float], None],
    ) -> Found | None:
        """The combination of points with which the whole model is fastest; None: no opinion.

        Asked after a search for kernels alone, of targets whose machine says ``whole_models``.

        Parameters
        ----------
        more : whether another whole model may be timed.
        on_trial : is told of every one: the combination, its seconds (None: it failed), the least so far.
        """
        return None

    def placement(self, module: Any, tasks: Sequence[Any]) -> str | None:
        """One line on what runs where; None when everything runs in one place."""
        return None

    def contract_of(self, function: Any, name: str, flops: int) -> FusedOp | None:
        """A contract for a generic kernel, where this target has spaces for what carries none."""
        return None

    def space_for(self, op: FusedOp) -> tuple[DesignSpace | None, list[str]]:
        """The first space that serves ``op``, and the reasons of those that do not."""
        reasons = []
        for space in self.spaces:
            reason = space.refuses(op, self.machine)
            if reason is None:
                return space, reasons
            reasons.append(f"{space.name}: {reason}")
        return None, reasons
