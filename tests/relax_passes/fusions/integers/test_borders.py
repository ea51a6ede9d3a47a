"""Convolutions of integers around images with a border of a zero point that comes when they run."""

from typing import ClassVar

import numpy as np
import pytest

from hetero_tvm.relax_passes.fusions.integers.borders import FoldByteBorders
from hetero_tvm.relax_passes.fusions.integers.quantized import FuseQuantized
from tests.relax_passes.compiled import module_of, operators, result, rewritten
from tests.relax_passes.graphs import constant, op
from tests.relax_passes.rewrite import Rewrite

RNG = np.random.default_rng(0)
FILTERS = RNG.integers(-128, 128, (6, 3, 3, 3)).astype("int8")


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("padding, strides", [((1, 1, 1, 1), (1, 1)), ((1, 2, 0, 1), (2, 1))])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_padded_convolutions(dtype, padding, strides, shape):
    limits = np.iinfo(dtype)
    x = RNG.integers(limits.min, limits.max + 1, (2, 3, 7, 6)).astype(dtype)
    zero = np.full(shape, limits.max - 3, dtype)

    def build(x, zero):
        centered = op.subtract(op.astype(x, "int32"), op.astype(zero, "int32"))
        filters = op.astype(constant(FILTERS, "int8"), "int32")
        return op.nn.conv2d(centered, filters, padding=padding, strides=strides, out_dtype="int32")

    after, report = rewritten(build, [x, zero], [FuseQuantized()])
    assert report.fusions == {"quantized": 1} and "relax.nn.conv2d" not in operators(after)
    np.testing.assert_array_equal(result(after, [x, zero]), result(module_of(build, x, zero), [x, zero]))


def convolved(x, value, zero=3, padding=(1, 1, 1, 1)):
    x = x if value is None else op.nn.pad(x, [0, 0, 0, 0, 0, 1, 2, 0], "constant", value)
    real = op.dequantize(x, constant(0.5), constant(zero, "uint8"), axis=0)
    return op.nn.conv2d(real, constant(FILTERS.astype("float32")), padding=padding)


class TestFoldByteBorders(Rewrite):
    rule = FoldByteBorders()
    inputs: ClassVar[dict[str, tuple]] = {"x": ("uint8", 1, 3, 6, 5)}

    def before(self, x):
        return convolved(x, 3.0)

    def expected(self, x):
        return convolved(x, None, padding=(1, 3, 2, 1))


def test_a_border_of_another_value_stays():
    x = RNG.integers(0, 256, (1, 3, 6, 5)).astype("uint8")
    after, _ = rewritten(lambda x: convolved(x, 4.0), [x], [FoldByteBorders()])
    assert "relax.nn.pad" in operators(after)
