"""Contracts of products whose rows are quantised: quantisers, references, unscheduled kernels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_tvm.ops.integers.dynamic_matmul import (
    DynamicGatedMatmul,
    DynamicMatmul,
    quantized_rows,
    quantized_weights,
)
from hetero_tvm.schedules.cpu.dots import safe_pairs
from tests.ops.helpers import check


def arrays_of(op, seed=0):
    rng = np.random.default_rng(seed)
    x, w, scale, *extra = (rng.standard_normal(operand.shape).astype("float32") for operand in op.inputs)
    return [x, quantized_weights(w, False)[0], np.abs(scale), *extra]


def by_hand(x, w, scale):
    """Row by row, with ONNX's formula of DynamicQuantizeLinear."""
    rows = []
    for row in x.reshape(-1, x.shape[-1]).astype(np.float32):
        low, high = min(row.min(), np.float32(0)), max(row.max(), np.float32(0))
        inverse = np.float32(255) / (high - low)
        zero = np.rint(-low * inverse)
        u = np.clip(np.rint(row * inverse) + zero, 0, 255).astype(np.int64)
        step = (high - low) / np.float32(255)
        rows.append(((u - int(zero)) @ w.astype(np.int64)) * (float(step) * scale))
    return np.array(rows).reshape(*x.shape[:-1], w.shape[1])


def test_product_with_epilogue():
    op = DynamicMatmul((2, 3), 5, 11, ("bias", "relu", "residual"))
    check(op, lambda x, w, s, b, r: np.maximum(by_hand(x, w, s) + b, 0) + r, arrays_of(op), tolerance=5e-6)
    assert op.label == "dynamic_matmul_6x11x5_bias_relu_residual"


@pytest.mark.parametrize("biased", [False, True])
def test_gated_product(biased):
    op = DynamicGatedMatmul((4,), 3, 10, "silu", biased)

    def formula(x, w, s, bias=0):
        both = by_hand(x, w, s) + bias
        return both[:, :3] / (1 + np.exp(-both[:, :3])) * both[:, 3:]

    check(op, formula, arrays_of(op), tolerance=5e-6)
    assert op.flops == 2 * DynamicMatmul((4,), 3, 10).flops


def test_rows():
    x = np.array([[0, 1, 2], [-3, 0, 0], [5, 5, 5], [0, 0, 0], [1, np.nan, 0]], np.float32)
    u, scale, zero = quantized_rows(x)
    np.testing.assert_array_equal(u[:4], [[0, 128, 255], [0, 255, 255], [255, 255, 255], [0, 0, 0]])
    np.testing.assert_array_equal(zero[:4, 0], [0, 255, 0, 0])
    np.testing.assert_allclose(scale[:4, 0], np.float32([2, 3, 5, 0]) / 255)
    assert np.isnan(scale[4])


@given(st.integers(1, 9), st.integers(1, 40), st.integers(0, 99))
@settings(max_examples=30)
def test_rows_are_within_half_a_step(rows, columns, seed):
    x = np.random.default_rng(seed).standard_normal((rows, columns)).astype("float32") * 10
    u, scale, zero = quantized_rows(x)
    assert (np.abs((u - zero) * scale - x) <= scale * 1.001).all()
    assert u.min() >= 0 and u.max() <= 255


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 99), st.integers(0, 2))
@settings(max_examples=30)
def test_weights_are_within_half_a_step(k, n, seed, safe):
    w = np.random.default_rng(seed).standard_normal((k, n)).astype("float32")
    q, scale = quantized_weights(w, safe)
    assert (np.abs(q * scale - w) <= 0.5001 * scale).all()
    assert safe_pairs(q) >= safe
    assert safe or np.abs(q).max() == 127


def test_columns_of_zeros():
    for pairs in (0, True, 2):
        q, scale = quantized_weights(np.zeros((4, 2), np.float32), pairs)
        assert not q.any() and not scale.any()
