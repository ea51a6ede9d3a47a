"""Whole encoders beside transformers, and what a folder is built as."""

import json

import pytest

from hetero_tvm.errors import ModelError, UsageError
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
    (folder / "config.json").write_text('{"model_type": "modernbert"}')
    with pytest.raises(ModelError, match="(?s)no encoder of type 'modernbert'.*known: bert"):
        build_embedding_model(folder, tmp_path / "out")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["mpnet", "distilbert"])
def test_rows_are_those_of_transformers(name, tmp_path):
    from tests.campaign.embeddings import compare

    assert compare(name, tmp_path) == []
