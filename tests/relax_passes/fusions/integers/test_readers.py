"""Means of bytes, and dequantisers of their own for several readers."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import relax
from hetero_tvm.relax_passes.fusions.integers.readers import DequantizeForEach, MeanOfBytes
from tests.relax_passes.compiled import module_of, result, rewritten
from tests.relax_passes.graphs import constant, op
from tests.relax_passes.rewrite import Rewrite, bind

BYTES = np.random.default_rng(0).integers(-128, 128, (2, 6, 8, 7)).astype("int8")


def real(x, scale=0.5, zero=3, dtype="int8"):
    return op.dequantize(x, constant(scale), constant(zero, dtype), axis=0)


@pytest.mark.parametrize("axes", [[2, 3], [1], None])
@pytest.mark.parametrize("keepdims", [False, True])
def test_means(axes, keepdims):
    def build(x):
        return op.mean(real(x), axes, keepdims)

    after, _ = rewritten(build, [BYTES], [MeanOfBytes()])
    assert "mean" not in str(after["main"])
    wanted = ((BYTES.astype("float64") - 3) * 0.5).mean(
        None if axes is None else tuple(axes), keepdims=keepdims
    )
    np.testing.assert_allclose(result(after, [BYTES]), wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: op.mean(op.multiply(real(x), constant(2.0)), [2]),
        lambda x: op.mean(
            op.dequantize(x, constant(np.ones(6)), constant(np.zeros(6), "int8"), axis=1), [2, 3]
        ),
    ],
    ids=["floats", "steps by channel"],
)
def test_other_means_stay(build):
    after, _ = rewritten(build, [BYTES], [MeanOfBytes()])
    assert "R.mean" in str(after["main"])


@pytest.mark.parametrize("alone", [False, True])
def test_a_mean_that_centres_stays_where_some_sizes_have_too_many_terms(alone):
    def build(x):
        y = bind(real(x))
        return op.subtract(y, op.mean(y, [2, 3], True))

    after, _ = rewritten(build, [BYTES], [MeanOfBytes(alone)])
    assert ("R.mean" in str(after["main"])) == alone


def test_each_reader_has_its_own_and_a_result_keeps_one():
    def build(x):
        y = bind(real(x))
        return y, op.exp(y), op.multiply(y, y)

    after, _ = rewritten(build, [BYTES], [DequantizeForEach()])
    assert str(after["main"]).count("R.dequantize") == 3


def test_one_reader_is_left_alone():
    def build(x):
        y = bind(real(x))
        return op.multiply(y, y)

    after, _ = rewritten(build, [BYTES], [DequantizeForEach()])
    assert str(after["main"]).count("R.dequantize") == 1
    np.testing.assert_array_equal(result(after, [BYTES]), result(module_of(build, BYTES), [BYTES]))


class TestMeanOfBytes(Rewrite):
    rule = MeanOfBytes()
    inputs = {"x": ("uint8", 1, 2, 4, 4)}

    def before(self, x):
        return op.mean(real(x, 0.5, 3, "uint8"), [2, 3])

    def expected(self, x):
        total = op.sum(op.astype(x, "int32"), [2, 3])
        steps = op.astype(op.subtract(total, constant(48, "int32")), "float32")
        return op.multiply(op.multiply(steps, constant(1 / 16)), constant(0.5))


class TestDequantizeForEach(Rewrite):
    rule = DequantizeForEach()
    inputs = {"x": ("int8", 2, 3)}

    def before(self, x):
        y = bind(real(x))
        return op.exp(y), op.negative(y)

    def expected(self, x):
        last = bind(real(x))
        first = bind(op.exp(bind(real(x))))
        return first, relax.op.negative(last)
