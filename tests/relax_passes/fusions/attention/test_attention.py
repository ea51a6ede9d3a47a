"""Attention in its spellings, near misses with reasons, projections merged."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_tvm.ops.attention import Attention
from hetero_tvm.relax_passes.fusions.attention.attention import FuseAttention
from hetero_tvm.relax_passes.fusions.attention.qkv import MergeQkv
from hetero_tvm.relax_passes.fusions.attention.rope import FuseRope
from tests.relax_passes.fusions.attention.test_rope import rope
from tests.relax_passes.graphs import (
    calls,
    constant,
    contracts,
    fuse,
    module,
    names_of,
    op,
    relax,
    same_numbers,
    weights,
)
from tests.relax_passes.rewrite import Rewrite, kernel

B, S, H, D = 2, 4, 3, 5
WIDTH = H * D
QKV = {"q": (B, S, WIDTH), "k": (B, 6, WIDTH), "v": (B, 6, WIDTH)}
SELF = {"q": (B, S, WIDTH), "k": (B, S, WIDTH), "v": (B, S, WIDTH)}
SCALE = constant(1 / math.sqrt(D))
NEVER = np.finfo("float32").min


def heads(emit, x, axes=(0, 2, 1, 3)):
    shape = [int(e) for e in x.ty.shape]
    return emit(op.permute_dims(emit(op.reshape(x, (*shape[:2], H, D))), list(axes)))


def attention(emit, q, k, v, scores=lambda emit, s: emit(op.multiply(s, SCALE)), *, key="once", q_by=None,
              k_by=None, v_by=None):  # fmt: skip
    """``scores`` maps the product to the softmax's input; ``*_by`` map the heads."""
    query, value = heads(emit, q), heads(emit, v)
    if key == "once":
        key = heads(emit, k, (0, 2, 3, 1))
    else:
        key = emit(op.permute_dims(heads(emit, k), [0, 1, 3, 2]))
    query = q_by(emit, query) if q_by else query
    key = k_by(emit, key) if k_by else key
    value = v_by(emit, value) if v_by else value
    weights_ = emit(op.nn.softmax(scores(emit, emit(op.matmul(query, key))), axis=-1))
    out = emit(op.permute_dims(emit(op.matmul(weights_, value)), [0, 2, 1, 3]))
    return emit(op.reshape(out, (B, int(q.ty.shape[1]), WIDTH)))


def fused(body, inputs=QKV, *rules, **fusions):
    before = module(inputs, body)
    after, names, report = fuse(before, *(rules or (FuseAttention(),)))
    assert report.fusions == (fusions or {"attention": 1}) and not report.misses
    same_numbers(before, after)
    assert names_of(before) <= set().union(*names.values())
    (found,) = contracts(after, "attention")
    return found, after


def by(function, value, left=False):
    value = constant(value)
    return lambda emit, x: emit(function(value, x) if left else function(x, value))


@pytest.mark.parametrize("key", ["once", "twice"])
def test_plain(key):
    found, after = fused(lambda e, *t: attention(e, *t, key=key))
    assert calls(after) == {"attention": 1}
    assert (found.batch, found.heads, found.kv_heads, found.q_len, found.kv_len, found.head_dim) == (
        B, H, H, S, 6, D,
    )  # fmt: skip
    assert math.isclose(found.scale, 1 / math.sqrt(D), rel_tol=1e-6) and not found.mask and not found.causal


@pytest.mark.parametrize("function", [op.multiply, op.divide])
@pytest.mark.parametrize("where", ["scores", "q_by", "k_by"])
def test_scale_as_product_or_quotient(function, where):
    default = {} if where == "scores" else {"scores": lambda emit, s: s}
    found, after = fused(lambda e, *t: attention(e, *t, **default, **{where: by(function, 2.5)}))
    assert math.isclose(found.scale, 2.5 if function is op.multiply else 0.4)
    assert calls(after) == {"attention": 1}


@pytest.mark.parametrize("where", ["scores", "q_by", "k_by"])
def test_scale_on_the_left(where):
    fused(lambda e, *t: attention(e, *t, **{where: by(op.multiply, 2.5, left=True)}))


