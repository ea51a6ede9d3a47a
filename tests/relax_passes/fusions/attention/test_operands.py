"""Queries, keys and values wherever they lie, and results wherever they are wanted."""

import pytest

from tests.relax_passes.fusions.attention.spellings import (
    QKV,
    SCALE,
    SELF,
    WIDTH,
    B,
    D,
    H,
    S,
    attention,
    fused,
    guarded,
    heads,
)
from tests.relax_passes.graphs import calls, constant, op, weights


def test_heads_of_another_order():
    def body(emit, q, k, v):
        query = emit(op.reshape(q, (B, H, S, D)))
        w = emit(op.nn.softmax(emit(op.matmul(query, heads(emit, k, (0, 2, 3, 1)))), axis=-1))
        out = emit(op.permute_dims(emit(op.matmul(w, heads(emit, v))), [0, 2, 1, 3]))
        return emit(op.reshape(out, (B, S, WIDTH)))

    found, after = fused(body)
    assert calls(after) == {"attention": 1} and found.heads_at[0].row == D


def test_keys_that_are_an_input_are_transposed():
    def body(emit, q, k, v):
        w = emit(op.nn.softmax(emit(op.matmul(heads(emit, q), k)), axis=-1))
        out = emit(op.permute_dims(emit(op.matmul(w, heads(emit, v))), [0, 2, 1, 3]))
        return emit(op.reshape(out, (B, S, WIDTH)))

    _, after = fused(body, {**QKV, "k": (B, H, D, 6)})
    assert calls(after) == {"attention": 1, "permute_dims": 1}


def test_result_not_transposed_back():
    def body(emit, q, k, v):
        w = emit(op.nn.softmax(emit(op.matmul(heads(emit, q), heads(emit, k, (0, 2, 3, 1)))), axis=-1))
        return emit(op.reshape(emit(op.matmul(w, heads(emit, v))), (B, S, WIDTH)))

    _, after = fused(body)
    assert calls(after)["permute_dims"] == 1


def test_heads_folded_into_the_batch():
    """Three axes, with a bias per head below and a mask above the reshape, as in Bloom."""

    def body(emit, q, k, v, bias, mask):
        folded = [emit(op.reshape(heads(emit, x), (B * H, -1, D))) for x in (q, k, v)]
        s = emit(op.matmul(folded[0], emit(op.permute_dims(folded[1], [0, 2, 1]))))
        s = emit(op.add(emit(op.multiply(s, SCALE)), bias))
        s = emit(op.add(emit(op.reshape(s, (B, H, S, 6))), mask))
        w = emit(op.reshape(emit(op.nn.softmax(s, axis=-1)), (B * H, S, 6)))
        out = emit(op.reshape(emit(op.matmul(w, folded[2])), (B, H, S, D)))
        return emit(op.reshape(emit(op.permute_dims(out, [0, 2, 1, 3])), (B, S, WIDTH)))

    found, after = fused(body, {**QKV, "bias": (B * H, 1, 6), "mask": (B, 1, S, 6)})
    assert (found.batch, found.heads, found.mask) == (B, H, (B, H, S, 6))
    assert calls(after)["permute_dims"] == 0


