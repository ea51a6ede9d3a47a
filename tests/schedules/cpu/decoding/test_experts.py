"""Mixtures of experts against NumPy in float64."""

import dataclasses

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.decoding.contracts import Linear
from hetero_tvm.ops.decoding.experts import Combine, ExpertLinear, Route
from hetero_tvm.ops.decoding.storage import QuantizedWeight, Storage, stored
from hetero_tvm.schedules.cpu.decoding.experts import emit_combine, emit_expert_linear
from hetero_tvm.schedules.cpu.decoding.layout import PanelLayout
from hetero_tvm.schedules.cpu.decoding.routing import emit_route
from tests.selection import thorough

MACHINE = CpuModel("x86-64-v3", threads=2)
INTEGERS = dataclasses.replace(MACHINE, features=("avx2",))
EXPERTS, TOP, ROWS, RUN = 5, 3, 13, 6


def compiled(function, machine=MACHINE):
    return compile_kernels(function, tvm.target.Target(machine.codegen_target())).jit()["main"]


def tensors(*arrays):
    return [tvm.runtime.tensor(array) for array in arrays]


def routed(seed=0):
    logits = np.random.default_rng(seed).standard_normal((ROWS, EXPERTS)).astype(np.float32)
    logits[:, 4] = np.where(np.arange(ROWS) == 5, 9, -9)  # a run of one slot
    chosen, shares, order, runs = Route(EXPERTS, TOP).reference(logits, RUN)
    return logits, chosen.astype(np.int32), shares, order.astype(np.int32), runs.astype(np.int32)


@pytest.mark.parametrize(
    "op",
    [
        Route(EXPERTS, TOP),
        *thorough([Route(EXPERTS, TOP, False, scale=2.5)]),
        Route(EXPERTS, TOP, sigmoid=True, corrected=True, scale=2.5),
        *thorough(
            [
                Route(EXPERTS, TOP, corrected=True),
                Route(EXPERTS, TOP, False, corrected=True),
                Route(EXPERTS, 2, sparse=0.1),
            ]
        ),
        Route(8, TOP, False, groups=4, kept=2),
        Route(8, TOP, sigmoid=True, corrected=True, groups=2, kept=1),
    ],
    ids=str,
)
def test_routes(op):
    random = np.random.default_rng(4)
    logits = routed()[0] if op.experts == EXPERTS else random.standard_normal((ROWS, 8)).astype(np.float32)
    correction = random.standard_normal(op.experts).astype(np.float32) if op.corrected else None
    slots = ROWS * op.top
    made = tensors(*(np.zeros(slots, dtype) for dtype in (np.int32, np.float32, np.int32, np.int32)))
    given = tensors(logits) if correction is None else tensors(logits, correction)
    compiled(emit_route(op, MACHINE))(*given, *made)
    chosen, shares, order, runs = op.reference(logits.astype(np.float64), RUN, correction)
    np.testing.assert_array_equal(made[0].numpy(), chosen)
    np.testing.assert_allclose(made[1].numpy(), shares, rtol=1e-5)
    np.testing.assert_array_equal(made[2].numpy(), order)
    np.testing.assert_array_equal(made[3].numpy(), runs)
    assert {0, 6} < set(runs)


@pytest.mark.parametrize("machine", [MACHINE, INTEGERS], ids=["floats", "integers"])
@pytest.mark.parametrize(
    "linear",
    [
        *thorough([Linear(40, 30, activation="silu", gated=True)]),
        Linear(41, 64, Storage("bf16"), activation="relu2"),
        Linear(40, 70, Storage("int4", 32, True), activation="silu", gated=True),
        *thorough(
            [
                Linear(33, 128, Storage("int8", 128)),
                Linear(40, 30, bias=True, activation="quick_gelu", gated=True, limit=0.5),
                Linear(41, 64, Storage("int4", 32), bias=True),
            ]
        ),
    ],
    ids=str,
)
def test_products(linear, machine):
    random = np.random.default_rng(1)
    n = linear.n * (1 + linear.gated)
    parts = [
        stored(random.standard_normal((n, linear.k)).astype(np.float32), linear.storage)
        for _ in range(EXPERTS)
    ]
    floats = np.stack([w.dequantized() if isinstance(w, QuantizedWeight) else w for w in parts])
    layout = PanelLayout.of(linear, machine)
    packed = [np.concatenate(arrays) for arrays in zip(*map(layout.pack, parts), strict=True)]
    bias = random.standard_normal((EXPERTS, n)).astype(np.float32) if linear.bias else None
    if bias is not None:
        packed.append(np.concatenate([layout.pack_bias(one) for one in bias]))
    _, chosen, _, order, runs = routed()
    for spread in (TOP, 1):
        op = ExpertLinear(linear, EXPERTS, spread)
        x = random.standard_normal((ROWS * TOP // spread, linear.k)).astype(np.float32)
        y = tensors(np.full((ROWS * TOP, linear.n), np.nan, np.float32))
        compiled(emit_expert_linear(op, machine), machine)(*tensors(x, chosen, order, runs, *packed), *y)
        want = op.reference(x.astype(np.float64), floats.astype(np.float64), chosen, bias)
        # Rows beside weights of 4 bits are rounded to 8 bits, those beside 8 to 16.
        coarse = {"int4": 2e-2, "int8": 1e-4}.get(linear.storage.name, 0) if machine is INTEGERS else 0
        tolerance = 2e-4 + coarse * np.abs(want).max()
        np.testing.assert_allclose(y[0].numpy(), want, rtol=2e-4, atol=tolerance)
        alone = tensors(np.full((ROWS * TOP, linear.n), np.nan, np.float32))
        places = np.arange(ROWS * TOP, dtype=np.int32)
        ones = np.ones_like(places)
        compiled(emit_expert_linear(op, machine), machine)(*tensors(x, chosen, places, ones, *packed), *alone)
        np.testing.assert_array_equal(alone[0].numpy(), y[0].numpy())  # whatever a slot's company
    scaled = dataclasses.replace(op, scaled=True)
    shares = random.uniform(0.2, 2.0, ROWS * TOP).astype(np.float32)
    compiled(emit_expert_linear(scaled, machine), machine)(
        *tensors(x, chosen, order, runs, shares, *packed), *y
    )
    want = op.reference(x.astype(np.float64), floats.astype(np.float64), chosen, bias, shares)
    tolerance = 4e-4 + 2 * coarse * np.abs(want).max()
    np.testing.assert_allclose(y[0].numpy(), want, rtol=2e-4, atol=tolerance)


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
    if not shared:  # the sum alone, which a norm reads
        alone = dataclasses.replace(op, residual=False)
        compiled(emit_combine(alone, MACHINE))(*tensors(*given[:2]), *y)
        np.testing.assert_allclose(y[0].numpy(), want - given[2], rtol=1e-5, atol=1e-5)
        plain = dataclasses.replace(alone, shares=False)
        compiled(emit_combine(plain, MACHINE))(*tensors(given[0]), *y)
        np.testing.assert_allclose(y[0].numpy(), given[0].reshape(ROWS, TOP, -1).sum(1), rtol=1e-5, atol=1e-5)
