"""Products with stored weights against NumPy in float64: every form, every number of rows that matters."""

import dataclasses

import numpy as np
import pytest

from hetero_tvm.ops.decoding.storage import QuantizedWeight, stored
from hetero_tvm.ops.integers.stored_matmul import StoredMatmul
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.schedules.cpu.integers.stored_matmul import StoredMatmulSpace, rounded_bits
from tests.schedules.cpu.running import check_points, covering
from tests.schedules.cpu.test_dots import machine

SPACE = StoredMatmulSpace()
PLAIN = machine(8)
INTEGERS = machine(8, "avx2")
CASES = [
    ((1,), ("bias", "gelu_erf", "residual"), "int4", 32, True, ""),
    ((2, 9), ("bias",), "int8", 32, True, "gelu_tanh"),
    *(
        pytest.param(case, marks=pytest.mark.exhaustive)
        for case in (
            ((3,), (), "int8", 128, False, "silu"),
            ((1,), ("bias",), "f16", 0, False, ""),
            ((13,), ("residual", "relu"), "bf16", 0, False, ""),
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


def test_refusals():
    op = operator(*CASES[0])
    assert SPACE.refuses(op, PLAIN) == "X of 8 bits"
    assert SPACE.refuses(dataclasses.replace(op, x_bits=0), INTEGERS) is None
    assert SPACE.refuses(dataclasses.replace(op, x_bits=16), INTEGERS) == "X of 16 bits"
    assert SPACE.refuses(dataclasses.replace(op, n=0), INTEGERS) == "an extent is zero"
    assert "not a product" in SPACE.refuses(Matmul((1,), 2, 2), INTEGERS)
