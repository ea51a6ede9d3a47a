"""Products against NumPy in float64, for every number of rows that takes another way through the kernel."""

import dataclasses

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.decoding.contracts import Linear
from hetero_tvm.ops.decoding.storage import QuantizedWeight, Storage, stored
from hetero_tvm.schedules.cpu.decoding.layout import PanelLayout
from hetero_tvm.schedules.cpu.decoding.linear import emit_linear

MACHINE = CpuModel("x86-64-v3", threads=2)
INTEGERS = dataclasses.replace(MACHINE, features=("avx2",))
ROWS = (1, 2, 3, 7, 8, 13, 100, 200)
FEW = 8

CASES = [
    Linear(100, 70, Storage("int4", 32, True), bias=True, activation="silu", gated=True),
    *(
        pytest.param(op, marks=pytest.mark.exhaustive)
        for op in (
            Linear(100, 50, bias=True, residual=True),
            Linear(1000, 64, Storage("f16"), softcap=5.0),
            Linear(72, 64, activation="gelu_tanh", gated=True),
            Linear(37, 30, activation="gelu_erf", bias=True),
            Linear(96, 256, Storage("int8", 128)),
            Linear(100, 100, Storage("int4", 128), residual=True),
            Linear(64, 70, Storage("int8", 32, True), bias=True),
            Linear(1, 1),
        )
    ),
]


def tensors(arrays):
    return [tvm.runtime.tensor(array) for array in arrays]


@pytest.mark.thorough
@pytest.mark.parametrize("integers", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("op", CASES, ids=str)
def test_numbers(op, integers):
    """With the integer instructions of a machine, and without."""
    machine = INTEGERS if integers else MACHINE
    random = np.random.default_rng(0)
    layout = PanelLayout.of(op, MACHINE)
    columns = op.n * (1 + op.gated)
    weight = stored((random.standard_normal((columns, op.k)) / op.k**0.5).astype(np.float32), op.storage)
    exact = weight.dequantized() if isinstance(weight, QuantizedWeight) else weight
    target = tvm.target.Target(MACHINE.codegen_target())
    kernel = compile_kernels(emit_linear(op, machine), target).jit()["main"]
    packed = layout.pack(weight)
    assert [(a.shape, a.dtype.name) for a in packed] == [
        (shape, dtype) for _, shape, dtype in layout.arrays()
    ]
    bias = random.standard_normal(columns).astype(np.float32) if op.bias else None
    given = tensors([*packed, *([layout.pack_bias(bias)] if op.bias else [])])
    same_row, alone = random.standard_normal(op.k).astype(np.float32), None
    for rows in ROWS:
        x = random.standard_normal((rows, op.k)).astype(np.float32)
        x[-1] = same_row
        residual = (
            np.tile(random.standard_normal(op.n).astype(np.float32), (rows, 1)) if op.residual else None
        )
        y = tvm.runtime.tensor(np.full((rows, op.n), np.nan, np.float32))
        kernel(*tensors([x]), *given, *(tensors([residual]) if op.residual else []), y)
        want = op.reference(x.astype(np.float64), exact.astype(np.float64), bias, residual)
        # Sums of up to 256 float32 products, and polynomials for the activations.  Rounded x: half a step of
        # 3 / 127 (or 3 / 32767) per product with weights of 1 / sqrt(k), which add up like a random
        # walk to 0.01 (0.00004); five times that, and the gate multiplies it.
        rounding = {"int4": 0.1, "int8": 6e-4}.get(op.storage.name, 0) if integers and rows < FEW else 0
        np.testing.assert_allclose(y.numpy(), want, rtol=2e-5, atol=2e-5 + rounding)
        last = y.numpy()[-1] - (residual[-1] if op.residual else 0)
        if rows == 1:
            alone = last
        elif not op.residual and (rows < FEW or not op.storage.bits):
            np.testing.assert_array_equal(last, alone)  # the same bits alone and among others


def test_threads_share_groups_of_panels():
    """Few columns: one panel at a time, so that every thread has some."""
    few, many = (PanelLayout.of(Linear(n, 64), MACHINE) for n in (96, 32000))
    assert (few.together, many.together) == (1, 4)
    wide = dataclasses.replace(MACHINE, lanes=16, registers=32)
    assert PanelLayout.of(Linear(96, 64), wide).width == 32
