"""Rounding and saturation of the machine's numbers."""

import ml_dtypes
import numpy as np
import pytest

from hetero_tvm.machines.npu.numbers import DTYPES, NAMES, WIDTH, cast, numpy_dtype


def nearest(values, candidates):
    """The nearest of the sorted candidates, of two equally near ones the one whose last bit is 0."""
    above = np.clip(np.searchsorted(candidates, values), 1, len(candidates) - 1)
    low, high = candidates[above - 1], candidates[above]
    down, up = values - low.astype(np.float64), high.astype(np.float64) - values
    even = low.view(np.uint16) % 2 == 0
    return np.where((down < up) | ((down == up) & even), low, high)


@pytest.mark.parametrize("name, dtype", [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_floats_are_rounded_to_the_nearest_even(name, dtype):
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    every = every[np.isfinite(every.astype(np.float32)) & ~np.signbit(every.astype(np.float32))]
    every = every[np.argsort(every.astype(np.float64), kind="stable")]
    middle = (every[:-1].astype(np.float64) + every[1:].astype(np.float64)) / 2
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.choice(middle, 2000), rng.uniform(0, 1000, 2000)]).astype(np.float32)
    expected = nearest(values.astype(np.float64), every)
    np.testing.assert_array_equal(cast(values, name), expected)
    np.testing.assert_array_equal(cast(-values, name), -expected)


def test_floats_end_at_infinity():
    assert np.isposinf(cast(np.float32([65520.0]), "f16")) and cast(np.float32([65519.0]), "f16") == 65504
    assert np.isnan(cast(np.float32([np.nan]), "bf16").astype(np.float32))


def test_floats_to_integers():
    values = np.float32([0.5, 1.5, -2.5, 126.6, 200.0, -1e9, np.inf, -np.inf, np.nan])
    assert cast(values, "i8").tolist() == [0, 2, -2, 127, 127, -128, 127, -128, 0]
    assert cast(np.float32([3e9, -3e9, 7.0]), "i32").tolist() == [2**31 - 1, -(2**31), 7]


def test_the_zero_point_comes_between_rounding_and_saturation():
    assert cast(np.float32([0.5, 120.5, -200.0]), "i8", zero_point=10).tolist() == [10, 127, -128]
    assert cast(np.int32([100, 2**31 - 1, -(2**31)]), "i8", zero_point=-90).tolist() == [10, 127, -128]


def test_names_and_widths():
    assert set(NAMES.values()) == set(DTYPES) == set(WIDTH)
    assert {name: numpy_dtype(short).name for name, short in NAMES.items()} == {name: name for name in NAMES}
    assert WIDTH == {"f16": 2, "bf16": 2, "f32": 4, "i8": 1, "i32": 4}
