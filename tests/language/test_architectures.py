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


def test_a_granite_keeps_its_stream_divided():
    """Norms see the same numbers where the epsilon is divided by the square."""
    multipliers = {"embedding_multiplier": 12.0, "residual_multiplier": 0.5, "attention_multiplier": 0.1}
    decoder, _ = describe({**CONFIG, "model_type": "granite", **multipliers, "logits_scaling": 8.0})
    assert (decoder.embed_scale, decoder.scale, decoder.final_scale) == (24.0, 0.1, 0.125)
    assert decoder.eps == CONFIG["rms_norm_eps"] * 4


def test_layer_norms_and_parallel_branches():
    layer_norms = {**CONFIG, "layer_norm_eps": 1e-3, "norm_epsilon": 1e-4}
    phi, names = describe({**layer_norms, "model_type": "phi"})
    assert (phi.parallel, phi.gated, phi.centered, phi.eps, phi.rotated) == (True, False, True, 1e-3, 4)
    assert names.head_bias == "lm_head.bias"
    stable, _ = describe({**layer_norms, "model_type": "stablelm"})
    assert (stable.parallel, stable.gated, stable.centered, stable.rotated) == (False, True, True, 2)
    coder, names = describe({**layer_norms, "model_type": "starcoder2", "sliding_window": 7})
    assert (coder.gated, coder.eps, coder.layers[0].window, names.up) == (False, 1e-4, 7, ("mlp.c_fc",))


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"model_type": "mamba"}, "mamba"),
        ({}, "None"),
        ({**CONFIG, "model_type": "phi", "qk_layernorm": True, "layer_norm_eps": 1e-5}, "qk_layernorm"),
        ({**CONFIG, "model_type": "granite"}, "attention_multiplier"),
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
    assert set(ARCHITECTURES) == known | {"granite", "starcoder2", "stablelm", "phi"}
    assert describe(OPT)[0].learned == 66
    narrow = describe({**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 16})[0]
    assert (narrow.embed_width, narrow.norms_after) == (16, True)
