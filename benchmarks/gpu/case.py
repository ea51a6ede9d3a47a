"""Cases: an operator, the same in PyTorch, and the peers that it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hetero_tvm.ops.base import FusedOp
from hetero_tvm.targets.base import Target

Compute = Callable[..., Any]
"""``(op, *tensors) -> tensor``, or a tuple for several results, in the dtype of the tensors given."""

MakePeer = Callable[..., Callable[[], Any]]
"""``(op, *tensors) -> call``: what it prepares (a layout, a transpose) is not timed, ``call()`` is."""

COPY = "copy"
"""Name of a plain device-to-device copy of as many bytes, as a peer."""


@dataclass(frozen=True)
class Case:
    """One entry of the results.

    Parameters
    ----------
    op : the operator.
    compute : the same in PyTorch; given float64 it is the truth that kernels are compared with.
    peers : by name, what else computes it on this GPU.
    precision : of the target (``f32``, ``tf32``, ``f16``, ``bf16``).
    goals : peer -> least speed relative to it.  ``copy`` is the bandwidth of a copy.
    trials : share of ``--trials`` that the search gets.
    first : measured before everything else, whole models included.
    bounds : exclusive upper bound of integer operands, by their index.
    families : names for subsets of the space that are to be told apart, with a predicate over points.
    """

    op: FusedOp
    compute: Compute
    peers: Mapping[str, MakePeer] = field(default_factory=dict)
    precision: str = "f16"
    goals: Mapping[str, float] = field(default_factory=dict)
    trials: float = 0.125
    first: bool = False
    bounds: Mapping[int, int] = field(default_factory=dict)
    families: Mapping[str, Callable[[Mapping[str, Any]], bool]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.op.label}_tf32" if self.precision == "tf32" else self.op.label

    def target(self, base: Target) -> Target:
        """Target that serves it: ``base`` at its precision."""
        return base.with_precision(self.precision)


@dataclass(frozen=True)
class Section:
    """Cases that belong together.

    Parameters
    ----------
    name : of the section in the results.
    cases : what is tuned and timed.
    small : the same kinds of operator at sizes that take no time: with these the kernels of the section
        are checked before anything is timed.
    """

    name: str
    cases: tuple[Case, ...]
    small: tuple[Case, ...]
