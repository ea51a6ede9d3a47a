"""Configurations of encoder-decoders; their tokens are in ``tests/campaign/encoder_decoders.py``."""

import pytest

from hetero_tvm.errors import ModelError
from hetero_tvm.language.families.encoder_decoders import describe_pair, is_encoder_decoder
from tests.campaign.encoder_decoders import CASES

BART = {**CASES["bart"][1], "model_type": "bart", "activation_function": "gelu"}
T5 = {**CASES["t5"][1], "model_type": "t5"}


def test_halves_of_a_bart():
    pair = describe_pair(
        {**BART, "forced_bos_token_id": 5, "bad_words_ids": [[1], [3, 4]], "suppress_tokens": [8]}
    )
    assert (len(pair.encoder.layers), len(pair.decoder.layers), pair.decoder.cross) == (2, 3, True)
    assert pair.start == (2, 5)
    assert pair.decoder.norms_after and pair.decoder.embed_norm and not pair.encoder.cross


def test_t5_ties_its_logits_or_not():
    tied, free = describe_pair(T5), describe_pair({**T5, "tie_word_embeddings": False})
    assert (tied.decoder.final_scale, free.decoder.final_scale) == (48**-0.5, 1.0)
    gated = describe_pair({**T5, "feed_forward_proj": "gated-gelu"})
    assert gated.decoder.gated and len(gated.decoder_names.up) == 2
    assert gated.decoder.activation == "gelu_tanh"


def test_what_is_known():
    assert is_encoder_decoder({"model_type": "whisper"})
    assert not is_encoder_decoder({"model_type": "llama"})


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"d_model": None}, "damaged"),
        ({"encoder_attention_heads": 7}, "equal size"),
        ({"decoder_layers": 0}, "no layers"),
        ({"activation_function": "sine"}, "sine"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantized"),
    ],
)
def test_configurations_that_make_no_model(changes, match):
    with pytest.raises(ModelError) as caught:
        describe_pair({**BART, **changes})
    assert match in str(caught.value)


def test_a_missing_entry_is_named():
    config = {name: value for name, value in BART.items() if name != "decoder_ffn_dim"}
    with pytest.raises(ModelError, match="decoder_ffn_dim"):
        describe_pair(config)