def test_windows_with_a_mask_each():
    """Five axes around the second mask, which repeats with the number of windows, as in Swin."""
    windows = 2

    def body(emit, q, k, v, mask):
        def scores(e, s):
            s = e(op.reshape(s, (B // windows, windows, H, S, S)))
            return e(op.reshape(e(op.add(s, mask)), (B, H, S, S)))

        return attention(emit, q, k, v, scores)

    found, _ = fused(body, {**SELF, "mask": (1, windows, 1, S, S)})
    assert found.mask == (windows, 1, S, S)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_grouped_keys(groups):
    """Keys and values repeated by a broadcast and a reshape, as Llama exports them."""
    kv_heads, total = 2, 2 * groups

    def repeated(emit, x):
        x = emit(op.permute_dims(emit(op.reshape(x, (B, 6, kv_heads, D))), [0, 2, 1, 3]))
        wide = emit(op.broadcast_to(emit(op.expand_dims(x, 2)), (B, kv_heads, groups, 6, D)))
        return emit(op.reshape(wide, (B, total, 6, D)))

    def body(emit, q, k, v):
        query = emit(op.permute_dims(emit(op.reshape(q, (B, S, total, D))), [0, 2, 1, 3]))
        key = emit(op.permute_dims(repeated(emit, k), [0, 1, 3, 2]))
        w = emit(op.nn.softmax(emit(op.matmul(query, key)), axis=-1))
        out = emit(op.matmul(w, repeated(emit, v)))
        return emit(op.reshape(emit(op.permute_dims(out, [0, 2, 1, 3])), (B, S, total * D)))

    shapes = {"q": (B, S, total * D), "k": (B, 6, kv_heads * D), "v": (B, 6, kv_heads * D)}
    found, after = fused(body, shapes)
    assert (found.heads, found.kv_heads) == (total, kv_heads) and calls(after) == {"attention": 1}


def test_queries_grouped_in_five_axes_and_one_key_head():
    def body(emit, q, k, v):
        query = emit(op.permute_dims(emit(op.reshape(q, (B, S, 1, H, D))), [0, 2, 3, 1, 4]))
        key = emit(op.permute_dims(emit(op.reshape(k, (B, 6, 1, 1, D))), [0, 2, 3, 4, 1]))
        value = emit(op.permute_dims(emit(op.reshape(v, (B, 6, 1, 1, 4))), [0, 2, 3, 1, 4]))
        w = emit(op.nn.softmax(emit(op.matmul(query, key)), axis=-1))
        out = emit(op.permute_dims(emit(op.matmul(w, value)), [0, 3, 1, 2, 4]))
        return emit(op.reshape(out, (B, S, H * 4)))

    found, after = fused(body, {"q": (B, S, WIDTH), "k": (B, 6, D), "v": (B, 6, 4)})
    assert (found.heads, found.kv_heads, found.value_dim) == (H, 1, 4) and calls(after) == {"attention": 1}


@pytest.mark.parametrize("lead", [(B, H), (1, H)])
def test_learned_queries(lead):
    """The object queries of DETR: the product's left operand is a constant."""

    def body(emit, k, v):
        query, key, value = constant(weights(*lead, S, D)), heads(emit, k, (0, 2, 3, 1)), heads(emit, v)
        w = emit(op.nn.softmax(emit(op.multiply(emit(op.matmul(query, key)), SCALE)), axis=-1))
        out = emit(op.permute_dims(emit(op.matmul(w, value)), [0, 2, 1, 3]))
        return emit(op.reshape(out, (B, S, WIDTH)))

    found, _ = fused(body, {"k": QKV["k"], "v": QKV["v"]})
    assert (found.heads, found.q_len, found.kv_len) == (H, S, 6)


def test_broadcast_batch():
    """A sequence of queries, keys and values, masked in two ways: the result has two rows."""
    shapes = {"q": (1, S, WIDTH), "k": (1, S, WIDTH), "v": (1, S, WIDTH), "mask": (B, 1, 1, S)}

    def body(emit, q, k, v, mask):
        query, key, value = heads(emit, q), heads(emit, k, (0, 2, 3, 1)), heads(emit, v)
        w = emit(op.nn.softmax(emit(op.add(emit(op.matmul(query, key)), mask)), axis=-1))
        return emit(op.permute_dims(emit(op.matmul(w, value)), [0, 2, 1, 3]))

    found, _ = fused(body, shapes)
    assert found.batch == B and found.heads_at[0].batch == 0


@pytest.mark.parametrize("keys", [2, S, 9])
def test_guarded_weights_of_queries_that_see_all_keys(keys):
    """Nothing hides a key from any query, be there more queries than keys or fewer: the guard is idle."""

    def body(emit, q, k, v):
        query, key, value = heads(emit, q), heads(emit, k, (0, 2, 3, 1)), heads(emit, v)
        w = emit(op.nn.softmax(emit(op.multiply(emit(op.matmul(query, key)), SCALE)), axis=-1))
        w = emit(op.where(emit(op.isnan(w)), constant(0.0), w))
        return emit(op.permute_dims(emit(op.matmul(w, value)), [0, 2, 1, 3]))

    found, _ = fused(body, {"q": (B, S, WIDTH), "k": (B, keys, WIDTH), "v": (B, keys, WIDTH)})
    assert found.kv_len == keys and not found.zero_masked


def test_guarded_weights_and_keys_through_rank_3():
    def guard(emit, w):
        return emit(op.where(emit(op.isnan(w)), constant(0.0), w))

    found, after = fused(lambda e, *t: guarded(e, *t, guard))
    assert calls(after) == {"attention": 1}
    assert not found.zero_masked  # nothing hides a key
    found, _ = fused(lambda e, *t: guarded(e, *t, lambda e, w: w))
    assert not found.zero_masked
