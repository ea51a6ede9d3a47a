"""Vector polynomials against float64, over dense ranges and at the edges, at several vector widths."""

import functools
import math

import numpy as np
import pytest
from scipy import special

from hetero_tvm.codegen import vector_math
from hetero_tvm.schedules.emit import Kernel
from tests.schedules.cpu.running import compiled

SIZE = 4096
EDGES = np.array(
    [0.0, -0.0, math.nan, math.inf, -math.inf, 1e-45, -1e-45, 1e-39, 1.2e-38, 3.4e38, -3.4e38, 1.0, -1.0],
    "float32",
)


def gelu(x):
    return 0.5 * x * special.erfc(-x * math.sqrt(0.5))


def gelu_tanh(x):
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return x * special.expit(2 * inner)


EXACT = {
    "exp": np.exp,
    "softmax_exp": np.exp,
    "erf": special.erf,
    "tanh": np.tanh,
    "sigmoid": special.expit,
    "silu": lambda x: x * special.expit(x),
    "quick_gelu": lambda x: x * special.expit(1.702 * x),
    "gelu_erf": gelu,
    "gelu_tanh": gelu_tanh,
    "hard_swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
}
"""Function -> the same in float64."""


def function(k, name, x, lanes):
    peak = (k.splat(0.0, lanes),) if name.startswith("softmax_exp") else ()
    return getattr(vector_math, name)(x, *peak)


