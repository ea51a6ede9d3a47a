"""Convolutions of integers around images with a border of a zero point that comes when they run."""

import numpy as np
import pytest

from hetero_tvm.relax_passes.fusions.integers.quantized import FuseQuantized
from tests.relax_passes.compiled import module_of, operators, result, rewritten
from tests.relax_passes.graphs import constant, op

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
