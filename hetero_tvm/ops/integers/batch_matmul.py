"""Products of two computed 8-bit tensors, each read where it lies, exact in int32, with requantisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hetero_tvm.ops.base import Operand
from hetero_tvm.ops.batch_matmul import ProductOfViews
from hetero_tvm.ops.integers.quantized import limits_of, rounded, saturated

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import PrimFunc


@dataclass(frozen=True)
class QuantBatchMatmul(ProductOfViews):
    """``Y[..., m, n] = out(scale * (A[..., m, k] - a_zero) @ (B[..., k, n] - b_zero))``; see its base.

    Parameters
    ----------
    a_dtype, b_dtype : int8 or uint8.
    a_zero, b_zero : zero points, in the types of A and B.
    scale : float32 factor of the int32 sums: the scales of A and B, divided by that of Y.
    out : dtype of Y: float32, or int8 or uint8, rounded half to even, plus ``y_zero``, saturated.
    y_zero : zero point of a Y of 8 bits, in its own type.
    """

    kind: ClassVar[str] = "quant_batch_matmul"

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
    def limits(self) -> tuple[int, int]:
        """Least and largest value of a Y of 8 bits."""
        return limits_of(self.out)

    @property
    def inputs(self) -> tuple[Operand, ...]:
        return Operand("A", self.left, self.a_dtype), Operand("B", self.right, self.b_dtype)

    @property
    def output(self) -> Operand:
        return Operand("Y", self.result_shape, self.out)

    @property
    def label(self) -> str:
        shape = f"b{self.batch}_{self.m}x{self.k}x{self.n}"
        return f"quant_matmul_{shape}_{self.a_dtype}_{self.b_dtype}_{self.out}"

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        a, b = self.views(*(np.asarray(array).astype(np.int64) for array in arrays))
        y = ((a - self.a_zero) @ (b - self.b_zero)).astype(np.float32) * np.float32(self.scale)
        if self.out != "float32":
            y = saturated(y, self.y_zero, self.limits, self.out)
        return np.ascontiguousarray(y.transpose(self.order))

    def workload(self) -> PrimFunc:
        from hetero_tvm.host.tvm import te, tirx
        from hetero_tvm.ops.te_workload import prim_func

        def less(zero):
            return lambda x: x.astype("int32") - tirx.const(zero, "int32")

        def compute(left, right):
            sums = self.sums(left, right, less(self.a_zero), less(self.b_zero), "sums")

            def finished(*index):
                y = sums(*index).astype("float32") * tirx.const(self.scale, "float32")
                if self.out == "float32":
                    return y
                return rounded(y, self.y_zero, self.limits, self.out)

            return te.compute(sums.shape, finished, name="Y")

        return prim_func(self, compute)