def test_scales_in_three_places_multiply():
    found, _ = fused(
        lambda e, *t: attention(
            e, *t, by(op.divide, 2.0), q_by=by(op.multiply, 3.0), k_by=by(op.multiply, 5.0)
        )
    )
    assert math.isclose(found.scale, 7.5)


def test_no_scale():
    assert fused(lambda e, *t: attention(e, *t, lambda e, s: s))[0].scale == 1.0


@pytest.mark.parametrize(
    "shape", [(B, 1, 1, 6), (1, 1, S, 6), (B, H, S, 6), (1, H, 1, 6), (S, 6), (6,), (1, 1), (B, 1, S, 1)]
)
@pytest.mark.parametrize("mask_first", [True, False])
def test_additive_mask(shape, mask_first):
    def scores(mask):
        def build(emit, s):
            s = emit(op.multiply(s, SCALE))
            return emit(op.add(mask, s) if mask_first else op.add(s, mask))

        return build

    found, _ = fused(lambda e, q, k, v, mask: attention(e, q, k, v, scores(mask)), {**QKV, "mask": shape})
    assert found.mask == (1,) * (4 - len(shape)) + shape


def test_computed_mask():
    def body(emit, q, k, v, m):
        mask = emit(op.multiply(emit(op.subtract(constant(1.0), m)), constant(-1e4)))
        return attention(emit, q, k, v, lambda e, s: e(op.add(e(op.multiply(s, SCALE)), mask)))

    found, after = fused(body, {**QKV, "m": (B, 1, 1, 6)})
    assert found.mask == (B, 1, 1, 6) and calls(after) == {"attention": 1, "subtract": 1, "multiply": 1}


def triangle(q_len=S, kv_len=S):
    return np.tril(np.ones((1, 1, q_len, kv_len), bool), kv_len - q_len)


def causal_scores(kind, mask=None):
    def build(emit, s):
        length = [int(e) for e in s.ty.shape][2:]
        s = emit(op.multiply(s, SCALE))
        if kind == "where":
            return emit(op.where(constant(triangle(*length), "bool"), s, constant(NEVER)))
        return emit(op.add(s, constant(np.where(triangle(*length), 0, -1e9))))

    return build


@pytest.mark.parametrize("kind", ["where", "add"])
@pytest.mark.parametrize("kv_len", [S, 6])
def test_causal(kind, kv_len):
    shapes = {**SELF, "k": (B, kv_len, WIDTH), "v": (B, kv_len, WIDTH)}
    found, after = fused(lambda e, *t: attention(e, *t, causal_scores(kind)), shapes)
    assert found.causal and not found.mask and calls(after) == {"attention": 1}


def test_causal_where_below_an_additive_mask():
    def body(emit, q, k, v, mask):
        return attention(emit, q, k, v, lambda e, s: e(op.add(causal_scores("where")(e, s), mask)))

    found, _ = fused(body, {**SELF, "mask": (B, 1, 1, S)})
    assert found.causal and found.mask == (B, 1, 1, S)


def test_a_lower_triangle_with_another_offset_stays_a_mask():
    mask = np.where(np.tril(np.ones((1, 1, S, S)), 1) > 0, 0, -1e9)
    found, _ = fused(lambda e, *t: attention(e, *t, lambda e, s: e(op.add(s, constant(mask)))), SELF)
    assert not found.causal and found.mask == (1, 1, S, S)


def test_fewer_keys_than_queries_are_not_causal():
    """Its first queries would see nothing, of which a mask and a causal kernel make different numbers."""
    shapes = {"q": (B, S, WIDTH), "k": (B, 2, WIDTH), "v": (B, 2, WIDTH)}
    found, _ = fused(lambda e, *t: attention(e, *t, causal_scores("add")), shapes)
    assert not found.causal and found.mask == (1, 1, S, 2)


def miss(body, inputs=QKV, rule=None):
    before = module(inputs, body)
    after, _, report = fuse(before, rule or FuseAttention())
    assert "attention" not in report.fusions and calls(after)["attention"] == 0
    same_numbers(before, after)
    return report.misses[0]["reason"] if report.misses else None


