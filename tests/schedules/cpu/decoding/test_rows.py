"""Embeddings and norms against NumPy."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.decoding.contracts import Embed, LayerInputs, Linear, Multiply, RowNorm, Xielu
from hetero_tvm.ops.decoding.storage import QuantizedWeight, Storage, stored
from hetero_tvm.schedules.cpu.decoding.layout import PanelLayout
from hetero_tvm.schedules.cpu.decoding.rows import (
    emit_embed,
    emit_layer_inputs,
    emit_multiply,
    emit_norm,
    emit_xielu,
)

MACHINE = CpuModel("x86-64-v3", threads=2)


def run(function, *arrays):
    kernel = compile_kernels(function, tvm.target.Target(MACHINE.codegen_target())).jit()["main"]
    given = [tvm.runtime.tensor(array) for array in arrays]
    kernel(*given)
    return given[-1].numpy()


STORAGES = [Storage("int4", 32, True), pytest.param(Storage("f16"), marks=pytest.mark.exhaustive)]


@pytest.mark.parametrize("storage", STORAGES, ids=str)
def test_packed_table_of_the_logits_serves_as_embedding(storage):
    rows = 9
    random = np.random.default_rng(0)
    table = stored(random.standard_normal((53, 40)).astype(np.float32), storage)
    exact = table.dequantized() if isinstance(table, QuantizedWeight) else table.astype(np.float32)
    learned = random.standard_normal((20, 40)).astype(np.float32)
    ids, positions = random.integers(0, 53, rows).astype(np.int32), np.arange(rows, dtype=np.int32)
    ids[-1] = 52
    op = Embed(53, 40, storage, True, 3.0, 20, 2)
    packed = PanelLayout.of(Linear(53, 40, storage), MACHINE).pack(table)
    y = run(emit_embed(op, MACHINE), ids, positions, *packed, learned, np.zeros((rows, 40), np.float32))
    np.testing.assert_allclose(y, exact[ids] * 3 + learned[positions + 2], rtol=1e-5, atol=1e-6)


def test_tokens_that_a_table_lacks_have_its_first_row():
    table = np.random.default_rng(1).standard_normal((5, 21)).astype(np.float32)
    ids = np.array([4, 5, 900], np.int32)
    op = Embed(5, 21, lacking=True)
    y = run(emit_embed(op, MACHINE), ids, ids, table, np.zeros((3, 21), np.float32))
    np.testing.assert_array_equal(y, table[[4, 0, 0]])


def test_plain_table():
    table = np.random.default_rng(1).standard_normal((5, 21)).astype(np.float16)
    ids = np.array([4, 0], np.int32)
    op = Embed(5, 21, Storage("f16"))
    y = run(emit_embed(op, MACHINE), ids, ids, table, np.zeros((2, 21), np.float32))
    np.testing.assert_array_equal(y, table[ids].astype(np.float32))


@pytest.mark.parametrize("centered", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_norm_of_picked_rows_and_norm_that_is_added(centered):
    random = np.random.default_rng(2)
    x, residual = random.standard_normal((2, 9, 35)).astype(np.float32)
    scale, shift = random.standard_normal((2, 35)).astype(np.float32)
    mean = x.mean(-1, keepdims=True) if centered else 0
    want = (x - mean) / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * scale + shift * centered
    vectors = [scale, shift][: 1 + centered]
    op = RowNorm(35, 1e-5, centered, centered, picked=True)
    picked = np.array([8, 0], np.int32)
    y = run(emit_norm(op, MACHINE), x, *vectors, picked, np.zeros((2, 35), np.float32))
    np.testing.assert_allclose(y, want[picked], rtol=1e-5, atol=1e-5)
    op = RowNorm(35, 1e-5, centered, centered, residual=True)
    y = run(emit_norm(op, MACHINE), x, *vectors, residual, np.zeros((9, 35), np.float32))
    np.testing.assert_allclose(y, want + residual, rtol=1e-5, atol=1e-5)


def test_a_sum_with_a_norm_that_is_multiplied():
    random = np.random.default_rng(3)
    x, residual = random.standard_normal((2, 9, 35)).astype(np.float32)
    scale = random.standard_normal(35).astype(np.float32)
    op = RowNorm(35, 1e-5, residual=True, scaled=True)
    factor = np.array([0.3], np.float32)
    y = run(emit_norm(op, MACHINE), x, scale, residual, factor, np.zeros_like(x))
    want = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale
    np.testing.assert_allclose(y, (want + residual) * factor, rtol=1e-5, atol=1e-6)


def test_rows_of_all_layers_and_those_of_one():
    random = np.random.default_rng(4)
    op = LayerInputs(3, 21, 1e-4)
    x, other = random.standard_normal((2, 9, 63)).astype(np.float32)
    scale = random.standard_normal(21).astype(np.float32)
    y = run(emit_layer_inputs(op, MACHINE), x, scale, other, np.zeros_like(x))
    np.testing.assert_allclose(y, op.reference(x, scale, other), rtol=1e-5, atol=1e-6)
    few = Multiply(21, 63, 42)
    z = run(emit_multiply(few, MACHINE), x[:, :21].copy(), y, np.zeros((9, 21), np.float32))
    np.testing.assert_array_equal(z, few.reference(x[:, :21], y))


def test_an_activation_with_numbers_that_were_learned():
    op = Xielu(37)
    x = np.concatenate([np.linspace(-90, 90, 200), [0.0, -1e-7, 1e-7, -1e-3]]).astype(np.float32)
    x = np.resize(x, (9, 37))
    numbers = np.array([0.8, 0.7, 0.5, -1e-6], np.float32)
    y = run(emit_xielu(op, MACHINE), x, numbers, np.zeros_like(x))
    # Near 0 the exponential less 1 has the rounding of 1.
    np.testing.assert_allclose(y, op.reference(x.astype(np.float64), numbers), rtol=1e-5, atol=2e-7)
