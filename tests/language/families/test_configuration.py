"""Rules for texts and hints, as ``generation_config.json`` spells them."""

import json

import pytest

from hetero_tvm.errors import ModelError
from hetero_tvm.generation.rules import TextRules
from hetero_tvm.language.checkpoints.checkpoint import SafetensorsFolder
from hetero_tvm.language.families.configuration import hints_of, rules_of
from tests import tiny_llama


def test_rules_in_every_spelling():
    assert rules_of({"min_length": 0, "bad_words_ids": None}) == TextRules()
    config = {"forced_eos_token_id": 2, "min_length": 56, "no_repeat_ngram_size": 3, "forced_bos_token_id": 0}
    assert rules_of(config) == TextRules(no_repeat=3, least=56, forced_first=0, forced_last=(2,))
    assert rules_of({**config, "min_new_tokens": 4}).least == 0  # as in transformers
    assert rules_of({"bad_words_ids": [[1], [2, 3]]}).bad_words == ((1,), (2, 3))


def test_all_that_make_no_rules_are_listed():
    config = {"min_length": -1, "bad_words_ids": [[]], "suppress_tokens": "7", "forced_bos_token_id": True}
    with pytest.raises(ModelError, match="rules") as caught:
        rules_of(config)
    assert [problem.split()[0] for problem in caught.value.problems] == [
        "suppress_tokens",
        "bad_words_ids",
        "min_length",
        "forced_bos_token_id",
    ]


def test_a_file_of_its_own_is_the_only_one_with_rules(tmp_path):
    folder = tiny_llama.write(tmp_path, {**tiny_llama.CONFIG, "min_length": 9})
    assert rules_of(SafetensorsFolder(folder).config).least == 9
    (folder / "generation_config.json").write_text(json.dumps({"no_repeat_ngram_size": 2}))
    assert rules_of(SafetensorsFolder(folder).config) == TextRules(no_repeat=2)


def test_what_is_not_heeded_and_how_its_makers_generate():
    assert hints_of({"guidance_scale": 1.0, "do_sample": False, "temperature": 0.6, "num_beams": 1}) == []
    told = hints_of({"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8})
    assert len(told) == 1 and told[0].endswith("generate --temperature 0.7 --top-k 20 --top-p 0.8")
    told = hints_of(
        {"do_sample": True, "temperature": 1.0, "min_p": 0.1, "typical_p": 0.9, "eta_cutoff": 0.0}
    )
    assert told[0].startswith("generation_config.json: typical_p is 0.9") and told[1].endswith("--min-p 0.1")
    assert hints_of({"do_sample": True})[0].endswith("--temperature 1.0")
    told = hints_of({"num_beams": 4, "length_penalty": 2.0, "encoder_no_repeat_ngram_size": 3})
    assert told[0].startswith("generation_config.json: encoder_no_repeat_ngram_size is 3")
    assert told[1].endswith("--beams 4 --length-penalty 2.0")
