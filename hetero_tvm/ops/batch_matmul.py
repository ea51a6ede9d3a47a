"""Products of two computed tensors, each read where it lies."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hetero_tvm.ops.base import FusedOp, Operand, strided_view, suffix

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import Expr, PrimFunc, TETensor


@dataclass(frozen=True)
class ProductOfViews(FusedOp):
    """``Y[..., m, n]`` of ``A[..., m, k]`` and ``B[..., k, n]``, neither operand constant as a rule.

    Parameters
    ----------
    lead : batch dimensions of the product.
    m, n, k : rows, columns, reduction length.
    left, right : extents of the operands that hold A and B.
    left_at, right_at : places of A and B in them, taken as flat memory: offset, stride of each lead
        dimension (0 where it is broadcast), stride of the rows, stride of the columns.
    order : axes of [*lead, m, n] in the order of the result; the last stays the last.
    """

    lead: tuple[int, ...]
    m: int
    n: int
    k: int
    left: tuple[int, ...]
    left_at: tuple[int, ...]
    right: tuple[int, ...]
    right_at: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def batch(self) -> int:
        """Number of products."""
        return math.prod(self.lead)

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def result_shape(self) -> tuple[int, ...]:
        """Extents of Y, in their order."""
        extents = (*self.lead, self.m, self.n)
        return tuple(extents[axis] for axis in self.order)

    def views(self, left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A [*lead, m, k] and B [*lead, k, n] in the arrays that hold them."""
        a = strided_view(left, (*self.lead, self.m, self.k), self.left_at)
        return a, strided_view(right, (*self.lead, self.k, self.n), self.right_at)

    def sums(
        self,
        left: TETensor,
        right: TETensor,
        a_value: Callable[[Expr], Expr],
        b_value: Callable[[Expr], Expr],
        name: str,
    ) -> TETensor:
        """Tensor expression of the sums of products of ``a_value`` and ``b_value`` of the elements."""
        from hetero_tvm.host.tvm import te
        from hetero_tvm.ops.te_workload import at_flat

        def element(tensor, place, *index):
            at = place[0] + sum(i * s for i, s in zip(index, place[1:], strict=True))
            return at_flat(tensor, at)

        axis = te.reduce_axis((0, self.k), name="k")

        def product(*index):
            place = [None] * len(index)
            for i, at in zip(index, self.order, strict=True):
                place[at] = i
            *lead, row, column = place
            a = a_value(element(left, self.left_at, *lead, row, axis))
            return te.sum(a * b_value(element(right, self.right_at, *lead, axis, column)), axis=axis)

        return te.compute(self.result_shape, product, name=name)


@dataclass(frozen=True)
class BatchMatmul(ProductOfViews):
    """``Y[..., m, n] = A[..., m, k] @ B[..., k, n]``; see :class:`ProductOfViews`.

    Parameters
    ----------
    dtype : type of A, B and Y, with float32 arithmetic (float64 of float64); int8 has int32 sums, and Y is
        int32.
    """

    kind: ClassVar[str] = "batch_matmul"

    dtype: str = "float32"

    @property
    def inputs(self) -> tuple[Operand, ...]:
        return Operand("A", self.left, self.dtype), Operand("B", self.right, self.dtype)

    @property
    def output(self) -> Operand:
        return Operand("Y", self.result_shape, "int32" if self.dtype == "int8" else self.dtype)

    @property
    def label(self) -> str:
        return "_".join([f"matmul_b{self.batch}_{self.m}x{self.k}x{self.n}", *suffix(self.dtype)])

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        a, b = self.views(*(a.astype("int32") if a.dtype == np.int8 else a for a in arrays))
        return np.ascontiguousarray((a @ b).transpose(self.order))

    def workload(self) -> PrimFunc:
        from hetero_tvm.host.tvm import te
        from hetero_tvm.ops.te_workload import prim_func

        sums = {"int8": "int32", "float64": "float64"}.get(self.dtype, "float32")

        def value(x):
            return x if self.dtype == sums else x.astype(sums)

        def compute(left, right):
            y = self.sums(left, right, value, value, "Y")
            if self.output.dtype == sums:
                return y
            return te.compute(y.shape, lambda *index: y(*index).astype(self.dtype), name="narrow")

        return prim_func(self, compute)
