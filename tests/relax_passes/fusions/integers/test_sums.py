"""Sums of quantised tensors as the last step of a convolution."""

import numpy as np
import pytest

from hetero_tvm.ops.integers.quantized import QuantConv2d
from hetero_tvm.relax_passes.fusions.integers.quantized import FuseQuantized
from hetero_tvm.relax_passes.fusions.integers.sums import FuseQuantizedAdd
from tests.relax_passes.compiled import module_of, result, rewritten
from tests.relax_passes.graphs import constant, op
from tests.relax_passes.rewrite import Rewrite, bind, kernel

RNG = np.random.default_rng(0)
FILTERS = RNG.integers(-127, 128, (4, 3, 1, 1)).astype("int8")
X, R = (RNG.integers(-128, 128, shape).astype("int8") for shape in ((1, 3, 5, 6), (1, 4, 5, 6)))


def real(x, scale=1.0, zero=0, axis=0):
    return op.dequantize(x, constant(scale), constant(zero, "int8"), axis=axis)


def whole(y, scale, zero=0, dtype="int8"):
    return op.quantize(y, constant(scale), constant(zero, dtype), axis=0, out_dtype=dtype)


def conv(x, scale=129.0, zero=-5):
    return whole(op.nn.conv2d(real(x, zero=3), real(constant(FILTERS, "int8"))), scale, zero)


def unrounded(x):
    return op.nn.conv2d(real(x, zero=3), real(constant(FILTERS, "int8")))


SUMS = {
    "plain": lambda x, r: whole(op.add(real(conv(x), 129.0, -5), real(r, 40.0, 9)), 151.0, 2),
    "turned round, unsigned, with relu": lambda x, r: whole(
        op.nn.relu(op.add(real(r, 40.0, 9), real(conv(x), 129.0, -5))), 77.0, 2, "uint8"
    ),
    "bounded": lambda x, r: whole(
        op.minimum(op.add(real(conv(x), 129.0, -5), real(r, 40.0)), constant(6000.0)), 151.0
    ),
    "two convolutions": lambda x, r: whole(
        op.add(real(conv(x), 129.0, -5), real(conv(x, 33.0, 1), 33.0, 1)), 151.0
    ),
    "rounded once": lambda x, r: whole(op.add(unrounded(x), real(r, 40.0, 9)), 151.0, 2),
    "rounded once, turned round, unsigned, with relu": lambda x, r: whole(
        op.nn.relu(op.add(real(r, 40.0, 9), unrounded(x))), 77.0, 2, "uint8"
    ),
    "relu before and behind, rounded once": lambda x, r: whole(
        op.nn.relu(op.add(op.nn.relu(unrounded(x)), real(r, 40.0, 9))), 151.0
    ),
    "two convolutions, one of them rounded": lambda x, r: whole(
        op.add(unrounded(x), real(conv(x, 33.0, 1), 33.0, 1)), 151.0
    ),
}
RULES = [FuseQuantized(bounds=True), FuseQuantizedAdd(lambda op: True)]


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(build, id=name, marks=() if "relu" in name else pytest.mark.exhaustive)
        for name, build in SUMS.items()
    ],
)
def test_the_numbers_stay(build):
    """But for one step where a sum lies halfway between two."""
    after, report = rewritten(build, [X, R], RULES)
    assert report.fusions["quantized_add"] == 1 and "R.add" not in str(after["main"])
    found, wanted = (result(m, [X, R]).astype(int) for m in (after, module_of(build, X, R)))
    assert np.abs(found - wanted).max() <= 1 and (found != wanted).mean() < 0.02
    assert wanted.std() > 5


NO_SUMS = {
    "a rounded result that is used twice": lambda x, r: (
        lambda c: op.concat([whole(op.add(real(c, 129.0, -5), real(r)), 151.0), c], 1)
    )(bind(conv(x))),
    "an unrounded result that is used twice": lambda x, r: (
        lambda c: op.concat([whole(op.add(c, real(r)), 151.0), whole(c, 3.0)], 1)
    )(bind(unrounded(x))),
    "nothing of bytes": lambda x, r: whole(op.add(unrounded(x), unrounded(x)), 151.0),
    "a sum that stays float": lambda x, r: op.add(real(conv(x), 129.0, -5), real(r)),
    "no convolution": lambda x, r: whole(op.add(real(r), real(r, 3.0)), 9.0),
    "one row for all": lambda x, r: whole(
        op.add(real(conv(x), 129.0, -5), real(op.strided_slice(r, [2], [0], [1]))), 151.0
    ),
}


@pytest.mark.parametrize("build", NO_SUMS.values(), ids=NO_SUMS.keys())
def test_other_sums_stay(build):
    after, report = rewritten(build, [X, R], RULES)
    assert "quantized_add" not in report.fusions and "R.add" in str(after["main"])


def test_a_target_without_the_kernel_keeps_the_sum():
    rules = [FuseQuantized(), FuseQuantizedAdd(lambda op: not op.residual)]
    _, report = rewritten(SUMS["plain"], [X, R], rules)
    assert "quantized_add" not in report.fusions


class TestFuseQuantizedAdd(Rewrite):
    rule = FuseQuantizedAdd(lambda op: True)
    inputs = {"x": ("int8", 1, 3, 5, 6), "r": ("int8", 1, 4, 5, 6)}
    conv = QuantConv2d("int8", "int8", -5, False, 1, 3, 5, 6, 4)

    def operands(self):
        return constant(FILTERS, "int8"), constant([1, 2, 3, 4], "int32"), constant([0.5, 0.5, 0.25, 1.0])

    def before(self, x, r):
        made = kernel(self.conv, x, *self.operands())
        return whole(op.nn.relu(op.add(real(made, 2.0, -5), real(r, 4.0, 9))), 8.0, 7)

    def expected(self, x, r):
        fused = QuantConv2d(
            "int8", "int8", -5, False, 1, 3, 5, 6, 4, residual="int8", final="int8", final_bounds=(7, 127)
        )
        return kernel(fused, x, *self.operands(), constant([0.25, 9.0, 0.5, 7.0]), r)


class TestSumOfAnUnroundedResult(Rewrite):
    rule = FuseQuantizedAdd(lambda op: True)
    inputs = {"x": ("int8", 1, 3, 5, 6), "r": ("int8", 1, 4, 5, 6)}
    conv = QuantConv2d("int8", "float32", 0, False, 1, 3, 5, 6, 4)

    def operands(self, step):
        scales = np.array([4.0, 4.0, 2.0, 8.0], np.float32) / step
        return constant(FILTERS, "int8"), constant([1, 2, 3, 4], "int32"), constant(scales)

    def before(self, x, r):
        made = kernel(self.conv, x, *self.operands(1))
        return whole(op.nn.relu(op.add(made, real(r, 4.0, 9))), 8.0, 7)

    def expected(self, x, r):
        fused = QuantConv2d(
            "int8", "float32", 0, False, 1, 3, 5, 6, 4, residual="int8", final="int8", final_bounds=(7, 127)
        )
        return kernel(fused, x, *self.operands(8), constant([1.0, 9.0, 0.5, 7.0]), r)
