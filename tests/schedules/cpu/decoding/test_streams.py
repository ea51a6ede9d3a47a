"""Sums of streams, rows with the mean square of others, and gates of few channels against NumPy."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.decoding.streams import Mix, Rescale, SparseGate
from hetero_tvm.schedules.cpu.decoding.streams import emit_mix, emit_rescale, emit_sparse_gate

MACHINE = CpuModel("x86-64-v3", threads=2)


def run(function, arrays, results=1):
    kernel = compile_kernels(function, tvm.target.Target(MACHINE.codegen_target())).jit()["main"]
    given = [tvm.runtime.tensor(array) for array in arrays]
    kernel(*given)
    return [one.numpy() for one in given[-results:]]


@pytest.mark.parametrize("rows", [1, 9])
def test_streams_are_mixed_row_by_row(rows):
    random = np.random.default_rng(0)
    op = Mix(37, 3, 2)
    streams = list(random.standard_normal((3, rows, 37)).astype(np.float32))
    shares = random.standard_normal((rows, 6)).astype(np.float32)
    made = run(emit_mix(op, MACHINE), [*streams, shares, *np.zeros((2, rows, 37), np.float32)], 2)
    for got, want in zip(made, op.reference(*streams, shares), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(made[1][0], shares[0, 3:] @ np.stack(streams)[:, 0], rtol=1e-5, atol=1e-6)
    fixed = Mix(37, 2, 1, (0.5, -2.0))
    (y,) = run(emit_mix(fixed, MACHINE), [*streams[:2], np.zeros((rows, 37), np.float32)])
    np.testing.assert_allclose(y, 0.5 * streams[0] - 2 * streams[1], rtol=1e-5, atol=1e-6)


def test_rows_have_the_mean_square_of_others():
    random = np.random.default_rng(1)
    op = Rescale(21)
    x, other = random.standard_normal((2, 9, 21)).astype(np.float32)
    x[3] = 0
    x[4] *= 1e-4
    (y,) = run(emit_rescale(op, MACHINE), [x, other, np.zeros_like(x)])
    np.testing.assert_allclose(y, op.reference(x, other), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose((y[0] ** 2).mean(), (other[0] ** 2).mean(), rtol=1e-5)


@pytest.mark.parametrize("cut", [1.6448536, 0.0])
def test_channels_far_above_the_mean_count(cut):
    op = SparseGate(53, cut)
    x = np.random.default_rng(2).standard_normal((9, 106)).astype(np.float32) + 3
    (y,) = run(emit_sparse_gate(op, MACHINE), [x, np.zeros((9, 53), np.float32)])
    want = op.reference(x.astype(np.float64))
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)
    assert 0 < np.count_nonzero(y) < y.size * (0.2 if cut else 0.7)
