"""Ranges of least squared error beside those that rounding itself prefers."""

import numpy as np
import pytest

from hetero_tvm.compile.calibrating.least_error import BINS, least_error_range, least_error_ranges

RNG = np.random.default_rng(0)


def error(x, low, high):
    scale = (high - low) / 255
    zero = np.rint(-low / scale)
    return ((np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale - x).astype(np.float64)


@pytest.mark.parametrize(
    "x",
    [
        RNG.standard_normal(20000),
        np.abs(RNG.standard_normal(20000)) ** 3,
        np.concatenate([RNG.standard_normal(20000), [60.0]]),
        RNG.uniform(-1, 3, 20000),
    ],
    ids=["normal", "one-sided", "outlier", "uniform"],
)
def test_no_range_of_the_same_middle_is_much_better(x):
    (found,) = least_error_ranges([{"x": x}], lambda sample: sample.items()).values()
    low, high = min(x.min(), 0), max(x.max(), 0)
    assert low <= found[0] <= 0 <= found[1] <= high
    taken = (error(x, *found) ** 2).sum()
    others = [(error(x, share * low, share * high) ** 2).sum() for share in np.linspace(0.1, 1, 10)]
    assert taken <= 1.05 * min(others)


def test_one_outlier_is_cut_off():
    x = np.concatenate([RNG.uniform(-1, 1, 50000), [20.0]])
    ((low, high),) = least_error_ranges([{"x": x[:20]}, {"x": x}], lambda sample: sample.items()).values()
    assert low == pytest.approx(-1, abs=0.01) and high < 20


def test_tensors_of_one_value():
    assert least_error_range(np.zeros(BINS), 0.0, 0.0) == (0.0, 0.0)
    found = least_error_ranges([{"x": np.zeros(3), "y": np.full(2, np.nan)}], lambda sample: sample.items())
    assert found == {"x": (0.0, 0.0), "y": (0.0, 0.0)}
