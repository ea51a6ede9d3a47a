import dataclasses

import numpy as np
import pytest

from hetero_tvm.errors import ModelError
from hetero_tvm.language.checkpoints.checkpoint import SafetensorsFolder
from hetero_tvm.language.families.architectures import ARCHITECTURES, describe
from hetero_tvm.language.families.configuration import rows_of_groups, rows_of_pairs
from hetero_tvm.language.families.decoder import Experts, Latent
from hetero_tvm.language.families.multimodal import PARTS
from hetero_tvm.language.weights import DecoderWeights
from hetero_tvm.ops.decoding.storage import Storage
from tests import tiny_llama
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
    decoder, names = describe({"model_type": "mistral3", "text_config": {**CONFIG, "model_type": "mistral"}})
    assert decoder.architecture == "mistral" and "language_model." in names.prefixes  # of its lm_head


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


def test_layers_that_do_not_rotate():
    """Their angles are 0, whatever the position."""
    small = {**CONFIG, "num_hidden_layers": 4, "sliding_window": 8}
    smol, _ = describe({**small, "model_type": "smollm3", "no_rope_layers": [1, 0, 1, 1]})
    assert [layer.rope for layer in smol.layers] == [0, 1, 0, 0]
    assert any(smol.ropes[0].inverse) and not any(smol.ropes[1].inverse)
    command, names = describe({**small, "model_type": "cohere2", "layer_norm_eps": 1e-5, "logit_scale": 0.25})
    assert [(layer.window, layer.rope) for layer in command.layers] == [(8, 0)] * 3 + [(0, 1)]
    assert (command.final_scale, command.tied, command.parallel) == (0.25, True, True)
    exaone, _ = describe({**small, "model_type": "exaone4", "sliding_window_pattern": "LLLG"})
    assert [(layer.window, layer.rope) for layer in exaone.layers] == [(8, 0)] * 3 + [(0, 1)]
    assert (exaone.pre_norms, exaone.post_norms, exaone.wide_head_norms) == (False, True, False)


def test_scaled_positions_of_layers_without_a_window():
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    older = {
        **CONFIG,
        "model_type": "olmo3",
        "sliding_window": 8,
        "num_hidden_layers": 4,
        "rope_scaling": yarn,
    }
    decoder, _ = describe(older)
    assert [(layer.window, layer.rope) for layer in decoder.layers] == [(8, 0)] * 3 + [(0, 1)]
    assert decoder.ropes[0] == describe(CONFIG)[0].ropes[0] != decoder.ropes[1]
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    kinds = {"sliding_attention": plain, "full_attention": {**yarn, "rope_theta": 10000.0}}
    del older["rope_scaling"]
    assert describe({**older, "rope_parameters": kinds})[0] == decoder


