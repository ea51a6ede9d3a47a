"""Transposed convolutions of 8-bit numbers as those of their phases."""

import numpy as np
import pytest

from hetero_tvm.relax_passes.forms.quantized.quantized_conv_transpose import QuantConvTransposeAsConv2d
from tests.relax_passes.compiled import check_results
from tests.relax_passes.graphs import constant, op
from tests.relax_passes.rewrite import Rewrite
from tests.selection import named


def real_of(x):
    return op.dequantize(x, constant(0.5), constant(1, "int8"), axis=1)


def weights(*shape):
    return np.random.default_rng(1).integers(-9, 9, shape).astype("int8")


def filters(w, scale=0.25):
    """Filters with one scale, or one for each channel of a group."""
    zero = np.zeros(np.shape(scale), "int8")
    return op.dequantize(constant(w, "int8"), constant(scale), constant(zero, "int8"), axis=1)


def unsigned(zero, *shape):
    """Filters in bytes from 0 on, with one zero point or one for each channel of a group."""
    w = constant(np.random.default_rng(1).integers(0, 256, shape).astype("uint8"), "uint8")
    scale = np.full(np.shape(zero), 0.25, "float32")
    return op.dequantize(w, constant(scale), constant(np.array(zero, "uint8"), "uint8"), axis=1)


def rounded(y):
    return op.quantize(op.nn.relu(y), constant(2.0), constant(-3, "int8"), axis=1, out_dtype="int8")


BIAS = constant(np.array([0.5, -3.0, 7.0], "float32").reshape(1, 3, 1, 1))
ROW_BIAS = constant(np.array([0.5, -3.0, 7.0], "float32").reshape(1, 3, 1))


def image(x, w, scale=0.25, **attrs):
    return op.nn.conv2d_transpose(real_of(x), filters(w, scale), **attrs)


CASES = {
    "sums": lambda x: image(x, weights(4, 3, 2, 2), strides=2),
    "a scale for each channel": lambda x: rounded(
        op.add(image(x, weights(4, 3, 4, 3), [0.25, 0.5, 1.0], strides=(2, 1), padding=1), BIAS)
    ),
    "taps that some phases lack": lambda x: rounded(
        image(x, weights(4, 3, 3, 3), strides=2, padding=(1, 0, 1, 2), output_padding=(1, 1))
    ),
    "dilation": lambda x: op.nn.relu(image(x, weights(4, 3, 2, 3), strides=(1, 3), dilation=(2, 2))),
    "unsigned filters": lambda x: rounded(
        op.add(op.nn.conv2d_transpose(real_of(x), unsigned(119, 4, 3, 3, 3), strides=2, padding=1), BIAS)
    ),
    "a zero point for each channel": lambda x: rounded(
        op.nn.conv2d_transpose(real_of(x), unsigned([3, 128, 250], 4, 3, 3, 2), strides=(2, 3))
    ),
    "groups": lambda x: rounded(image(x, weights(4, 2, 2, 3), [0.25, 2.0], strides=2, groups=2)),
}


@pytest.mark.parametrize(
    "build",
    named(CASES, {"sums", "a scale for each channel", "taps that some phases lack", "dilation", "groups"}),
)
def test_the_numbers_stay(build):
    x = np.random.default_rng(0).integers(-128, 128, (2, 4, 5, 6)).astype("int8")
    check_results(build, [x], QuantConvTransposeAsConv2d(lambda op: False), gone="nn.conv2d_transpose")


@pytest.mark.thorough
def test_rows():
    def build(x):
        w = filters(weights(4, 3, 4))
        return rounded(op.add(op.nn.conv1d_transpose(real_of(x), w, strides=2, padding=1), ROW_BIAS))

    x = np.random.default_rng(0).integers(-128, 128, (2, 4, 7)).astype("int8")
    check_results(build, [x], QuantConvTransposeAsConv2d(lambda op: False), gone="nn.conv1d_transpose")


class TestQuantConvTransposeAsConv2d(Rewrite):
    rule = QuantConvTransposeAsConv2d(lambda op: False)
    inputs = {"x": ("int8", 1, 2, 3, 3)}
    w = np.arange(8, dtype="int8").reshape(2, 1, 2, 2)

    def before(self, x):
        return rounded(image(x, self.w, strides=2))

    def expected(self, x):
        w = self.w.reshape(2, 4).T.reshape(4, 2, 1, 1).copy()
        scales, zeros = constant(np.full(4, 0.25, "float32")), constant(np.zeros(4, "int8"), "int8")
        w = op.dequantize(constant(w, "int8"), scales, zeros, axis=0)
        y = rounded(op.nn.conv2d(real_of(x), w, padding=(0, 0, 0, 0), dilation=(1, 1)))
        y = op.permute_dims(op.reshape(y, (1, 1, 2, 2, 1, 3, 3)), [0, 1, 4, 5, 2, 6, 3])
        return op.reshape(y, (1, 1, 6, 6))
