"""Products of 8-bit integers between quantisers, and written in integers."""

import numpy as np
import pytest

from hetero_tvm.ops.integers.quantized import QuantMatmul
from hetero_tvm.relax_passes.fusions.integers.quantized import FuseQuantized
from tests.relax_passes.compiled import module_of, operators, result, rewritten
from tests.relax_passes.graphs import constant, op
from tests.relax_passes.rewrite import Rewrite, kernel

RNG = np.random.default_rng(0)


def integers(dtype, *shape):
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max + 1, shape).astype(dtype)


def dequantized(x, scale, zero, dtype="int8", axis=0):
    return op.dequantize(x, constant(scale), constant(zero, dtype), axis=axis)


W = integers("int8", 8, 6)
FILTERS = integers("int8", 6, 3, 3, 3)
BIAS = constant(RNG.integers(-99, 99, 6))


def product(x, dtype="int8", zero=0, w_scale=1.0, w_zero=0):
    w = dequantized(constant(W, "int8"), w_scale, w_zero, axis=1)
    return op.matmul(dequantized(x, 1.0, zero, dtype), w)


def convolution(x, zero=5, **attrs):
    w = dequantized(constant(FILTERS, "int8"), np.float32([1, 2, 4, 8, 1, 2]), np.zeros(6))
    return op.nn.conv2d(dequantized(x, 1.0, zero, axis=1), w, **attrs)


def to_bytes(y, axis=-1, dtype="int8"):
    """Bytes of which a step is worth an odd number of sums, so that no sum lies halfway between two."""
    return op.quantize(y, constant(1023.0), constant(7, dtype), axis=axis, out_dtype=dtype)


# Scales of 1 and powers of two: float32 holds every sum, so that both ways give the same bits.
CASES = {
    "sums": (product, [integers("int8", 5, 8)]),
    "unsigned, with a zero point": (lambda x: product(x, "uint8", 200), [integers("uint8", 2, 5, 8)]),
    "a scale and a zero point for each column": (
        lambda x: product(x, w_scale=np.float32([1, 2, 4, 8, 16, 1]), w_zero=np.arange(6)),
        [integers("int8", 5, 8)],
    ),
    "weights of nine bits": (lambda x: product(x, w_zero=-100), [integers("int8", 5, 8)]),
    "bias and steps": (lambda x: to_bytes(op.add(product(x), BIAS)), [integers("int8", 5, 8)]),
    "relu and unsigned steps": (
        lambda x: to_bytes(op.nn.relu(product(x)), dtype="uint8"),
        [integers("int8", 5, 8)],
    ),
    "a convolution, padded": (
        lambda x: to_bytes(convolution(x, strides=(2, 1), padding=(1, 0, 1, 2)), 1),
        [integers("int8", 2, 3, 7, 6)],
    ),
    "in integers": (
        lambda x: op.matmul(
            op.subtract(op.astype(x, "int32"), constant(9, "int32")), constant(W.astype("int32"), "int32")
        ),
        [integers("uint8", 5, 8)],
    ),
    "in integers, with a zero point that is an input": (
        lambda x, zero: op.matmul(
            op.subtract(op.astype(x, "int32"), op.astype(zero, "int32")),
            op.astype(constant(W, "int8"), "int32"),
        ),
        [integers("uint8", 5, 8), integers("uint8", 1)],
    ),
}


BOUNDED = {
    "both ends": lambda y: op.minimum(op.maximum(y, constant(-3.0)), constant(4000.0)),
    "one end, above the type's": lambda y: op.minimum(y, constant(9e9)),
    "relu and a bound": lambda y: op.minimum(op.nn.relu(y), constant(9000.0)),
}


