"""exp, tanh and sigmoid of float64 against more digits, over ranges and at the edges, at several widths."""

import math

import numpy as np
import pytest

from hetero_tvm.codegen import double_math
from hetero_tvm.schedules.emit import Kernel
from tests.schedules.cpu.running import compiled

SIZE = 4096
EDGES = [
    0.0,
    -0.0,
    math.nan,
    math.inf,
    -math.inf,
    5e-324,
    -1e-310,
    1e-17,
    709.7,
    709.8,
    -708.5,
    -744.9,
    -746.0,
]
EXACT = {
    "exp": (np.exp, [-740, -1, -1e-9], [709, 1, 1e-9], 5e-16),
    "tanh": (np.tanh, [-25, -1, -1e-9], [25, 1, 1e-9], 1e-15),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), [-700, -1], [700, 1], 1e-15),
}
"""Function -> the same in more digits, ranges, the relative error allowed."""


def kernel(name, lanes):
    k = Kernel()
    with k:
        x, y = (k.argument(name, (SIZE,), "float64") for name in "xy")
        with k.serial(SIZE // lanes) as i:
            at = [k.ramp(i * lanes, lanes)]
            k.store(y, getattr(double_math, name)(k.load(x, at)), at)
    return k.function, (SIZE,)


@pytest.mark.parametrize("name", EXACT)
def test_values(name):
    function, lows, highs, tolerance = EXACT[name]
    random = np.random.default_rng(0)
    for run in compiled(kernel(name, lanes) for lanes in (1, 4, 8)):
        for low, high in zip(lows, highs, strict=True):
            x = random.uniform(low, high, SIZE)
            x[: len(EDGES)] = EDGES
            found = run(x)
            with np.errstate(all="ignore"):
                wanted = function(x.astype(np.longdouble)).astype(np.float64)
            # Below the normal numbers there are fewer digits.
            np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=1e-323, equal_nan=True)
            zero = x == 0
            if name == "tanh":
                assert (np.signbit(found[zero]) == np.signbit(x[zero])).all()
