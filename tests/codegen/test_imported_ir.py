"""Functions that kernels import as LLVM IR."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import erf

from hetero_tvm import host
from hetero_tvm.codegen import avx512, transpose
from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.schedules.emit import Kernel, int32, tirx
from hetero_tvm.targets.registry import parse_target


def run(k: Kernel, *arrays: np.ndarray) -> None:
    """Run a kernel on arrays in place (the last is the result)."""
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    compile_kernels(k.function, parse_target("cpu").tvm_target).jit()["main"](*tensors)
    arrays[-1][...] = tensors[-1].numpy()


@pytest.mark.parametrize("lanes", (4, 8, 16))
def test_transposes_a_block_inside_a_matrix(lanes):
    source = np.random.default_rng(0).standard_normal((lanes + 3, lanes + 5)).astype("float32")
    target = np.full((lanes + 2, lanes + 1), -1, "float32")
    k = Kernel()
    with k:
        x, y = k.argument("x", source.shape), k.argument("y", target.shape)
        with k.imported(transpose.ir(lanes)):
            strides = int32(target.shape[1]), int32(source.shape[1])
            k.call(
                transpose.name_of(lanes), k.address(y, [1, 1]), strides[0], k.address(x, [2, 3]), strides[1]
            )
    expected = target.copy()
    expected[1 : 1 + lanes, 1 : 1 + lanes] = source[2 : 2 + lanes, 3 : 3 + lanes].T
    run(k, source, target)
    # What was not written is whatever the fresh tensor held: -1.
    np.testing.assert_array_equal(target, expected)


@pytest.mark.skipif("avx512f" not in host.cpu_features(), reason="this CPU has no AVX-512")
def test_gelu_of_avx512_stays_within_its_error():
    both = [0.0, 5.2, 5.1999, 20, 1e4, 3e38, 1e-40]
    ends = [*both, *(-value for value in both), np.nan, np.inf]
    x = np.concatenate([np.linspace(-9, 9, 16 * 4000), ends]).astype("float32")
    y = np.empty_like(x)
    k = Kernel()
    with k:
        a, b = k.argument("a", x.shape), k.argument("b", x.shape)
        with k.imported(avx512.gelu_erf_ir()), k.serial(len(x) // 16) as i:
            at = k.ramp(i * 16, 16)
            k.store(b, tirx.call_extern("float32x16", avx512.GELU_ERF, k.load(a, [at])), [at])
    run(k, x, y)
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
