"""Matrix multiplication with its epilogue."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hetero_tvm.ops.activations import ACTIVATIONS
from hetero_tvm.ops.base import FusedOp, Operand, suffix

BIAS = "bias"
RESIDUAL = "residual"


@dataclass(frozen=True)
class Matmul(FusedOp):
    """``Y[..., n] = epilogue(X[..., k] @ W[k, n])`` in float32, W constant.

    Parameters
    ----------
    lead : leading dimensions of X and Y; their product is m, the rows of the product.
    n, k : columns of the result; reduction length.
    epilogue : steps applied in order to each value of the product: ``bias`` adds a vector [n]
        (constant), ``residual`` adds a tensor of Y's shape, any other name is an activation of
        :data:`hetero_tvm.ops.activations.ACTIVATIONS`.

    dtype : of X, W, residual and Y; the bias is float32, and so is all arithmetic.

    Operands: X [*lead, k], W [k, n] (constant), then one per ``bias`` / ``residual`` in the order of
    the epilogue.
    """

    kind: ClassVar[str] = "matmul"

    lead: tuple[int, ...]
    n: int
    k: int
    epilogue: tuple[str, ...] = ()
    dtype: str = "float32"

    @property
    def m(self) -> int:
        return math.prod(self.lead)

    @property
    def inputs(self) -> tuple[Operand, ...]:
        operands = [Operand("X", (*self.lead, self.k), self.dtype)]
        operands.append(Operand("W", (self.k, self.n), self.dtype, constant=True))
        for step in self.epilogue:
            if step == BIAS:
                operands.append(Operand("bias", (self.n,), constant=True))
            elif step == RESIDUAL:
                operands.append(Operand("residual", (*self.lead, self.n), self.dtype))
        return tuple(operands)

    @property
    def output(self) -> Operand:
        return Operand("Y", (*self.lead, self.n), self.dtype)

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def label(self) -> str:
        return "_".join(["matmul", f"{self.m}x{self.k}x{self.n}", *self.epilogue, *suffix(self.dtype)])

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        x, w, *extra = arrays
        y = x @ w
        rest = iter(extra)
        for step in self.epilogue:
            y = y + next(rest) if step in (BIAS, RESIDUAL) else ACTIVATIONS[step](y)
        return y

    def workload(self):
        from hetero_tvm.host.tvm import te
        from hetero_tvm.ops.te_workload import activation, prim_func, wide

        def elementwise(step, y, operand):
            if step == BIAS:
                return te.compute(y.shape, lambda *i: y(*i) + operand[i[-1]], name=step)
            if step == RESIDUAL:
                return te.compute(y.shape, lambda *i: y(*i) + wide(operand(*i)), name=step)
            return te.compute(y.shape, lambda *i: activation(step, y(*i)), name=step)

        def compute(x, w, *extra):
            axis = te.reduce_axis((0, self.k), name="k")
            y = te.compute(
                self.output.shape,
                lambda *i: te.sum(wide(x[(*i[:-1], axis)]) * wide(w[axis, i[-1]]), axis=axis),
                name="product",
            )
            rest = iter(extra)
            for step in self.epilogue:
                y = elementwise(step, y, next(rest) if step in (BIAS, RESIDUAL) else None)
            return y if self.dtype == "float32" else te.compute(y.shape, lambda *i: y(*i).astype(self.dtype))

        return prim_func(self, compute)
