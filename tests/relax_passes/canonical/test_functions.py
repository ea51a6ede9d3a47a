"""Functions that code generators lack, in terms of others."""

import pytest

from hetero_tvm.relax_passes.canonical.functions import (
    DifferenceOfEquals,
    EqualityOfTruth,
    ExpandHyperbolic,
)
from tests.relax_passes.canonical.simplified import simplified
from tests.relax_passes.graphs import (
    constant,
    op,
)
from tests.relax_passes.rewrite import Rewrite


@pytest.mark.parametrize("function", [op.cosh, op.sinh])
def test_hyperbolic_functions(function):
    found = simplified(lambda e, x: e(function(x)), ExpandHyperbolic())
    assert found["exp"] == 2 and not {"cosh", "sinh"} & set(found)


@pytest.mark.parametrize(
    "function, expected",
    [(op.equal, {"logical_xor": 1, "logical_not": 1}), (op.not_equal, {"logical_xor": 1})],
)
def test_equality_of_truth(function, expected):
    def body(e, x):
        compared = e(function(e(op.greater(x, constant(0.0))), e(op.less(x, constant(0.5)))))
        return e(op.astype(compared, "float32"))

    found = simplified(body, EqualityOfTruth())
    assert found.items() >= expected.items() and not {"equal", "not_equal"} & set(found)


class TestEqualityOfTruth(Rewrite):
    rule = EqualityOfTruth()
    inputs = {"x": ("bool", 4), "y": ("bool", 4)}

    def before(self, x, y):
        return op.equal(x, y), op.not_equal(x, y)

    def expected(self, x, y):
        return op.logical_not(op.logical_xor(x, y)), op.logical_xor(x, y)


class TestExpandHyperbolic(Rewrite):
    rule = ExpandHyperbolic()

    def before(self, x):
        return op.cosh(x)

    def expected(self, x):
        half = constant(0.5)
        up = op.multiply(op.exp(x), half)
        return op.add(up, op.multiply(op.exp(op.negative(x)), half))


class TestDifferenceOfEquals(Rewrite):
    rule = DifferenceOfEquals()
    inputs = {"x": (4,), "y": (4,)}

    def before(self, x, y):
        return op.subtract(x, x), op.subtract(x, y)

    def expected(self, x, y):
        return op.add(x, op.negative(x)), op.subtract(x, y)
