"""Products of two computed tensors, each read where it lies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hetero_tvm.ops.base import FusedOp, Operand, strided_view, suffix

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import PrimFunc


@dataclass(frozen=True)
class BatchMatmul(FusedOp):
    """``Y[..., m, n] = A[..., m, k] @ B[..., k, n]``, neither operand constant as a rule.

    Parameters
    ----------
    lead : batch dimensions of the product.
    m, n, k : rows, columns, reduction length.
    left, right : extents of the operands that hold A and B.
    left_at, right_at : places of A and B in them, taken as flat memory: offset, stride of each lead
        dimension (0 where it is broadcast), stride of the rows, stride of the columns.
    order : axes of [*lead, m, n] in the order of the result; the last stays the last.
    dtype : type of A, B and Y, with float32 arithmetic (float64 of float64); int8 has int32 sums, and Y is
        int32.
    """

    kind: ClassVar[str] = "batch_matmul"

    lead: tuple[int, ...]
    m: int
    n: int
    k: int
    left: tuple[int, ...]
    left_at: tuple[int, ...]
    right: tuple[int, ...]
    right_at: tuple[int, ...]
    order: tuple[int, ...]
    dtype: str = "float32"

    @property
    def batch(self) -> int:
        """Number of products."""
        return math.prod(self.lead)

    @property
    def inputs(self) -> tuple[Operand, ...]:
        return Operand("A", self.left, self.dtype), Operand("B", self.right, self.dtype)

    @property
    def output(self) -> Operand:
        extents = (*self.lead, self.m, self.n)
        shape = tuple(extents[axis] for axis in self.order)
        return Operand("Y", shape, "int32" if self.dtype == "int8" else self.dtype)

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def label(self) -> str:
        return "_".join([f"matmul_b{self.batch}_{self.m}x{self.k}x{self.n}", *suffix(self.dtype)])

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        def view(array: np.ndarray, place: tuple[int, ...], rows: int, columns: int) -> np.ndarray:
            return strided_view(array, (*self.lead, rows, columns), place)

        left, right = (a.astype("int32") if a.dtype == np.int8 else a for a in arrays)
        product = view(left, self.left_at, self.m, self.k) @ view(right, self.right_at, self.k, self.n)
        return np.ascontiguousarray(product.transpose(self.order))

    def workload(self) -> PrimFunc:
        from hetero_tvm.host.tvm import te
        from hetero_tvm.ops.te_workload import at_flat, prim_func

        sums = {"int8": "int32", "float64": "float64"}.get(self.dtype, "float32")

        def compute(left, right):
            def element(tensor, place, *index):
                at = place[0] + sum(i * s for i, s in zip(index, place[1:], strict=True))
                value = at_flat(tensor, at)
                return value if self.dtype == sums else value.astype(sums)

            axis = te.reduce_axis((0, self.k), name="k")

            def product(*index):
                place = [None] * len(index)
                for i, at in zip(index, self.order, strict=True):
                    place[at] = i
                *lead, row, column = place
                return te.sum(
                    element(left, self.left_at, *lead, row, axis)
                    * element(right, self.right_at, *lead, axis, column),
                    axis=axis,
                )

            y = te.compute(self.output.shape, product, name="Y")
            if self.output.dtype == sums:
                return y
            return te.compute(y.shape, lambda *index: y(*index).astype(self.dtype), name="narrow")

        return prim_func(self, compute)
