"""Convolutions of rows as those of images with one row: the same numbers."""

import pytest

from hetero_tvm.host.tvm import relax
from hetero_tvm.relax_passes.forms.conv1d import Conv1dAsConv2d
from tests.relax_passes.forms.models import check_convolution, weights

CASES = {
    "conv1d": ((2, 6, 11), lambda x: relax.op.nn.conv1d(x, weights(8, 6, 3), strides=2, padding=1)),
    "conv1d dilated, grouped": (
        (1, 6, 11), lambda x: relax.op.nn.conv1d(x, weights(4, 3, 3), padding=(2, 1), dilation=2, groups=2)
    ),
}


@pytest.mark.parametrize("shape, build", CASES.values(), ids=CASES.keys())
def test_the_numbers_stay(shape, build):
    check_convolution(shape, build, [Conv1dAsConv2d()])


def test_a_bias_behind_a_conv1d_stays_behind_the_convolution():
    bias = weights(1, 8, 1)

    def build(x):
        return relax.op.add(relax.op.nn.conv1d(x, weights(8, 6, 3)), bias)

    names = check_convolution((1, 6, 11), build, [Conv1dAsConv2d()])
    assert names[names.index("relax.nn.conv2d") + 1] == "relax.add"
