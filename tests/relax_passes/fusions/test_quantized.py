"""Products of 8-bit integers between quantisers, and written in integers."""

import numpy as np

from hetero_tvm.ops.quantized import QuantMatmul
from hetero_tvm.relax_passes.fusions.quantized import FuseQuantized
from tests.relax_passes.graphs import constant, op
from tests.relax_passes.rewrite import Rewrite, kernel


class TestFuseQuantized(Rewrite):
    """Scales 0.5 (x), 0.25 (W) and 2 (y): the sum is worth 0.125, a sixteenth of a step of y."""

    rule = FuseQuantized()
    inputs = {"x": ("int8", 2, 4)}
    w = np.arange(-6, 6, dtype="int8").reshape(4, 3)

    def before(self, x):
        zero = constant(0, "int8")
        real = op.dequantize(x, constant(0.5), zero, axis=0)
        weight = op.dequantize(constant(self.w, "int8"), constant(0.25), zero, axis=0)
        biased = op.add(op.matmul(real, weight), constant([0.25, 0.0, -0.5]))
        return op.quantize(biased, constant(2.0), constant(3, "int8"), axis=0, out_dtype="int8")

    def expected(self, x):
        fused = QuantMatmul(x_dtype="int8", out="int8", y_zero=3, lead=(2,), n=3, k=4)
        steps = constant([2, 0, -4], "int32")
        return kernel(fused, x, constant(self.w, "int8"), steps, constant([0.0625] * 3))
