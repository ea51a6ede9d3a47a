"""Constant factors around convolutions go into their filters."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import relax
from hetero_tvm.relax_passes.fusions.convolutions.scales import FoldConvInputScales, FoldConvOutputScales
from tests.relax_passes.graphs import bindings, constant, fuse, module, names_of, op, same_numbers, weights
from tests.relax_passes.rewrite import Rewrite, bind

IMAGE = {"x": (2, 4, 6, 5)}
FILTERS, BIAS = weights(4, 4, 3, 3), weights(1, 4, 1, 1)
POWERS = np.array([2.0, -0.5, 4.0, 0.25]).reshape(1, 4, 1, 1)
"""Factors of which products do not round."""


def conv(x, filters=FILTERS, **attrs):
    return op.nn.conv2d(x, constant(filters), **{"padding": (1, 1), **attrs})


def left(body, inputs=IMAGE):
    """The operators that are left, of the same numbers."""
    before = module(inputs, lambda emit, *variables: body(*variables))
    after, names, _ = fuse(before, FoldConvOutputScales(), FoldConvInputScales())
    same_numbers(before, after)
    assert names_of(before) <= set().union(*names.values())
    found = [b.value.op.name.split(".")[-1] for b in bindings(after) if isinstance(b.value, relax.Call)]
    return sorted(found)


class TestFoldConvOutputScales(Rewrite):
    rule = FoldConvOutputScales()
    inputs = IMAGE

    def before(self, x):
        return op.multiply(op.add(conv(x), constant(BIAS)), constant(POWERS))

    def expected(self, x):
        return op.add(conv(x, FILTERS * POWERS.reshape(4, 1, 1, 1)), constant(BIAS * POWERS))


class TestFoldConvInputScales(Rewrite):
    rule = FoldConvInputScales()
    inputs = IMAGE

    def before(self, x):
        return conv(op.divide(op.multiply(constant(POWERS), op.nn.relu(x)), constant(0.5)))

    def expected(self, x):
        return conv(op.nn.relu(x), FILTERS * POWERS * 2)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_channels_of_groups(groups):
    filters = weights(8, 4 // groups, 3, 3)

    def body(x):
        y = conv(op.multiply(x, constant(weights(4, 1, 1))), filters, groups=groups)
        return op.divide(y, constant(np.abs(weights(1, 8, 1, 1)) + 0.5))

    assert left(body) == ["conv2d"]


def test_a_factor_between_two_convolutions_goes_to_the_first():
    assert left(lambda x: conv(op.multiply(conv(x), constant(3.0)))) == ["conv2d", "conv2d"]


@pytest.mark.parametrize(
    "body, expected",
    [
        (
            lambda x: op.multiply(conv(x), constant(np.array([1, 0, 1, 2]).reshape(4, 1, 1))),
            "a factor is zero",
        ),
        (lambda x: op.multiply(conv(x), constant(weights(5))), "a factor by column"),
        (lambda x: op.multiply(conv(x), constant(weights(1, 4, 6, 5))), "a factor by pixel"),
        (lambda x: op.multiply(conv(x), x), "a computed factor"),
        (lambda x: op.divide(constant(2.0), conv(x)), "a quotient of a constant"),
        (lambda x: op.multiply(op.add(conv(x), x), constant(2.0)), "a sum of two images"),
    ],
)
def test_others_stay(body, expected):
    assert "multiply" in left(body) or "divide" in left(body), expected


def test_results_that_others_read_stay():
    def body(x):
        y = bind(conv(x))
        z = bind(op.multiply(x, constant(2.0)))
        return op.multiply(y, constant(2.0)), y, conv(z), z

    assert left(body) == ["conv2d", "conv2d", "multiply", "multiply"]
