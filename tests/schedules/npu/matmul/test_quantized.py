"""8-bit products: the same bits as NumPy."""

import numpy as np
import pytest

from hetero_tvm.ops.integers.quantized import QuantMatmul
from hetero_tvm.schedules.npu.matmul.quantized import NpuQuantizedMatmulSpace
from tests.schedules.npu.running import (
    assert_host_computes_the_same,
    assert_same_bits,
    machine,
    run,
    sample_integers,
)

SPACE = NpuQuantizedMatmulSpace()
OPS = [
    QuantMatmul("int8", "int32", 0, False, (3, 7), 33, 65),
    QuantMatmul("uint8", "uint8", 117, False, (70,), 100, 300),
    QuantMatmul("int8", "int8", -5, True, (1,), 1, 1),
    QuantMatmul("int8", "int32", 0, True, (5,), 17, 2000),
    QuantMatmul("uint8", "int8", 100, False, (16,), 16, 4096),
]


@pytest.mark.parametrize("preset", ["edge", "mobile", "datacenter"])
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.label)
def test_the_bits_are_those_of_numpy(op, preset):
    assert_same_bits(SPACE, op, machine(preset))


def test_saturation():
    for out in ("int8", "uint8"):
        op = QuantMatmul("int8", out, 3, False, (9,), 20, 50)
        arrays = sample_integers(op, saturating=True)
        expected = op.reference(*arrays)
        limits = np.iinfo(out)
        assert (expected == limits.max).any() and (expected == limits.min).any()
        np.testing.assert_array_equal(run(SPACE, op, machine(), arrays)[0], expected)


def test_sums_wrap():
    """131072 products of -128 and -128 are 2 ** 31."""
    op = QuantMatmul("int8", "int32", 0, False, (1,), 1, 131072)
    arrays = [np.full(o.shape, -128 if o.dtype == "int8" else 5, o.dtype) for o in op.inputs]
    expected = op.reference(*arrays)
    assert expected[0, 0] == -(2**31) + 5
    np.testing.assert_array_equal(run(SPACE, op, machine("mobile"), arrays)[0], expected)


def test_float_results_are_scaled_sums():
    op = QuantMatmul("int8", "float32", 0, True, (9,), 20, 30)
    arrays = sample_integers(op)
    expected = op.reference(*arrays)
    actual = run(SPACE, op, machine(), arrays)[0]
    np.testing.assert_array_equal(actual, expected.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("op", OPS[1:3], ids=lambda op: op.label)
def test_the_host_computes_the_same(op):
    assert_host_computes_the_same(op)
