"""Vector logarithms, powers and angles against float64, over ranges and at the edges, at several widths."""

import math

import numpy as np
import pytest

from hetero_tvm.codegen import vector_functions
from hetero_tvm.schedules.emit import Kernel
from tests.schedules.cpu.running import compiled
from tests.selection import thorough

SIZE = 4096
EDGES = np.array(
    [
        0.0,
        -0.0,
        math.nan,
        math.inf,
        -math.inf,
        1e-45,
        -1e-45,
        1.2e-38,
        3.4e38,
        1.0,
        -1.0,
        0.5,
        2.0,
        -2.0,
        3.0,
    ],
    "float32",
)
EXACT = {
    "log": (np.log, 0, 100, 2e-7),
    "log10": (np.log10, 0, 1e6, 3e-7),
    "log1p": (np.log1p, -1, 4, 3e-7),
    "atanh": (np.arctanh, -1, 1, 5e-7),
    "sin": (np.sin, -50, 50, 2e-7),
    "cos": (np.cos, -1e6, 1e6, 2e-7),
    "tan": (np.tan, -20, 20, 4e-7),
    "atan": (np.arctan, -30, 30, 3e-7),
    "asin": (np.arcsin, -1, 1, 5e-7),
    "acos": (np.arccos, -1, 1, 3e-7),
    "nearbyint": (lambda x: np.rint(x), -40, 40, 0),
}
"""Function -> the same in float64, a range, the relative error allowed."""


def kernel(name, lanes, operands):
    k = Kernel()
    with k:
        xs = [k.argument(f"x{n}", (SIZE,)) for n in range(operands)]
        y = k.argument("y", (SIZE,))
        with k.serial(SIZE // lanes) as i:
            at = [k.ramp(i * lanes, lanes)]
            k.store(y, getattr(vector_functions, name)(*(k.load(x, at) for x in xs)), at)
    return k.function, (SIZE,)


def close(actual, expected, tolerance):
    with np.errstate(all="ignore"):
        small = np.abs(expected) < np.finfo("float32").tiny  # what is flushed or has few digits
        good = np.abs(actual - expected) <= tolerance * np.maximum(np.abs(expected), small * 1e-30)
        expected = expected.astype("float32")
        return (
            good
            | (actual == expected)
            | (np.isnan(actual) & np.isnan(expected))
            | (small & (np.abs(actual) < 1.3e-38))
        )


@pytest.mark.parametrize("lanes", [*thorough([1, 8]), 16])
def test_functions_of_one_number(lanes):
    random = np.random.default_rng(0)
    runs = compiled(kernel(name, lanes, 1) for name in EXACT)
    for (name, (exact, low, high, tolerance)), run in zip(EXACT.items(), runs, strict=True):
        x = random.uniform(low, high, SIZE).astype("float32")
        edges = EDGES[np.abs(EDGES) < 1e9] if name in ("sin", "cos", "tan") else EDGES
        edges = np.append(edges, np.float32([math.nan, math.inf]))
        x[: len(edges)] = edges
        with np.errstate(all="ignore"):
            good = close(run(x), exact(x.astype("float64")), tolerance)
        assert good.all(), (name, x[~good], run(x)[~good])


def test_huge_angles_stay_between_one_and_minus_one():
    (run,) = compiled([kernel("sin", 16, 1)])
    x = np.float32(10.0) ** np.linspace(9, 38, SIZE, dtype="float32")
    assert (np.abs(run(x)) <= 1).all()


def test_halves_go_to_the_even_number():
    (run,) = compiled([kernel("nearbyint", 16, 1)])
    x = np.resize(np.float32([0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, 8388607.5, 1e10, -0.2]), SIZE)
    np.testing.assert_array_equal(run(x), np.rint(x))
    np.testing.assert_array_equal(np.signbit(run(x)), np.signbit(np.rint(x)))


@pytest.mark.parametrize("lanes", [1, 16])
def test_remainders(lanes):
    random = np.random.default_rng(2)
    (run,) = compiled([kernel("fmod", lanes, 2)])
    pairs = np.array(np.meshgrid(EDGES, EDGES)).reshape(2, -1)
    pairs = pairs[:, np.abs(pairs[0]) / 4e27 < np.abs(pairs[1])]
    for low, high, by in ((-10, 10, 3), (-1e6, 1e6, 1e-3), (-3, 3, 1e20), (-1e23, 1e23, 1)):
        x, y = (random.uniform(*ends, SIZE).astype("float32") for ends in ((low, high), (-by, by)))
        x[: pairs.shape[1]], y[: pairs.shape[1]] = pairs
        x[-4:], y[-4:] = (1e24, 9, 7.5, np.inf), (3e-3, 3, -2.5, 2)
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(run(x, y), np.fmod(x, y))


@pytest.mark.parametrize("lanes", [*thorough([1]), 16])
def test_powers(lanes):
    random = np.random.default_rng(1)
    (run,) = compiled([kernel("power", lanes, 2)])
    pairs = np.array(np.meshgrid(EDGES, EDGES)).reshape(2, -1)
    for low, high, exponents in ((0, 10, 5), (0.9, 1.1, 800), (-4, 4, 6)):
        x, y = random.uniform(low, high, SIZE), random.uniform(-exponents, exponents, SIZE)
        x, y = x.astype("float32"), (np.round(y) if low < 0 else y).astype("float32")
        x[: pairs.shape[1]], y[: pairs.shape[1]] = pairs
        with np.errstate(all="ignore"):
            expected = np.power(x.astype("float64"), y.astype("float64"))
            actual, single = run(x, y), expected.astype("float32")
        good = close(actual, np.where(np.isinf(single), single.astype("float64"), expected), 5e-7)
        assert good.all(), (x[~good], y[~good], actual[~good], expected[~good])
