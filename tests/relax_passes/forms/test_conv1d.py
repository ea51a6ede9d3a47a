"""Convolutions of rows as those of images with one row: the same numbers."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import relax
from hetero_tvm.relax_passes.forms.conv1d import Conv1dAsConv2d
from tests.relax_passes.compiled import check_convolution
from tests.relax_passes.graphs import constant, op, weights
from tests.relax_passes.rewrite import Rewrite

CASES = {
    "conv1d": ((2, 6, 11), lambda x: relax.op.nn.conv1d(x, constant(weights(8, 6, 3)), strides=2, padding=1)),
    "conv1d dilated, grouped": (
        (1, 6, 11),
        lambda x: relax.op.nn.conv1d(x, constant(weights(4, 3, 3)), padding=(2, 1), dilation=2, groups=2),
    ),
}


@pytest.mark.parametrize("shape, build", CASES.values(), ids=CASES.keys())
def test_the_numbers_stay(shape, build):
    check_convolution(shape, build, [Conv1dAsConv2d()])


def test_a_computed_weight_where_the_target_takes_one():
    def build(x):
        w = relax.op.tanh(relax.op.reshape(x, (2, 3, 11)))
        return relax.op.nn.conv1d(relax.op.strided_slice(x, [0], [0], [1]), relax.op.reshape(w, (11, 6, 1)))

    names = check_convolution((1, 6, 11), build, [Conv1dAsConv2d(computed=True)])
    assert "relax.nn.conv2d" in names


def test_a_bias_behind_a_conv1d_stays_behind_the_convolution():
    bias = constant(weights(1, 8, 1))

    def build(x):
        return relax.op.add(relax.op.nn.conv1d(x, constant(weights(8, 6, 3))), bias)

    names = check_convolution((1, 6, 11), build, [Conv1dAsConv2d()])
    assert names[names.index("relax.nn.conv2d") + 1] == "relax.add"


class TestConv1dAsConv2d(Rewrite):
    rule = Conv1dAsConv2d()
    inputs = {"x": (2, 3, 9)}
    w = np.arange(24, dtype="float32").reshape(2, 3, 4)

    def before(self, x):
        return op.add(op.nn.conv1d(x, constant(self.w), strides=2, padding=1), constant([[[1.0], [2.0]]]))

    def expected(self, x):
        image, w = op.reshape(x, (2, 3, 1, 9)), constant(self.w[:, :, None])
        y = op.nn.conv2d(image, w, strides=(1, 2), padding=(0, 1, 0, 1), dilation=(1, 1))
        return op.reshape(op.add(y, constant([[[[1.0]], [[2.0]]]])), (2, 2, 4))
