"""Products with stored weights against NumPy in float64: every form, every number of rows that matters."""

import dataclasses

import numpy as np
import pytest

from hetero_tvm.host.cpu import cpu_features
from hetero_tvm.ops.decoding.storage import QuantizedWeight, stored
from hetero_tvm.ops.integers.stored_matmul import StoredMatmul
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.schedules.cpu.integers.stored_matmul import (
    StoredMatmulSpace,
    permitted_bits,
    rounded_bits,
)
from tests.schedules.cpu.running import check_points, covering
from tests.schedules.cpu.test_dots import machine
from tests.selection import thorough

SPACE = StoredMatmulSpace()
PLAIN = machine(8)
INTEGERS = machine(8, "avx2")
VNNI = machine(16, "avx512bw", "avx512_vnni")
CASES = [
    ((1,), ("bias", "gelu_erf", "residual"), "int4", 32, True, ""),
    ((2, 9), ("bias",), "int8", 32, True, "gelu_tanh"),
    *(
        pytest.param(case, marks=pytest.mark.exhaustive)
        for case in (
            ((3,), (), "int8", 128, False, "silu"),
            ((1,), ("bias",), "f16", 0, False, ""),
            ((13,), ("residual", "gate", "relu"), "bf16", 0, False, ""),
        )
    ),
]


def operator(lead, epilogue, form, group, zero_points, gate, here=INTEGERS, n=83, k=70):
    bits = rounded_bits(form, int(np.prod(lead)), here)
    return StoredMatmul(lead, n, k, epilogue, form, group, zero_points, gate, bits)


def arrays_of(op, seed=0):
    """Operands: weights over their whole range, rounded from random ones."""
    rng = np.random.default_rng(seed)
    weight = stored(rng.standard_normal((op.columns, op.k), dtype=np.float32), op.storage)
    parts = [weight]
    if isinstance(weight, QuantizedWeight):
        parts = [part for part in (weight.q, weight.scale, weight.zero) if part is not None]
    x, *extra = (
        rng.standard_normal(o.shape, dtype=np.float32) for o in (op.inputs[0], *op.inputs[1 + len(parts) :])
    )
    return [x, *parts, *extra]


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_choice_computes_the_product(case):
    seen: set = set()
    op = operator(*case)
    assert SPACE.refuses(op, INTEGERS) is None
    # Two steps of rounding X that fall to the other side: 1e-4 of the largest value at most.
    check_points(
        SPACE, op, covering(SPACE, op, INTEGERS, seen), INTEGERS, arrays_of(op), 1e-4 if op.x_bits else 5e-6
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "form, group, zero_points", [("int4", 32, True), ("int8", 64, False), ("f16", 0, False)]
)
@pytest.mark.parametrize("rows", [1, 2, 7, 8, 37])
@pytest.mark.parametrize("here", [PLAIN, INTEGERS], ids=["floats", "integers"])
def test_rows_and_sizes(form, group, zero_points, rows, here):
    for n, k in ((1, 1), (16, 32), (100, 257)):
        op = operator((rows,), ("bias",), form, group, zero_points, "", here, n, k)
        point = SPACE.default(op, here)
        SPACE.check(op, point, here)
        check_points(SPACE, op, [point], here, arrays_of(op), 1e-3 if op.x_bits else 5e-6)


@pytest.mark.skipif(not set(VNNI.features) <= cpu_features(), reason="no AVX-512 VNNI")
@pytest.mark.parametrize("rows", [1, 3, *thorough([37])])
def test_rows_of_8_bits_beside_weights_of_8(rows):
    op = StoredMatmul((rows,), 83, 70, ("bias",), "int8", 32, True, x_bits=permitted_bits("int8", VNNI))
    assert op.x_bits == 8 and permitted_bits("int8", INTEGERS) == 16
    point = SPACE.default(op, VNNI)
    SPACE.check(op, point, VNNI)
    check_points(SPACE, op, [point], VNNI, arrays_of(op), 1e-3)


def test_refusals():
    op = operator(*CASES[0])
    assert SPACE.refuses(op, PLAIN) == "X of 8 bits"
    assert SPACE.refuses(dataclasses.replace(op, x_bits=0), INTEGERS) is None
    assert SPACE.refuses(dataclasses.replace(op, x_bits=16), INTEGERS) == "X of 16 bits"
    assert SPACE.refuses(dataclasses.replace(op, n=0), INTEGERS) == "an extent is zero"
    assert "not a product" in SPACE.refuses(Matmul((1,), 2, 2), INTEGERS)
