import numpy as np

from hetero_tvm.ops.decoding.contracts import (
    CachedAttention,
    Heads,
    Linear,
    RelativeBias,
    SourceAttention,
    Unfold,
)


def test_linear_reference_spells_the_epilogue():
    random = np.random.default_rng(0)
    x, w, bias, residual = (random.standard_normal(s) for s in ((2, 3), (8, 3), (8,), (2, 4)))
    gate, up = x @ w[:4].T + bias[:4], x @ w[4:].T + bias[4:]
    want = gate / (1 + np.exp(-gate)) * up + residual
    op = Linear(4, 3, bias=True, activation="silu", gated=True, residual=True)
    np.testing.assert_allclose(op.reference(x, w, bias, residual), want)
    capped = Linear(8, 3, softcap=2.0).reference(x, w)
    np.testing.assert_allclose(capped, 2 * np.tanh(x @ w.T / 2))


def test_attention_reference_sees_its_window_only():
    heads = Heads(2, 1, 4, layers=1)
    random = np.random.default_rng(1)
    k, v = random.standard_normal((2, 6, 1, 4))
    q = random.standard_normal((1, 8))
    whole = CachedAttention(heads, 0.5).reference(q, k[:5], v[:5], np.array([4]))
    windowed = CachedAttention(heads, 0.5, window=2)
    np.testing.assert_allclose(
        windowed.reference(q, k, v, np.array([4])),
        CachedAttention(heads, 0.5).reference(q, k[3:5], v[3:5], np.array([1])),
    )
    assert np.abs(windowed.reference(q, k, v, np.array([4])) - whole).max() > 1e-3


def test_shapes_of_the_pools():
    heads = Heads(8, 2, 24, layers=3, page=32)
    assert heads.width == 12 * 24
    assert heads.pools(5) == ((5, 3, 2, 2, 24, 16), (5, 3, 2, 32, 24))


def test_biases_of_cached_attention_go_by_distance():
    heads = Heads(2, 1, 4, layers=1)
    random = np.random.default_rng(2)
    k, v = random.standard_normal((2, 6, 1, 4))
    q = random.standard_normal((1, 8))
    biases = np.full((2, 8 + 16), -np.inf)
    biases[:, 7 - 2] = 0  # the key two before the row alone
    got = CachedAttention(heads, 0.5, relative=8).reference(q, k, v, np.array([5]), biases)
    np.testing.assert_allclose(got, np.tile(v[3, 0], 2)[None])


def test_references_of_encoders():
    random = np.random.default_rng(3)
    qkv = random.standard_normal((5, 3 * 2 * 4))
    bias = np.full((2, 5, 5), -np.inf)
    bias[:, np.arange(5), 4 - np.arange(5)] = 0  # each row sees its mirror image
    np.testing.assert_allclose(SourceAttention(2, 4, 0.5, 8, True).reference(qkv, bias), qkv[::-1, 16:])
    np.testing.assert_allclose(
        SourceAttention(2, 4, 0.5, 8).reference(qkv),
        SourceAttention(2, 4, 0.5, 8, True).reference(qkv, np.zeros((2, 5, 5))),
    )
    table = np.arange(9.0)[None]
    np.testing.assert_array_equal(RelativeBias(1, 5).reference(table, 2)[0], [[4, 5], [3, 4]])
    x = np.arange(1.0, 6.0)[:, None]
    np.testing.assert_array_equal(Unfold(1, 3, 2).reference(x), [[0, 1, 2], [2, 3, 4], [4, 5, 0]])
