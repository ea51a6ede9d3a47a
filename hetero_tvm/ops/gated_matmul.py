"""The gated half of an MLP: two products of one input, one of them activated, multiplied."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hetero_tvm.ops.activations import ACTIVATIONS
from hetero_tvm.ops.base import FusedOp, Operand, suffix


@dataclass(frozen=True)
class GatedMatmul(FusedOp):
    """``Y = activation(X @ G + bias_g) * (X @ U + bias_u)``, G and U constant.

    With SiLU it is SwiGLU, with GELU GeGLU (Shazeer, "GLU Variants Improve Transformer", 2020).

    Parameters
    ----------
    lead : leading dimensions of X and Y; their product is m, the rows of the product.
    n, k : columns of the result; reduction length.
    activation : a name in :data:`hetero_tvm.ops.activations.ACTIVATIONS`.
    biased : whether there is a bias operand.
    dtype : of X, W and Y; the bias is float32, and so is all arithmetic.

    Operands: X [*lead, k], W [k, 2 * n] with the columns of G, then those of U (constant), and bias
    [2 * n] in the same order (constant) when ``biased``.
    """

    kind: ClassVar[str] = "gated_matmul"

    lead: tuple[int, ...]
    n: int
    k: int
    activation: str
    biased: bool = False
    dtype: str = "float32"

    @property
    def m(self) -> int:
        return math.prod(self.lead)

    @property
    def inputs(self) -> tuple[Operand, ...]:
        operands = [
            Operand("X", (*self.lead, self.k), self.dtype),
            Operand("W", (self.k, 2 * self.n), self.dtype, constant=True),
        ]
        if self.biased:
            operands.append(Operand("bias", (2 * self.n,), constant=True))
        return tuple(operands)

    @property
    def output(self) -> Operand:
        return Operand("Y", (*self.lead, self.n), self.dtype)

    @property
    def flops(self) -> int:
        return 4 * self.m * self.n * self.k

    @property
    def label(self) -> str:
        bias = "_bias" if self.biased else ""
        shape = f"{self.m}x{self.k}x{self.n}"
        return "_".join([f"gated_matmul_{shape}{bias}_{self.activation}", *suffix(self.dtype)])

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        x, w, *bias = arrays
        both = x @ w + (bias[0] if bias else 0)
        return ACTIVATIONS[self.activation](both[..., : self.n]) * both[..., self.n :]

    def workload(self):
        from hetero_tvm.host.tvm import te
        from hetero_tvm.ops.te_workload import activation, prim_func, wide

        def compute(x, w, *bias):
            axis = te.reduce_axis((0, self.k), name="k")
            both = te.compute(
                (*self.lead, 2 * self.n),
                lambda *i: te.sum(wide(x[(*i[:-1], axis)]) * wide(w[axis, i[-1]]), axis=axis),
                name="product",
            )

            def value(lead, column):
                y = both(*lead, column)
                return y + bias[0][column] if bias else y

            def gated(*i):
                y = activation(self.activation, value(i[:-1], i[-1])) * value(i[:-1], i[-1] + self.n)
                return y if self.dtype == "float32" else y.astype(self.dtype)

            return te.compute(self.output.shape, gated, name="gated")

        return prim_func(self, compute)
