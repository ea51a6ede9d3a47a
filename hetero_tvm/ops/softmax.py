"""Softmax over the last axis."""

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
    """``exp(x - max x) / sum exp(x - max x)`` over the last axis.

    Parameters
    ----------
    lead : leading dimensions; their product is the number of rows.
    n : length of a row.
    dtype : type of X and Y; arithmetic is float32.

    Operands: X [*lead, n].
    """

    kind: ClassVar[str] = "softmax"

    lead: tuple[int, ...]
    n: int
    dtype: str = "float32"

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
        return "_".join([f"softmax_{self.rows}x{self.n}", *suffix(self.dtype)])

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        (x,) = arrays
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    def workload(self) -> PrimFunc:
        from hetero_tvm.host.tvm import te, topi
        from hetero_tvm.ops.te_workload import prim_func, wide

        def compute(x):
            if self.dtype == "float32":
                return topi.nn.softmax(x, axis=-1)
            y = topi.nn.softmax(te.compute(x.shape, lambda *i: wide(x(*i)), name="wide"), axis=-1)
            return te.compute(x.shape, lambda *i: y(*i).astype(self.dtype), name="Y")

        return prim_func(self, compute)
