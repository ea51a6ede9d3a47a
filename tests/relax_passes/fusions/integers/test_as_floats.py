"""Convolutions of integers in float32: exact, in two parts where sums are large."""

from typing import ClassVar

import numpy as np
import pytest

from hetero_tvm.relax_passes.fusions.integers.as_floats import IntegersAsFloats
from tests.relax_passes.compiled import module_of, operators, result, rewritten
from tests.relax_passes.graphs import constant, op
from tests.relax_passes.rewrite import Rewrite

RNG = np.random.default_rng(0)


def convolution(x, filters, **attrs):
    shifted = op.subtract(op.astype(x, "int32"), constant(131, "int32"))
    conv = op.nn.conv1d if filters.ndim == 3 else op.nn.conv2d
    return conv(shifted, op.astype(constant(filters, "int8"), "int32"), out_dtype="int32", **attrs)


class TestIntegersAsFloats(Rewrite):
    rule = IntegersAsFloats()
    inputs: ClassVar = {"x": ("int32", 1, 2, 5, 5)}
    filters = np.arange(-9, 9, dtype=np.int32).reshape(1, 2, 3, 3)

    def before(self, x):
        return op.nn.conv2d(x, constant(self.filters, "int32"), out_dtype="int32")

    def expected(self, x):
        sums = op.nn.conv2d(op.astype(x, "float32"), constant(self.filters.astype("float32")))
        return op.astype(op.round(sums), "int32")


@pytest.mark.parametrize(
    ("shape", "filters", "attrs", "products"),
    [
        ((2, 3, 7, 6), (4, 3, 3, 3), {"strides": (2, 1), "padding": (1, 0, 1, 2)}, 1),
        ((1, 8, 5, 5), (8, 1, 3, 3), {"groups": 8}, 1),
        ((1, 4, 30), (6, 4, 5), {"padding": (2, 2)}, 1),
        ((1, 300, 4, 4), (2, 300, 3, 3), {}, 2),
    ],
)
def test_sums_are_exact(shape, filters, attrs, products):
    x = RNG.integers(0, 256, shape).astype("uint8")
    weights = RNG.integers(-128, 128, filters).astype("int8")

    def build(x):
        return convolution(x, weights, **attrs)

    changed, report = rewritten(build, [x], [IntegersAsFloats()])
    assert report.misses == []
    np.testing.assert_array_equal(result(changed, [x]), result(module_of(build, x), [x]))
    names = operators(changed)
    assert sum("conv" in name for name in names) == products and "relax.round" in names


def test_sums_that_may_be_larger_stay_integers():
    x = RNG.integers(0, 256, (1, 1200, 5, 5)).astype("uint8")
    weights = np.full((1, 1200, 3, 3), -128, np.int8)
    changed, report = rewritten(lambda x: convolution(x, weights), [x], [IntegersAsFloats()])
    assert "relax.round" not in operators(changed) and len(report.misses) == 1
