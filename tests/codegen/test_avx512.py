"""GELU by a table of cubics: its error, its ends, its table."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import erf

from hetero_tvm import host
from hetero_tvm.codegen import avx512
from hetero_tvm.host.tvm import tirx
from hetero_tvm.schedules.emit import Kernel
from tests.schedules.cpu.running import compiled


@pytest.mark.skipif("avx512f" not in host.cpu_features(), reason="this CPU has no AVX-512")
def test_gelu_of_avx512_stays_within_its_error():
    both = [0.0, 5.2, 5.1999, 20, 1e4, 3e38, 1e-40]
    ends = [*both, *(-value for value in both), np.nan, np.inf]
    x = np.concatenate([np.linspace(-9, 9, 16 * 4000), ends]).astype("float32")
    k = Kernel()
    with k:
        a, b = k.argument("a", x.shape), k.argument("b", x.shape)
        with k.imported(avx512.gelu_erf_ir()), k.serial(len(x) // 16) as i:
            at = k.ramp(i * 16, 16)
            k.store(b, tirx.call_extern("float32x16", avx512.GELU_ERF, k.load(a, [at])), [at])
    (run,) = compiled([(k.function, x.shape)])
    y = run(x)
    exact = x.astype("float64") * 0.5 * (1 + erf(x.astype("float64") / np.sqrt(2)))
    finite = np.isfinite(x)
    error = np.abs(y[finite] - exact[finite])
    # Two units of 1e-6 over the curved part, then the rounding of x itself.
    assert (error <= 2e-6 + 3e-7 * np.abs(exact[finite])).all()
    assert (y[finite & (x <= -5.2)] == 0).all()
    assert np.isnan(y[np.isnan(x)]).all() and y[x == np.inf] == np.inf


def test_table_is_continuous():
    table = avx512.cdf_table().astype("float64")
    left = sum(table[power, 1:] * (-0.5) ** power for power in range(4))
    right = sum(table[power, :-1] * 0.5**power for power in range(4))
    np.testing.assert_allclose(left, right, atol=4e-6)
    assert sum(table[power, -1] * 0.5**power for power in range(4)) == 0.5
