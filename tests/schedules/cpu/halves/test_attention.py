"""Attention of bfloat16 on the matrix unit: masks, causality, tails, blocks; rows that see nothing."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_tvm.ops.attention import Attention
from hetero_tvm.ops.integers.bf16_attention import Bf16Attention
from hetero_tvm.schedules.cpu.halves.attention import Bf16AttentionSpace, rounding_pays
from hetero_tvm.schedules.cpu.integers.matrix_unit import has_matrix_unit
from hetero_tvm.targets.registry import parse_target
from tests.ops.helpers import sample_inputs
from tests.schedules.cpu.running import covering, point_runners
from tests.schedules.representatives import CPU, TILES

SPACE = Bf16AttentionSpace()
MACHINE = parse_target("cpu").machine
multiplies = pytest.mark.skipif(not has_matrix_unit(MACHINE, "tdpbf16ps"), reason="no amx_bf16")
TOLERANCE = 2**-7
"""Error relative to the largest result: kernel and reference round a weight each, at other scales."""

MASKED = Attention(2, 4, 33, 70, 40, 0.2, 2, mask=(2, 1, 1, 70))
BLIND = Attention(1, 2, 20, 65, 8, 0.3, 2, mask=(1, 1, 20, 65), zero_masked=True, zero_by_mask=True)
OPS = [
    Attention(1, 2, 40, 64, 64, 0.125, 2),
    MASKED,
    Attention(2, 2, 47, 47, 16, 0.25, 2, packed=True, mask=(1, 2, 47, 47), causal=True),
    Attention(1, 2, 70, 130, 80, 0.1, 1, causal=True),
    Attention(1, 2, 65, 1100, 33, 0.1, 2),
    Attention(1, 2, 100, 600, 64, 0.1, 2, causal=True, window=50),
    Attention(1, 1, 5, 3, 7, 0.5, 1, softcap=3.0, value_dim=41),
    Attention(2, 1, 20, 600, 24, 0.3, 1, mask=(1, 1, 20, 600), softcap=10.0),
    BLIND,
    dataclasses.replace(BLIND, replaced=True),
    Attention(1, 1, 1, 1, 1, 1.0, 1),
]


def operands(op, seed=0):
    """Random operands; a mask hides a third of the keys, the first always seen but where none must be."""
    arrays = sample_inputs(op, seed)
    if op.mask:
        rng = np.random.default_rng(seed)
        arrays[-1] = np.where(rng.random(op.mask) < 0.3, -np.inf, 0.0).astype("float32")
        arrays[-1][..., 0] = 0.0
        if op.zero_masked:
            arrays[-1][:, :, 3] = -np.inf
    return arrays


def check(op, points, arrays=None):
    arrays = operands(op) if arrays is None else arrays
    wanted = op.reference(*(a.astype(np.float64) for a in arrays))
    largest = max(1.0, np.abs(wanted).max(initial=0))
    for point, run in zip(points, point_runners(SPACE, op, points, MACHINE), strict=True):
        error = np.abs(run(*arrays) - wanted).max(initial=0) / largest
        assert error < TOLERANCE, (point, error)


@multiplies
@pytest.mark.thorough
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.label)
def test_every_choice_computes_attention(op):
    rounded = Bf16Attention.of(op)
    check(rounded, covering(SPACE, rounded, MACHINE, set()))


@multiplies
@pytest.mark.parametrize("op", [MASKED, BLIND], ids=lambda op: op.label)
def test_the_default_computes_attention(op):
    rounded = Bf16Attention.of(op)
    check(rounded, [SPACE.default(rounded, MACHINE)])


@multiplies
def test_blocks_of_keys():
    op = Bf16Attention.of(Attention(1, 1, 33, 530, 20, 0.2, 1, causal=True))
    check(op, [{"rows": 32, "pieces": 1, "block": 256}, {"rows": 16, "pieces": 2, "block": 0}])


@multiplies
def test_nothing_behind_keys_and_values_is_multiplied():
    """Infinities behind the last key (those of the next head) stay where they are."""
    op = Bf16Attention.of(Attention(1, 2, 20, 37, 24, 0.2, 2, value_dim=24))
    arrays = operands(op)
    second = slice(op.head_dim, 2 * op.head_dim)
    arrays[1][..., second] = arrays[2][..., second] = np.nan
    arrays[0][..., second] = np.inf
    (run,) = point_runners(SPACE, op, [SPACE.default(op, MACHINE)], MACHINE)
    first = run(*arrays)[..., : op.head_dim]
    assert np.isfinite(first).all()


@multiplies
@pytest.mark.thorough
@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.data())
def test_any_attention(data):
    draw = data.draw
    kv_heads = draw(st.integers(1, 3))
    q_len, kv_len = draw(st.integers(1, 70)), draw(st.integers(1, 140))
    causal = draw(st.booleans()) and q_len <= kv_len
    op = Attention(
        draw(st.integers(1, 2)),
        kv_heads * draw(st.integers(1, 2)),
        q_len,
        kv_len,
        draw(st.integers(1, 70)),
        0.2,
        kv_heads,
        causal=causal,
        mask=draw(st.sampled_from([(), (1, 1, 1, kv_len), (1, 1, q_len, kv_len), (1, 1, q_len, 1)])),
        value_dim=draw(st.integers(1, 70)),
        softcap=draw(st.sampled_from([0.0, 5.0])),
    )
    rounded = Bf16Attention.of(op)
    arrays = sample_inputs(rounded, draw(st.integers(0, 9)))
    points = covering(SPACE, rounded, MACHINE, set())
    check(rounded, [draw(st.sampled_from(points))], arrays)


def test_refusals():
    op = Bf16Attention.of(MASKED)
    assert SPACE.refuses(op, CPU) == "the machine has no matrix unit for bfloat16"
    assert SPACE.refuses(MASKED, TILES) == "not an attention of bfloat16"
    assert "scores of two rows" in SPACE.refuses(dataclasses.replace(op, kv_len=1 << 17, mask=()), TILES)
    long = dataclasses.replace(op, kv_len=30000, mask=(1, 1, 1, 30000), zero_masked=True, zero_by_mask=True)
    assert SPACE.refuses(long, TILES) == "rows that the mask hides need all their scores at once"
    assert SPACE.refuses(op, TILES) is None


def test_rounding_pays_where_there_is_work():
    assert rounding_pays(Attention(1, 6, 1500, 1500, 64, 0.125, 6), TILES)
    assert rounding_pays(Attention(1, 12, 197, 197, 64, 0.125, 12, packed=True), TILES)
    assert not rounding_pays(Attention(1, 12, 1, 500, 64, 0.125, 12), TILES)
    assert not rounding_pays(Attention(8, 4, 16, 16, 16, 0.3, 4), TILES)
    assert not rounding_pays(Attention(1, 6, 1500, 1500, 64, 0.125, 6), CPU)
