"""Whole encoders beside transformers, and what a folder is built as."""

import json

import numpy as np
import pytest

from hetero_tvm import load_embedding_model, load_language_model
from hetero_tvm.errors import LibraryError, ModelError, UsageError
from hetero_tvm.language.embedding.build import build_embedding_model, is_embedder
from tests import tiny_bert, tiny_llama


def test_which_folders_embed_texts(tmp_path):
    assert is_embedder(tiny_bert.write(tmp_path / "bert"))
    (tmp_path / "bert/modules.json").unlink()
    assert is_embedder(tmp_path / "bert")
    assert not is_embedder(tiny_llama.write(tmp_path / "llama"))
    (tmp_path / "t5").mkdir()
    (tmp_path / "t5/config.json").write_text('{"model_type": "t5"}')
    assert not is_embedder(tmp_path / "t5")
    assert not is_embedder("zoo:bert-tiny")


def test_what_cannot_be_built_is_refused(tmp_path):
    folder = tiny_bert.write(tmp_path / "bert")
    with pytest.raises(UsageError, match="made for 24"):
        build_embedding_model(folder, tmp_path / "out", context=25)
    with pytest.raises(UsageError, match="beside weights of 8 bits"):
        build_embedding_model(folder, tmp_path / "out", activations="int8")
    config = {"in_features": 31, "out_features": 5}
    (folder / "2_Dense/config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="takes 31 channels, and there are 32"):
        build_embedding_model(folder, tmp_path / "out")
    (folder / "config.json").write_text('{"model_type": "nomic_bert"}')
    with pytest.raises(ModelError, match="(?s)no encoder of type 'nomic_bert'.*known: bert"):
        build_embedding_model(folder, tmp_path / "out")


def decoder_folder(folder, pooling, **config):
    """A Llama as sentence-transformers saves it: no prefix, no matrix of logits."""
    tensors = {n.removeprefix("model."): t for n, t in tiny_llama.weights().items() if "lm_head" not in n}
    tiny_llama.write(folder, {**tiny_llama.CONFIG, "tie_word_embeddings": False, **config}, tensors)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    listed = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({f"pooling_mode_{pooling}": True}))
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize("pooling", ["lasttoken", "mean_tokens"])
def test_decoders_embed_texts_of_different_lengths_together(pooling, tmp_path):
    build_embedding_model(decoder_folder(tmp_path / "llama", pooling), tmp_path / "out")
    model = load_embedding_model(tmp_path / "out")
    texts = [[5], [5, 6, 7], list(range(90)), [90, 3] * 40]
    expected = []
    for tokens in texts:
        rows = tiny_llama.rows(tokens)
        vector = rows[-1] if pooling == "lasttoken" else rows.mean(0)
        expected.append(vector / np.linalg.norm(vector))
    got = model.embed_tokens(texts * 20)
    np.testing.assert_allclose(got, expected * 20, atol=1e-5)
    assert model.facts.context == 128
    with pytest.raises(LibraryError, match="embeds texts, and continues none"):
        load_language_model(tmp_path / "out")


def test_decoders_that_see_what_follows_are_refused(tmp_path):
    folder = decoder_folder(tmp_path / "llama", "mean_tokens", is_causal=False)
    with pytest.raises(ModelError, match="see those that follow"):
        build_embedding_model(folder, tmp_path / "out")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["mpnet", "distilbert"])
def test_rows_are_those_of_transformers(name, tmp_path):
    from tests.campaign.embeddings import compare

    assert compare(name, tmp_path) == []