def test_scaled_values_are_an_operand():
    found, after = fused(lambda e, *t: attention(e, *t, v_by=by(op.multiply, 2.0)))
    assert calls(after)["attention"] == calls(after)["multiply"] == 1


def test_scale_after_the_mask():
    def body(emit, q, k, v, mask):
        mask = emit(op.multiply(mask, constant(3.0)))
        return attention(emit, q, k, v, lambda e, s: e(op.multiply(e(op.add(s, mask)), SCALE)))

    found, _ = fused(body, {**QKV, "mask": (B, 1, 1, 6)})
    assert found.mask == (B, 1, 1, 6) and math.isclose(found.scale, 1 / math.sqrt(D), rel_tol=1e-6)


def test_two_masks_are_one_sum():
    def body(emit, q, k, v, mask, bias):
        return attention(emit, q, k, v, lambda e, s: e(op.add(e(op.subtract(s, mask)), bias)))

    found, after = fused(body, {**QKV, "mask": (B, 1, 1, 6), "bias": (1, H, S, 6)})
    assert found.mask == (B, H, S, 6) and calls(after)["add"] == 1


def test_equal_masks_of_two_attentions_are_computed_once():
    def body(emit, q, k, v, mask, bias):
        scores = lambda e, s: e(op.add(e(op.add(s, mask)), bias))  # noqa: E731
        return attention(emit, attention(emit, q, k, v, scores), k, v, scores)

    before = module({**QKV, "mask": (B, 1, 1, 6), "bias": (1, H, S, 6)}, body)
    after, _, _ = fuse(before, FuseAttention())
    assert calls(after)["attention"] == 2 and calls(after)["add"] == 1
    same_numbers(before, after)


def test_where_with_a_mild_value():
    def scores(emit, s, value=-10.0, factor=None):
        s = emit(op.where(constant(triangle(), "bool"), s, constant(value)))
        return s if factor is None else emit(op.multiply(s, constant(factor)))

    reason = "where(...) does not replace hidden scores by a large negative constant"
    assert miss(lambda e, *t: attention(e, *t, scores), SELF) == reason
    scaled = lambda e, s: scores(e, s, -1e5, 1e-4)  # noqa: E731
    assert miss(lambda e, *t: attention(e, *t, scaled), SELF) == reason


def test_where_with_another_condition():
    odd = np.ones((1, 1, S, S), bool)
    odd[..., 1] = False

    def scores(emit, s):
        return emit(op.where(constant(odd, "bool"), s, constant(NEVER)))

    found, _ = fused(lambda e, *t: attention(e, *t, scores), SELF)
    assert found.mask == (1, 1, 1, S) and not found.causal


@pytest.mark.parametrize("hides", [True, False])
def test_where_with_a_computed_condition(hides):
    def body(emit, q, k, v, m):
        condition = emit(op.greater(m, constant(0.0)))

        def scores(e, s):
            either = (constant(NEVER), s) if hides else (s, constant(NEVER))
            return e(op.where(condition, *either))

        return attention(emit, q, k, v, scores)

    found, after = fused(body, {**QKV, "m": (B, 1, 1, 6)})
    assert found.mask == (B, 1, 1, 6) and calls(after)["where"] == 1


def test_weights_are_a_result_too():
    def body(emit, q, k, v):
        query, key, value = heads(emit, q), heads(emit, k, (0, 2, 3, 1)), heads(emit, v)
        w = emit(op.nn.softmax(emit(op.matmul(query, key)), axis=-1))
        out = emit(op.permute_dims(emit(op.matmul(w, value)), [0, 2, 1, 3]))
        return emit(op.reshape(out, (B, S, WIDTH))), w

    assert miss(body) == "the weights are not used by one matmul alone"


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


def test_a_soft_cap():
    def scores(emit, s):
        return emit(op.multiply(emit(op.tanh(emit(op.divide(s, constant(8.0))))), constant(2.0)))

    found, after = fused(lambda e, *t: attention(e, *t, scores))
    assert found.softcap == 2.0 and math.isclose(found.scale, 0.25) and calls(after) == {"attention": 1}


