"""Projections of one input that one attention uses become one product."""

import numpy as np
import pytest

from hetero_tvm.ops.attention import Attention
from hetero_tvm.relax_passes.fusions.attention.attention import FuseAttention
from hetero_tvm.relax_passes.fusions.attention.qkv import MergeQkv
from hetero_tvm.relax_passes.fusions.attention.rope import FuseRope
from tests.relax_passes.fusions.attention.spellings import (
    INPUT,
    QKV,
    WIDTH,
    B,
    H,
    S,
    attention,
    fused,
    projected,
)
from tests.relax_passes.fusions.attention.test_rope import rope
from tests.relax_passes.graphs import calls, constant, fuse, module, op, relax, same_numbers, weights
from tests.relax_passes.rewrite import Rewrite, kernel


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

    found, after = fused(body, {**INPUT, "y": (B, 6, 7)}, FuseAttention(), MergeQkv(), attention=1, qkv=1)
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
            emit(
                op.reshape(
                    emit(op.broadcast_to(emit(op.expand_dims(t, 2)), (B, kv_heads, group, S, dim))),
                    (B, H, S, dim),
                )
            )
            for t in (key, value)
        )
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


class TestMergeQkv(Rewrite):
    rule = MergeQkv()
    inputs = {"x": (2, 4, 6)}
    parts = [constant(weights(6, 15, seed=seed)) for seed in range(3)]

    def before(self, x):
        query, key, value = (op.matmul(x, part) for part in self.parts)
        return kernel(Attention(2, 3, 4, 4, 5, 0.5, 3), query, key, value)

    def expected(self, x):
        merged = constant(np.concatenate([part.value.numpy() for part in self.parts], 1))
        return kernel(Attention(2, 3, 4, 4, 5, 0.5, 3, packed=True), op.matmul(x, merged))