@pytest.mark.parametrize(
    "bound",
    [
        pytest.param(b, id=name, marks=() if "ends" in name else pytest.mark.exhaustive)
        for name, b in BOUNDED.items()
    ],
)
def test_bounds_are_those_of_the_bytes(bound):
    arrays = [integers("int8", 5, 8)]

    def build(x):
        return to_bytes(bound(product(x)))

    after, report = rewritten(build, arrays, [FuseQuantized(bounds=True)])
    assert report.fusions == {"quantized": 1} and "minimum" not in str(after["main"])
    np.testing.assert_array_equal(result(after, arrays), result(module_of(build, *arrays), arrays))


@pytest.mark.parametrize("build, arrays", CASES.values(), ids=CASES.keys())
def test_the_numbers_stay(build, arrays):
    after, report = rewritten(build, arrays, [FuseQuantized()])
    assert report.fusions == {"quantized": 1} and report.misses == []
    np.testing.assert_array_equal(result(after, arrays), result(module_of(build, *arrays), arrays))


class TestFuseQuantized(Rewrite):
    """Scales 0.5 (x), 0.25 (W) and 2 (y): the sum is worth 0.125, a sixteenth of a step of y."""

    rule = FuseQuantized()
    inputs = {"x": ("int8", 2, 4)}
    w = np.arange(-6, 6, dtype="int8").reshape(4, 3)

    def before(self, x):
        zero = constant(0, "int8")
        real = op.dequantize(x, constant(0.5), zero, axis=0)
        weight = op.dequantize(constant(self.w, "int8"), constant(0.25), zero, axis=0)
        biased = op.add(op.matmul(real, weight), constant([0.25, 0.0, -0.5]))
        return op.quantize(biased, constant(2.0), constant(3, "int8"), axis=0, out_dtype="int8")

    def expected(self, x):
        fused = QuantMatmul(x_dtype="int8", out="int8", y_zero=3, lead=(2,), n=3, k=4)
        steps = constant([2, 0, -4], "int32")
        return kernel(fused, x, constant(self.w, "int8"), steps, constant([0.0625] * 3))


def test_a_bias_between_two_steps_is_rounded_only_where_the_result_is():
    """Scales of 1: 0.4 is no step; of a result in floats it stays, of steps of 1023 nobody sees it."""
    x, bias = [integers("int8", 5, 8)], constant(RNG.integers(-99, 99, 6) + np.float32(0.4))
    after, report = rewritten(lambda x: op.add(product(x), bias), x, [FuseQuantized()])
    assert report.fusions == {"quantized": 1}
    np.testing.assert_array_equal(
        result(after, x), result(module_of(lambda x: op.add(product(x), bias), *x), x)
    )
    assert "relax.add" in operators(after)
    after, _ = rewritten(lambda x: to_bytes(op.add(product(x), bias)), x, [FuseQuantized()])
    assert "relax.add" not in operators(after)


@pytest.mark.parametrize("end", [-(2.0**31), 2.0**31 - 128])
def test_a_bias_at_the_ends_of_32_bits_does_not_wrap(end):
    """As quantisers write it for filters that are nearly zero, whose steps are tiny."""
    x, bias = [integers("int8", 5, 8)], constant([end, 0.0, 0.0, 0.0, 0.0, 0.0])

    def build(x):
        return to_bytes(op.add(product(x), bias))

    after, report = rewritten(build, x, [FuseQuantized()])
    assert report.fusions == {"quantized": 1}
    np.testing.assert_array_equal(result(after, x), result(module_of(build, *x), x))


def test_sixteen_bits_stay_floats():
    """Activations of 16 bits, as onnxruntime's quantiser writes them where 8 are too few."""
    x = [np.arange(8, dtype="uint16").reshape(2, 4)]

    def build(x):
        zero = constant(7, "uint16")
        real = op.dequantize(x, constant(0.5), zero, axis=0)
        w = constant(np.arange(12, dtype="int8").reshape(4, 3), "int8")
        return op.matmul(real, op.dequantize(w, constant(0.25), constant(0, "int8"), axis=0))

    _, report = rewritten(build, x, [FuseQuantized()])
    assert report.fusions == {} and "uint16, not of 8 bits" in report.misses[0]["reason"]
