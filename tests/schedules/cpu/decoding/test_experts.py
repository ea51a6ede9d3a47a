"""Mixtures of experts against NumPy in float64."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.decoding.contracts import Linear
from hetero_tvm.ops.decoding.experts import Combine, ExpertLinear, Route
from hetero_tvm.ops.decoding.storage import QuantizedWeight, Storage, stored
from hetero_tvm.schedules.cpu.decoding.experts import emit_combine, emit_expert_linear, emit_route
from hetero_tvm.schedules.cpu.decoding.layout import PanelLayout

MACHINE = CpuModel("x86-64-v3", threads=2)
EXPERTS, TOP, ROWS = 5, 3, 7


def compiled(function):
    return compile_kernels(function, tvm.target.Target(MACHINE.codegen_target())).jit()["main"]


def tensors(*arrays):
    return [tvm.runtime.tensor(array) for array in arrays]


def routed(seed=0):
    logits = np.random.default_rng(seed).standard_normal((ROWS, EXPERTS)).astype(np.float32)
    chosen, shares, order = Route(EXPERTS, TOP).reference(logits)
    return logits, chosen.astype(np.int32), shares, order.astype(np.int32)


@pytest.mark.parametrize("normalised", [True, False])
def test_routes(normalised):
    op = Route(EXPERTS, TOP, normalised)
    logits = routed()[0]
    made = tensors(*(np.zeros(ROWS * TOP, dtype) for dtype in (np.int32, np.float32, np.int32)))
    compiled(emit_route(op, MACHINE))(*tensors(logits), *made)
    chosen, shares, order = op.reference(logits.astype(np.float64))
    np.testing.assert_array_equal(made[0].numpy(), chosen)
    np.testing.assert_allclose(made[1].numpy(), shares, rtol=1e-5)
    np.testing.assert_array_equal(made[2].numpy(), order)


@pytest.mark.parametrize(
    "linear",
    [
        Linear(40, 30, activation="silu", gated=True),
        Linear(41, 64, Storage("bf16")),
        Linear(40, 70, Storage("int4", 32, True), activation="silu", gated=True),
        Linear(33, 128, Storage("int8", 128)),
    ],
    ids=str,
)
def test_products(linear):
    random = np.random.default_rng(1)
    n = linear.n * (1 + linear.gated)
    parts = [
        stored(random.standard_normal((n, linear.k)).astype(np.float32), linear.storage)
        for _ in range(EXPERTS)
    ]
    floats = np.stack([w.dequantized() if isinstance(w, QuantizedWeight) else w for w in parts])
    layout = PanelLayout.of(linear, MACHINE)
    packed = [np.concatenate(arrays) for arrays in zip(*map(layout.pack, parts), strict=True)]
    _, chosen, _, order = routed()
    for spread in (TOP, 1):
        op = ExpertLinear(linear, EXPERTS, spread)
        x = random.standard_normal((ROWS * TOP // spread, linear.k)).astype(np.float32)
        y = tensors(np.full((ROWS * TOP, linear.n), np.nan, np.float32))
        compiled(emit_expert_linear(op, MACHINE))(*tensors(x, chosen, order, *packed), *y)
        want = op.reference(x.astype(np.float64), floats.astype(np.float64), chosen)
        np.testing.assert_allclose(y[0].numpy(), want, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("shared", [False, True])
def test_sums(shared):
    random = np.random.default_rng(2)
    op = Combine(21, TOP, shared)
    shapes = [(ROWS * TOP, 21), (ROWS * TOP,), (ROWS, 21)] + [(ROWS, 21), (ROWS, 1)] * shared
    given = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    y = tensors(np.zeros((ROWS, 21), np.float32))
    compiled(emit_combine(op, MACHINE))(*tensors(*given), *y)
    want = op.reference(*(array.astype(np.float64) for array in given))
    np.testing.assert_allclose(y[0].numpy(), want, rtol=1e-5, atol=1e-5)