def test_a_factor_for_each_head_multiplies_the_queries():
    def body(emit, q, k, v, factor):
        return attention(emit, q, k, v, lambda e, s: e(op.multiply(s, factor)), q_by=by(op.multiply, 2.0))

    _, after = fused(body, {**QKV, "factor": (1, H, 1, 1)})
    assert calls(after)["attention"] == 1


def test_a_constant_factor_for_each_head_of_lower_rank():
    """Swin's second version: learned temperatures [H, 1, 1], then a bias and a mask."""

    def scores(emit, s):
        s = emit(op.multiply(s, constant(weights(H, 1, 1))))
        return emit(op.add(s, constant(weights(1, H, S, 6))))

    found, after = fused(lambda e, *t: attention(e, *t, scores))
    assert calls(after)["attention"] == 1 and found.mask == (1, H, 1, 6)[:2] + (S, 6)


def test_a_factor_that_broadcasts_the_scores():
    one = {name: (1, *shape[1:]) for name, shape in QKV.items()}

    def body(emit, q, k, v):
        query, key, value = heads(emit, q), heads(emit, k, (0, 2, 3, 1)), heads(emit, v)
        scores = emit(op.multiply(emit(op.matmul(query, key)), constant(weights(B, H, 1, 1))))
        return emit(op.matmul(emit(op.nn.softmax(scores, axis=-1)), value))

    assert miss(body, one) == f"a factor of shape {(B, H, 1, 1)} broadcasts the scores"


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


def test_a_projection_under_a_softmax_is_no_attention():
    """A softmax of a product with a weight that is a matrix, then another product: a mixture's gate."""

    def body(emit, q, k, v):
        gate = emit(op.nn.softmax(emit(op.matmul(constant(weights(5, S)), q)), axis=-1))
        return emit(op.matmul(gate, emit(op.permute_dims(q, [0, 2, 1]))))

    assert miss(body) is None


@pytest.mark.parametrize("window", [1, 3])
def test_a_sliding_window(window):
    distance = np.arange(S)[:, None] - np.arange(S)
    mask = np.where((distance >= 0) & (distance < window), 0, NEVER)
    found, _ = fused(lambda e, *t: attention(e, *t, lambda e, s: e(op.add(s, constant(mask)))), SELF)
    assert found.causal and found.window == window and not found.mask


def test_an_operator_in_between_is_named():
    reason = miss(lambda e, *t: attention(e, *t, lambda e, s: e(op.sin(s))))
    assert reason == "relax.sin (sin) stands between the first product and the softmax"


def test_broadcast_batch():
    """One sequence of queries, keys and values, masked in two ways: the result has two rows."""
    shapes = {"q": (1, S, WIDTH), "k": (1, S, WIDTH), "v": (1, S, WIDTH), "mask": (B, 1, 1, S)}

    def body(emit, q, k, v, mask):
        query, key, value = heads(emit, q), heads(emit, k, (0, 2, 3, 1)), heads(emit, v)
        w = emit(op.nn.softmax(emit(op.add(emit(op.matmul(query, key)), mask)), axis=-1))
        return emit(op.permute_dims(emit(op.matmul(w, value)), [0, 2, 1, 3]))

    found, _ = fused(body, shapes)
    assert found.batch == B and found.heads_at[0].batch == 0


def test_a_plain_softmax_is_no_near_miss():
    assert miss(lambda e, q, k, v: e(op.nn.softmax(q, axis=-1))) is None


def guarded(emit, q, k, v, guard):
    """As PyTorch exports it: the keys transposed through rank 3, the weights guarded against NaN."""
    merged = emit(op.reshape(heads(emit, k), (B * H, 6, D)))
    key = emit(op.reshape(emit(op.permute_dims(merged, [0, 2, 1])), (B, H, D, 6)))
    w = emit(op.nn.softmax(emit(op.matmul(heads(emit, q), key)), axis=-1))
    w = guard(emit, w)
    out = emit(op.permute_dims(emit(op.matmul(w, heads(emit, v))), [0, 2, 1, 3]))
    return emit(op.reshape(out, (B, S, WIDTH)))


