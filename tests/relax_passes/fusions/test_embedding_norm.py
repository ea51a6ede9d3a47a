"""Embeddings with their norm: the tables, indices and constants that go in, and what must not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_tvm.ops.embedding_norm import EmbeddingNorm, Lookup
from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.relax_passes.fusions.embedding_norm import FuseEmbeddingNorm
from hetero_tvm.relax_passes.fusions.normalization import FuseLayerNorm, FuseRmsNorm
from tests.relax_passes.graphs import (
    bindings,
    calls,
    constant,
    contracts,
    evaluate,
    module,
    names_of,
    op,
    relax,
    tvm,
    weights,
)
from tests.relax_passes.graphs import fuse as run
from tests.relax_passes.rewrite import Rewrite, kernel

N = 8
RULES = (FuseLayerNorm(), FuseRmsNorm(), FuseEmbeddingNorm())


def table(rows, seed=0):
    return constant(weights(rows, N, seed=seed))


def norm(emit, x, rms=False):
    if rms:
        return emit(op.nn.rms_norm(x, constant(weights(N)), axes=[-1], epsilon=1e-5))
    gamma, beta = constant(weights(N)), constant(weights(N, seed=1))
    return emit(op.nn.layer_norm(x, gamma, beta, axes=[-1], epsilon=1e-5))


def take(emit, rows, ids, seed=0):
    return emit(op.take(table(rows, seed), ids, axis=0, mode="wrap"))


def build(body, inputs):
    return module(inputs, body, "int64")


def same(before, after, rows=5):
    """Check that both modules compute the same, for indices from -rows to rows - 1."""
    generator = np.random.default_rng(3)
    shapes = [[int(e) for e in p.ty.shape] for p in before["main"].params]
    arrays = [generator.integers(-rows, rows, shape).astype("float64") for shape in shapes]
    for one, two in zip(evaluate(before, arrays), evaluate(after, arrays), strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-5)


def fused(body, inputs):
    before = build(body, inputs)
    after, names, report = run(before, *RULES)
    assert report.fusions["embedding_norm"] == 1 and not report.misses
    assert sum(report.fusions.values()) == 2, "the norm is counted under its own name as well"
    assert names_of(before) <= set().union(*names.values())
    assert calls(after)["take"] == calls(after)["add"] == calls(after)["normalize"] == 0
    same(before, after)
    return contracts(after, "embedding_norm")[0]


def test_bert():
    def body(emit, ids, types):
        x = emit(op.add(take(emit, 11, ids), take(emit, 5, types, seed=1)))
        return norm(emit, emit(op.add(x, constant(weights(1, 3, N, seed=5)))))

    found = fused(body, {"ids": (2, 3), "types": (2, 3)})
    assert [x.rows for x in found.lookups] == [11, 5] and found.added == (1, 3, N) and found.centered


def test_three_tables_and_indices_that_are_broadcast():
    def body(emit, ids, types, places):
        x = emit(op.add(take(emit, 5, places, seed=2), take(emit, 11, ids)))
        return norm(emit, emit(op.add(take(emit, 5, types, seed=1), x)))

    found = fused(body, {"ids": (2, 3), "types": (2, 3), "places": (3,)})
    assert {x.indices for x in found.lookups} == {(2, 3), (1, 3)} and found.added == ()


def test_a_single_scaled_table_and_rms():
    def body(emit, ids):
        return norm(emit, emit(op.multiply(take(emit, 7, ids), constant(2.5))), rms=True)

    found = fused(body, {"ids": (2, 3)})
    assert found.lookups[0].factor == 2.5 and not found.centered and not found.shifted


def test_several_constants_become_one():
    def body(emit, ids):
        x = emit(op.add(take(emit, 7, ids), constant(weights(N, seed=2))))
        return norm(emit, emit(op.add(constant(weights(1, 3, N, seed=3)), x)))

    assert fused(body, {"ids": (2, 3)}).added == (1, 3, N)


def refused(body, inputs):
    before = build(body, inputs)
    after, _, report = run(before, *RULES)
    assert "embedding_norm" not in report.fusions
    same(before, after)
    return [miss["reason"] for miss in report.misses]


def test_a_sum_that_is_a_residual_too():
    def body(emit, ids):
        x = emit(op.add(take(emit, 7, ids), constant(weights(3, N))))
        return emit(op.add(norm(emit, x), x))

    assert refused(body, {"ids": (2, 3)}) == []


def test_a_norm_of_something_else():
    body = lambda e, ids: norm(e, e(op.astype(ids, "float32")))  # noqa: E731
    assert refused(body, {"ids": (2, N)}) == []


def test_a_norm_over_another_axis():
    def body(emit, ids):
        rows = emit(take(emit, 5, ids))
        return emit(op.nn.rms_norm(rows, constant(weights(1)), axes=[0], epsilon=1e-5))

    fused, *_ = run(build(body, {"ids": (1, 3)}), FuseRmsNorm(lambda norm: True), FuseEmbeddingNorm())
    assert contracts(fused, "normalize") and not contracts(fused, "embedding_norm")


def test_something_else_is_added():
    def body(emit, ids, other):
        x = emit(op.astype(other, "float32"))
        return norm(emit, emit(op.add(take(emit, 7, ids), x)))

    (reason,) = refused(body, {"ids": (2, 3), "other": (2, 3, N)})
    assert reason.startswith("astype is added to the embeddings")


@pytest.mark.parametrize("count", [9, 17])
def test_many_tables(count):
    """LayoutLM adds nine embeddings; more than a kernel's registers hold are a miss."""

    def body(emit, ids):
        x = take(emit, 7, ids)
        for seed in range(1, count):
            x = emit(op.add(x, take(emit, 7, ids, seed)))
        return norm(emit, x)

    if count == 9:
        assert len(fused(body, {"ids": (2, 3)}).lookups) == 9
    else:
        assert refused(body, {"ids": (2, 3)}) == ["17 embeddings are added, expected at most 16"]


