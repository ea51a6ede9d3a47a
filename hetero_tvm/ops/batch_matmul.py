"""Products of pairs of matrices that are both computed: attention left unfused, bilinear forms, int8."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hetero_tvm.ops.base import FusedOp, Operand, suffix


@dataclass(frozen=True)
class BatchMatmul(FusedOp):
    """``Y[b] = scale * X[b] @ W[b]`` for each b of ``lead``; float32 sums, or int32 ones for int8.

    Parameters
    ----------
    lead : leading dimensions of X and Y; their product is the number of matrices.
    m, n, k : rows, columns, length of the reduction.
    transposed : W is [*lead, n, k] instead of [*lead, k, n].
    shared : W is one matrix for all of ``lead``.
    scale : factor of the result (1 for int8).
    dtype : of X and W; Y has it too, except that int8 gives int32.

    Operands: X [*lead, m, k], W.
    """

    kind: ClassVar[str] = "batch_matmul"

    lead: tuple[int, ...]
    m: int
    n: int
    k: int
    transposed: bool = False
    shared: bool = False
    scale: float = 1.0
    dtype: str = "float32"

    @property
    def batch(self) -> int:
        return math.prod(self.lead)

    @property
    def inputs(self) -> tuple[Operand, ...]:
        matrix = (self.n, self.k) if self.transposed else (self.k, self.n)
        lead = () if self.shared else self.lead
        return Operand("X", (*self.lead, self.m, self.k), self.dtype), Operand(
            "W", (*lead, *matrix), self.dtype
        )

    @property
    def output(self) -> Operand:
        return Operand("Y", (*self.lead, self.m, self.n), "int32" if self.dtype == "int8" else self.dtype)

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def label(self) -> str:
        form = ["transposed"] if self.transposed else []
        return "_".join(
            ["batch_matmul", f"{self.batch}x{self.m}x{self.k}x{self.n}", *form, *suffix(self.dtype)]
        )

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        x, w = arrays
        if x.dtype == np.int8:
            x, w = x.astype(np.int32), w.astype(np.int32)
        product = x @ (np.swapaxes(w, -1, -2) if self.transposed else w)
        return product if self.scale == 1.0 else product * self.scale

    def workload(self):
        from tvm import te, tirx

        from hetero_tvm.ops.te_workload import prim_func

        total = "int32" if self.dtype == "int8" else "float32"

        def compute(x, w):
            axis = te.reduce_axis((0, self.k), name="k")

            def product(*index):
                *lead, i, j = index
                matrix = (j, axis) if self.transposed else (axis, j)
                place = matrix if self.shared else (*lead, *matrix)
                return te.sum(x[(*lead, i, axis)].astype(total) * w[place].astype(total), axis=axis)

            y = te.compute(self.output.shape, product, name="product")
            if self.scale == 1.0 and total == self.output.dtype:
                return y

            def finished(*index):
                value = y(*index)
                if self.scale != 1.0:
                    value = value * tirx.const(self.scale, "float32")
                return value.astype(self.output.dtype)

            return te.compute(y.shape, finished, name="scaled")

        return prim_func(self, compute)
