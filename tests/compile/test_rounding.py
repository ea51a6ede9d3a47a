"""What rounding costs products alone: outliers that smoothing takes away, forms of storage, epilogues."""

import numpy as np

from hetero_tvm.compile.rounding import (
    Product,
    dynamic_layers,
    smoothed_layers,
    smoothing_factors,
    stored_layers,
)
from hetero_tvm.ops.decoding.storage import Storage
from hetero_tvm.ops.gated_matmul import GatedMatmul
from hetero_tvm.ops.matmul import Matmul

RNG = np.random.default_rng(0)


def product(name, op, outliers):
    """Rows whose every sixteenth column is 40 times as large, or not."""
    x = RNG.standard_normal((64, op.k)).astype("float32")
    x[:, ::16] *= 40 if outliers else 1
    columns = op.n * (2 if isinstance(op, GatedMatmul) else 1)
    w = RNG.standard_normal((op.k, columns)).astype("float32")
    w[::16] /= 40 if outliers else 1
    return Product((name,), op, x, np.abs(x).max(0), w, np.ones(columns, "float32"))


def test_smoothing_takes_outliers_away():
    products = [
        product("plain", Matmul((64,), 48, 128, ("bias",)), False),
        product("wild", Matmul((64,), 48, 128, ("bias", "relu")), True),
        product("gated", GatedMatmul((64,), 48, 128, "silu", True), True),
    ]
    before = {layer.nodes[0]: layer.error for layer in dynamic_layers(products, False)}
    layers, factors = smoothed_layers(products, False)
    after = {layer.nodes[0]: layer.error for layer in layers}
    assert {"wild", "gated"} <= set(factors)
    assert after["wild"] < before["wild"] / 4 and after["gated"] < before["gated"] / 4
    assert all(after[name] <= before[name] for name in before)
    assert [layer.error for layer in layers] == sorted(after.values(), reverse=True)


def test_factors_of_columns_without_values():
    largest, w = np.array([0.0, 4, 1], "float32"), np.array([[1.0], [1], [0]], "float32")
    np.testing.assert_array_equal(smoothing_factors(largest, w, 0.5), [1, 1, 1])
    factors = smoothing_factors(np.array([16.0, 1]), np.ones((2, 1)), 0.5)
    np.testing.assert_allclose(factors, [2, 0.5])


def test_storage():
    one = product("plain", Matmul((64,), 48, 128, ("bias",)), False)
    (four,), (eight,) = (stored_layers([one], Storage.named(name)) for name in ("int4", "int8"))
    assert 0.001 < eight.error < 0.02 < four.error < 0.2
    assert stored_layers([product("short", Matmul((64,), 48, 24), False)], Storage.named("int8")) == ()
    assert stored_layers([product("few", Matmul((64,), 4, 64), False)], Storage.named("int8")) == ()
