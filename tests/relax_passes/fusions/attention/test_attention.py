"""Attention in its spellings, and near misses with reasons."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_tvm.ops.attention import Attention
from hetero_tvm.relax_passes.fusions.attention.attention import FuseAttention
from tests.relax_passes.fusions.attention.spellings import (
    INPUT,
    WIDTH,
    B,
    D,
    H,
    S,
    attention,
    fused,
    guarded,
    heads,
    miss,
    projected,
)
from tests.relax_passes.graphs import (
    calls,
    constant,
    contracts,
    fuse,
    module,
    names_of,
    op,
    same_numbers,
    weights,
)
from tests.relax_passes.rewrite import Rewrite, kernel


@pytest.mark.parametrize("key", ["once", "twice"])
def test_plain(key):
    found, after = fused(lambda e, *t: attention(e, *t, key=key))
    assert calls(after) == {"attention": 1}
    assert (found.batch, found.heads, found.kv_heads, found.q_len, found.kv_len, found.head_dim) == (
        B,
        H,
        H,
        S,
        6,
        D,
    )
    assert math.isclose(found.scale, 1 / math.sqrt(D), rel_tol=1e-6) and not found.mask and not found.causal


def test_weights_are_a_result_too():
    def body(emit, q, k, v):
        query, key, value = heads(emit, q), heads(emit, k, (0, 2, 3, 1)), heads(emit, v)
        w = emit(op.nn.softmax(emit(op.matmul(query, key)), axis=-1))
        out = emit(op.permute_dims(emit(op.matmul(w, value)), [0, 2, 1, 3]))
        return emit(op.reshape(out, (B, S, WIDTH))), w

    reason = miss(body)
    assert reason.startswith("the weights are not used by one matmul alone, but by relax.matmul (")
    assert reason.endswith(") and a result of the model")


def test_a_projection_under_a_softmax_is_no_attention():
    """A softmax of a product with a weight that is a matrix, then another product: a mixture's gate."""

    def body(emit, q, k, v):
        gate = emit(op.nn.softmax(emit(op.matmul(constant(weights(5, S)), q)), axis=-1))
        return emit(op.matmul(gate, emit(op.permute_dims(q, [0, 2, 1]))))

    assert miss(body) is None


def test_a_plain_softmax_is_no_near_miss():
    assert miss(lambda e, q, k, v: e(op.nn.softmax(q, axis=-1))) is None


def test_another_guard_is_none():
    def to_one(emit, w):
        return emit(op.where(emit(op.isnan(w)), constant(1.0), w))

    reason = "the weights are not used by one matmul alone, but by relax.isnan ("
    assert miss(lambda e, *t: guarded(e, *t, to_one)).startswith(reason)


def test_whole_block_with_epilogues():
    def body(emit, x):
        y = projected(emit, x)
        y = emit(op.add(emit(op.matmul(y, constant(weights(WIDTH, 7)))), constant(weights(7))))
        return emit(op.add(y, x))

    before = module(INPUT, body)
    after, names, report = fuse(before)
    assert report.fusions == {"attention": 1, "qkv": 1, "matmul_epilogue": 2}
    assert [found.epilogue for found in contracts(after, "matmul")] == [("bias",), ("bias", "residual")]
    assert names_of(before) <= set().union(*names.values())
    same_numbers(before, after)
    without, _, report = fuse(before, disabled=["attention"])
    assert "attention" not in report.fusions and contracts(without, "softmax")
    same_numbers(before, without)


@settings(max_examples=25)
@given(st.data())
def test_random_forms(data):
    """Extents from 1 on, grouped heads, three or four axes, any mask: same numbers, nothing missed."""
    draw = data.draw
    batch, kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    q_len, kv_len, dim, values = (draw(st.integers(1, 5)) for _ in range(4))
    count, folded, back = kv_heads * group, draw(st.booleans()), draw(st.booleans())
    full = (batch, count, q_len, kv_len)
    shape = tuple(draw(st.sampled_from((1, extent))) for extent in full)
    inputs = {
        "q": (batch, q_len, count * dim),
        "k": (batch, kv_len, kv_heads * dim),
        "v": (batch, kv_len, kv_heads * values),
        "mask": shape,
    }

    def split(emit, x, length, n, width):
        x = emit(op.permute_dims(emit(op.reshape(x, (batch, length, n, width))), [0, 2, 1, 3]))
        if n != count:
            wide = emit(op.broadcast_to(emit(op.expand_dims(x, 2)), (batch, n, group, length, width)))
            x = emit(op.reshape(wide, (batch, count, length, width)))
        return emit(op.reshape(x, (batch * count, length, width))) if folded else x

    def body(emit, q, k, v, mask):
        query, key = split(emit, q, q_len, count, dim), split(emit, k, kv_len, kv_heads, dim)
        value = split(emit, v, kv_len, kv_heads, values)
        axes = [0, 2, 1] if folded else [0, 1, 3, 2]
        s = emit(op.multiply(emit(op.matmul(query, emit(op.permute_dims(key, axes)))), constant(0.7)))
        s = emit(op.add(emit(op.reshape(s, full)), mask))
        w = emit(op.nn.softmax(s, axis=-1))
        w = emit(op.reshape(w, (batch * count, q_len, kv_len))) if folded else w
        out = emit(op.reshape(emit(op.matmul(w, value)), (batch, count, q_len, values)))
        return emit(op.permute_dims(out, [0, 2, 1, 3])) if back else out

    before = module(inputs, body)
    after, _, report = fuse(before, FuseAttention())
    assert report.fusions == {"attention": 1} and not report.misses
    same_numbers(before, after)


class TestFuseAttention(Rewrite):
    rule = FuseAttention()
    inputs = {"q": (2, 4, 15), "k": (2, 6, 15), "v": (2, 6, 15)}

    def before(self, q, k, v):
        query = op.permute_dims(op.reshape(q, (2, 4, 3, 5)), [0, 2, 1, 3])
        key = op.permute_dims(op.reshape(k, (2, 6, 3, 5)), [0, 2, 3, 1])
        value = op.permute_dims(op.reshape(v, (2, 6, 3, 5)), [0, 2, 1, 3])
        scores = op.multiply(op.matmul(query, key), constant(0.5))
        result = op.matmul(op.nn.softmax(scores, axis=-1), value)
        return op.reshape(op.permute_dims(result, [0, 2, 1, 3]), (2, 4, 15))

    def expected(self, q, k, v):
        return kernel(Attention(2, 3, 4, 6, 5, 0.5, 3), q, k, v)
