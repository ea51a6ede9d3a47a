"""Products of two computed 8-bit tensors, each read where it lies, exact in int32, with requantisation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hetero_tvm.ops.base import FusedOp, Operand, strided_view

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import PrimFunc


@dataclass(frozen=True)
class QuantBatchMatmul(FusedOp):
    """``Y[..., m, n] = out(scale * (A[..., m, k] - a_zero) @ (B[..., k, n] - b_zero))``.

    Parameters
    ----------
    lead : batch dimensions of the product.
    m, n, k : rows, columns, reduction length.
    left, right, left_at, right_at, order : as of :class:`hetero_tvm.ops.batch_matmul.BatchMatmul`.
    a_dtype, b_dtype : int8 or uint8.
    a_zero, b_zero : zero points, in the types of A and B.
    scale : float32 factor of the int32 sums: the scales of A and B, divided by that of Y.
    out : dtype of Y: float32, or int8 or uint8, rounded half to even, plus ``y_zero``, saturated.
    y_zero : zero point of a Y of 8 bits, in its own type.
    """

    kind: ClassVar[str] = "quant_batch_matmul"

    lead: tuple[int, ...]
    m: int
    n: int
    k: int
    left: tuple[int, ...]
    left_at: tuple[int, ...]
    right: tuple[int, ...]
    right_at: tuple[int, ...]
    order: tuple[int, ...]
    a_dtype: str
    b_dtype: str
    a_zero: int
    b_zero: int
    scale: float
    out: str = "float32"
    y_zero: int = 0

    pairs_safe: ClassVar[int] = 0
    """Number of pairs of values of B that cannot saturate 16 bits: nothing is known of them."""
    relu: ClassVar[bool] = False

    @property
    def batch(self) -> int:
        """Number of products."""
        return math.prod(self.lead)

    @property
    def limits(self) -> tuple[int, int]:
        """Least and largest value of a Y of 8 bits."""
        whole = np.iinfo(self.out)
        return int(whole.min), int(whole.max)

    @property
    def inputs(self) -> tuple[Operand, ...]:
        return Operand("A", self.left, self.a_dtype), Operand("B", self.right, self.b_dtype)

    @property
    def output(self) -> Operand:
        extents = (*self.lead, self.m, self.n)
        return Operand("Y", tuple(extents[axis] for axis in self.order), self.out)

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def label(self) -> str:
        shape = f"b{self.batch}_{self.m}x{self.k}x{self.n}"
        return f"quant_matmul_{shape}_{self.a_dtype}_{self.b_dtype}_{self.out}"

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        def view(array: np.ndarray, place: tuple[int, ...], rows: int, columns: int) -> np.ndarray:
            return strided_view(np.asarray(array).astype(np.int64), (*self.lead, rows, columns), place)

        a, b = arrays
        left = view(a, self.left_at, self.m, self.k) - self.a_zero
        right = view(b, self.right_at, self.k, self.n) - self.b_zero
        y = (left @ right).astype(np.float32) * np.float32(self.scale)
        if self.out != "float32":
            y = np.clip(np.rint(y).astype(np.float64) + self.y_zero, *self.limits).astype(self.out)
        return np.ascontiguousarray(y.transpose(self.order))

    def workload(self) -> PrimFunc:
        from hetero_tvm.host.tvm import te, tirx
        from hetero_tvm.ops.te_workload import at_flat, prim_func

        def compute(left, right):
            def element(tensor, place, zero, *index):
                at = place[0] + sum(i * s for i, s in zip(index, place[1:], strict=True))
                return at_flat(tensor, at).astype("int32") - tirx.const(zero, "int32")

            axis = te.reduce_axis((0, self.k), name="k")

            def product(*index):
                place = [None] * len(index)
                for i, at in zip(index, self.order, strict=True):
                    place[at] = i
                *lead, row, column = place
                return te.sum(
                    element(left, self.left_at, self.a_zero, *lead, row, axis)
                    * element(right, self.right_at, self.b_zero, *lead, axis, column),
                    axis=axis,
                )

            sums = te.compute(self.output.shape, product, name="sums")

            def finished(*index):
                y = sums(*index).astype("float32") * tirx.const(self.scale, "float32")
                if self.out == "float32":
                    return y
                low, high = (tirx.const(float(end), "float32") for end in self.limits)
                y = tirx.nearbyint(y) + tirx.const(float(self.y_zero), "float32")
                return tirx.max(tirx.min(y, high), low).astype(self.out)

            return te.compute(sums.shape, finished, name="Y")

        return prim_func(self, compute)
