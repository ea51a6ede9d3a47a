"""Layer normalisation and RMS normalisation over the last axis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hetero_tvm.ops.base import FusedOp, Operand, suffix


@dataclass(frozen=True)
class Normalize(FusedOp):
    """``(x - mean) / sqrt(variance + eps) * scale + shift`` over the last axis (Ba et al., 2016).

    Parameters
    ----------
    lead : leading dimensions; their product is the number of rows.
    n : length of a row.
    eps : added to the variance.
    centered : False gives RMS normalisation (Zhang and Sennrich, 2019): no mean is subtracted.
    shifted : whether there is a shift operand.

    dtype : of X and Y; scale and shift are float32, and so is all arithmetic.

    Operands: X [*lead, n], scale [n], and shift [n] when ``shifted``.
    """

    kind: ClassVar[str] = "normalize"

    lead: tuple[int, ...]
    n: int
    eps: float
    centered: bool = True
    shifted: bool = True
    dtype: str = "float32"

    @property
    def rows(self) -> int:
        return math.prod(self.lead)

    @property
    def inputs(self) -> tuple[Operand, ...]:
        vectors = [Operand("scale", (self.n,), constant=True)]
        if self.shifted:
            vectors.append(Operand("shift", (self.n,), constant=True))
        return (Operand("X", (*self.lead, self.n), self.dtype), *vectors)

    @property
    def output(self) -> Operand:
        return Operand("Y", (*self.lead, self.n), self.dtype)

    @property
    def flops(self) -> int:
        return self.rows * self.n * (7 if self.centered else 4)

    @property
    def label(self) -> str:
        name = f"{'layer_norm' if self.centered else 'rms_norm'}_{self.rows}x{self.n}"
        return "_".join([name, *suffix(self.dtype)])

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        x, scale, *shift = arrays
        if self.centered:
            x = x - x.mean(-1, keepdims=True)
        y = x / np.sqrt((x * x).mean(-1, keepdims=True) + x.dtype.type(self.eps)) * scale
        return y + shift[0] if self.shifted else y

    def workload(self):
        from hetero_tvm.ops.te_workload import prim_func

        return prim_func(self, self.compute)

    def compute(self, x, scale, *shift):
        """The norm of ``x`` as tensor expressions."""
        from tvm import te, tirx

        from hetero_tvm.ops.te_workload import wide

        def mean_of(value, name):
            axis = te.reduce_axis((0, self.n), name="k")
            total = te.compute(self.lead, lambda *i: te.sum(wide(value(*i, axis)), axis=axis), name=name)
            return lambda *i: total(*i) * tirx.const(1.0 / self.n, "float32")

        if self.centered:
            mean = mean_of(x, "sum")
            centered = te.compute(x.shape, lambda *i: wide(x(*i)) - mean(*i[:-1]), name="centered")
        elif self.dtype == "float32":
            centered = x
        else:
            centered = te.compute(x.shape, lambda *i: wide(x(*i)), name="wide")
        square = te.compute(x.shape, lambda *i: centered(*i) * centered(*i), name="square")
        variance = mean_of(square, "sum_of_squares")
        eps = tirx.const(self.eps, "float32")

        def normalized(*i):
            y = centered(*i) * tirx.rsqrt(variance(*i[:-1]) + eps) * scale[i[-1]]
            y = y + shift[0][i[-1]] if self.shifted else y
            return y if self.dtype == "float32" else y.astype(self.dtype)

        return te.compute(x.shape, normalized, name="normalized")
