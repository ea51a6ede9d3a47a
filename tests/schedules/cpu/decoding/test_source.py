"""Kernels of encoders against their contracts, for several numbers of rows by one kernel each."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.decoding.contracts import (
    AppendSource,
    Heads,
    RelativeBias,
    Rotate,
    SourceAttention,
    Unfold,
)
from hetero_tvm.schedules.cpu.decoding.append import emit_append_source
from hetero_tvm.schedules.cpu.decoding.source import (
    emit_relative_bias,
    emit_rotate,
    emit_source_attention,
    emit_unfold,
)

MACHINE = CpuModel("x86-64-v3", threads=2)


def compiled(function):
    return compile_kernels(function, tvm.target.Target(MACHINE.codegen_target())).jit()["main"]


def called(kernel, *arrays):
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    kernel(*tensors)
    return [tensor.numpy() for tensor in tensors]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("bias", "heads"), [(False, 3), (True, 3), (True, 1)])
def test_attention_of_any_number_of_rows(bias, heads):
    op = SourceAttention(3, 12, 12**-0.5, 40, bias, heads == 1)
    kernel = compiled(emit_source_attention(op, MACHINE))
    random = np.random.default_rng(0)
    for rows in (1, 7, 16, 40):
        qkv = random.standard_normal((rows, 3 * 36)).astype(np.float32)
        biases = [random.standard_normal((heads, rows, rows)).astype(np.float32)] if bias else []
        got = called(kernel, qkv, *biases, np.full((rows, 36), np.nan, np.float32))[-1]
        want = op.reference(qkv.astype(np.float64), *(b.astype(np.float64) for b in biases))
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)  # sums of 40 in float32


@pytest.mark.parametrize("eps", [None, 1e-5])
def test_rotations_of_any_number_of_rows(eps):
    op = Rotate(3, 12, 20, eps)
    kernel = compiled(emit_rotate(op, MACHINE))
    random = np.random.default_rng(0)
    table = random.standard_normal((20, 12)).astype(np.float32)
    scales = [] if eps is None else list(random.standard_normal((2, 12)).astype(np.float32))
    for rows in (1, 9, 20):
        qkv = random.standard_normal((rows, 3 * 36)).astype(np.float32)
        got = called(kernel, qkv, table, *scales, np.full((rows, 3 * 36), np.nan, np.float32))[-1]
        np.testing.assert_allclose(got, op.reference(qkv, table, *scales), rtol=1e-5, atol=1e-5)


def test_biases_of_any_number_of_rows():
    op = RelativeBias(3, 20)
    kernel = compiled(emit_relative_bias(op, MACHINE))
    table = np.random.default_rng(0).standard_normal((3, 39)).astype(np.float32)
    for rows in (1, 9, 20):
        got = called(kernel, np.zeros(rows, np.int32), table, np.zeros((3, rows, rows), np.float32))[-1]
        np.testing.assert_array_equal(got, op.reference(table, rows))


@pytest.mark.parametrize("stride", [1, 2])
def test_rows_side_by_side(stride):
    op = Unfold(11, 3, stride)
    kernel = compiled(emit_unfold(op, MACHINE))
    for frames in (1, 2, 21):
        x = np.random.default_rng(0).standard_normal((frames, 11)).astype(np.float32)
        want = op.reference(x)
        np.testing.assert_array_equal(called(kernel, x, np.full(want.shape, np.nan, np.float32))[-1], want)


def test_keys_and_values_of_a_source_lie_where_its_table_says():
    heads = Heads(4, 2, 8, layers=2, page=16)
    kernel = compiled(emit_append_source(AppendSource(heads), MACHINE))
    rows = 21
    kv = np.random.default_rng(0).standard_normal((rows, 2 * 2 * 8)).astype(np.float32)
    keys, values = (np.zeros(shape, np.float32) for shape in heads.pools(4))
    places = np.arange(rows, dtype=np.int32), np.zeros(rows, np.int32), np.array([[3, 1]], np.int32)
    *_, keys, values = called(kernel, kv, *places, np.array([1], np.int32), keys, values)
    k, v = kv.reshape(rows, 2, 2, 8).swapaxes(0, 1)
    for row in range(rows):
        page, slot = [3, 1][row // 16], row % 16
        np.testing.assert_array_equal(keys[page, 1, :, 0, :, slot], k[row])
        np.testing.assert_array_equal(values[page, 1, :, slot], v[row])
    assert not keys[[0, 2]].any() and not keys[:, 0].any() and not values[[0, 2]].any()
