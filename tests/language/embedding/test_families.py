"""Configurations of encoders; all families beside transformers are in ``tests/campaign/embeddings.py``."""

import pytest

from hetero_tvm.errors import ModelError
from hetero_tvm.language.embedding.families import ENCODERS, describe_encoder, is_encoder
from hetero_tvm.language.families.architectures import ARCHITECTURES, EMBEDDERS, describe
from hetero_tvm.language.families.encoder_decoders import ENCODER_DECODERS
from tests import tiny_llama
from tests.tiny_bert import CONFIG


def test_positions_begin_behind_the_padding():
    encoder, _ = describe_encoder(CONFIG)
    assert (encoder.context, encoder.learned, encoder.learned_offset) == (24, 24, 0)
    encoder, _ = describe_encoder({**CONFIG, "model_type": "roberta", "pad_token_id": 1})
    assert (encoder.context, encoder.learned, encoder.learned_offset) == (22, 24, 2)


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"architectures": ["BertForSequenceClassification"]}, "classifies texts"),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"is_decoder": True}, "is_decoder"),
        ({"embedding_size": 16}, "embedding_size is 16"),
        ({"num_attention_heads": 5}, "5 heads"),
        ({"hidden_act": "mish"}, "mish"),
        ({"hidden_size": None}, "damaged"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized"),
    ],
)
def test_what_is_not_built_is_named(changes, problem):
    with pytest.raises(ModelError, match=problem):
        describe_encoder({**CONFIG, **changes})


def test_a_text_is_not_continued_by_an_encoder():
    assert set(EMBEDDERS) == set(ENCODERS) - set(ENCODER_DECODERS) - set(ARCHITECTURES)
    with pytest.raises(ModelError, match="build_embedding_model"):
        describe(CONFIG)


def test_windows_and_rotations_of_a_modernbert():
    """In the spelling of the first files, and of today's."""
    sizes = {"norm_eps": 1e-5, "local_attention": 12, "num_hidden_layers": 4, "hidden_activation": "gelu"}
    config = {
        **CONFIG,
        **sizes,
        "model_type": "modernbert",
        "global_rope_theta": 100.0,
        "local_rope_theta": 10.0,
    }
    encoder, names = describe_encoder(config)
    assert [(layer.window, layer.rope, layer.bare) for layer in encoder.layers] == [
        (0, 0, True),
        (7, 1, False),
        (7, 1, False),
        (0, 0, False),
    ]
    assert (encoder.learned, encoder.gated, encoder.norms_after) == (0, True, False)
    kinds = ["full_attention", *["sliding_attention"] * 2, "full_attention"]
    parameters = {"full_attention": {"rope_theta": 100.0}, "sliding_attention": {"rope_theta": 10.0}}
    newer = {
        **CONFIG,
        **sizes,
        "model_type": "modernbert",
        "layer_types": kinds,
        "rope_parameters": parameters,
    }
    assert describe_encoder(newer)[0] == encoder and encoder.ropes[0] != encoder.ropes[1]


def test_a_gemma_that_sees_both_sides():
    config = {**tiny_llama.CONFIG, "model_type": "gemma3_text", "head_dim": 8, "sliding_window": 10}
    assert not is_encoder(config)  # it generates
    config["use_bidirectional_attention"] = True
    assert is_encoder(config)
    encoder, names = describe_encoder(config)
    assert {layer.window for layer in encoder.layers} == {6}
    # Four queries, and each of two keys and values for two of them.
    assert [row // 8 for row in names.qkv_rows[::8]] == [0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 7, 7]
    with pytest.raises(ModelError, match="bounded scores"):
        describe_encoder({**config, "attn_logit_softcapping": 30.0})
