"""Phases of a transposed convolution put side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hetero_tvm.ops.base import FusedOp, Operand, suffix

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import PrimFunc


@dataclass(frozen=True)
class Interleave(FusedOp):
    """``Y[n, g, c, q * sh + r - top, p * sw + s - left] = X[n, g, r, s, c, q, p]``.

    The phases (r, s) of an image, each of ``rows`` x ``columns`` pixels, become one image, of which a part
    is kept.

    Parameters
    ----------
    batch, groups, channels : extents of X and Y; ``channels`` are those of one group.
    rows, columns : extents of one phase.
    strides : (sh, sw), phases down and across.
    cut : (top, left), pixels before the part that is kept.
    out : rows and columns of Y.
    """

    kind: ClassVar[str] = "interleave"

    batch: int
    groups: int
    channels: int
    rows: int
    columns: int
    strides: tuple[int, int]
    cut: tuple[int, int]
    out: tuple[int, int]
    dtype: str = "float32"

    @property
    def inputs(self) -> tuple[Operand, ...]:
        filters = self.groups * self.strides[0] * self.strides[1] * self.channels
        return (Operand("X", (self.batch, filters, self.rows, self.columns), self.dtype),)

    @property
    def output(self) -> Operand:
        return Operand("Y", (self.batch, self.groups * self.channels, *self.out), self.dtype)

    @property
    def flops(self) -> int:
        return 0

    @property
    def label(self) -> str:
        shape = f"{self.groups * self.channels}x{self.out[0]}x{self.out[1]}"
        return "_".join((f"interleave_{shape}_s{self.strides[0]}x{self.strides[1]}", *suffix(self.dtype)))

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        apart = arrays[0].reshape(
            self.batch, self.groups, *self.strides, self.channels, self.rows, self.columns
        )
        whole = apart.transpose(0, 1, 4, 5, 2, 6, 3).reshape(
            self.batch,
            self.groups * self.channels,
            self.rows * self.strides[0],
            self.columns * self.strides[1],
        )
        (top, left), (height, width) = self.cut, self.out
        return np.ascontiguousarray(whole[:, :, top : top + height, left : left + width])

    def workload(self) -> PrimFunc:
        from hetero_tvm.host.tvm import te
        from hetero_tvm.ops.te_workload import prim_func

        (sh, sw), (top, left) = self.strides, self.cut

        def compute(x):
            def element(n, c, i, j):
                y, z = i + top, j + left
                phase = te.floormod(y, sh) * sw + te.floormod(z, sw)
                group, channel = te.floordiv(c, self.channels), te.floormod(c, self.channels)
                filter_ = (group * (sh * sw) + phase) * self.channels + channel
                return x[n, filter_, te.floordiv(y, sh), te.floordiv(z, sw)]

            return te.compute(self.output.shape, element, name="interleaved")

        return prim_func(self, compute)
