"""Softmax over an axis, and its logarithm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hetero_tvm.ops.base import FusedOp, Operand, suffix

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import PrimFunc


@dataclass(frozen=True)
class Softmax(FusedOp):
    """``exp(x - max x) / sum exp(x - max x)`` over one axis, or the logarithm of that.

    Parameters
    ----------
    lead : dimensions before the axis.
    n : extent of the axis.
    dtype : type of X and Y; arithmetic is float32.
    log : whether Y is the logarithm: ``x - max x - log sum exp(x - max x)``.

    trail : dimensions behind the axis; empty where it is the last.

    Operands: X [*lead, n, *trail].
    """

    kind: ClassVar[str] = "softmax"
    _OMITTED_AT_DEFAULT: ClassVar[tuple[str, ...]] = ("log", "trail")

    lead: tuple[int, ...]
    n: int
    dtype: str = "float32"
    log: bool = False
    trail: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """Number of sums."""
        return math.prod(self.lead) * math.prod(self.trail)

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.lead, self.n, *self.trail)

    @property
    def inputs(self) -> tuple[Operand, ...]:
        return (Operand("X", self.shape, self.dtype),)

    @property
    def output(self) -> Operand:
        return Operand("Y", self.shape, self.dtype)

    @property
    def flops(self) -> int:
        return 16 * self.rows * self.n

    @property
    def label(self) -> str:
        name = "log_softmax" if self.log else "softmax"
        shape = f"{self.rows}x{self.n}"
        if self.trail:
            shape = f"{math.prod(self.lead)}x{self.n}x{math.prod(self.trail)}"
        return "_".join([f"{name}_{shape}", *suffix(self.dtype)])

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        (x,), axis = arrays, len(self.lead)
        centred = x - x.max(axis, keepdims=True)
        e = np.exp(centred)
        total = e.sum(axis, keepdims=True)
        return centred - np.log(total) if self.log else e / total

    def workload(self) -> PrimFunc:
        from hetero_tvm.host.tvm import te, topi
        from hetero_tvm.ops.te_workload import prim_func, wide

        softmax, axis = topi.nn.log_softmax if self.log else topi.nn.softmax, len(self.lead)

        def compute(x):
            if self.dtype == "float32":
                return softmax(x, axis=axis)
            y = softmax(te.compute(x.shape, lambda *i: wide(x(*i)), name="wide"), axis=axis)
            return te.compute(x.shape, lambda *i: y(*i).astype(self.dtype), name="Y")

        return prim_func(self, compute)
