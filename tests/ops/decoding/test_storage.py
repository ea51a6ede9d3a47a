import numpy as np
import pytest

from hetero_tvm.errors import UsageError
from hetero_tvm.ops.decoding.storage import (
    QuantizedWeight,
    Storage,
    joined,
    quantized,
    storage_of,
    stored,
    taken,
)


@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize(("name", "steps"), [("int8", 127), ("int4", 7)])
def test_rounding_costs_a_step_at_most(name, steps, zero_points):
    """Half a step; a whole one for 4 bits, whose range ends at 7 on one side, and where zeros are rounded."""
    weight = np.random.default_rng(0).standard_normal((5, 70)).astype(np.float32)
    got = quantized(weight, Storage.named(name, 32, zero_points))
    padded = np.zeros((5, 96), np.float32)
    padded[:, :70] = weight
    peak = np.repeat(np.abs(padded.reshape(5, 3, 32)).max(2), 32, 1)[:, :70]
    step = peak / steps
    assert np.all(
        np.abs(got.dequantized() - weight)
        <= (0.5 if name == "int8" and not zero_points else 1.0) * step + peak * 2**-11
    )


def test_extremes_zeros_and_constants():
    weight = np.zeros((4, 32), np.float32)
    weight[1] = 3.0
    weight[2, 0], weight[2, 1] = -8.0, 7.0
    weight[3] = 1e-9
    for zero_points in (False, True):
        got = quantized(weight, Storage.named("int4", 32, zero_points)).dequantized()
        assert np.isfinite(got).all()
        np.testing.assert_array_equal(got[0], 0)
        np.testing.assert_allclose(got[1], 3.0, rtol=1e-3)
        assert np.abs(got[3]).max() < 1e-6
    got = quantized(weight, Storage.named("int4", 32)).dequantized()
    np.testing.assert_array_equal(got[2], weight[2])  # -8 .. 7 times 1: what four bits hold


def test_stored_forms():
    weight = np.random.default_rng(1).standard_normal((3, 32)).astype(np.float32)
    assert storage_of(stored(weight, Storage.named("f16"))) == Storage("f16")
    assert storage_of(stored(weight, Storage.named("bf16"))) == Storage("bf16")
    assert stored(weight, Storage.named("f32")) is weight
    eight = stored(weight, Storage.named("int8"))
    assert storage_of(eight) == Storage("int8", 128)
    assert stored(eight, Storage.named("f32")) is eight  # integers that a checkpoint brings stay
    assert joined([eight, eight]).shape == (6, 32)
    np.testing.assert_array_equal(joined([eight, eight]).dequantized()[3:], eight.dequantized())


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("int3",), "int3"),
        (("int4", 48), "groups of 48"),
        (("f16", 32), "neither"),
        (("f32", None, True), "zero"),
    ],
)
def test_what_cannot_be_is_refused(arguments, match):
    with pytest.raises(UsageError, match=match):
        Storage.named(*arguments)


def test_bytes_per_weight():
    assert Storage.named("f32").bytes_per_weight == 4
    assert Storage.named("bf16").bytes_per_weight == 2
    assert Storage.named("int4", 32).bytes_per_weight == 0.5 + 2 / 32
    assert Storage.named("int8", 128, True).bytes_per_weight == 1 + 3 / 128


@pytest.mark.parametrize("storage", [Storage("f16"), Storage("int4", 32, True), Storage("int8", 64)], ids=str)
def test_some_rows_in_another_order(storage):
    weight = stored(np.random.default_rng(0).standard_normal((6, 64)).astype(np.float32), storage)
    some = taken(weight, (4, 0, 5))
    floats = [w.dequantized() if isinstance(w, QuantizedWeight) else w for w in (weight, some)]
    assert storage_of(some) == storage
    np.testing.assert_array_equal(floats[1], floats[0][[4, 0, 5]])


@pytest.mark.parametrize("zero_points", [False, True])
def test_large_matrices_are_rounded_piece_by_piece(zero_points, monkeypatch):
    weight = np.random.default_rng(5).standard_normal((23, 70)).astype(np.float32)
    storage = Storage("int4", 32, zero_points)
    whole = quantized(weight, storage)
    monkeypatch.setattr("hetero_tvm.ops.decoding.storage._AT_ONCE", 300)
    pieces = quantized(weight, storage)
    assert pieces.shape == whole.shape
    for name in ("q", "scale", *(["zero"] if zero_points else [])):
        np.testing.assert_array_equal(getattr(pieces, name), getattr(whole, name))
