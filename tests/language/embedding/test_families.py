"""Configurations of encoders; all families beside transformers are in ``tests/campaign/embeddings.py``."""

import pytest

from hetero_tvm.errors import ModelError
from hetero_tvm.language.architectures import EMBEDDERS, describe
from hetero_tvm.language.embedding.families import ENCODERS, describe_encoder
from hetero_tvm.language.encoder_decoders import ENCODER_DECODERS
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
    assert set(EMBEDDERS) == set(ENCODERS) - set(ENCODER_DECODERS)
    with pytest.raises(ModelError, match="build_embedding_model"):
        describe(CONFIG)
