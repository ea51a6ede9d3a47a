"""Conversions of type and layout at the borders of regions."""

import ml_dtypes
import numpy as np
import pytest

from hetero_tvm.schedules.npu.convert import cast, permute
from tests.schedules.npu.running import machine, run_function

SPEC = machine().spec


@pytest.mark.parametrize("elements", [1, 16, 5003])
@pytest.mark.parametrize("source", ["float32", "float16", "int32"])
@pytest.mark.parametrize("target", ["float32", "float16"])
def test_casts_are_numpys(elements, source, target):
    values = (100 * np.random.default_rng(0).standard_normal(elements)).astype(source)
    function = cast(elements, source, target, SPEC)
    actual = run_function(function, machine(), [values.reshape(-1, 1)], (elements, 1), target)
    np.testing.assert_array_equal(actual[:, 0], values.astype(target))


def test_int64_is_two_words():
    values = np.array([0, 5, -1, -7, 2**31 - 1, -(2**31)], np.int64)
    words = values.view(np.int32).reshape(-1, 2)
    low = run_function(cast(6, "int64", "int32", SPEC), machine(), [words], (6, 1), "int32")
    np.testing.assert_array_equal(low[:, 0], values)
    again = run_function(cast(6, "int32", "int64", SPEC), machine(), [low], (6, 2), "int32")
    np.testing.assert_array_equal(again, words)


def test_uint8_is_kept_less_128():
    values = np.arange(256, dtype=np.uint8)
    kept = run_function(
        cast(256, "uint8", "int8", SPEC), machine(), [values.view(np.int8).reshape(-1, 1)], (256, 1), "int8"
    )
    np.testing.assert_array_equal(kept[:, 0], values.astype(np.int32) - 128)
    again = run_function(cast(256, "int8", "uint8", SPEC), machine(), [kept], (256, 1), "int8")
    np.testing.assert_array_equal(again[:, 0].view(np.uint8), values)


@pytest.mark.parametrize("shape", [(1, 3, 50), (2, 70, 9), (1, 1, 1), (1, 130, 333)])
def test_permutations_are_numpys(shape):
    outer, rows, columns = shape
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    function = permute(*shape, "float32", "bfloat16", SPEC)
    actual = run_function(function, machine(), [values], (outer, columns, rows), "bfloat16")
    np.testing.assert_array_equal(actual, values.transpose(0, 2, 1).astype(ml_dtypes.bfloat16))
