"""Softmax of rows, of 8-bit values and into 8-bit values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hetero_tvm.ops.base import FusedOp, Operand
from hetero_tvm.ops.integers.quantized import limits_of, rounded, saturated

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import PrimFunc


@dataclass(frozen=True)
class QuantSoftmax(FusedOp):
    """``Y = round(softmax(x_scale * X) / y_scale) + y_zero``, saturated, over the last axis.

    A zero point of X is no matter: all values of a row have the same.

    Parameters
    ----------
    lead : dimensions before the axis.
    n : extent of the axis.
    x_dtype : int8 or uint8; or float32, with a scale of 1.
    x_scale : step of X.
    out : int8 or uint8.
    y_scale, y_zero : step and zero point of Y.

    Operands: X [*lead, n].
    """

    kind: ClassVar[str] = "quant_softmax"

    lead: tuple[int, ...]
    n: int
    x_dtype: str
    x_scale: float
    out: str
    y_scale: float
    y_zero: int

    @property
    def rows(self) -> int:
        """Number of sums."""
        return math.prod(self.lead)

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.lead, self.n)

    @property
    def limits(self) -> tuple[int, int]:
        """Least and largest value of Y."""
        return limits_of(self.out)

    @property
    def inputs(self) -> tuple[Operand, ...]:
        return (Operand("X", self.shape, self.x_dtype),)

    @property
    def output(self) -> Operand:
        return Operand("Y", self.shape, self.out)

    @property
    def flops(self) -> int:
        return 16 * self.rows * self.n

    @property
    def label(self) -> str:
        return f"quant_softmax_{self.rows}x{self.n}_{self.x_dtype}_{self.out}"

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        x = np.asarray(arrays[0]).astype(np.float64) * self.x_scale
        e = np.exp(x - x.max(-1, keepdims=True))
        shares = e / e.sum(-1, keepdims=True)
        return saturated(shares / self.y_scale, self.y_zero, self.limits, self.out)

    def workload(self) -> PrimFunc:
        from hetero_tvm.host.tvm import te, tirx, topi
        from hetero_tvm.ops.te_workload import prim_func

        def compute(x):
            scale = tirx.const(self.x_scale, "float32")
            wide = te.compute(x.shape, lambda *i: x(*i).astype("float32") * scale, name="wide")
            y = topi.nn.softmax(wide, axis=len(self.lead))

            def shares(*index):
                steps = y(*index) / tirx.const(self.y_scale, "float32")
                return rounded(steps, self.y_zero, self.limits, self.out)

            return te.compute(x.shape, shares, name="Y")

        return prim_func(self, compute)
