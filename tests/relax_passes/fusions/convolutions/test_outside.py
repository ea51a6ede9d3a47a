"""Taps of filters that never reach the image: which are left out, and the same numbers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_tvm.relax_passes.fusions.convolutions.outside import DropOutsideTaps
from hetero_tvm.relax_passes.rewriting.graph import shape_of
from tests.relax_passes.graphs import bindings, constant, fuse, module, op, same_numbers, weights
from tests.relax_passes.rewrite import Rewrite


def convolved(image, kernel, w=None, groups=1, **attrs):
    """Kernel, padding and dilation of what is left, after its numbers have been compared."""
    shape = (4, image[1] // groups, *kernel)
    w = weights(*shape) if w is None else w
    before = module({"x": image}, lambda emit, x: emit(op.nn.conv2d(x, constant(w), groups=groups, **attrs)))
    after, _, report = fuse(before, DropOutsideTaps())
    same_numbers(before, after)
    (value,) = (binding.value for binding in bindings(after))
    found = [tuple(int(n) for n in getattr(value.attrs, name)) for name in ("padding", "dilation")]
    return (shape_of(value.args[1])[2:], *found), report


@pytest.mark.parametrize(
    ("size", "rate", "kernel", "padding"),
    [
        ((8, 8), 12, (1, 1), (0, 0, 0, 0)),  # no tap but the middle one
        ((8, 8), 8, (1, 1), (0, 0, 0, 0)),
        ((8, 8), 7, (3, 3), (7, 7, 7, 7)),
        ((4, 20), 6, (1, 3), (0, 6, 0, 6)),
        ((1, 1), 1, (1, 1), (0, 0, 0, 0)),
    ],
)
@pytest.mark.parametrize("groups", [1, 4])
def test_rates_beyond_the_image(size, rate, kernel, padding, groups):
    found, _ = convolved((2, 4, *size), (3, 3), groups=groups, padding=rate, dilation=rate)
    assert found[:2] == (kernel, padding)
    assert found[2] == tuple(rate if extent > 1 else 1 for extent in kernel)


def test_causal_filters():
    """Rows of one dimension, padded on one side: the last tap is left, or the last two."""
    for length, taps in ((6, 1), (9, 2)):
        found, _ = convolved((1, 4, 1, length), (1, 3), padding=(0, 16, 0, 0), dilation=(1, 8))
        assert found[:2] == ((1, taps), (0, 8 * (taps - 1), 0, 0))


def test_images_that_would_be_cut():
    """Zeros around are less than the taps left out are away: what is left would begin within the image."""
    found, _ = convolved((1, 4, 16, 16), (3, 3), padding=18, dilation=20)
    assert found[:2] == ((3, 3), (18, 18, 18, 18))


def test_weights_that_are_not_finite():
    w = weights(4, 4, 3, 3)
    w[0, 0, 0, 0] = np.inf
    found, report = convolved((1, 4, 2, 2), (3, 3), w, padding=4, dilation=4)
    assert found[0] == (3, 3) and report.misses[0]["reason"].startswith("a weight is not finite")


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_convolution(data):
    draw = data.draw
    kernel, rates, strides = (tuple(draw(st.integers(1, 4)) for _ in "yx") for _ in range(3))
    padding = tuple(draw(st.integers(0, 9)) for _ in range(4))
    size = [draw(st.integers(1, 9)) for _ in "yx"]
    reach = [rate * (taps - 1) + 1 for rate, taps in zip(rates, kernel, strict=True)]
    size = [max(s, r - padding[i] - padding[i + 2]) for i, (s, r) in enumerate(zip(size, reach, strict=True))]
    convolved((1, 2, *size), kernel, strides=strides, padding=padding, dilation=rates)


class TestDropOutsideTaps(Rewrite):
    rule = DropOutsideTaps()
    inputs = {"x": (1, 4, 3, 3)}  # noqa: RUF012

    def before(self, x):
        return op.nn.conv2d(x, constant(weights(4, 4, 3, 3)), padding=5, dilation=5)

    def expected(self, x):
        return op.nn.conv2d(x, constant(weights(4, 4, 3, 3)[:, :, 1:2, 1:2]))