def test_rows_of_queries_keys_and_values_in_other_orders():
    assert rows_of_pairs(1, 1, 6, 4) == (0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11, 12, 13, 14, 15, 16, 17)
    assert rows_of_groups(4, 2, 1) == (0, 1, 4, 5, 2, 6, 3, 7)
    width = {"n_embd": 8, "n_head": 4, "n_layer": 1, "n_positions": 32, "vocab_size": 9, "rotary_dim": 2}
    parts = {**width, "model_type": "codegen", "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}
    rows = describe(parts)[1].qkv_rows  # of each of 4 parts: queries, values, keys of 2 rows
    assert rows == (0, 1, 6, 7, 12, 13, 18, 19, 4, 5, 10, 11, 16, 17, 22, 23, 2, 3, 8, 9, 14, 15, 20, 21)


def test_mixtures_of_experts():
    few = {**CONFIG, "num_experts_per_tok": 2}
    mixtral, names = describe({**few, "model_type": "mixtral", "num_local_experts": 4})
    assert mixtral.experts == Experts(4, 2, CONFIG["intermediate_size"])
    assert all(layer.mixed for layer in mixtral.layers) and names.expert_up == ("w1", "w3")
    qwen = {**few, "model_type": "qwen3_moe", "moe_intermediate_size": 24, "num_experts": 8}
    some, _ = describe({**qwen, "num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3]})
    assert [layer.mixed for layer in some.layers] == [False, True, False, False]
    assert (some.experts.normalised, some.experts.inner, some.inner) == (False, 24, 40)
    older = {**qwen, "model_type": "qwen2_moe", "shared_expert_intermediate_size": 12, "norm_topk_prob": True}
    assert describe(older)[0].experts == Experts(8, 2, 24, True, 12, True)
    # transformers writes either name.
    spelled = {**qwen, "num_local_experts": 8}
    del spelled["num_experts"]
    assert describe(spelled)[0] == describe(qwen)[0]


def test_mixtures_with_norms_behind_or_positions_by_window():
    few = {**CONFIG, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    flex, names = describe({**few, "model_type": "flex_olmo"})
    assert (flex.experts.top, flex.pre_norms, flex.post_norms, flex.wide_head_norms) == (2, False, True, True)
    assert names.mlp_post_norm == "post_feedforward_layernorm"
    kinds = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
    ropes = {"sliding_attention": {"rope_theta": 10.0}, "full_attention": {"rope_theta": 500.0}}
    mixed = {"mlp_layer_types": ["dense", "sparse"], "rope_parameters": ropes}
    mellum, _ = describe({**few, "model_type": "mellum", **kinds, **mixed})
    assert [(one.window, one.rope, one.mixed) for one in mellum.layers] == [(8, 0, False), (0, 1, True)]
    assert mellum.ropes[0] != mellum.ropes[1] and mellum.experts.normalised


def test_a_hyperclovax():
    config = {**CONFIG, "model_type": "hyperclovax", "attention_multiplier": 0.1, "logits_scaling": 0.125}
    decoder, names = describe(config)
    assert (decoder.scale, decoder.final_scale, decoder.post_norms) == (0.1, 0.125, True)
    assert (decoder.embed_scale, names.mlp_post_norm) == (1.0, "post_norm2")
    before = {**config, "residual_multiplier": 0.5}
    assert describe({**before, "use_post_norm": False})[0].eps == CONFIG["rms_norm_eps"] * 4
    with pytest.raises(ModelError, match="residual_multiplier"):
        describe(before)


def test_a_gpt_oss():
    config = {**CONFIG, "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2}
    config |= {"num_hidden_layers": 3, "sliding_window": 8}
    decoder, names = describe(config)
    assert [layer.window for layer in decoder.layers] == [8, 0, 8] and decoder.sinks
    assert decoder.experts == Experts(4, 2, 40, limit=7.0, activation="quick_gelu")
    assert names.expert_rows[:3] == (0, 2, 4) and names.expert_rows[-1] == 79
    assert (decoder.dim, decoder.ropes[0].factor) == (64, pytest.approx(1.3466, abs=1e-4))
    with pytest.raises(ModelError, match="swiglu_alpha is 2.0"):
        describe({**config, "swiglu_alpha": 2.0})


def test_latent_attention():
    """Rotated channels come first in a head, as halves; the scale has YaRN's factor twice."""
    config = {**CONFIG, "model_type": "deepseek_v3", "n_routed_experts": 4, "num_experts_per_tok": 2}
    config |= {"moe_intermediate_size": 8, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}
    config |= {"qk_rope_head_dim": 4, "qk_nope_head_dim": 2, "v_head_dim": 3, "kv_lora_rank": 5}
    decoder, names = describe({**config, "num_attention_heads": 2, "num_key_value_heads": 2})
    assert (decoder.dim, decoder.values, decoder.rotated, decoder.kv_heads) == (6, 3, 4, 2)
    assert decoder.latent == Latent(0, 5, 4) and [layer.mixed for layer in decoder.layers] == [False, True]
    queries, few, shared, keys = names.latent_rows
    assert queries == (2, 4, 3, 5, 0, 1, 8, 10, 9, 11, 6, 7)
    assert (few, shared) == ((0, 1, 2, 3, 4), (5, 7, 6, 8))
    assert keys == (0, 1, 5, 6, 2, 3, 4, 7, 8, 9)
    assert decoder.experts == Experts(4, 2, 8, True, 0, sigmoid=True, groups=2, kept=1)
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    scaled = describe({**config, "rope_scaling": {**yarn, "mscale": 1.0, "mscale_all_dim": 1.0}})[0]
    assert scaled.scale == pytest.approx(6**-0.5 * (0.1 * np.log(4) + 1) ** 2)
    assert scaled.ropes[0].factor == 1.0


def test_slopes_of_alibi():
    bloom = {
        "model_type": "bloom",
        "vocab_size": 9,
        "hidden_size": 12,
        "n_layer": 1,
        "layer_norm_epsilon": 1e-5,
    }
    assert describe({**bloom, "n_head": 4})[0].slopes == (0.25, 0.0625, 0.015625, 0.00390625)
    assert describe({**bloom, "n_head": 3})[0].slopes == (0.0625, 0.00390625, 0.25)


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"model_type": "rwkv"}, "(?s)rwkv.*backend='hetero_tvm'"),
        ({}, "None"),
        ({**CONFIG, "model_type": "minicpm", "num_experts": 8}, "num_experts"),
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
        ({**CONFIG, "model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3}, "3 of 2"),
        ({**CONFIG, "model_type": "falcon", "alibi": True}, "alibi"),
        ({**CONFIG, "model_type": "deepseek_v2", "topk_method": "noaux_tc"}, "noaux_tc"),
        (
            {**CONFIG, "model_type": "phimoe", "rope_scaling": {"short_mscale": 1, "long_mscale": 2}},
            "factors",
        ),
        ({**CONFIG, "model_type": "hunyuan_v1_moe", "num_experts": [4, 8], "moe_topk": 1}, "num_experts"),
        ({"model_type": "mpt", "attn_config": {"clip_qkv": 8, "qk_ln": True}}, "qk_ln is True"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(config, match):
    with pytest.raises(ModelError, match=match):
        describe(config)


def test_all_that_are_known():
    known = {"llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3_text", "gpt2", "opt"}
    known |= {"granite", "starcoder2", "stablelm", "phi", "smollm3", "ernie4_5", "helium", "glm", "glm4"}
    known |= {"cohere", "cohere2", "gemma", "olmo2", "olmo3", "exaone4", "gpt_neox", "gptj", "codegen"}
    known |= {"falcon", "bloom", "mpt", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss"}
    known |= {"nemotron", "arcee", "jais2", "cwm", "seed_oss", "ministral", "ministral3", "vaultgemma"}
    known |= {"hunyuan_v1_dense", "hunyuan_v1_moe", "gpt_bigcode", "granitemoe", "granitemoeshared"}
    known |= {"phimoe", "minimax_m2", "ernie4_5_moe", "glm4_moe", "dots1", "exaone_moe"}
    known |= {"deepseek_v2", "deepseek_v3", "flex_olmo", "mellum", "solar_open", "youtu", "hyperclovax"}
    known |= {"internlm3", "iquestcoder", "gpt_neo", "biogpt", "xglm", "olmo", "glm4_moe_lite", "kimi_k2"}
    known |= {"mamba", "falcon_mamba", "mamba2", "lfm2", "lfm2_moe", "bamba", "falcon_h1", "granitemoehybrid"}
    known |= {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "jamba", "nemotron_h", "exaone", "bitnet"}
    known |= {"gemma4_text", "gemma4_unified_text", "apertus", "nanochat", "minicpm", "minicpm3", "internlm2"}
    known |= {"gemma3n_text", "olmo_hybrid", "kimi_linear"}
    known |= {"persimmon", "modernbert-decoder", "granite_swa", "granitemoe_swa", "afmoe"}
    known |= {"cohere2_moe", "hy_v3", "sarvam_moe", "sarvam_mla"}
    assert set(ARCHITECTURES) == known | set(PARTS)
    assert describe(OPT)[0].learned == 66
    narrow = describe({**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 16})[0]
    assert (narrow.embed_width, narrow.norms_after) == (16, True)


def test_a_gpt_neo():
    """Its scores are not scaled, and some of its layers have windows: named one by one, or as often as."""
    config = {
        "model_type": "gpt_neo",
        "vocab_size": 50,
        "hidden_size": 32,
        "num_heads": 4,
        "num_layers": 3,
        "window_size": 7,
        "max_position_embeddings": 64,
        "attention_types": [[["global", "local"], 1], [["local"], 1]],
    }
    decoder, names = describe(config)
    assert [layer.window for layer in decoder.layers] == [0, 7, 7]
    assert (decoder.scale, decoder.inner, decoder.tied, decoder.activation) == (1.0, 128, True, "gelu_tanh")
    listed = describe({**config, "attention_layers": ["local", "global", "global"]})[0]
    assert [layer.window for layer in listed.layers] == [7, 0, 0]


def test_families_of_fairseq():
    """Embeddings are multiplied by the root of their width; two positions are no token's."""
    bio = {**OPT, "model_type": "biogpt", "hidden_act": "gelu", "intermediate_size": 64}
    decoder, names = describe(bio)
    assert (decoder.learned, decoder.learned_offset, decoder.embed_scale) == (66, 2, 32**0.5)
    assert names.heads == ("output_projection",)
    sizes = {"d_model": 32, "num_layers": 2, "attention_heads": 4}
    decoder, names = describe({**OPT, **sizes, "model_type": "xglm", "scale_embedding": False})
    assert (decoder.sinusoids, decoder.embed_scale, names.positions) == ("m2m_100", 1.0, "")


def test_norms_without_scales():
    decoder, _ = describe({**CONFIG, "model_type": "olmo"})
    assert (decoder.plain_norms, decoder.centered, decoder.eps) == (True, True, 1e-5)
    assert describe({**CONFIG, "model_type": "olmo", "clip_qkv": 8})[0].clip == 8.0


def test_a_model_of_another_kind_is_to_be_exported():
    with pytest.raises(ModelError, match="there is no language model of type 'bert'") as caught:
        describe({**CONFIG, "model_type": "bert"})
    assert "export the model to ONNX" in caught.value.hint and "mistral" in caught.value.hint


@pytest.mark.parametrize(
    ("kind", "lack"),
    [
        ("rwkv", "no list of keys and values"),
        ("zamba2", "scans"),
        ("lfm3", "more than short convolutions"),
        ("minimax", "linear attention"),
    ],
)
def test_what_a_model_has_that_nothing_here_computes_is_said(kind, lack):
    """Also of the text part of a model of several kinds."""
    for config in ({"model_type": kind}, {"model_type": "several", "text_config": {"model_type": kind}}):
        with pytest.raises(ModelError, match=f"type '{kind}': it has .*{lack}") as caught:
            describe(config)
        assert "ONNX" in caught.value.hint and "mistral" not in caught.value.hint


def test_scores_of_a_gpt2_that_fall_with_the_layer():
    config = {
        "model_type": "gpt2",
        "vocab_size": 9,
        "n_embd": 12,
        "n_head": 3,
        "n_layer": 3,
        "n_positions": 20,
        "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new",
    }
    assert {layer.share for layer in describe(config)[0].layers} == {1.0}
    layers = describe({**config, "scale_attn_by_inverse_layer_idx": True})[0].layers
    assert [layer.share for layer in layers] == [1.0, 1 / 2, 1 / 3]


def test_an_exaone_in_the_spellings_of_its_makers():
    spelled = {"num_layers": 2, "layer_norm_epsilon": 1e-5, "activation_function": "silu"}
    named = {"num_hidden_layers", "rms_norm_eps", "hidden_act"}
    config = {name: value for name, value in CONFIG.items() if name not in named}
    decoder, names = describe({**config, **spelled, "model_type": "exaone"})
    assert len(decoder.layers) == 2 and decoder.eps == 1e-5 and decoder.activation == "silu"
    assert names.layer == "h.{}." and names.up == ("mlp.c_fc_0", "mlp.c_fc_1")


def test_a_bitnet_normalises_before_its_last_matrices():
    config = {**CONFIG, "model_type": "bitnet", "hidden_act": "relu2"}
    decoder, names = describe(config)
    assert decoder.activation == "relu2" and decoder.gated
    assert (names.out_norm, names.down_norm) == ("self_attn.attn_sub_norm", "mlp.ffn_sub_norm")


GEMMA4 = {
    **CONFIG,
    "model_type": "gemma4_text",
    "num_hidden_layers": 6,
    "head_dim": 16,
    "global_head_dim": 32,
    "num_key_value_heads": 2,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "sliding_window": 8,
    "num_kv_shared_layers": 3,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 4,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.25,
            "rope_theta": 1000000.0,
        },
    },
}


def test_a_gemma4():
    """Later layers read keys of the last earlier one of their kind; windows go with narrower heads."""
    decoder, names = describe(GEMMA4)
    assert [layer.keys_of for layer in decoder.layers] == [-1, -1, -1, 1, 1, 2]
    assert [layer.dim for layer in decoder.layers] == [16, 16, 32] * 2
    assert [layer.window for layer in decoder.layers] == [8, 8, 0] * 2
    assert [layer.inner // decoder.inner for layer in decoder.layers] == [1, 1, 1, 2, 2, 2]
    assert (decoder.attending, decoder.dim, decoder.scale, decoder.layer_inputs) == (3, 32, 1.0, 4)
    local, whole = decoder.ropes
    assert np.count_nonzero(local.inverse) == 8 and np.count_nonzero(whole.inverse) == 4
    # Other spellings of the same sizes.
    told = {"2": {"head_dim": 32}, "5": {"head_dim": 32}}
    listed = {name: value for name, value in GEMMA4.items() if name != "global_head_dim"}
    assert describe({**listed, "per_layer_config": told})[0] == decoder
    shared = {**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1}
    assert [layer.kv_heads for layer in describe(shared)[0].layers] == [2, 2, 1] * 2
    assert [layer.shares_keys for layer in describe(shared)[0].layers] == [False, False, True] * 2
    with pytest.raises(ModelError, match="both directions"):
        describe({**GEMMA4, "use_bidirectional_attention": "all"})
    with pytest.raises(ModelError, match="keys that no layer has"):
        describe({**GEMMA4, "num_kv_shared_layers": 5})


def test_a_gemma3n():
    """Layers differ in the width of their MLPs, in how few channels count and in whose keys they read."""
    kinds = ["sliding_attention", "full_attention"] * 2
    config = {**CONFIG, "model_type": "gemma3n_text", "num_hidden_layers": 4, "layer_types": kinds}
    config |= {"sliding_window": 8, "num_kv_shared_layers": 2, "intermediate_size": [48, 64, 48, 64]}
    config |= {"activation_sparsity_pattern": [0.95, 0.5, 0.0, 0.0]}
    decoder, names = describe(config)
    assert [layer.inner for layer in decoder.layers] == [48, 64, 48, 64]
    assert [layer.keys_of for layer in decoder.layers] == [-1, -1, 0, 1]
    assert [layer.cut for layer in decoder.layers] == [pytest.approx(1.6448536), 0.0, None, None]
    assert (decoder.streams, decoder.low_rank, decoder.layer_inputs) == (4, 64, 256)
    assert decoder.tied and decoder.logits_softcap == 30.0 and len(names.streams) == 7
    (deep, _) = describe({**CONFIG, "model_type": "gemma3n_text", "num_hidden_layers": 35})
    assert sum(layer.cut is not None for layer in deep.layers) == 10 and deep.attending == 20
    with pytest.raises(ModelError, match="another stream"):
        describe({**config, "altup_active_idx": 1})


def test_a_minicpm_is_a_granite_in_other_words():
    sizes = {**CONFIG, "num_hidden_layers": 4}
    own = {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 8}
    width, heads = sizes["hidden_size"], sizes["num_attention_heads"]
    same = {
        "embedding_multiplier": 12,
        "residual_multiplier": 0.7,
        "logits_scaling": width / 8,
        "attention_multiplier": (width // heads) ** -0.5,
    }
    got = describe({**sizes, **own, "model_type": "minicpm"})[0]
    want = describe({**sizes, **same, "model_type": "granite"})[0]
    assert dataclasses.replace(got, architecture="granite") == want


def test_queries_of_an_internlm2_lie_with_their_keys(tmp_path):
    """Matrices of a Llama, packed as InternLM 2 has them, come out as they were."""
    tensors = tiny_llama.weights()
    config = {**tiny_llama.CONFIG, "model_type": "internlm2"}
    decoder, names = describe(config)
    q, k, v = (tensors[f"model.layers.0.self_attn.{name}_proj.weight"] for name in "qkv")
    width, group = decoder.width, decoder.heads // decoder.kv_heads
    parts = (part.reshape(decoder.kv_heads, -1, decoder.dim, width) for part in (q, k, v))
    packed = np.concatenate(list(parts), 1)
    assert packed.shape[1] == group + 2
    own = {"model.layers.0.attention.wqkv.weight": packed.reshape(-1, width)}
    source = SafetensorsFolder(tiny_llama.write(tmp_path / "model", config, own))
    weights = DecoderWeights(decoder, names, source, Storage("f32"))
    matrices = [names.layer.format(0) + name for name in names.qkv]
    rows = len(names.qkv_rows)
    got = weights.matrix(matrices, rows, width, names.qkv_rows)
    np.testing.assert_array_equal(got, np.concatenate([q, k, v]))


def test_layers_of_a_granite_with_windows_have_positions_of_their_own():
    sizes = {**CONFIG, "model_type": "granite_swa", "num_hidden_layers": 4, "sliding_window": 8}
    numbers = ("embedding_multiplier", "residual_multiplier", "logits_scaling", "attention_multiplier")
    sizes |= dict.fromkeys(numbers, 1.0)
    decoder, _ = describe({**sizes, "layer_rope_theta": [0, 1e4, 3e5, 1e4]})
    assert [layer.window for layer in decoder.layers] == [0, 8, 8, 8] and decoder.sinks
    assert [layer.rope for layer in decoder.layers] == [2, 0, 1, 0]
    assert not any(decoder.ropes[2].inverse)


def test_norms_of_queries_and_keys():
    layer_norms = {**CONFIG, "layer_norm_eps": 1e-5, "qk_layernorm": True, "use_qk_norm": True}
    for kind, by_head in (("phi", False), ("stablelm", True), ("cohere", True)):
        decoder, _ = describe({**layer_norms, "model_type": kind, "logit_scale": 1.0})
        assert (decoder.head_norms, decoder.centered_head_norms) == (True, True)
        assert decoder.norms_by_head == by_head
