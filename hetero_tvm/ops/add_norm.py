"""Addition of a residual and the norm of the sum: one pass, one or two results."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hetero_tvm.ops.base import FusedOp, Operand
from hetero_tvm.ops.normalization import Normalization

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import PrimFunc


@dataclass(frozen=True)
class AddNorm(FusedOp):
    """``S = X + R``, ``Y = norm(S) * scale + shift`` over the last axis, in float32 (Skip-LayerNorm).

    Parameters
    ----------
    lead, n, eps, centered, shifted : attributes of the norm, see
        :class:`hetero_tvm.ops.normalization.Normalization`.
    added : extents of R, those of X without leading axes along which it repeats (positions: [S, n]).
    kept : whether the sum is a result as well, before the norm.

    Operands: X [*lead, n], R [added], scale [n], and shift [n] when ``shifted``.
    Results: S [*lead, n] when ``kept``, Y [*lead, n].
    """

    kind: ClassVar[str] = "add_norm"

    lead: tuple[int, ...]
    n: int
    added: tuple[int, ...]
    eps: float
    centered: bool = True
    shifted: bool = True
    kept: bool = True

    @property
    def norm(self) -> Normalization:
        """Contract of the norm alone."""
        return Normalization(self.lead, self.n, self.eps, self.centered, self.shifted)

    @property
    def rows(self) -> int:
        """Number of vectors that are normalised."""
        return self.norm.rows

    @property
    def inputs(self) -> tuple[Operand, ...]:
        x, *vectors = self.norm.inputs
        return (x, Operand("R", self.added), *vectors)

    @property
    def output(self) -> Operand:
        return self.norm.output

    @property
    def outputs(self) -> tuple[Operand, ...]:
        return (Operand("S", self.output.shape), self.output) if self.kept else (self.output,)

    @property
    def flops(self) -> int:
        return self.norm.flops + self.rows * self.n

    @property
    def label(self) -> str:
        return f"add_{self.norm.label}" + ("" if self.kept else "_alone")

    def reference(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...] | np.ndarray:
        x, r, *vectors = arrays
        total = x + r
        y = self.norm.reference(total, *vectors)
        return (total, y) if self.kept else y

    def workload(self) -> PrimFunc:
        from hetero_tvm.host.tvm import te
        from hetero_tvm.ops.te_workload import prim_func

        def compute(x, r, *vectors):
            rank = len(self.added)
            total = te.compute(x.shape, lambda *i: x(*i) + r(*i[len(i) - rank :]), name="S")
            y = self.norm.compute(total, *vectors)
            return [total, y] if self.kept else y

        return prim_func(self, compute)

    @property
    def added_rows(self) -> int:
        """Rows of R: row i of X gets row ``i % added_rows``."""
        return math.prod(self.added[:-1])