def test_guarded_weights_and_keys_through_rank_3():
    def guard(emit, w):
        return emit(op.where(emit(op.isnan(w)), constant(0.0), w))

    found, after = fused(lambda e, *t: guarded(e, *t, guard))
    assert found.zero_masked and calls(after) == {"attention": 1}
    found, _ = fused(lambda e, *t: guarded(e, *t, lambda e, w: w))
    assert not found.zero_masked


def test_another_guard_is_none():
    def to_one(emit, w):
        return emit(op.where(emit(op.isnan(w)), constant(1.0), w))

    reason = "the weights are not used by one matmul alone"
    assert miss(lambda e, *t: guarded(e, *t, to_one)) == reason


# projections ------------------------------------------------------------------------------------


def projected(emit, x, *, bias=(True, True, True), shared=False, other=None, same=False, key_out=False):
    bases = []
    for i in range(3):
        source = other if other is not None and i == 2 else x
        seed = 0 if same else i
        base = emit(op.matmul(source, constant(weights(7, WIDTH, seed=seed))))
        bases.append(emit(op.add(base, constant(weights(WIDTH, seed=seed)))) if bias[i] else base)
    out = attention(emit, *bases)
    return (out, emit(op.tanh(bases[1]))) if key_out else out


INPUT = {"x": (B, S, 7)}


@pytest.mark.parametrize("bias", [True, False])
def test_projections_merge(bias):
    found, after = fused(
        lambda e, x: projected(e, x, bias=(bias,) * 3), INPUT, FuseAttention(), MergeQkv(), attention=1, qkv=1
    )
    assert found.packed and calls(after) == {"attention": 1, "matmul": 1, **({"add": 1} if bias else {})}


def test_a_split_tensor_is_packed_at_once():
    def body(emit, qkv):
        pieces = emit(op.split(qkv, 3, axis=-1))
        return attention(emit, *(emit(relax.TupleGetItem(pieces, i), "item") for i in range(3)))

    found, after = fused(body, {"qkv": (B, S, 3 * WIDTH)})
    assert found.packed and calls(after) == {"attention": 1}


def test_a_split_in_another_order_is_read_in_place():
    def body(emit, qkv):
        pieces = emit(op.split(qkv, 3, axis=-1))
        return attention(emit, *(emit(relax.TupleGetItem(pieces, i), "item") for i in (1, 0, 2)))

    found, after = fused(body, {"qkv": (B, S, 3 * WIDTH)})
    assert not found.packed and calls(after) == {"attention": 1}
    assert [place.offset for place in found.heads_at] == [WIDTH, 0, 2 * WIDTH]


@pytest.mark.parametrize("bias", [(True, False, True), (False, False, True)])
def test_a_missing_bias_is_zero(bias):
    """Whisper's keys have none."""
    found, after = fused(
        lambda e, x: projected(e, x, bias=bias), INPUT, FuseAttention(), MergeQkv(), attention=1, qkv=1
    )
    assert found.packed and calls(after) == {"attention": 1, "matmul": 1, "add": 1}


def test_two_of_three_share_an_input():
    """MobileBERT's queries and keys."""
    inputs = {**INPUT, "y": (B, S, 7)}
    found, after = fused(
        lambda e, x, y: projected(e, x, other=y), inputs, FuseAttention(), MergeQkv(), attention=1, qkv=1
    )
    assert calls(after)["matmul"] == 2 and [place.operand for place in found.heads_at] == [0, 0, 1]


def test_keys_that_are_a_result_as_well_are_cut_out():
    before = module(INPUT, lambda e, x: projected(e, x, key_out=True))
    after, _, report = fuse(before, FuseAttention(), MergeQkv())
    assert report.fusions == {"attention": 1, "qkv": 1}
    assert calls(after)["matmul"] == calls(after)["strided_slice"] == 1
    same_numbers(before, after)


