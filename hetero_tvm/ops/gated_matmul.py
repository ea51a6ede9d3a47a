"""The gated half of an MLP: two products of one input, one of them activated, multiplied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hetero_tvm.ops.activations import ACTIVATIONS
from hetero_tvm.ops.base import Operand, suffix
from hetero_tvm.ops.matmul import ConstantProduct

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import PrimFunc


@dataclass(frozen=True)
class GatedMatmul(ConstantProduct):
    """``Y = activation(X @ G + bias_g) * (X @ U + bias_u)``, G and U constant.

    With SiLU it is SwiGLU, with GELU GeGLU (Shazeer, "GLU Variants Improve Transformer", 2020).

    Parameters
    ----------
    lead : leading dimensions of X and Y; their product is m, the rows of the product.
    n, k : columns of the result; reduction length.
    activation : a name in :data:`hetero_tvm.ops.activations.ACTIVATIONS`.
    biased : whether there is a bias operand.
    dtype : type of X, W and Y; the bias is float32, and so is all arithmetic.

    Operands: X [*lead, k], W [k, 2 * n] with the columns of G, then those of U (constant), and bias
    [2 * n] in the same order (constant) when ``biased``.
    """

    kind: ClassVar[str] = "gated_matmul"

    activation: str
    biased: bool = False
    dtype: str = "float32"

    @property
    def inputs(self) -> tuple[Operand, ...]:
        operands = self._operands(2 * self.n)
        if self.biased:
            operands.append(Operand("bias", (2 * self.n,), constant=True))
        return tuple(operands)

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

    def workload(self) -> PrimFunc:
        from hetero_tvm.host.tvm import te
        from hetero_tvm.ops.te_workload import activation, prim_func

        def compute(x, w, *bias):
            both = self._product(x, w)

            def value(lead, column):
                y = both(*lead, column)
                return y + bias[0][column] if bias else y

            def gated(*i):
                y = activation(self.activation, value(i[:-1], i[-1])) * value(i[:-1], i[-1] + self.n)
                return y if self.dtype == "float32" else y.astype(self.dtype)

            return te.compute(self.output.shape, gated, name="gated")

        return prim_func(self, compute)
