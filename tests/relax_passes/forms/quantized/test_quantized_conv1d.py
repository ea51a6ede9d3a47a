"""Convolutions of rows of 8-bit numbers as those of images with one row."""

import numpy as np
import pytest

from hetero_tvm.relax_passes.forms.quantized.quantized_conv1d import QuantConv1dAsConv2d
from tests.relax_passes.compiled import check_results
from tests.relax_passes.graphs import constant, op
from tests.relax_passes.rewrite import Rewrite
from tests.selection import named


def real_of(x, axis):
    return op.dequantize(x, constant(0.5), constant(1, "int8"), axis=axis)


def convolution(x, w, **attrs):
    return op.nn.conv1d(real_of(x, 1), real_of(constant(w, "int8"), 0), **attrs)


W = np.arange(-12, 12, dtype="int8").reshape(2, 3, 4)
BIAS = constant([[[0.5], [-3.0]]])
CASES = {
    "sums": lambda x: convolution(x, W, strides=2, padding=(1, 2)),
    "with bias and relu": lambda x: op.nn.relu(op.add(convolution(x, W, dilation=2), BIAS)),
    "groups": lambda x: convolution(x, W.reshape(6, 1, 4), groups=3),
    "behind a border of bytes": lambda x: op.nn.conv1d(
        real_of(op.nn.pad(x, [0, 0, 0, 0, 3, 0], "constant", 1.0), 1), real_of(constant(W, "int8"), 0)
    ),
    "in integers": lambda x: op.nn.conv1d(
        op.subtract(op.astype(x, "int32"), constant(3, "int32")), constant(W, "int32"), out_dtype="int32"
    ),
}


@pytest.mark.parametrize("build", named(CASES, {"sums", "with bias and relu", "groups"}))
def test_the_numbers_stay(build):
    x = np.random.default_rng(0).integers(-128, 128, (2, 3, 9)).astype("int8")
    check_results(build, [x], QuantConv1dAsConv2d(), gone="nn.conv1d")


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
