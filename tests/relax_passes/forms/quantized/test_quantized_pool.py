"""Means over windows of 8-bit numbers as depthwise convolutions of ones."""

import numpy as np
import pytest

from hetero_tvm.relax_passes.forms.quantized.quantized_pool import QuantAverageAsConv2d
from tests.relax_passes.compiled import result, rewritten
from tests.relax_passes.graphs import constant, op
from tests.relax_passes.rewrite import Rewrite
from tests.selection import named


def real_of(x, zero=7):
    return op.dequantize(x, constant(0.5), constant(zero, "uint8"), axis=0)


def quantized(y):
    return op.quantize(y, constant(0.75), constant(5, "uint8"), axis=0, out_dtype="uint8")


def mean(x, **attrs):
    return quantized(op.nn.avg_pool2d(real_of(x), **attrs))


X = np.random.default_rng(0).integers(0, 256, (2, 3, 8, 9)).astype("uint8")
TAKEN = {
    "plain": {"pool_size": (2, 3)},
    "padded": {"pool_size": (3, 3), "padding": (1, 1, 1, 1), "count_include_pad": True},
    "steps": {"pool_size": (2, 3), "strides": (2, 3)},
    "uneven": {"pool_size": (3, 2), "strides": (2, 1), "padding": (0, 1, 1, 0), "count_include_pad": True},
}
LEFT = {
    "own counts": {"pool_size": (3, 3), "padding": (1, 1, 1, 1)},
    "beyond": {"pool_size": (3, 3), "strides": (2, 2), "ceil_mode": True},
    "large": {"pool_size": (8, 9)},
}


@pytest.mark.parametrize("attrs", named(TAKEN, {"plain", "padded"}))
def test_the_numbers_stay(attrs):
    """But for one step: where a mean lies between two bytes, the last bit of a float decides."""
    plain, after = (
        rewritten(lambda x: mean(x, **attrs), [X], rules)[0] for rules in ([], [QuantAverageAsConv2d()])
    )
    assert "R.nn.avg_pool2d(" not in after.script(show_meta=False)
    expected, actual = (result(module, [X]).astype(int) for module in (plain, after))
    assert actual.shape == expected.shape and np.abs(actual - expected).max() <= 1
    assert np.mean(actual != expected) < 0.05


@pytest.mark.parametrize("attrs", LEFT.values(), ids=LEFT.keys())
def test_what_stays(attrs):
    after, _ = rewritten(lambda x: mean(x, **attrs), [X], [QuantAverageAsConv2d()])
    assert "R.nn.avg_pool2d(" in after.script(show_meta=False)


def test_means_that_stay_floats_are_left():
    after, _ = rewritten(lambda x: op.nn.avg_pool2d(real_of(x), (2, 2)), [X], [QuantAverageAsConv2d()])
    assert "R.nn.avg_pool2d(" in after.script(show_meta=False)


class TestQuantAverageAsConv2d(Rewrite):
    rule = QuantAverageAsConv2d()
    inputs = {"x": ("uint8", 2, 3, 8, 9)}

    def before(self, x):
        return mean(x, pool_size=(2, 2), strides=(2, 1))

    def expected(self, x):
        ones = constant(np.ones((3, 1, 2, 2)), "int8")
        filters = op.dequantize(ones, constant(0.25), constant(0, "int8"), axis=0)
        return quantized(op.nn.conv2d(real_of(x), filters, strides=(2, 1), padding=(0, 0, 0, 0), groups=3))
