"""Functions that NumPy lacks, with and without SciPy."""

import statistics

import numpy as np
import pytest

from hetero_tvm.host.special import erf, expit, normal_quantile, plain_erf

VALUES = np.array([-np.inf, -800.0, -6, -1, -1e-20, 0, 0.5, 3, 800, np.inf, np.nan])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_both_error_functions_agree(dtype):
    x = VALUES.astype(dtype)
    tolerance = 1e-6 if dtype == "float32" else 1e-15
    np.testing.assert_allclose(plain_erf(x), erf(x), rtol=tolerance, equal_nan=True)
    assert plain_erf(x).dtype == erf(x).dtype == x.dtype
    assert plain_erf(np.empty((0, 3), dtype)).shape == (0, 3) and plain_erf(np.float64(0.0)) == 0


def test_the_logistic_function():
    special = pytest.importorskip("scipy.special")
    for dtype in ("float32", "float64"):
        x = VALUES.astype(dtype)
        with np.errstate(all="raise", under="ignore", invalid="ignore"):
            found = expit(x)
        np.testing.assert_allclose(found, special.expit(x), rtol=3e-7, equal_nan=True)
        assert found.dtype == x.dtype


def test_quantiles_of_the_normal_distribution():
    """The standard library has them for a number at a time; both round."""
    ends = 2.0 ** -np.arange(2, 53)
    part = np.concatenate([ends, 1 - ends, np.linspace(0.001, 0.999, 997)])
    expected = [statistics.NormalDist().inv_cdf(one) for one in part]
    np.testing.assert_allclose(normal_quantile(part), expected, rtol=1e-14, atol=1e-16)
    assert normal_quantile(part.reshape(-1, 1)).shape == (part.size, 1) and normal_quantile([]).shape == (0,)
    assert normal_quantile(0.5) == 0.0
