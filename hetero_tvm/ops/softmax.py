"""Softmax over the last axis, and its logarithm."""

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
    """``exp(x - max x) / sum exp(x - max x)`` over the last axis, or the logarithm of that.

    Parameters
    ----------
    lead : leading dimensions; their product is the number of rows.
    n : length of a row.
    dtype : type of X and Y; arithmetic is float32.
    log : whether Y is the logarithm: ``x - max x - log sum exp(x - max x)``.

    Operands: X [*lead, n].
    """

    kind: ClassVar[str] = "softmax"
    _OMITTED_AT_DEFAULT: ClassVar[tuple[str, ...]] = ("log",)

    lead: tuple[int, ...]
    n: int
    dtype: str = "float32"
    log: bool = False

    @property
    def rows(self) -> int:
        return math.prod(self.lead)

    @property
    def inputs(self) -> tuple[Operand, ...]:
        return (Operand("X", (*self.lead, self.n), self.dtype),)

    @property
    def output(self) -> Operand:
        return Operand("Y", (*self.lead, self.n), self.dtype)

    @property
    def flops(self) -> int:
        return 16 * self.rows * self.n

    @property
    def label(self) -> str:
        name = "log_softmax" if self.log else "softmax"
        return "_".join([f"{name}_{self.rows}x{self.n}", *suffix(self.dtype)])

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        (x,) = arrays
        centred = x - x.max(-1, keepdims=True)
        e = np.exp(centred)
        total = e.sum(-1, keepdims=True)
        return centred - np.log(total) if self.log else e / total

    def workload(self) -> PrimFunc:
        from hetero_tvm.host.tvm import te, topi
        from hetero_tvm.ops.te_workload import prim_func, wide

        softmax = topi.nn.log_softmax if self.log else topi.nn.softmax

        def compute(x):
            if self.dtype == "float32":
                return softmax(x, axis=-1)
            y = softmax(te.compute(x.shape, lambda *i: wide(x(*i)), name="wide"), axis=-1)
            return te.compute(x.shape, lambda *i: y(*i).astype(self.dtype), name="Y")

        return prim_func(self, compute)