def test_cross_attention_merges_keys_and_values():
    def body(emit, x, y):
        pieces = [emit(op.matmul(z, constant(weights(7, WIDTH, seed=i)))) for i, z in enumerate((x, y, y))]
        return attention(emit, *pieces)

    found, after = fused(
        body, {**INPUT, "y": (B, 6, 7)}, FuseAttention(), MergeQkv(), attention=1, qkv=1
    )
    assert calls(after)["matmul"] == 2 and found.heads_at[1].row == 2 * WIDTH


def test_projections_of_three_inputs_do_not_merge():
    def body(emit, x, y, z):
        return attention(emit, *(emit(op.matmul(t, constant(weights(7, WIDTH)))) for t in (x, y, z)))

    before = module({name: (B, S, 7) for name in "xyz"}, body)
    _, _, report = fuse(before, FuseAttention(), MergeQkv())
    assert report.fusions == {"attention": 1}
    assert report.misses[0]["reason"] == "Q, K and V are projections of different inputs"


@pytest.mark.parametrize("kv_heads", [1, 3])
@pytest.mark.parametrize("norm", [False, True])
def test_projections_merge_across_rotary_embeddings(kv_heads, norm):
    """Grouped heads, rotated after a norm of each head (Qwen 3) or at once (Llama)."""
    dim, group = 4, H // kv_heads

    def split(emit, x, count):
        return emit(op.reshape(x, (B, S, count, dim)))

    def body(emit, x):
        sizes = (H, kv_heads, kv_heads)
        project = lambda i, n: emit(op.matmul(x, constant(weights(7, n * dim, seed=i))))  # noqa: E731
        query, key, value = (split(emit, project(i, n), n) for i, n in enumerate(sizes))
        if norm:
            query, key = (
                emit(op.nn.rms_norm(t, constant(weights(dim)), axes=[-1], epsilon=1e-6)) for t in (query, key)
            )
        tables = [constant(weights(1, 1, S, dim, seed=i)) for i in (1, 2)]
        query, key, value = (emit(op.permute_dims(t, [0, 2, 1, 3])) for t in (query, key, value))
        query, key = (rope(emit, t, *tables) for t in (query, key))
        key, value = (
            emit(op.reshape(emit(op.broadcast_to(emit(op.expand_dims(t, 2)), (B, kv_heads, group, S, dim))),
                            (B, H, S, dim))) for t in (key, value)
        )  # fmt: skip
        w = emit(op.nn.softmax(emit(op.matmul(query, emit(op.permute_dims(key, [0, 1, 3, 2])))), axis=-1))
        out = emit(op.permute_dims(emit(op.matmul(w, value)), [0, 2, 1, 3]))
        return emit(op.reshape(out, (B, S, H * dim)))

    before = module(INPUT, body)
    after, _, report = fuse(before, FuseRope(), FuseAttention(), MergeQkv())
    assert report.fusions == {"rope": 2, "attention": 1, "qkv": 1} and not report.misses
    assert calls(after)["matmul"] == 1 and calls(after)["permute_dims"] == 0
    assert calls(after)["strided_slice"] == (2 if norm else 0)
    same_numbers(before, after)


def test_what_is_no_projection_is_named():
    def body(emit, x, k, v):
        return attention(emit, emit(op.matmul(x, constant(weights(7, WIDTH)))), k, v)

    before = module({**INPUT, "k": (B, 6, WIDTH), "v": (B, 6, WIDTH)}, body)
    _, _, report = fuse(before, FuseAttention(), MergeQkv())
    assert report.misses[0]["reason"].startswith("K, V is not a product with a constant weight")


def test_attention_of_inputs_has_nothing_to_merge():
    _, _, report = fuse(module(QKV, attention), FuseAttention(), MergeQkv())
    assert report.fusions == {"attention": 1} and not report.misses


def test_equal_projections_stay_correct():
    before = module(INPUT, lambda e, x: projected(e, x, same=True))
    after, _, _ = fuse(before)
    same_numbers(before, after)


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


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
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
        "q": (batch, q_len, count * dim), "k": (batch, kv_len, kv_heads * dim),
        "v": (batch, kv_len, kv_heads * values), "mask": shape,
    }  # fmt: skip

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
