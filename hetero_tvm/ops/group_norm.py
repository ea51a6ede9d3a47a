"""Group and instance normalisation of [N, C, ...] tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hetero_tvm.ops.activations import ACTIVATIONS
from hetero_tvm.ops.base import FusedOp, Operand, suffix

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import PrimFunc, TETensor


@dataclass(frozen=True)
class GroupNorm(FusedOp):
    """``activation((x - mean) / sqrt(variance + eps) * scale[c] + shift[c])``, mean and variance by group.

    Wu and He, "Group Normalization", 2018.  One channel per group is instance normalisation.

    Parameters
    ----------
    shape : extents of X and Y, [N, C, *spatial].
    groups : number of groups of neighbouring channels.
    eps : added to the variance.
    activation : a name in :data:`hetero_tvm.ops.activations.ACTIVATIONS`, or "" for none.
    dtype : type of X and Y; scale and shift are float32, and so is all arithmetic.

    Operands: X, scale [C] and shift [C] (constants).
    """

    kind: ClassVar[str] = "group_norm"

    shape: tuple[int, ...]
    groups: int
    eps: float
    activation: str = ""
    dtype: str = "float32"

    @property
    def channels(self) -> int:
        return self.shape[1]

    @property
    def spatial(self) -> int:
        """Number of values of one channel of one sample."""
        return math.prod(self.shape[2:])

    @property
    def rows(self) -> int:
        """Number of independent normalisations: one per sample and group."""
        return self.shape[0] * self.groups

    @property
    def n(self) -> int:
        """Number of values in one normalisation, contiguous in memory."""
        return self.channels // self.groups * self.spatial

    @property
    def inputs(self) -> tuple[Operand, ...]:
        vectors = (Operand(name, (self.channels,), constant=True) for name in ("scale", "shift"))
        return (Operand("X", self.shape, self.dtype), *vectors)

    @property
    def output(self) -> Operand:
        return Operand("Y", self.shape, self.dtype)

    @property
    def flops(self) -> int:
        return self.rows * self.n * (7 + 16 * bool(self.activation))

    @property
    def label(self) -> str:
        name = "group_norm" if self.groups < self.channels else "instance_norm"
        parts = [name, "x".join(map(str, self.shape)), f"g{self.groups}", self.activation]
        return "_".join(filter(None, [*parts, *suffix(self.dtype)]))

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        x, scale, shift = arrays
        rows = x.reshape(self.shape[0], self.groups, -1)
        rows = rows - rows.mean(-1, keepdims=True)
        rows = rows / np.sqrt((rows * rows).mean(-1, keepdims=True) + x.dtype.type(self.eps))
        channel = (self.channels,) + (1,) * (len(self.shape) - 2)
        y = rows.reshape(self.shape) * scale.reshape(channel) + shift.reshape(channel)
        return ACTIVATIONS[self.activation](y) if self.activation else y

    def workload(self) -> PrimFunc:
        from hetero_tvm.ops.te_workload import prim_func

        return prim_func(self, self.result)

    def result(self, x: TETensor, scale: TETensor, shift: TETensor) -> TETensor:
        """Give Y of the operands, as a tensor expression."""
        from hetero_tvm.host.tvm import te, tirx
        from hetero_tvm.ops.te_workload import activation, wide

        per_group = self.channels // self.groups

        def mean_of(value, name):
            axes = [te.reduce_axis((0, e), name=f"k{i}") for i, e in enumerate((per_group, *self.shape[2:]))]
            total = te.compute(
                (self.shape[0], self.groups),
                lambda b, g: te.sum(wide(value(b, g * per_group + axes[0], *axes[1:])), axis=axes),
                name=name,
            )
            return lambda b, c: total(b, tirx.floordiv(c, per_group)) * tirx.const(1.0 / self.n, "float32")

        mean = mean_of(x, "sum")
        centered = te.compute(x.shape, lambda *i: wide(x(*i)) - mean(*i[:2]), name="centered")
        square = te.compute(x.shape, lambda *i: centered(*i) * centered(*i), name="square")
        variance = mean_of(square, "sum_of_squares")
        eps = tirx.const(self.eps, "float32")

        def normalized(*i):
            y = centered(*i) * tirx.rsqrt(variance(*i[:2]) + eps) * scale[i[1]] + shift[i[1]]
            y = activation(self.activation, y) if self.activation else y
            return y if self.dtype == "float32" else y.astype(self.dtype)

        return te.compute(x.shape, normalized, name="normalized")
