"""Likeliest tokens of rows of logits, and logarithms of their probabilities."""

import numpy as np
import pytest

from hetero_tvm.generation.likelihood import likelihoods

rng = np.random.default_rng(0)


@pytest.mark.parametrize("count", [0, 1, 5, 20, 50])
def test_likeliest_tokens_are_the_first_of_equal_ones(count):
    logits = np.round(rng.normal(0, 2, (20, 40))).astype(np.float32)
    logits[3, 5:] = -np.inf
    tokens = logits.argmax(1)
    for row, token, found in zip(logits, tokens, likelihoods(logits, tokens, count), strict=True):
        exact = row.astype(np.float64) - np.log(np.exp(row.astype(np.float64)).sum())
        order = sorted(range(40), key=lambda n: (-exact[n], n))[:count]
        assert [n for n, _ in found.top] == order
        np.testing.assert_allclose([value for _, value in found.top], exact[order], rtol=1e-12)
        assert found.token == token
        assert not count or found.top[0][0] == token
