"""Products of two computed 8-bit tensors, softmax between quantisers: the bytes of the steps they replace."""

import numpy as np
import pytest

from hetero_tvm.ops.integers.batch_matmul import QuantBatchMatmul
from hetero_tvm.ops.integers.softmax import QuantSoftmax
from hetero_tvm.relax_passes.fusions.integers.attention import FuseQuantBatchMatmul, FuseQuantSoftmax
from hetero_tvm.relax_passes.fusions.integers.quantized import FuseQuantized
from tests.relax_passes.compiled import module_of, result, rewritten
from tests.relax_passes.graphs import constant, op
from tests.relax_passes.rewrite import Rewrite, kernel

PRODUCTS = FuseQuantBatchMatmul(lambda op: True)
SOFTMAX = FuseQuantSoftmax(lambda op: True)


def real(x, scale=0.05, zero=3, dtype="int8"):
    return op.dequantize(x, constant(scale), constant(zero, dtype), axis=0)


def whole(y, scale=0.03, zero=-20, dtype="int8"):
    return op.quantize(y, constant(scale), constant(zero, dtype), axis=0, out_dtype=dtype)


def heads(x, order=(0, 2, 1, 3)):
    return op.permute_dims(op.reshape(x, (2, 9, 3, 8)), list(order))


def bytes_of(*shape, seed=0, dtype="int8"):
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max + 1, shape).astype(dtype)


def attention(q, k, v):
    """Scores, their softmax and the sums of values, a quantiser behind each, as tools write them."""
    scores = op.matmul(real(heads(q), 0.04, 1), real(heads(k, (0, 2, 3, 1)), 0.03, -4))
    scores = whole(op.multiply(scores, constant(8**-0.5)), 0.05, 2)
    shares = whole(op.nn.softmax(real(scores, 0.05, 2)), 1 / 255, 0, "uint8")
    summed = op.matmul(real(shares, 1 / 255, 0, "uint8"), real(heads(v)))
    return op.reshape(op.permute_dims(whole(summed, 0.02, 5), [0, 2, 1, 3]), (2, 9, 24))


def test_quantised_attention_is_three_kernels_of_bytes():
    given = [bytes_of(2, 9, 24, seed=seed) for seed in range(3)]
    after, report = rewritten(attention, given, [PRODUCTS, SOFTMAX])
    assert report.fusions == {"quantized_batch_matmul": 2, "quantized_softmax": 1} and not report.misses
    text = str(after["main"])
    assert "quantize" not in text and "permute_dims" not in text
    found, wanted = (result(mod, given) for mod in (after, module_of(attention, *given)))
    # One step where float32 sums lie beside the middle of two.
    far = np.abs(found.astype(int) - wanted.astype(int))
    assert far.max() <= 1 and (far > 0).mean() < 0.02


def test_one_constant_matrix_for_each_item():
    w = bytes_of(2, 6, 5, seed=7)

    def build(a):
        return whole(op.matmul(real(a), real(constant(w, "int8"), 0.02, -1)), 0.05)

    given = [bytes_of(2, 4, 6)]
    for rules in ([FuseQuantized(), PRODUCTS], [FuseQuantized()]):
        after, report = rewritten(build, given, rules)
        assert report.fusions == ({"quantized_batch_matmul": 1} if PRODUCTS in rules else {})
        found, wanted = (result(mod, given) for mod in (after, module_of(build, *given)))
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "build",
    [
        lambda a, b: op.matmul(real(a), op.astype(b, "float32")),  # one of them is quantised
        lambda a, b: op.matmul(
            op.dequantize(a, constant(np.full(6, 0.1)), constant(np.zeros(6), "int8"), axis=2), real(b)
        ),  # a scale for each column
        lambda a, b: whole(op.nn.softmax(real(a), axis=1)),  # over another axis
    ],
)
def test_what_is_no_such_product_stays(build):
    given = [bytes_of(2, 4, 6), bytes_of(2, 6, 5)]
    _, report = rewritten(build, given, [PRODUCTS, SOFTMAX])
    assert report.fusions == {}


def test_a_target_without_the_kernels_keeps_the_operators():
    given = [bytes_of(2, 9, 24, seed=seed) for seed in range(3)]
    rules = [FuseQuantBatchMatmul(lambda op: False), FuseQuantSoftmax(lambda op: False)]
    after, report = rewritten(attention, given, rules)
    assert report.fusions == {} and "softmax" in str(after["main"])


class TestFuseQuantBatchMatmul(Rewrite):
    rule = PRODUCTS
    inputs = {"a": ("uint8", 2, 4, 6), "b": ("int8", 2, 5, 6)}

    def before(self, a, b):
        scores = op.matmul(real(a, 0.5, 128, "uint8"), real(op.permute_dims(b, [0, 2, 1]), 0.25, 0))
        return whole(scores, 0.5, 7, "uint8")

    def expected(self, a, b):
        left, right = ((2, 4, 6), (0, 24, 6, 1)), ((2, 5, 6), (0, 30, 1, 6))
        product = QuantBatchMatmul(
            (2,), 4, 5, 6, *left, *right, (0, 1, 2), "uint8", "int8", 128, 0, 0.25, "uint8", 7
        )
        return kernel(product, a, b)


class TestFuseQuantSoftmax(Rewrite):
    rule = SOFTMAX
    inputs = {"x": ("uint8", 2, 3)}

    def before(self, x):
        return whole(op.nn.softmax(real(x, 0.5, 128, "uint8")), 0.25, 0, "uint8")

    def expected(self, x):
        return kernel(QuantSoftmax((2,), 3, "uint8", 0.5, "uint8", 0.25, 0), x)