@pytest.mark.parametrize(("mode", "axis"), [("clip", 0), ("clip", 1), ("wrap", 1)])
def test_other_lookups(mode, axis):
    def body(emit, ids):
        return norm(emit, emit(op.take(constant(weights(N, N)), ids, axis=axis, mode=mode)))

    before = build(body, {"ids": (N,)})
    after, _, report = run(before, *RULES)
    assert "embedding_norm" not in report.fusions and calls(after)["take"] == 1


def test_operands_in_order():
    def body(emit, ids):
        return norm(emit, emit(op.add(take(emit, 7, ids), constant(weights(3, N)))))

    after, _, _ = run(build(body, {"ids": (2, 3)}), *RULES)
    (call,) = [b.value for b in bindings(after) if isinstance(b.value, tvm.ir.Call)]
    assert [tuple(int(e) for e in f.ty.shape) for f in call.args[1].fields] == [
        (2, 3),
        (7, N),
        (3, N),
        (N,),
        (N,),
    ]
    relax.analysis.well_formed(after)


@settings(max_examples=20)
@given(st.data())
def test_random_embeddings(data):
    batch, length = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    count = data.draw(st.integers(1, 3))
    shapes = [data.draw(st.sampled_from([(batch, length), (length,), (1, length)])) for _ in range(count)]
    shapes[0] = (batch, length)
    added = data.draw(st.sampled_from([None, (N,), (length, N), (1, length, N)]))
    rms = data.draw(st.booleans())

    def body(emit, *ids):
        x = take(emit, 5, ids[0])
        for seed, other in enumerate(ids[1:], 1):
            y = take(emit, 5, other, seed)
            x = emit(op.add(x, y) if seed % 2 else op.add(y, x))
        return norm(emit, x if added is None else emit(op.add(x, constant(weights(*added)))), rms)

    fused(body, {f"ids{i}": shape for i, shape in enumerate(shapes)})


class TestFuseEmbeddingNorm(Rewrite):
    rule = FuseEmbeddingNorm()
    inputs = {"ids": ("int64", 2, 3)}
    norm = Normalization((2, 3), 4, 0.25, shifted=False)

    def before(self, ids):
        words = op.take(constant(weights(7, 4)), ids, 0, mode="wrap")
        return kernel(self.norm, op.add(words, constant(weights(3, 4))), constant(weights(4)))

    def expected(self, ids):
        fused = EmbeddingNorm((2, 3), 4, (Lookup(7, (2, 3)),), (3, 4), 0.25, shifted=False)
        return kernel(fused, ids, constant(weights(7, 4)), constant(weights(3, 4)), constant(weights(4)))
