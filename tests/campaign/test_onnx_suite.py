"""The suite's verdict on numbers: one unit of the largest value is rounding, two are not."""

import ml_dtypes
import numpy as np
import pytest

from tests.campaign.onnx_suite import difference


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
def test_one_unit_in_the_last_place_of_the_largest_value(dtype):
    truth = np.array([0.75, 0.0, 0.5], dtype)
    unit = float(ml_dtypes.finfo(dtype).eps) / 2  # of numbers from 0.5 to 1
    for units, wrong in ((1, False), (2, True)):
        result = truth.copy()
        result[1] = units * unit
        assert bool(difference(result, truth, rtol=0, atol=0)) == wrong


def test_nan_in_another_place():
    assert difference(np.array([1.0, np.nan]), np.array([np.nan, 1.0]), 1e-3, 1e-7)
