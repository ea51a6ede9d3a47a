"""Fused attention: masks, causality, grouped heads, packing, tails; rows that see nothing."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_tvm.ops.attention import Attention
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.cpu.attention.space import AttentionSpace
from tests.ops.helpers import sample_inputs
from tests.schedules.cpu.running import (
    MACHINES,
    MOST_ROWS,
    SWEPT,
    check_points,
    check_shapes,
    compiled,
    exact,
    llvm_of,
    point_runners,
)
from tests.selection import thorough

SPACE = AttentionSpace()
AVX2 = MACHINES["avx2"]


def choose(op, machine, **point):
    return {**SPACE.default(op, machine), **point}


@pytest.mark.thorough
@pytest.mark.parametrize("machine", SWEPT)
def test_every_choice_computes_attention(machine):
    lanes = machine.lanes
    ops = [
        Attention(2, 4, 13, 3 * lanes + 5, lanes + 3, 0.3, 2, mask=(2, 1, 1, 3 * lanes + 5)),
        Attention(2, 2, 14, 14, lanes, 0.25, 2, packed=True, mask=(1, 2, 14, 14), causal=True),
        Attention(1, 2, 5, 4 * lanes, 4 * lanes + 1, 1.0, 1, causal=True),
        Attention(1, 1, 1, 1, 1, 2.0, 1),
        Attention(1, 3, 2, 1, 5, 0.5, 3, mask=(1, 1, 2, 1)),
    ]
    check_shapes(SPACE, ops, machine)


def strided(**more):
    """Queries [B, H, Sq, D]; keys and values side by side in one [Sk, B, Hkv, D + Dv], from element 3."""
    batch, heads, kv_heads, q_len, kv_len, dim, values = 2, 4, 2, 9, 21, 10, 7
    head = dim + values
    row = batch * kv_heads * head
    places = (
        (0, 0, heads * q_len * dim, q_len * dim, dim),
        (1, 3, kv_heads * head, head, row),
        (1, 3 + dim, kv_heads * head, head, row),
    )
    tensors = (batch * heads, q_len, dim), (kv_len * row + 3,)
    more |= {"value_dim": values, "tensors": tensors, "places": places}
    return Attention(batch, heads, q_len, kv_len, dim, 0.4, kv_heads, **more)


@pytest.mark.thorough
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_operands_at_any_strides(machine):
    op = strided(mask=(1, 4, 1, 21))
    more = [choose(op, machine, tile=(1, 1)), choose(op, machine, tile=(4, 2), pieces=2)]
    check_points(SPACE, op, [choose(op, machine), *more], machine)


@pytest.mark.thorough
@settings(max_examples=10)
@given(st.data())
def test_windows_caps_and_masks_by_period(data):
    draw = data.draw
    machine = MACHINES[draw(st.sampled_from(sorted(MACHINES)))]
    q_len, period = draw(st.integers(1, 40)), draw(st.sampled_from((1, 2)))
    kv_len, window = q_len + draw(st.integers(0, 40)), draw(st.integers(1, 24))
    mask = (period, 1, q_len, kv_len) if draw(st.booleans()) else ()
    value_dim, softcap = draw(st.sampled_from((0, 3, 20))), draw(st.sampled_from((0.0, 1.5)))
    forms = {"mask": mask, "causal": True, "value_dim": value_dim, "window": window, "softcap": softcap}
    op = Attention(4, 2, q_len, kv_len, 5, 0.4, 1, **forms)
    point = {knob.name: draw(st.sampled_from(knob.choices)) for knob in SPACE.knobs(op, machine)}
    check_points(SPACE, op, [point], machine, tolerance=3e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("block", [128, 256])
@pytest.mark.parametrize(
    "forms",
    [
        {"mask": (2, 1, 1, 530)},
        {"causal": True, "zero_masked": True},
        {"causal": True, "window": 150, "softcap": 1.5, "mask": (1, 2, 19, 530)},
    ],
    ids=["mask", "causal", "window"],
)
def test_keys_in_blocks(block, forms):
    machine = AVX2
    op = Attention(2, 2, 19, 530, 13, 0.4, 1, value_dim=20, **forms)
    points = [choose(op, machine, tile=(4, 2), pieces=pieces, block=block) for pieces in (1, 4)]
    check_points(SPACE, op, points, machine, tolerance=3e-6)


@pytest.mark.thorough
def test_queries_that_see_nothing_in_some_blocks():
    """A mask that hides whole blocks, and all keys of one query; infinite scores and NaN."""
    op = Attention(1, 1, 5, 300, 8, 0.3, 1, mask=(1, 1, 5, 300))
    arrays = sample_inputs(op)
    arrays[3][:] = 0
    arrays[3][0, 0, 0, :128] = arrays[3][0, 0, 1, 128:] = arrays[3][0, 0, 2] = -np.inf
    arrays[0][0, 3, 0], arrays[0][0, 4] = np.nan, np.inf
    with np.errstate(invalid="ignore", over="ignore"):
        truth = op.reference(*arrays)
    assert np.isfinite(truth[0, :2]).all() and np.isnan(truth[0, 2:]).all()
    points = [choose(op, AVX2, block=block) for block in (0, 128)]
    for run in point_runners(SPACE, op, points, AVX2):
        np.testing.assert_allclose(run(*arrays), truth, atol=1e-5)


def test_many_keys_pass_in_blocks():
    """Where keys and values of a head do not stay in L2, unless only a few queries ask for them."""
    for machine in MACHINES.values():
        many = Attention(1, 2, 4096, 4096, 64, 0.1, 2)
        assert SPACE.default(many, machine)["block"]
        assert not SPACE.default(dataclasses.replace(many, q_len=1), machine)["block"]
        assert not SPACE.default(dataclasses.replace(many, q_len=128, kv_len=128), machine)["block"]


@pytest.mark.thorough
@settings(max_examples=14)
@given(st.data())
def test_random_shapes_and_points(data):
    draw = data.draw
    machine = MACHINES[draw(st.sampled_from(sorted(MACHINES)))]
    batch, kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    q_len, dim = draw(st.integers(1, 30)), draw(st.integers(1, 40))
    packed, causal = draw(st.booleans()), draw(st.booleans())
    kv_len = q_len if packed else q_len + draw(st.integers(0, 40))
    extents = (batch, kv_heads * group, q_len, kv_len)
    mask = tuple(draw(st.sampled_from((1, e))) for e in extents) if draw(st.booleans()) else ()
    op = Attention(batch, extents[1], q_len, kv_len, dim, 0.4, kv_heads, packed, mask, causal)
    point = {knob.name: draw(st.sampled_from(knob.choices)) for knob in SPACE.knobs(op, machine)}
    check_points(SPACE, op, [point], machine, tolerance=3e-6)


def test_default_is_a_choice_for_all_sizes():
    for machine in MACHINES.values():
        for q_len, kv_len in ((1, 1), (1, 300), (128, 128), (197, 197), (1024, 1024)):
            for dim in (1, 32, 64, 80, 128):
                op = Attention(1, 3, q_len, kv_len, dim, 1.0, 3)
                SPACE.check(op, SPACE.default(op, machine), machine)


def test_tiles_fit_the_register_file():
    for machine in MACHINES.values():
        for rows, vectors in SPACE.knobs(Attention(1, 1, 64, 64, 64, 1.0, 1), machine)[0].choices:
            assert rows <= MOST_ROWS[machine.registers][vectors]


def test_refusals():
    op = Attention(1, 2, 4, 4, 8, 1.0, 2)
    assert SPACE.refuses(op, AVX2) is None
    assert SPACE.refuses(Softmax((3,), 4), AVX2) == "not an attention"
    assert SPACE.refuses(dataclasses.replace(op, kv_len=0), AVX2) == "an extent is zero"
    assert "40000 keys" in SPACE.refuses(dataclasses.replace(op, kv_len=40000), AVX2)
    late = dataclasses.replace(op, q_len=5, causal=True)
    assert SPACE.refuses(late, AVX2) == "5 queries and 4 keys: the first query of a causal mask sees no key"


def _masked(hidden):
    """Two sequences; the first query rows of the second see no key at all."""
    op = Attention(2, 2, 7, 21, 9, 0.3, 2, mask=(2, 1, 7, 21))
    arrays = sample_inputs(op)
    arrays[3][:] = 0
    arrays[3][0, :, :, 15:] = hidden
    arrays[3][1, :, :3] = hidden
    return op, arrays


@pytest.mark.thorough
@pytest.mark.parametrize("hidden", [-np.inf, np.finfo("float32").min, -1e9])
def test_rows_that_see_nothing(hidden):
    """As softmax has them: NaN where every key is infinitely far, equal weights at the least number."""
    op, arrays = _masked(hidden)
    points = [choose(op, AVX2), choose(op, AVX2, tile=(1, 1)), choose(op, AVX2, tile=(4, 2), pieces=2)]
    for run in point_runners(SPACE, op, points, AVX2):
        result = run(*arrays)
        uniform = arrays[2][1].mean(0)
        if hidden == -np.inf:
            assert np.isnan(result[1, :3]).all()
        elif hidden != -1e9:  # there float32 still sees the scores' sign
            np.testing.assert_allclose(result[1, :3], np.tile(uniform, (3, 1)), atol=1e-5)
        visible = exact(op, [*arrays[:3], np.where(arrays[3] < 0, -1e6, 0)])
        assert np.isfinite(result[0]).all() and np.isfinite(result[1, 3:]).all()
        np.testing.assert_allclose(result[0], visible[0], atol=1e-5)
        np.testing.assert_allclose(result[1, 3:], visible[1, 3:], atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("causal", [False, True])
def test_guarded_rows_that_see_nothing_are_zero(causal):
    op = Attention(2, 2, 7, 21, 9, 0.3, 2, mask=(2, 1, 7, 21), causal=causal, zero_masked=True)
    arrays = sample_inputs(op)
    arrays[3][:] = 0
    arrays[3][0, :, :, 15:] = -np.inf
    arrays[3][1, :, :3] = -np.inf
    truth = exact(op, arrays)
    assert not truth[1, :3].any()
    points = [choose(op, AVX2), choose(op, AVX2, tile=(1, 1)), choose(op, AVX2, tile=(4, 2), pieces=2)]
    for run in point_runners(SPACE, op, points, AVX2):
        np.testing.assert_allclose(run(*arrays), truth, atol=1e-5)
    (plain,) = compiled([(op.workload(), op.output.shape)])
    np.testing.assert_allclose(plain(*arrays), truth, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("mask", [(2, 1, 7, 21), *thorough([((2, 2, 7, 1),), ((1, 1, 1, 21),)])])
def test_a_hidden_query_is_zero_whatever_it_holds(mask):
    """Where the mask tells what is hidden; NaN of a query that sees a key stays."""
    op = Attention(2, 2, 7, 21, 9, 0.3, 2, mask=mask, zero_masked=True, zero_by_mask=True)
    arrays = sample_inputs(op)
    arrays[3][:] = 0
    hidden = slice(0, 3) if mask[2] > 1 else slice(None)
    arrays[3][-1, :, hidden] = -np.inf
    arrays[0][-1, 0], arrays[0][-1, 1], arrays[0][-1, 5, 2] = np.inf, np.nan, np.nan
    with np.errstate(invalid="ignore"):
        truth = op.reference(*arrays)
    assert not truth[-1, hidden].any() and np.isnan(truth[-1, 5]).any() == (mask[2] > 1)
    points = [choose(op, AVX2), choose(op, AVX2, tile=(1, 1)), choose(op, AVX2, tile=(4, 2), pieces=2)]
    for run in (*point_runners(SPACE, op, points, AVX2), *compiled([(op.workload(), op.output.shape)])):
        np.testing.assert_allclose(run(*arrays), truth, atol=1e-5)


@pytest.mark.parametrize("hidden", [-np.inf, *thorough([np.finfo(np.float32).min])])
@pytest.mark.parametrize("causal", [False, *thorough([True])])
def test_scores_that_the_mask_replaces_do_not_matter(hidden, causal):
    op = Attention(1, 2, 5, 21, 9, 0.3, 2, mask=(1, 1, 1, 21), causal=causal, replaced=True)
    arrays = sample_inputs(op)
    arrays[3][:] = 0
    arrays[3][..., 2:5] = hidden
    truth = exact(op, arrays)
    arrays[1][0, 2], arrays[1][0, 3], arrays[1][0, 4] = np.inf, np.nan, -np.inf
    points = [choose(op, AVX2), choose(op, AVX2, tile=(1, 1)), choose(op, AVX2, tile=(4, 2), pieces=2)]
    for run in (*point_runners(SPACE, op, points, AVX2), *compiled([(op.workload(), op.output.shape)])):
        np.testing.assert_allclose(run(*arrays), truth, atol=1e-5)


@pytest.mark.parametrize("causal", [*thorough([False]), True])
def test_nan_stays_in_its_query_row(causal):
    op = Attention(1, 2, 11, 11, 5, 0.4, 2, packed=True, causal=causal)
    points = [choose(op, AVX2), choose(op, AVX2, tile=(4, 2), pieces=2)]
    (arrays,) = sample_inputs(op)
    for run in point_runners(SPACE, op, points, AVX2):
        clean = run(arrays)
        spoiled = arrays.copy()
        spoiled[0, 6, 7] = np.nan  # a query of head 1
        result = run(spoiled)
        assert np.isnan(result[0, 6, 5:]).all()
        result[0, 6, 5:] = clean[0, 6, 5:]
        np.testing.assert_array_equal(result, clean)


@pytest.mark.thorough
def test_a_bad_key_hidden_by_causality_reaches_no_earlier_query():
    op = Attention(1, 1, 12, 12, 8, 0.4, 1, causal=True)
    arrays = sample_inputs(op)
    points = [choose(op, AVX2), choose(op, AVX2, tile=(1, 1)), choose(op, AVX2, tile=(4, 2))]
    for run in point_runners(SPACE, op, points, AVX2):
        clean = run(*arrays)
        key = arrays[1].copy()
        key[0, 9, 3] = np.nan
        result = run(arrays[0], key, arrays[2])
        np.testing.assert_array_equal(result[0, :9], clean[0, :9])
        assert np.isnan(result[0, 9:]).all()


@pytest.mark.thorough
def test_the_unscheduled_form_agrees_on_masks_and_causality():
    op = Attention(2, 4, 5, 9, 6, 0.4, 2, mask=(2, 1, 1, 9), causal=True)
    arrays = sample_inputs(op)
    (plain,) = compiled([(op.workload(), op.output.shape)])
    (run,) = point_runners(SPACE, op, [choose(op, AVX2)], AVX2)
    np.testing.assert_allclose(run(*arrays), plain(*arrays), atol=2e-6)


def test_scores_are_softmaxed_without_library_calls():
    op = Attention(1, 2, 8, 16, 8, 0.3, 2)
    ir = llvm_of(SPACE.emit(op, choose(op, AVX2), AVX2))
    assert "expf" not in ir and "llvm.exp" not in ir and "TVMBackendAllocWorkspace" not in ir


def test_features_have_one_length_and_are_finite():
    lengths = set()
    for op in (Attention(1, 1, 1, 1, 1, 1.0, 1), Attention(2, 12, 128, 128, 64, 0.1, 12)):
        for machine in MACHINES.values():
            values = SPACE.features(op, SPACE.default(op, machine), machine)
            assert np.isfinite(values).all()
            lengths.add(len(values))
    assert len(lengths) == 1
