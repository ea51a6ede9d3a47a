"""Convolutions of volumes of 8-bit numbers as those of images of their slices."""

import numpy as np
import pytest

from hetero_tvm.relax_passes.forms.quantized.quantized_conv3d import QuantConv3dAsConv2d
from tests.relax_passes.compiled import check_results, rewritten
from tests.relax_passes.graphs import constant, op
from tests.relax_passes.rewrite import Rewrite
from tests.selection import named

W = np.random.default_rng(1).integers(-128, 128, (4, 3, 3, 2, 3)).astype("int8")
SCALES = constant(np.array([0.25, 0.5, 1.0, 2.0], "float32"))
ZEROS = constant(np.zeros(4, "int8"), "int8")
BIAS = constant(np.array([0.5, -3.0, 8.0, 0.0], "float32").reshape(1, 4, 1, 1, 1))


def real_of(x, zero=7):
    return op.dequantize(x, constant(0.5), constant(zero, "uint8"), axis=0)


def convolution(x, w=W, **attrs):
    return op.nn.conv3d(real_of(x), op.dequantize(constant(w, "int8"), SCALES, ZEROS, axis=0), **attrs)


def quantized(y):
    return op.quantize(y, constant(20.0), constant(5, "uint8"), axis=0, out_dtype="uint8")


CASES = {
    "plain": lambda x: convolution(x),
    "padded": lambda x: convolution(x, padding=(1, 0, 2, 2, 1, 0)),
    "steps": lambda x: convolution(x, strides=(2, 1, 2), padding=1),
    "apart": lambda x: convolution(x, dilation=(2, 1, 1), padding=(2, 0, 0)),
    "one slice": lambda x: convolution(x, W[:, :, :1], strides=(2, 1, 1)),
    "to bytes": lambda x: quantized(op.nn.relu(op.add(convolution(x, padding=1), BIAS))),
    "without relu": lambda x: quantized(op.add(convolution(x), BIAS)),
    "read twice": lambda x: op.add(y := convolution(x, padding=1), op.nn.relu(op.add(y, BIAS))),
}


@pytest.mark.parametrize("build", named(CASES, {"plain", "steps", "one slice", "to bytes"}))
def test_the_numbers_stay(build):
    x = np.random.default_rng(0).integers(0, 256, (2, 3, 5, 6, 7)).astype("uint8")
    check_results(build, [x], QuantConv3dAsConv2d(), gone="nn.conv3d")


class TestQuantConv3dAsConv2d(Rewrite):
    rule = QuantConv3dAsConv2d()
    inputs = {"x": ("uint8", 1, 3, 4, 6, 7)}
    w = W[:, :, :1]

    def before(self, x):
        return quantized(op.nn.relu(convolution(x, self.w, strides=(2, 1, 1), padding=(0, 1, 1))))

    def expected(self, x):
        slices = op.permute_dims(x, [0, 2, 1, 3, 4])
        seen = op.strided_slice(slices, [1], [0], [3], [2])
        images = op.reshape(seen, (2, 3, 6, 7))
        flat = constant(self.w.reshape(4, 3, 2, 3), "int8")
        weight = op.dequantize(flat, SCALES, ZEROS, axis=0)
        y = op.nn.conv2d(real_of(images), weight, padding=(1, 1, 1, 1))
        apart = op.reshape(quantized(op.nn.relu(y)), (1, 2, 4, 7, 7))
        return op.permute_dims(apart, [0, 2, 1, 3, 4])


def grouped(x):
    weight = op.dequantize(constant(W[:3, :1], "int8"), constant(0.5), constant(0, "int8"), axis=0)
    return op.nn.conv3d(real_of(x), weight, groups=3)


def real_filters(x):
    return op.nn.conv3d(real_of(x), constant(W.astype("float32")))


@pytest.mark.parametrize("build", [grouped, real_filters])
def test_what_stays(build):
    x = np.zeros((1, 3, 5, 6, 7), "uint8")
    after, _ = rewritten(build, [x], [QuantConv3dAsConv2d()])
    assert "R.nn.conv3d(" in after.script(show_meta=False)
