"""Embeddings of texts: pooled as sentence-transformers pools, whatever the length; refusals by name."""

import shutil

import numpy as np
import pytest

import hetero_tvm
from hetero_tvm.errors import CapacityError, InputError, LibraryError, UsageError
from hetero_tvm.generation.embedding import POOLINGS, EmbeddingFacts
from hetero_tvm.generation.facts import EMBEDDING, LanguageFacts
from tests import tiny_bert
from tests.generation.test_text import write_tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("embedding") / "tiny"
    shutil.copytree(tiny_bert.built(), folder)
    write_tokenizer(tokenizers, folder)
    return hetero_tvm.load_embedding_model(folder)


def test_vectors_are_those_of_the_model(model):
    texts = [[5], [5, 6, 7], list(range(16))]
    expected = [tiny_bert.embedding(tokens) for tokens in texts]
    np.testing.assert_allclose(model.embed_tokens(texts), expected, atol=1e-5)
    expected = [tiny_bert.embedding(tokens, 5) for tokens in texts]
    np.testing.assert_allclose(model.embed_tokens(texts, dimensions=5), expected, atol=1e-5)
    assert model.embed_tokens([]).shape == (0, tiny_bert.DENSE)


def test_texts_are_written_small_cut_and_led_by_prompts(model):
    long = " ".join(f"w{n}" for n in range(40))
    got = model.embed(["W5 w6", long])
    np.testing.assert_array_equal(got, model.embed_tokens([[5, 6], list(range(16))]))
    got = model.embed(["w5"], prompt="query")
    np.testing.assert_array_equal(got, model.embed_tokens([[7, 5]]))
    with pytest.raises(UsageError, match="no prompt 'querry'.*'query'"):
        model.embed(["w5"], prompt="querry")


def test_what_cannot_be_embedded_is_refused(model):
    with pytest.raises(InputError, match="list of str"):
        model.embed("w5")
    with pytest.raises(InputError, match="text 1: token 97 at 0.*") as caught:
        model.embed_tokens([[5], [97], []])
    assert "text 2 has no tokens" in str(caught.value)
    with pytest.raises(CapacityError, match="16 tokens at most"):
        model.embed_tokens([[5] * 17])
    for wrong in (0, tiny_bert.DENSE + 1, True, 2.0):
        with pytest.raises(UsageError, match="dimensions"):
            model.embed_tokens([[5]], dimensions=wrong)


def test_a_library_says_what_it_is_for(model):
    with pytest.raises(LibraryError, match="embeds texts, and continues none"):
        hetero_tvm.load_language_model(model.library.path)
    with pytest.raises(LibraryError, match="embeds no texts"):
        EmbeddingFacts.from_json({"version": 2}, "x.so")
    with pytest.raises(LibraryError, match="another hetero_tvm"):
        EmbeddingFacts.from_json({EMBEDDING: {"version": 0}}, "x.so")
    with pytest.raises(LibraryError, match="damaged: 'architecture'"):
        EmbeddingFacts.from_json({EMBEDDING: {"version": 1}}, "x.so")
    with pytest.raises(LibraryError, match="no language model"):
        LanguageFacts.from_json({}, "x.so")


def test_poolings():
    rows = np.array([[1, 4], [3, 0], [2, 8]], np.float32)
    expected = {
        "cls": [1, 4],
        "max": [3, 8],
        "mean": [2, 4],
        "mean_sqrt_len": [6 / 3**0.5, 12 / 3**0.5],
        "weightedmean": [(1 + 6 + 6) / 6, (4 + 0 + 24) / 6],
        "lasttoken": [2, 8],
    }
    assert list(expected) == list(POOLINGS)
    for name, vector in expected.items():
        np.testing.assert_allclose(POOLINGS[name](rows), vector, rtol=1e-6)