def _map(name, lanes):
    k = Kernel()
    with k:
        x, y = k.argument("x", (SIZE,)), k.argument("y", (SIZE,))
        with k.serial(SIZE // lanes) as i:
            at = [k.ramp(i * lanes, lanes)]
            k.store(y, function(k, name, k.load(x, at), lanes), at)
    return k.function, (SIZE,)


@functools.cache
def _library():
    keys = [(name, lanes) for name in (*EXACT, "softmax_exp_of_halves") for lanes in (1, 8, 16)]
    return dict(zip(keys, compiled(_map(*key) for key in keys), strict=True))


def evaluate(name, x, lanes=8):
    x = np.asarray(x, "float32").ravel()
    pieces = [x[i : i + SIZE] for i in range(0, x.size, SIZE)]
    run = _library()[name, lanes]
    return np.concatenate([run(np.pad(piece, (0, SIZE - piece.size)))[: piece.size] for piece in pieces])


def dense(low, high, count=60_000):
    """Evenly spaced, and logarithmically near zero."""
    even = np.linspace(low, high, count)
    small = np.geomspace(1e-30, 1.0, count // 4)
    every = np.concatenate([even, small, -small])
    return every[(every >= low) & (every <= high)].astype("float32")


@pytest.mark.parametrize(("name", "low", "high"), [("exp", -87.3, 88.37), ("softmax_exp", -20, 0)])
def test_exp_is_within_its_error(name, low, high):
    x = dense(low, high)
    truth = np.exp(x.astype("float64"))
    limit = 1.2e-7 if name == "exp" else 1.5e-6  # its argument times log2(e) is rounded
    assert np.max(np.abs(evaluate(name, x) - truth) / truth) < limit


@pytest.mark.parametrize("name", ["erf", "tanh", "sigmoid"])
@pytest.mark.parametrize("reach", [1, 12, 1e3])
def test_bounded_functions_stay_within_their_error(name, reach):
    x = dense(-reach, reach)
    result = evaluate(name, x)
    assert np.max(np.abs(result - EXACT[name](x.astype("float64")))) < (4e-7 if name == "erf" else 3e-7)
    assert np.max(np.abs(result)) <= 1 + 3e-7


@pytest.mark.parametrize(
    "name", ["silu", "quick_gelu", "hard_swish", "gelu_erf", "gelu_tanh", "relu", "relu6"]
)
@pytest.mark.parametrize("reach", [1, 12, 1e4])
def test_activations_stay_within_their_error(name, reach):
    x = dense(-reach, reach)
    error = np.abs(evaluate(name, x) - EXACT[name](x.astype("float64")))
    assert np.max(error / np.maximum(1, np.abs(x))) < (1.5e-6 if name == "gelu_erf" else 3e-7)


@pytest.mark.parametrize("name", ["silu", "quick_gelu", "hard_swish", "gelu_erf", "gelu_tanh"])
def test_large_negative_values_vanish(name):
    result = evaluate(name, [-20.0, -100.0, -1e4, -1e9, -1e30])
    assert np.all(np.abs(result) < 3e-7), result


@pytest.mark.parametrize("name", ["erf", "tanh"])
def test_odd_functions_keep_sign_and_small_values(name):
    x = np.geomspace(1e-34, 1e-3, 500).astype("float32")
    result = evaluate(name, x)
    np.testing.assert_array_equal(evaluate(name, -x), -result)
    np.testing.assert_allclose(result, EXACT[name](x.astype("float64")), rtol=4e-7)


@pytest.mark.parametrize("name", EXACT)
def test_nan_stays_nan(name):
    for lanes in (1, 8, 16):
        x = np.zeros(64, "float32")
        x[[0, 17, 63]] = np.nan
        np.testing.assert_array_equal(np.isnan(evaluate(name, x, lanes)), np.isnan(x))


def test_exp_at_the_edges():
    x = np.array([-np.inf, -1e30, -104, -87.4, 88.8, 1e30, np.inf, 0, -0.0, 1e-45], "float32")
    result = evaluate("exp", x)
    np.testing.assert_array_equal(result, [0, 0, 0, 0, np.inf, np.inf, np.inf, 1, 1, 1])


def test_exp_overflows_where_float32_does():
    last = np.float32(88.72283)  # the largest with a finite result
    x = np.linspace(88.3, last, 5000, dtype="float32")
    result = evaluate("exp", [*x, np.nextafter(last, np.float32(np.inf))])
    np.testing.assert_allclose(result[:-1], np.exp(x.astype("float64")), rtol=4e-7)
    assert np.isinf(result[-1])


@pytest.mark.parametrize("lanes", [1, 8])
def test_what_softmax_exp_hides_weighs_nothing(lanes):
    assert np.all(evaluate("softmax_exp", [-89, -1e30, -np.inf] * 8, lanes) == 0)
    near = evaluate("softmax_exp", np.linspace(-88.2, -87, 64), lanes)
    assert np.all((near >= 0) & (near < 2e-38))


@pytest.mark.parametrize("lanes", [1, 16])
def test_softmax_exp_of_halves(lanes):
    x = np.linspace(-87, 0, SIZE, dtype="float32")
    made = evaluate("softmax_exp_of_halves", x, lanes)
    np.testing.assert_allclose(made, np.exp(x.astype("float64")), rtol=1.1e-4)
    assert made[-1] == 1
    hidden = [-88, -89, -1e30, -np.inf, np.nan] * 8
    np.testing.assert_array_equal(evaluate("softmax_exp_of_halves", hidden, lanes), [0, 0, 0, 0, np.nan] * 8)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("erf", -1, 1), ("tanh", -1, 1), ("sigmoid", 0, 1), ("relu", 0, np.inf), ("relu6", 0, 6)],
)
def test_infinities(name, low, high):
    np.testing.assert_allclose(evaluate(name, [-np.inf, np.inf]), [low, high], atol=3e-7)


@pytest.mark.parametrize("name", EXACT)
def test_all_widths_agree(name):
    x = np.concatenate([dense(-20, 0 if name == "softmax_exp" else 20, 2000), EDGES])
    results = [evaluate(name, x, lanes) for lanes in (1, 8, 16)]
    # fused multiply-adds may be formed differently, never more
    scale = np.maximum(1, np.abs(results[0]))
    for other in results[1:]:
        np.testing.assert_array_equal(np.isfinite(results[0]), np.isfinite(other))
        finite = np.isfinite(other)
        assert np.max(np.abs(results[0][finite] - other[finite]) / scale[finite]) < 3e-7
