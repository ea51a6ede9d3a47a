"""Convolutions of rows of 8-bit numbers as those of images with one row."""

import numpy as np

from hetero_tvm.relax_passes.forms.quantized_conv1d import QuantConv1dAsConv2d
from tests.relax_passes.graphs import constant, op
from tests.relax_passes.rewrite import Rewrite


class TestQuantConv1dAsConv2d(Rewrite):
    rule = QuantConv1dAsConv2d()
    inputs = {"x": ("int8", 2, 3, 9)}
    w = np.arange(24, dtype="int8").reshape(2, 3, 4)

    def before(self, x):
        real, weight = real_of(x, 1), real_of(constant(self.w, "int8"), 0)
        y = op.nn.relu(op.nn.conv1d(real, weight, strides=2, padding=1))
        return op.quantize(y, constant(2.0), constant(3, "int8"), axis=1, out_dtype="int8")

    def expected(self, x):
        real = real_of(op.reshape(x, (2, 3, 1, 9)), 1)
        weight = real_of(op.reshape(constant(self.w, "int8"), (2, 3, 1, 4)), 0)
        y = op.nn.conv2d(real, weight, strides=(1, 2), padding=(0, 1, 0, 1), dilation=(1, 1))
        quantized = op.quantize(op.nn.relu(y), constant(2.0), constant(3, "int8"), axis=1, out_dtype="int8")
        return op.reshape(quantized, (2, 2, 4))


def real_of(x, axis):
    return op.dequantize(x, constant(0.5), constant(1, "int8"), axis=axis)
