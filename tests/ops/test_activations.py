import numpy as np
import pytest
from scipy import special

from hetero_tvm.host.activation_names import leaky_name
from hetero_tvm.ops.activations import ACTIVATIONS

EXACT = {
    "relu": lambda x: np.where(x > 0, x, 0),
    "relu6": lambda x: np.where(x > 0, np.where(x < 6, x, 6), 0),
    "gelu_erf": lambda x: x * special.ndtr(x),
    "gelu_tanh": lambda x: x * special.expit(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)),
    "silu": lambda x: x * special.expit(x),
    "quick_gelu": lambda x: x * special.expit(1.702 * x),
    "hard_swish": lambda x: np.where(x < -3, 0, np.where(x > 3, x, x * (x + 3) / 6)),
    "leaky_relu_0p1": lambda x: np.maximum(x, 0.1 * x),
    "sigmoid": special.expit,
    "tanh": lambda x: 2 * special.expit(2 * x) - 1,
}
"""The activations by their definitions, with SciPy's functions."""


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_against_scipy(name):
    x = np.linspace(-8, 8, 401)
    np.testing.assert_allclose(ACTIVATIONS[name](x), EXACT[name](x), atol=1e-14)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_values_at_the_ends(name):
    """NaN stays; far to the right an activation is x or its bound, far to the left nothing."""
    with np.errstate(all="ignore"):
        low, high, nan = ACTIVATIONS[name](np.array([-700.0, 700.0, np.nan]))
    bound = {"relu6": 6, "sigmoid": 1, "tanh": 1}.get(name, 700)
    assert high == bound and low == pytest.approx({"tanh": -1, "leaky_relu_0p1": -70}.get(name, 0), abs=1e-12)
    assert np.isnan(nan)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_dtypes_stay(name):
    assert ACTIVATIONS[name](np.zeros(3, np.float32)).dtype == np.float32


@pytest.mark.parametrize("slope", [0.01, 0.2, 1 / 3, 1e-5, 0.999])
def test_leaky_units_of_any_slope(slope):
    name, x = leaky_name(slope), np.float32([-3, -0.0, 0, 2, -np.inf, np.inf, np.nan])
    assert name in ACTIVATIONS and name.replace("_", "").isalnum()
    np.testing.assert_array_equal(ACTIVATIONS[name](x), np.where(x > 0, x, np.float32(slope) * x))


def test_other_names():
    assert [leaky_name(slope) for slope in (0.0, 1.0, -0.1, 2.0)] == [None] * 4
    assert "swoosh" not in ACTIVATIONS
    with pytest.raises(KeyError, match="swoosh"):
        ACTIVATIONS["swoosh"]
