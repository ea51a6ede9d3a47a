import pytest

from hetero_tvm.errors import ModelError
from hetero_tvm.language.architectures import ARCHITECTURES, describe
from tests.tiny_llama import CONFIG

GEMMA = {**CONFIG, "model_type": "gemma3_text", "head_dim": 16, "sliding_window": 20, "num_hidden_layers": 7}
OPT = {
    "model_type": "opt",
    "vocab_size": 50,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "ffn_dim": 64,
    "max_position_embeddings": 64,
    "activation_function": "relu",
}


def test_a_llama():
    decoder, names = describe(CONFIG)
    assert (decoder.heads, decoder.kv_heads, decoder.dim, decoder.rotated) == (4, 2, 8, 8)
    assert decoder.stop == (96,)
    assert len(decoder.layers) == 2 and not any(layer.window for layer in decoder.layers)
    assert names.prefixes == ("model.", "")


def test_windows_by_layer():
    window = {**CONFIG, "sliding_window": 8}
    assert [layer.window for layer in describe({**window, "model_type": "mistral"})[0].layers] == [8, 8]
    qwen = {**window, "model_type": "qwen2"}
    assert [layer.window for layer in describe(qwen)[0].layers] == [0, 0]
    qwen |= {"use_sliding_window": True, "max_window_layers": 1}
    assert [layer.window for layer in describe(qwen)[0].layers] == [0, 8]
    gemma = describe(GEMMA)[0]
    assert [layer.window for layer in gemma.layers] == [20] * 5 + [0, 20]
    assert [layer.rope for layer in gemma.layers] == [0] * 5 + [1, 0]
    two = describe({**GEMMA, "model_type": "gemma2", "attn_logit_softcapping": 50.0})[0]
    assert [layer.window for layer in two.layers] == [20, 0] * 3 + [20]
    assert two.softcap == 50.0


def test_the_text_part_of_a_multimodal_model():
    decoder, names = describe({"model_type": "gemma3", "text_config": GEMMA, "eos_token_id": [1, 106]})
    assert decoder.architecture == "gemma3_text"
    assert decoder.stop == (96,)  # its own comes first
    assert "model.language_model." in names.prefixes


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"model_type": "mamba"}, "mamba"),
        ({}, "None"),
        ({"model_type": "llama"}, "num_attention_heads"),
        ({**CONFIG, "num_key_value_heads": 3}, "makes no model"),
        ({**CONFIG, "quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({**CONFIG, "num_hidden_layers": 0}, "makes no model"),
        ({**CONFIG, "hidden_size": "wide"}, "damaged"),
        ({**CONFIG, "hidden_size": -32}, "makes no model"),
        ({**CONFIG, "head_dim": 1 << 60}, "make no model"),
        ({**CONFIG, "num_hidden_layers": 1 << 60}, "no model has more than"),
        ({**CONFIG, "model_type": [[]]}, "of type"),
        ({**CONFIG, "rope_parameters": "text"}, "damaged"),
        ({**CONFIG, "hidden_act": "xielu"}, "xielu"),
        ({**OPT, "_remove_final_layer_norm": True}, "not supported"),
        ({**GEMMA, "use_bidirectional_attention": True}, "both directions"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(config, match):
    with pytest.raises(ModelError, match=match):
        describe(config)


def test_all_that_are_known():
    known = {"llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3_text", "gpt2", "opt"}
    assert set(ARCHITECTURES) == known
    assert describe(OPT)[0].learned == 66
    narrow = describe({**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 16})[0]
    assert (narrow.embed_width, narrow.norms_after) == (16, True)
