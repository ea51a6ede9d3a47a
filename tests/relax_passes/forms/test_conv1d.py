"""Convolutions of rows as those of images with one row: the same numbers."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import relax
from hetero_tvm.relax_passes.forms.conv1d import Conv1dAsConv2d, PixelsAsRows
from tests.relax_passes.compiled import (
    check_convolution,
    floats,
    module_of,
    operators,
    result,
    rewritten,
)
from tests.relax_passes.graphs import constant, op, weights
from tests.relax_passes.rewrite import Rewrite
from tests.selection import named, thorough

CASES = {
    "conv1d": ((2, 6, 11), lambda x: relax.op.nn.conv1d(x, constant(weights(8, 6, 3)), strides=2, padding=1)),
    "conv1d of padded rows": (
        (2, 6, 11),
        lambda x: relax.op.nn.conv1d(
            relax.op.nn.pad(x, (0, 0, 0, 0, 3, 1)), constant(weights(8, 6, 5)), padding=(1, 0)
        ),
    ),
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


@pytest.mark.parametrize(
    ("width", "value", "folded"),
    [
        ([0, 0, 0, 0, 3, 1], 0.0, True),
        *thorough([([0, 0, 0, 0, 3, 1], 1.0, False)]),
        ([0, 0, 0, 1, 3, 1], 0.0, False),
    ],
)
def test_zeros_around_rows_are_padding(width, value, folded):
    def build(x):
        padded = relax.op.nn.pad(x, width, "constant", value)
        return relax.op.nn.conv1d(padded, constant(weights(8, 6 + width[3], 3)))

    names = check_convolution((1, 6, 11), build, [Conv1dAsConv2d()])
    assert ("relax.nn.pad" in names) is not folded


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


def gate(x):
    y = op.add(op.nn.conv2d(x, constant(weights(4, 6, 1, 1))), constant(weights(1, 4, 1, 1)))
    return op.sigmoid(op.nn.relu(y))


PIXELS = {
    "a gate": ((3, 6, 1, 1), gate),
    "a whole image": ((2, 6, 2, 3), lambda x: op.nn.conv2d(x, constant(weights(5, 6, 2, 3)))),
    "a single row of many weights": (
        (1, 64, 4, 4),
        lambda x: op.nn.relu(op.nn.conv2d(x, constant(weights(256, 64, 4, 4)))),
    ),
}


@pytest.mark.parametrize("shape, build", named(PIXELS, {"a gate", "a whole image"}))
def test_single_pixels_are_rows(shape, build):
    arrays = [floats(*shape)]
    after, _ = rewritten(build, arrays, [PixelsAsRows()])
    assert "relax.nn.conv2d" not in operators(after)
    expected = result(module_of(build, *arrays), arrays)
    np.testing.assert_allclose(result(after, arrays), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "shape, options",
    [((1, 6, 1, 1), {}), ((2, 6, 1, 2), {}), ((2, 6, 1, 1), {"padding": 1}), ((2, 12, 1, 1), {"groups": 2})],
)
def test_other_images_are_none(shape, options):
    def build(x):
        return op.nn.conv2d(x, constant(weights(4, 6, 1, 1)), **options)

    assert "relax.matmul" not in check_convolution(shape, build, [PixelsAsRows()])


class TestPixelsAsRows(Rewrite):
    rule = PixelsAsRows()
    inputs = {"x": (2, 3, 1, 1)}
    w = np.arange(12, dtype="float32").reshape(4, 3, 1, 1)

    def before(self, x):
        return op.nn.relu(
            op.add(op.nn.conv2d(x, constant(self.w)), constant([[[[1.0]], [[2.0]], [[3.0]], [[4.0]]]]))
        )

    def expected(self, x):
        y = op.matmul(op.reshape(x, (2, 3)), constant(np.ascontiguousarray(self.w[:, :, 0, 0].T)))
        return op.reshape(op.nn.relu(op.add(y, constant([1.0, 2.0, 3.0, 4.0]))), (2, 4, 1, 1))
