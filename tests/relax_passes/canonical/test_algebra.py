"""Powers and divisions in their cheap form, where that rounds alike."""

import numpy as np
import pytest

from hetero_tvm.relax_passes.canonical.algebra import ExpandPowers, MultiplyByReciprocal
from tests.relax_passes.canonical.simplified import X, simplified
from tests.relax_passes.graphs import bindings, calls, constant, fuse, module, op
from tests.relax_passes.rewrite import Rewrite


@pytest.mark.parametrize(
    ("exponent", "left"),
    [
        (2.0, {"multiply": 1}),
        (3.0, {"multiply": 2}),
        (0.5, {"sqrt": 1}),
        (-1.0, {"divide": 1}),
        (-0.5, {"rsqrt": 1}),
        (1.5, {"power": 1}),
    ],
)
def test_powers(exponent, left):
    positive = lambda e, x: e(op.power(e(op.exp(x)), constant(exponent)))  # noqa: E731
    assert simplified(positive, ExpandPowers()) == {"exp": 1, **left}


@pytest.mark.parametrize(
    ("divisor", "name"),
    [
        (4.0, "multiply"),
        (-0.125, "multiply"),
        ([2.0, 1.0, 8.0, -2.0], "multiply"),
        (3.0, "divide"),
        (0.0, "divide"),
        (2.0**127, "divide"),
        ([2.0, 3.0, 2.0, 2.0], "divide"),
        (np.inf, "divide"),
    ],
)
def test_divisions(divisor, name):
    before = module(X, lambda e, x: e(op.divide(x, constant(divisor))))
    after, _, _ = fuse(before, MultiplyByReciprocal())
    assert dict(calls(after)) == {name: 1}
    if name == "multiply":
        x = np.float32([1e-38, -1.17549435e-38, 3.3, 1e36] if np.ndim(divisor) else [1e-38, 3.3, 1e36])
        np.testing.assert_array_equal(
            x * bindings(after)[0].value.args[1].value.numpy(), x / np.float32(divisor)
        )


class TestExpandPowers(Rewrite):
    rule = ExpandPowers()

    def before(self, x):
        return op.power(x, constant(2.0)), op.power(x, constant(3.0)), op.power(x, constant(0.5))

    def expected(self, x):
        return op.multiply(x, x), op.multiply(op.multiply(x, x), x), op.sqrt(x)


class TestMultiplyByReciprocal(Rewrite):
    rule = MultiplyByReciprocal()

    def before(self, x):
        return op.divide(x, constant(8.0)), op.divide(x, constant(3.0))

    def expected(self, x):
        return op.multiply(x, constant(0.125)), op.divide(x, constant(3.0))
