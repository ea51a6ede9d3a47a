"""Scales, masks, soft caps and factors between the two products."""

import math

import numpy as np
import pytest

from hetero_tvm.relax_passes.fusions.attention.attention import FuseAttention
from tests.relax_passes.fusions.attention.spellings import (
    NEVER,
    QKV,
    SCALE,
    SELF,
    WIDTH,
    B,
    D,
    H,
    S,
    attention,
    by,
    causal_scores,
    fused,
    heads,
    miss,
    triangle,
)
from tests.relax_passes.graphs import calls, constant, fuse, module, op, same_numbers, weights


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
    assert not found.causal and found.mask == (B, 1, S, S) and not found.replaced


@pytest.mark.parametrize("number", [NEVER, -65504.0])
def test_a_bias_that_a_product_makes_hides_no_keys(number):
    """DeBERTa's in half precision; a causal mask beside it is one."""

    def body(emit, q, k, v, x, y):
        bias = emit(op.multiply(emit(op.matmul(x, y)), constant(0.5)))

        def scores(e, s):
            return e(op.where(constant(triangle(), "bool"), e(op.add(s, bias)), constant(number)))

        return attention(emit, q, k, v, scores)

    found, _ = fused(body, {**SELF, "x": (1, 1, S, 3), "y": (1, 1, 3, S)})
    assert found.causal and found.mask == (1, 1, S, S)


def test_a_lower_triangle_with_another_offset_stays_a_mask():
    mask = np.where(np.tril(np.ones((1, 1, S, S)), 1) > 0, 0, -1e9)
    found, _ = fused(lambda e, *t: attention(e, *t, lambda e, s: e(op.add(s, constant(mask)))), SELF)
    assert not found.causal and found.mask == (1, 1, S, S)


def test_fewer_keys_than_queries_are_not_causal():
    """The first queries see nothing, of which a mask and a causal kernel make different numbers."""
    shapes = {"q": (B, S, WIDTH), "k": (B, 2, WIDTH), "v": (B, 2, WIDTH)}
    found, _ = fused(lambda e, *t: attention(e, *t, causal_scores("add")), shapes)
    assert not found.causal and found.mask == (1, 1, S, 2)


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
    assert found.mask == (B, 1, 1, 6) and found.replaced and calls(after)["where"] == 1


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


@pytest.mark.parametrize("window", [1, 3])
def test_a_sliding_window(window):
    distance = np.arange(S)[:, None] - np.arange(S)
    mask = np.where((distance >= 0) & (distance < window), 0, NEVER)
    found, _ = fused(lambda e, *t: attention(e, *t, lambda e, s: e(op.add(s, constant(mask)))), SELF)
    assert found.causal and found.window == window and not found.mask


def test_an_operator_in_between_is_named():
    reason = miss(lambda e, *t: attention(e, *t, lambda e, s: e(op.sin(s))))
    assert reason == "relax.sin (sin) stands between the first product and the softmax"
