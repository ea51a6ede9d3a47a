"""Sources: what can be one, and how texts hold it; numbers are in ``tests/language/test_encoder.py``."""

from types import SimpleNamespace

import numpy as np
import pytest

from hetero_tvm.errors import InputError, UsageError
from hetero_tvm.generation.facts import LanguageFacts, SourceFacts
from hetero_tvm.generation.source import SourceEncoder

CALLS = []


def encoder(mels=0, pages=3):
    source = SourceFacts(20, 0 if mels else 50, mels, (2,))
    facts = LanguageFacts("t5", "f32", 50, 64, 8, 1, 2, 4, 16, "float32", (), 0, (), 0, source)
    CALLS.clear()
    library = SimpleNamespace(function=lambda name, specs, dtype: lambda *arrays: CALLS.append(arrays))
    return SourceEncoder(library, facts, pages)


def test_texts_share_the_pages_of_a_source_until_the_last_has_gone():
    sources = encoder()
    with sources.encode([3, 4] * 10) as source:
        assert (len(source), len(source.pages), sources.pool.free) == (20, 2, 1)
        other = source.share()
    assert sources.pool.free == 1
    other.close()
    other.close()
    assert sources.pool.free == 3
    with pytest.raises(UsageError, match="closed"):
        other.share()


def test_features_go_in_as_rows():
    sources = encoder(mels=5)
    features = np.random.default_rng(0).standard_normal((5, 40)).astype(np.float32)
    sources.encode(features).close()
    np.testing.assert_array_equal(CALLS[0][0], features.T)
    np.testing.assert_array_equal(CALLS[0][1], np.arange(20))
    sources.encode(features[None]).close()  # as feature extractors give them
    np.testing.assert_array_equal(CALLS[1][0], features.T)


def test_tokens_of_a_source_may_be_an_array():
    with encoder().encode(np.array([[3, 4, 5]])) as source:
        assert len(source) == 3
    assert CALLS[0][0].tolist() == [3, 4, 5]


@pytest.mark.parametrize("bad", [[], [1] * 21, [50], [True], [1.5]])
def test_wrong_tokens(bad):
    with pytest.raises(InputError, match="tokens of a source"):
        encoder().encode(bad)


@pytest.mark.parametrize(
    "bad", [np.zeros((5, 39), np.float32), np.full((5, 40), np.nan, np.float32), np.zeros((5, 40), "U1")]
)
def test_wrong_features(bad):
    with pytest.raises(InputError, match="features"):
        encoder(mels=5).encode(bad)
