import dataclasses

import numpy as np
import pytest
from scipy import special

from hetero_tvm.ops.attention import Attention, standard
from tests.ops.helpers import check, sample_inputs


def formula(op):
    """Attention query by query, over the keys that each of them sees."""

    def attend(*arrays):
        mask = np.broadcast_to(arrays[-1], (op.mask[0], op.heads, op.q_len, op.kv_len)) if op.mask else None
        flat = [a.reshape(-1) for a in arrays]

        def vector(place, b, h, s, size):
            start = place.offset + b * place.batch + h * place.head + s * place.row
            return flat[place.operand][start : start + size]

        query, key, value = op.heads_at
        result = np.zeros((op.batch, op.q_len, op.heads, op.values))
        for b, i, h in np.ndindex(op.batch, op.q_len, op.heads):
            shared = h * op.kv_heads // op.heads
            last = i + op.kv_len - op.q_len if op.causal else op.kv_len - 1
            first = max(0, last - op.window + 1) if op.window else 0
            keys = range(first, last + 1)
            q = vector(query, b, h, i, op.head_dim)
            scores = np.array([q @ vector(key, b, shared, j, op.head_dim) for j in keys]) * op.scale
            if op.softcap:
                scores = op.softcap * np.tanh(scores / op.softcap)
            if mask is not None:
                scores = scores + mask[b % op.mask[0], h, i, list(keys)]
            if op.zero_masked and (scores == -np.inf).all():
                continue
            values = np.array([vector(value, b, shared, j, op.values) for j in keys])
            result[b, i, h] = special.softmax(scores) @ values
        return result.reshape(op.batch, op.q_len, -1)

    return attend


FORMS = {
    "one of each": Attention(1, 1, 1, 1, 1, 1.0, 1),
    "odd sizes, a mask": Attention(2, 4, 5, 7, 3, 0.5, 2, mask=(2, 1, 5, 7)),
    "packed, causal": Attention(1, 2, 6, 6, 4, 0.5, 1, packed=True, causal=True),
    "causal, more keys than queries": Attention(1, 2, 3, 8, 4, 0.5, 2, causal=True),
    "window, softcap, wide values": Attention(
        2, 2, 6, 8, 4, 0.5, 1, mask=(1, 2, 1, 8), causal=True, value_dim=3, window=3, softcap=2.0
    ),
    "a mask that repeats, places": Attention(
        *(4, 2, 3, 3, 4, 0.5, 2),
        mask=(2, 1, 3, 3),
        tensors=((12, 2, 3, 4),),
        places=tuple((0, 4 * i, 72, 12, 24) for i in range(3)),
    ),
}


@pytest.mark.parametrize("op", FORMS.values(), ids=FORMS.keys())
def test_against_a_loop(op):
    check(op, formula(op))


def test_masked_keys_do_not_count_and_blind_queries_give_zero():
    op = Attention(2, 2, 3, 4, 2, 0.7, 2, mask=(2, 1, 1, 4), zero_masked=True)
    *arrays, mask = sample_inputs(op)
    mask[0, ..., 2:], mask[1] = -np.inf, -np.inf
    check(op, formula(op), [*arrays, mask])
    visible = op.reference(*arrays, mask)
    assert (visible[1] == 0).all() and (visible[0] != 0).all()
    arrays[1][0, 2:] = 1e6  # keys that nobody sees
    np.testing.assert_array_equal(op.reference(*arrays, mask)[0], visible[0])


def test_large_scores_do_not_overflow():
    op = Attention(1, 1, 2, 3, 4, 1e4, 1)
    check(op, formula(op))


def test_half_precision():
    op = Attention(1, 2, 4, 6, 4, 0.5, 2, mask=(1, 1, 4, 6), dtype="float16")
    assert [x.dtype for x in op.inputs] == ["float16", "float16", "float16", "float32"]
    check(op, formula(op), tolerance=5e-4)


def test_packed_is_the_three_operands_side_by_side():
    op = Attention(2, 4, 5, 5, 3, 0.7, 2)
    query, key, value = sample_inputs(op)
    packed = dataclasses.replace(op, packed=True)
    assert [o.shape for o in packed.inputs] == [(2, 5, 24)]
    result = packed.reference(np.concatenate([query, key, value], -1))
    np.testing.assert_array_equal(result, op.reference(query, key, value))


def test_special_forms_are_named():
    plain = Attention(4, 2, 6, 6, 4, 0.5, 2, packed=True, mask=(1, 1, 1, 6), causal=True)
    assert plain.special is None
    assert "period" in dataclasses.replace(plain, mask=(2, 1, 1, 6)).special
    assert dataclasses.replace(plain, window=3, softcap=1.0).special == "it has a window and a softcap"
    assert "strides" in dataclasses.replace(plain, tensors=((4, 6, 24),), places=((0,) * 5,) * 3).special


@pytest.mark.parametrize("packed", [True, False])
def test_standard_finds_the_usual_layouts(packed):
    op = Attention(2, 4, 5, 5, 3, 0.7, 2, packed=packed)
    places = tuple(tuple(place) for place in op.heads_at)
    spelled = dataclasses.replace(op, packed=False, tensors=op.shapes, places=places)
    assert standard(spelled) == op
    moved = dataclasses.replace(spelled, places=(places[0], places[1], (*places[2][:2], 0, *places[2][3:])))
    assert standard(moved) == moved


def test_cost_and_label():
    full = Attention(2, 3, 5, 5, 7, 1.0, 3)
    assert full.flops == 2 * 2 * (2 * 3 * 5 * 5 * 7)
    assert dataclasses.replace(full, causal=True).flops == full.flops // 2
    assert dataclasses.replace(full, causal=True, window=1).flops == full.flops // 5
    assert full.nbytes == 4 * 4 * (2 * 5 * 21)
    assert dataclasses.replace(full, packed=True, causal=True).label == "attention_b2h3q5k5d7_packed_causal"
