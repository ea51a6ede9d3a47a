"""The contract of products with stored weights: its reference, and its unscheduled kernel."""

import numpy as np
import pytest

from hetero_tvm.ops.decoding.storage import QuantizedWeight, Storage, stored
from hetero_tvm.ops.integers.stored_matmul import StoredMatmul
from tests.ops.helpers import run_workload


def parts_of(weight):
    if not isinstance(weight, QuantizedWeight):
        return [weight]
    return [part for part in (weight.q, weight.scale, weight.zero) if part is not None]


@pytest.mark.parametrize(
    "op",
    [
        StoredMatmul((2, 3), 5, 70, ("bias", "relu", "residual"), "int4", 32, True, x_bits=8),
        StoredMatmul((2,), 4, 33, ("bias",), "int8", 32, gate="silu", x_bits=16),
        StoredMatmul((9,), 4, 33, (), "bf16"),
    ],
    ids=lambda op: op.form,
)
def test_reference_and_workload(op):
    rng = np.random.default_rng(1)
    wanted = rng.standard_normal((op.columns, op.k), dtype=np.float32)
    weight = stored(wanted, op.storage)
    parts = parts_of(weight)
    x, *extra = (
        rng.standard_normal(o.shape, dtype=np.float32) for o in (op.inputs[0], *op.inputs[1 + len(parts) :])
    )
    assert [a.shape for a in parts] == [o.shape for o in op.inputs[1 : 1 + len(parts)]]
    assert [a.dtype.name for a in parts] == [o.dtype for o in op.inputs[1 : 1 + len(parts)]]
    floats = weight.dequantized() if isinstance(weight, QuantizedWeight) else weight.astype(np.float32)
    y = x.astype(np.float64) @ floats.astype(np.float64).T
    if op.epilogue:
        y = y + extra[0]
    if op.gate:
        gate, up = y[..., : op.n], y[..., op.n :]
        y = gate / (1 + np.exp(-gate)) * up
    elif op.epilogue:
        y = np.maximum(y, 0) + extra[1]
    given = op.reference(x.astype(np.float64), *parts, *extra)
    # X rounded to 8 bits: half a step of 3 / 127 on 70 products of about 1, like a random walk, times five.
    np.testing.assert_allclose(given, y, atol={8: 0.5, 16: 4e-3, 0: 1e-12}[op.x_bits])
    (made,) = run_workload(op, [x, *parts, *extra])
    np.testing.assert_allclose(made, given, atol=1e-4)


def test_zeros_and_what_is_not_finite():
    op = StoredMatmul((4,), 3, 40, (), "int4", 32, x_bits=8)
    x = np.ones((4, 40), np.float32)
    x[0], x[1, 35], x[2, 0] = 0, np.nan, np.inf
    with np.errstate(invalid="ignore"):
        y = op.reference(x, *parts_of(stored(np.ones((3, 40), np.float32), Storage("int4", 32))))
    assert (y[0] == 0).all() and np.isnan(y[1:3]).all() and np.isfinite(y[3]).all()
