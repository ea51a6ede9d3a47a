"""Products of quantised rows: every choice and every way to multiply, tails, extremes, NaN."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_tvm.ops.activations import ACTIVATIONS
from hetero_tvm.ops.integers.dynamic_matmul import DynamicGatedMatmul, DynamicMatmul, quantized_weights
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.cpu.dots import safe_pairs
from hetero_tvm.schedules.cpu.integers.dynamic_matmul import (
    DynamicGatedMatmulSpace,
    DynamicMatmulSpace,
    grids,
)
from tests.schedules.cpu.running import check_points, covering, point_runners
from tests.schedules.cpu.test_dots import machine, runnable
from tests.selection import thorough

PLAIN, GATED = DynamicMatmulSpace(), DynamicGatedMatmulSpace()
WAYS = [
    pytest.param(
        one, id=f"{one.lanes}-{'-'.join(one.features)}", marks=() if index == 0 else pytest.mark.exhaustive
    )
    for index, one in enumerate(runnable())
]
"""Machines whose kernels run here: the widest by default."""


def arrays_of(op, seed=0):
    """Operands whose weights use all of int8, pair-safe ones where the operator says so."""
    rng = np.random.default_rng(seed)
    x, w, scale, *extra = (rng.standard_normal(operand.shape).astype("float32") for operand in op.inputs)
    weights, _ = quantized_weights(w, op.pairs_safe)
    return [4 * x + 1, weights, np.abs(scale) + np.float32(0.1), *extra]


@pytest.mark.exhaustive
@pytest.mark.parametrize("here", WAYS)
@pytest.mark.parametrize("safe", [0, 1, 2])
def test_every_choice_computes_the_product(here, safe):
    lanes = here.lanes
    seen: set = set()
    for space, op in (
        (PLAIN, DynamicMatmul((2, 29), 5 * lanes + 7, 19, ("bias", "gelu_erf", "residual"), safe)),
        (PLAIN, DynamicMatmul((1,), 3 * lanes, 8, (), safe)),
        (PLAIN, DynamicMatmul((3,), 1, 5, ("bias",), safe)),
        (PLAIN, DynamicMatmul((17,), lanes - 1, 1, ("residual", "silu", "gate", "bias"), safe)),
        (GATED, DynamicGatedMatmul((2, 13), 2 * lanes + 3, 21, "silu", True, safe)),
        (GATED, DynamicGatedMatmul((3,), 1, 7, "gelu_tanh", False, safe)),
    ):
        assert space.refuses(op, here) is None
        check_points(space, op, covering(space, op, here, seen), here, arrays_of(op), tolerance=5e-6)


@pytest.mark.thorough
@settings(max_examples=10)
@given(st.data())
def test_random_shapes_and_points(data):
    here = data.draw(st.sampled_from(runnable()))
    sizes = st.integers(1, 70)
    steps = data.draw(st.lists(st.sampled_from(["bias", "residual", "gate", *ACTIVATIONS]), max_size=3))
    lead, n, k = (data.draw(sizes),), data.draw(sizes), data.draw(sizes)
    op = DynamicMatmul(lead, n, k, tuple(steps), data.draw(st.integers(0, 2)))
    point = {knob.name: data.draw(st.sampled_from(knob.choices)) for knob in PLAIN.knobs(op, here)}
    check_points(PLAIN, op, [point], here, arrays_of(op), tolerance=5e-6)


@pytest.mark.parametrize("here", [pytest.param(*one.values, id=one.id) for one in WAYS])
@pytest.mark.parametrize("safe", [0, *thorough([1]), 2])
def test_nothing_saturates_at_the_extremes(here, safe):
    """Rows of 0 and 255 steps times the largest weights, in every sign: int32 sums are exact."""
    k, n = 4096, 16
    op = DynamicMatmul((4,), n, k, (), safe)
    large = (127, 64, 32)[safe]
    w = np.empty((k, n), np.int8)
    w[:, 0::4], w[:, 1::4] = large, -large
    w[0::2, 2::4], w[1::2, 2::4] = large, -large
    w[:, 3::4] = -(large + (safe == 0))
    if safe == 2:  # four weights that meet may be one of 128
        w[:, 5] = 0
        w[0::8, 5], w[2::8, 5] = -128, 127
    assert safe_pairs(w) == safe
    x = np.ones((4, k), np.float32)  # 255 throughout, zero point 0
    x[1] = -1  # 0 throughout, zero point 255
    x[2, ::2] = -1
    x[3, 1::4] = 3e30
    (run,) = point_runners(PLAIN, op, [PLAIN.default(op, here)], here)
    scale = np.ones(n, np.float32)
    wanted = op.reference(x.astype(np.float64), w, scale)
    np.testing.assert_allclose(run(x, w, scale), wanted, rtol=1e-6)
    np.testing.assert_allclose(wanted[:2], x[:2].astype(np.float64) @ w, rtol=1e-6)


def test_rows_that_are_not_finite_are_nan_and_others_are_not():
    here = runnable()[0]
    op = DynamicMatmul((6,), 24, 40, ("bias",))
    x, *rest = arrays_of(op)
    x[1, 7], x[2, 39], x[4, 0], x[5] = np.nan, np.inf, -np.inf, 0
    (run,) = point_runners(PLAIN, op, [PLAIN.default(op, here)], here)
    y = run(x, *rest)
    np.testing.assert_array_equal(np.isnan(y).all(1), [False, True, True, False, True, False])
    assert np.isfinite(y[[0, 3, 5]]).all()
    np.testing.assert_array_equal(y[5], rest[2])  # zeros give the bias, exactly


@pytest.mark.thorough
def test_default_is_a_choice_for_all_sizes():
    for here in (*runnable(), machine(16, "avx512f", "avx512bw"), machine(4)):
        for m in (1, 2, 5, 13, 128, 1000):
            for n in (1, 7, 64, 2304, 30522):
                op = DynamicMatmul((m,), n, 3 if m == 5 else 768)
                PLAIN.check(op, PLAIN.default(op, here), here)
                gated = DynamicGatedMatmul((m,), n, 768)
                GATED.check(gated, GATED.default(gated, here), here)


def test_one_row_has_several_sums_although_it_waits_for_its_weights():
    for here in (machine(8, "avx2"), machine(16, "avx512f", "avx512bw", "avx512_vnni")):
        rows, vectors = PLAIN.default(DynamicMatmul((1,), 1000, 2048), here)["tile"]
        assert rows == 1 and vectors > 1


def test_grids_share_out_rows_before_columns():
    here = dataclasses.replace(machine(16), threads=4)
    assert (4, 1) in grids(128, 512, here) and (1, 4) in grids(1, 512, here)
    assert grids(1, 8, here) == [(1, 1)]


def test_refusals():
    here = machine(8, "avx2")
    assert PLAIN.refuses(Softmax((3,), 4), here) == "not a dynamically quantised matmul"
    assert GATED.refuses(DynamicMatmul((3,), 4, 4), here) == "not a dynamically quantised matmul"
    assert PLAIN.refuses(DynamicMatmul((3,), 4, 0), here) == "an extent is zero"
    assert "32 bits" in PLAIN.refuses(DynamicMatmul((3,), 4, 1 << 17), here)
