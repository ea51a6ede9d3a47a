"""Functions that code generators lack, in terms of others."""

import numpy as np
import pytest

import hetero_tvm
from hetero_tvm.host.tvm import relax
from hetero_tvm.relax_passes.canonical.functions import (
    CompareWithLeast,
    DifferenceOfEquals,
    EqualityOfTruth,
    ExpandHyperbolic,
)
from tests.frontend.onnx.helpers import text_model
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


class TestCompareWithLeast(Rewrite):
    rule = CompareWithLeast()
    inputs = {"x": ("int32", 4)}

    def before(self, x):
        least, other = (relax.const(value, "int32") for value in (-(2**31), -(2**31) + 1))
        return op.equal(x, least), op.less_equal(x, least), op.less_equal(least, x), op.equal(x, other)

    def expected(self, x):
        most, other = (relax.const(value, "int32") for value in (2**31 - 1, -(2**31) + 1))
        return (
            op.equal(op.bitwise_not(x), most),
            op.greater_equal(op.bitwise_not(x), most),
            op.greater_equal(most, op.bitwise_not(x)),
            op.equal(x, other),
        )


@pytest.mark.parametrize("compare", ["Equal", "LessOrEqual", "GreaterOrEqual", "Less", "Greater"])
@pytest.mark.parametrize("order", ["x, c", "c, x"])
def test_comparisons_with_the_least_number(compare, order):
    source = text_model(
        f"g (int32[3] x) => (bool[3] y) <int32 c = {{-2147483648}}> {{ y = {compare}({order}) }}"
    )
    x, c = np.array([-(2**31), 0, 2**31 - 1], np.int32), np.int32(-(2**31))
    (y,) = hetero_tvm.build_model(hetero_tvm.optimize_model(hetero_tvm.import_model(source))).run({"x": x})
    function = {"LessOrEqual": np.less_equal, "GreaterOrEqual": np.greater_equal}.get(compare)
    function = function or getattr(np, compare.lower())
    assert np.array_equal(y, function(*((x, c) if order[0] == "x" else (c, x))))


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
