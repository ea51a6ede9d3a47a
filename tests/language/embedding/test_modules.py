"""Folders of sentence-transformers, in the spellings of their versions; what is not built is named."""

import json

import pytest

from hetero_tvm.errors import ModelError
from hetero_tvm.language.embedding.modules import Dense, read_modules
from tests import tiny_bert


def change(folder, name, **entries):
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


@pytest.fixture
def folder(tmp_path):
    return tiny_bert.write(tmp_path / "checkpoint")


def test_a_whole_folder(folder):
    found = read_modules(folder)
    assert (found.encoder, found.poolings, found.longest, found.lower) == (folder, ("mean",), 16, True)
    assert found.steps == (Dense(folder / "2_Dense", 12, 32, "tanh"), "normalize")
    assert (dict(found.prompts), found.prompt) == ({"query": tiny_bert.PROMPT}, "")


def test_a_folder_without_modules_has_the_mean(tmp_path):
    found = read_modules(tmp_path)
    assert (found.encoder, found.poolings, found.steps, found.longest) == (tmp_path, ("mean",), (), None)


def test_vectors_are_joined_in_one_order(folder):
    change(folder, "1_Pooling/config.json", pooling_mode_max_tokens=True, pooling_mode_cls_token=True)
    assert read_modules(folder).poolings == ("cls", "max", "mean")
    change(folder, "1_Pooling/config.json", pooling_mode="lasttoken")
    assert read_modules(folder).poolings == ("lasttoken",)


def test_what_is_not_built_is_named(folder):
    change(folder, "1_Pooling/config.json", include_prompt=False)
    with pytest.raises(ModelError, match="include_prompt"):
        read_modules(folder)
    change(folder, "1_Pooling/config.json", include_prompt=True, pooling_mode="attention")
    with pytest.raises(ModelError, match="attention.*known: cls"):
        read_modules(folder)
    change(folder, "2_Dense/config.json", activation_function="x.Mish")
    change(folder, "1_Pooling/config.json", pooling_mode="cls")
    with pytest.raises(ModelError, match="'Mish'"):
        read_modules(folder)
    modules = json.loads((folder / "modules.json").read_text())
    for listed, problem in (
        ([*modules[:2], {"path": "x", "type": "m.CNN"}], "not built: CNN"),
        ([{"path": "", "type": "m.StaticEmbedding"}], "this one has StaticEmbedding"),
        ([modules[0], {"path": "../x", "type": "m.Pooling"}], "not in its folder"),
        ({}, "no list of modules"),
    ):
        (folder / "modules.json").write_text(json.dumps(listed))
        with pytest.raises(ModelError, match=problem):
            read_modules(folder)
