"""Kernels of layers with states against NumPy: sequences in pieces, beside each other, and begun again."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.decoding.states import Columns, DeltaScan, Gate, GatedNorm, Scan, ShortConvolution
from hetero_tvm.schedules.cpu.decoding.states import (
    emit_delta_scan,
    emit_gate,
    emit_gated_norm,
    emit_scan,
    emit_short_convolution,
)
from tests.selection import thorough

MACHINE = CpuModel("x86-64-v3", threads=2)
POOL, PLACE = 700, 40
LENGTHS = (9, 4)
STEPS = (((0, 0, 5),), ((0, 5, 6), (1, 0, 3)), ((1, 3, 4), (0, 6, 9)))
"""Pieces of the steps: sequence, its first row and the end."""


def through(function, operands, constants, width):
    """Results of the sequences of ``operands``, whose rows go through a kernel step by step."""
    kernel = compile_kernels(function, tvm.target.Target(MACHINE.codegen_target())).jit()["main"]
    states = tvm.runtime.tensor(np.full((4, POOL), np.nan, np.float32))
    found = [np.zeros((length, width), np.float32) for length in LENGTHS]
    slots = np.array([3, 1], np.int32)
    for step in STEPS:
        rows = [np.concatenate([operand[s][a:b] for s, a, b in step]) for operand in operands]
        positions = np.concatenate([np.arange(a, b) for _, a, b in step]).astype(np.int32)
        sequences = np.repeat([s for s, _, _ in step], [b - a for _, a, b in step]).astype(np.int32)
        places = [positions, sequences, slots, np.array([PLACE], np.int32)]
        y = tvm.runtime.tensor(np.zeros((len(positions), width), np.float32))
        kernel(*map(tvm.runtime.tensor, (*rows, *constants, *places)), states, y)
        at = 0
        for s, a, b in step:
            found[s][a:b] = y.numpy()[at : at + b - a]
            at += b - a
    left = states.numpy()
    assert np.isnan(left[[0, 2]]).all() and np.isnan(left[:, :PLACE]).all()  # of others, and of other layers
    return found


def rows_of(random, width):
    return [random.standard_normal((length, width)).astype(np.float32) for length in LENGTHS]


@pytest.mark.parametrize(
    "op",
    [
        ShortConvolution(32, 4, Columns(70, 3), POOL, bias=True, activation="silu"),
        ShortConvolution(24, 3, Columns(72), POOL, gated=True),
        ShortConvolution(5, 2, Columns(5), POOL),
    ],
    ids=["mamba", "gated", "odd"],
)
def test_short_convolutions(op):
    random = np.random.default_rng(0)
    x, w = rows_of(random, op.x.total), random.standard_normal((op.size, op.width)).astype(np.float32)
    biases = [random.standard_normal(op.width).astype(np.float32)] if op.bias else []
    for found, rows in zip(
        through(emit_short_convolution(op, MACHINE), [x], [w, *biases], op.width), x, strict=True
    ):
        np.testing.assert_allclose(found, op.reference(rows, w, *biases), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("groups", "heads", "dim", "size"),
    [*thorough([(1, 4, 16, 5)]), (2, 4, 16, 5), *thorough([(1, 2, 32, 8)]), (2, 2, 24, 6)],
)
def test_a_scan_by_heads(groups, heads, dim, size):
    """Also where several vectors of a head go together, and several terms."""
    inner, all_groups = heads * dim, groups * size
    columns = [Columns(inner + 2 * all_groups, first) for first in (0, inner, inner + all_groups)]
    op = Scan(heads, dim, size, *columns, Columns(7 + heads, 7), POOL, groups)
    random = np.random.default_rng(1)
    x, steps = rows_of(random, op.x.total), rows_of(random, 7 + heads)
    steps[0][2] = 30.0  # where the softplus is the identity
    a, skip, bias = random.standard_normal((3, heads)).astype(np.float32)
    constants = [-np.exp(a), skip, bias]
    found = through(emit_scan(op, MACHINE), [x, x, x, steps], constants, inner)
    for got, rows, raw in zip(found, x, steps, strict=True):
        want = op.reference(rows, rows, rows, raw, *constants)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_a_scan_by_channels_with_a_gate():
    inner, size = 40, 6
    op = Scan(
        1,
        inner,
        size,
        Columns(inner),
        Columns(15, 3),
        Columns(15, 9),
        Columns(inner),
        POOL,
        by_channel=True,
        gate=Columns(2 * inner, inner),
    )
    random = np.random.default_rng(2)
    x, shared, steps, gate = (rows_of(random, n) for n in (inner, 15, inner, 2 * inner))
    a = -np.exp(random.standard_normal((size, inner))).astype(np.float32)
    skip = random.standard_normal(inner).astype(np.float32)
    found = through(emit_scan(op, MACHINE), [x, shared, shared, steps, gate], [a, skip], inner)
    for n, got in enumerate(found):
        want = op.reference(x[n], shared[n], shared[n], steps[n], a, skip, gate=gate[n])
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("heads", "values"), [(4, 8), (2, 5)])
def test_a_delta_scan(heads, values):
    op = DeltaScan(heads, 2, 6, values, Columns(2 * heads), Columns(2 * heads, heads), POOL)
    random = np.random.default_rng(4)
    rows, both = rows_of(random, op.width), rows_of(random, 2 * heads)
    a, bias = random.standard_normal((2, heads)).astype(np.float32)
    constants = [-np.exp(a), bias]
    found = through(emit_delta_scan(op, MACHINE), [rows, both, both], constants, heads * values)
    for n, got in enumerate(found):
        want = op.reference(rows[n], both[n], both[n], *constants)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_a_delta_scan_that_forgets_channel_by_channel():
    op = DeltaScan(4, 2, 6, 8, Columns(4), Columns(26, 2), POOL, reach=2.0, by_channel=True)
    random = np.random.default_rng(6)
    rows, shares, steps = (rows_of(random, n) for n in (op.width, 4, 26))
    a, bias = random.standard_normal((2, op.decays)).astype(np.float32)
    constants = [-np.exp(a), bias]
    found = through(emit_delta_scan(op, MACHINE), [rows, shares, steps], constants, 32)
    for n, got in enumerate(found):
        want = op.reference(rows[n], shares[n], steps[n], *constants)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def alone(function, *arrays):
    """Result of a kernel whose rows have nothing to do with one another."""
    kernel = compile_kernels(function, tvm.target.Target(MACHINE.codegen_target())).jit()["main"]
    y = tvm.runtime.tensor(np.zeros((len(arrays[0]), arrays[0].shape[1]), np.float32))
    kernel(*map(tvm.runtime.tensor, arrays), y)
    return y.numpy()


@pytest.mark.parametrize(("groups", "before"), [(1, False), (3, False), (3, True)])
def test_a_gated_norm(groups, before):
    op = GatedNorm(36, groups, 1e-5, Columns(50, 14), before)
    random = np.random.default_rng(3)
    x, gate = (random.standard_normal((9, n)).astype(np.float32) for n in (36, 50))
    scale = random.standard_normal(36).astype(np.float32)
    y = alone(emit_gated_norm(op, MACHINE), x, gate, scale)
    np.testing.assert_allclose(y, op.reference(x, gate, scale), rtol=1e-5, atol=1e-5)


def test_a_norm_behind_a_sigmoid():
    op = GatedNorm(36, 3, 1e-5, Columns(36), True, True)
    x, gate = np.random.default_rng(7).standard_normal((2, 9, 36)).astype(np.float32)
    scale = np.ones(36, np.float32)
    y = alone(emit_gated_norm(op, MACHINE), x, gate, scale)
    np.testing.assert_allclose(y, op.reference(x, gate, scale), rtol=1e-5, atol=1e-5)
    assert np.abs(y).max() <= np.sqrt(12)


def test_a_gate():
    x, gate = np.random.default_rng(5).standard_normal((2, 9, 37)).astype(np.float32)
    y = alone(emit_gate(Gate(37), MACHINE), x, gate)
    np.testing.assert_allclose(y, Gate(37).reference(x, gate), rtol=1e-5, atol=1e-6)
