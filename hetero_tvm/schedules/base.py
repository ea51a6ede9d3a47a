"""Design spaces: the choices that a search has for one kind of operator on one kind of hardware.

A space says which choices the search may make (:meth:`DesignSpace.knobs`), which of them is good
without any search (:meth:`DesignSpace.default`), and what TensorIR each choice stands for
(:meth:`DesignSpace.emit`).

The search samples one MetaSchedule ``sample_categorical`` per knob, so that traces, mutation, the
cost model and the database are MetaSchedule's own; the kernel is emitted from the decisions.  This
two-step form is used where schedule primitives on the plain operator cannot express the kernel
(row tails as a second nest, prefetch of the next weight panel, run-time packed panels).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_tvm.host.peaks import FLOAT32
from hetero_tvm.machines.base import Machine
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.schedules.driver import Driver
from hetero_tvm.schedules.symbolic import Witnesses

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import PrimFunc

Point = Mapping[str, Any]
"""One choice per knob: knob name -> one of its ``choices`` (an int, a string or a tuple of ints)."""

Packer = Callable[[np.ndarray], np.ndarray]
"""A constant operand as the model has it -> laid out as a kernel reads it."""


@dataclass(frozen=True)
class Knob:
    """One decision: its name and the finite list of choices, the likely ones first.

    ``absent`` is the choice of points that were written before the space had this knob.
    """

    name: str
    choices: tuple[Any, ...]
    absent: Any = None


class DesignSpace(ABC):
    """The design space of one kind of operator on one kind of hardware.

    ``machine`` is the target's description of the hardware (for CPUs
    :class:`hetero_tvm.machines.cpu.CpuModel`); spaces take vector width, registers,
    caches and threads from it and assume none of them.  A space has no state of its own: processes that
    time candidates create it from its class, without arguments.
    """

    name: str = ""
    version: int = 1
    """Raised whenever a record of the old version would no longer mean the same kernel."""
    driver: Driver | None = None
    """Native functions that the kernels call, for CPU targets and what derives from them."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}, version {self.version}>"

    @abstractmethod
    def refuses(self, op: FusedOp, machine: Machine) -> str | None:
        """Reason why this space cannot serve ``op``; None when it can."""

    def arithmetic(self, op: FusedOp, machine: Machine) -> str:
        """Kind of arithmetic that the kernel's time is spent on (:mod:`hetero_tvm.host.peaks`)."""
        return FLOAT32

    @abstractmethod
    def knobs(self, op: FusedOp, machine: Machine) -> tuple[Knob, ...]:
        """The decisions; every combination of choices must give a correct kernel."""

    @abstractmethod
    def default(self, op: FusedOp, machine: Machine) -> Point:
        """The point to use when there is no record."""

    @abstractmethod
    def emit(self, op: FusedOp, point: Point, machine: Machine) -> PrimFunc:
        """The kernel over ``op``'s operands, constant ones packed, then its results."""

    def run_time_kernel(self, witnesses: Witnesses, point: Point, machine: Machine) -> PrimFunc | None:
        """The kernel for all sizes of ``witnesses``; None where the space has none that is written for it."""
        return None

    def of_all_sizes(self, ops: Sequence[FusedOp], machine: Machine) -> Point | None:
        """Point of a kernel for many sizes, of which ``ops`` are examples; None where each of them has it."""
        return None

    def pack(self, op: FusedOp, point: Point, machine: Machine) -> dict[int, Packer]:
        """Layout of constant operands: operand index -> function from the plain to the packed array."""
        return {}

    def features(self, op: FusedOp, point: Point, machine: Machine) -> list[float]:
        """Numbers that let the cost model rank points across shapes of this space."""
        return []

    def estimate(self, op: FusedOp, point: Point, machine: Machine) -> float | None:
        """Estimated time of one call in a unit of the space's own: only ratios between points count.

        It ranks points as long as nothing has been measured, and measurements correct it.  None where the
        order of each knob's choices, the likely ones first, is all the estimate there is.
        """
        return None

    def canonical(self, op: FusedOp, point: Point, machine: Machine) -> Point:
        """The point that stands for all points with ``point``'s kernel, which is timed once.

        There are several where one choice makes another one idle.
        """
        return point

    def check(self, op: FusedOp, point: Point, machine: Machine) -> None:
        """Raise ``ValueError`` when ``point`` is not one of this space (a foreign or stale record)."""
        for knob in self.knobs(op, machine):
            if point.get(knob.name, knob.absent) not in knob.choices:
                raise ValueError(
                    f"{self.name}: {knob.name}={point.get(knob.name)!r} is not among {knob.choices}"
                )


def thaw(point: Mapping[str, Any]) -> dict[str, Any]:
    """A point read from JSON: lists, nested ones too, become the tuples that knobs use."""

    def frozen(value: Any) -> Any:
        return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value

    return {name: frozen(value) for name, value in point.items()}
