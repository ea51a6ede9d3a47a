"""Configurations of models whose layers keep a state; what they compute is in
``tests/generation/test_states.py`` and, beside transformers, in ``tests/campaign/language_models.py``."""

import pytest

from hetero_tvm.errors import ModelError
from hetero_tvm.language.families.architectures import describe
from hetero_tvm.language.families.decoder import Recurrence
from tests.tiny_llama import CONFIG

HEADS = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_n_groups": 2}
PERIOD = {"period": 2, "offset": 1}
MAMBA = {
    "model_type": "mamba",
    "vocab_size": 97,
    "hidden_size": 40,
    "state_size": 6,
    "num_hidden_layers": 3,
    "layer_norm_epsilon": 1e-5,
}


def test_a_mamba_has_neither_attention_nor_mlps():
    decoder, names = describe(MAMBA)
    assert decoder.recurrence == Recurrence("mamba", 80, 4, state=6, steps=3)
    assert decoder.state == 3 * (3 * 80 + 80 * 6) and decoder.attending == 0 and decoder.tied
    assert not any(layer.feeds for layer in decoder.layers) and names.prefixes[0] == "backbone."
    falcon, _ = describe(
        {**MAMBA, "model_type": "falcon_mamba", "intermediate_size": 48, "time_step_rank": 5}
    )
    assert falcon.recurrence == Recurrence("mamba", 48, 4, state=6, steps=5, eps=1e-6)
    two = {**MAMBA, "model_type": "mamba2", "num_heads": 10, "head_dim": 8, "n_groups": 2}
    decoder, _ = describe(two)
    assert decoder.recurrence == Recurrence("mamba2", 80, 4, 10, 6, 2, eps=1e-5)
    assert decoder.recurrence.convolved == 80 + 2 * 2 * 6 and not decoder.tied


def test_layers_with_a_state_beside_others():
    older = {**CONFIG, "model_type": "lfm2", "norm_eps": 1e-5, "full_attn_idxs": [1], "block_ff_dim": 384}
    decoder, names = describe(older)
    assert [(layer.attends, layer.recurs) for layer in decoder.layers] == [(False, True), (True, False)]
    assert decoder.inner == 256 and decoder.tied and decoder.state == 2 * 32
    exact = describe({**older, "block_auto_adjust_ff_dim": False, "tie_embedding": False})[0]
    assert exact.inner == 384 and not exact.tied
    hybrid, names = describe({**CONFIG, **HEADS, "model_type": "bamba", "attn_layer_indices": [0]})
    assert [layer.attends for layer in hybrid.layers] == [True, False]
    assert hybrid.rotated == 4 and names.norm == "final_layernorm"
    granite = {**CONFIG, **HEADS, "model_type": "granitemoehybrid", "shared_intermediate_size": 24}
    granite |= {"layer_types": ["mamba", "attention"], "residual_multiplier": 0.5}
    decoder, names = describe({**granite, "num_local_experts": 0})
    assert (decoder.inner, decoder.rotated, decoder.ropes) == (24, 0, ())
    assert decoder.recurrence.eps == 1e-5 and decoder.eps == 4e-5  # the stream alone is divided
    decoder, _ = describe({**granite, "num_local_experts": 4, "num_experts_per_tok": 2})
    assert [(layer.recurs, layer.mixed) for layer in decoder.layers] == [(True, True), (False, True)]


def test_a_lfm2_of_experts():
    sizes = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "num_dense_layers": 1}
    decoder, names = describe(
        {**CONFIG, **sizes, "model_type": "lfm2_moe", "norm_eps": 1e-5, "layer_types": ["conv"] * 2}
    )
    assert [layer.mixed for layer in decoder.layers] == [False, True] and decoder.experts.sigmoid
    assert names.correction == "feed_forward.expert_bias"


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"time_step_limit": [0.1, {"__float__": "Infinity"}]}, "time_step_limit"),
        ({"mamba_d_head": 9}, "8 heads of 9 channels are not 64"),
        ({"mamba_n_groups": 3}, "in 3 groups"),
        ({"mamba_d_state": None}, "damaged"),
    ],
)
def test_what_cannot_be_is_refused(changes, match):
    with pytest.raises(ModelError, match=match):
        describe({**CONFIG, **HEADS, "model_type": "bamba", **changes})
    limit = [0.0, {"__float__": "Infinity"}]
    assert describe({**CONFIG, **HEADS, "model_type": "bamba", "time_step_limit": limit})[0].state


def test_an_activation_that_no_scan_has_is_refused():
    with pytest.raises(ModelError, match="hidden_act is 'gelu'"):
        describe({**MAMBA, "hidden_act": "gelu"})


LINEAR = {
    **CONFIG,
    "head_dim": 8,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 5,
}


def test_linear_attention():
    decoder, names = describe({**LINEAR, "model_type": "qwen3_5_text", "full_attention_interval": 2})
    assert decoder.recurrence == Recurrence("delta", 20, 4, 4, 6, 2, eps=1e-5)
    assert [layer.attends for layer in decoder.layers] == [False, True]
    assert (decoder.gated_heads, decoder.head_norms, decoder.norm_offset, decoder.rotated) == (
        True,
        True,
        1.0,
        2,
    )
    assert names.qkv_rows[:9] == (*range(8), 16) and names.gate_rows[:9] == (*range(8, 16), 24)
    assert names.qkv_rows[32:] == tuple(range(64, 96)) and not names.recurrent_rows
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    experts |= {"shared_expert_intermediate_size": 8}
    decoder, names = describe({**LINEAR, **experts, "model_type": "qwen3_next"})
    assert decoder.experts.normalised and decoder.experts.shared_gated
    # Each of two groups: query and key of 6, values and gates of two heads of 5.
    assert names.recurrent_rows[:7] == (*range(6), 32) and names.recurrent_few_rows == (
        0,
        1,
        4,
        5,
        2,
        3,
        6,
        7,
    )
    with pytest.raises(ModelError, match="3 heads of linear attention cannot share 2 keys"):
        describe({**LINEAR, "model_type": "qwen3_5_text", "linear_num_value_heads": 3})


def test_an_olmo_hybrid():
    """Layers with a state have their norms in front, the others behind; rotations only where it says so."""
    config = {**CONFIG, "model_type": "olmo_hybrid", "num_hidden_layers": 4, "hidden_size": 64}
    config["rope_theta"] = None
    decoder, names = describe(config)
    assert [layer.attends for layer in decoder.layers] == [False, False, False, True]
    assert [layer.norms_first for layer in decoder.layers] == [True, True, True, False]
    heads = CONFIG["num_attention_heads"]
    dim = int(48 / heads)
    assert decoder.recurrence == Recurrence(
        "delta", 2 * heads * dim, 4, heads, dim, heads, eps=1e-5, doubled=True
    )
    assert (decoder.pre_norms, decoder.ropes, decoder.rotated) == (False, (), 0)
    turning = {**config, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    assert describe({**turning, "linear_allow_neg_eigval": False})[0].rotated == decoder.dim


def test_a_kimi_linear_in_both_spellings():
    sizes = {"kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 8}
    config = {**CONFIG, **sizes, "model_type": "kimi_linear", "num_hidden_layers": 4, "num_experts": 8}
    config |= {"num_experts_per_token": 2, "moe_intermediate_size": 16, "moe_renormalize": True}
    hub = {"kda_layers": [1, 2, 4], "full_attn_layers": [3], "head_dim": 12, "num_heads": 4}
    decoder, names = describe({**config, "linear_attn_config": {**hub, "short_conv_kernel_size": 4}})
    assert decoder.recurrence == Recurrence("channel_delta", 48, 4, 4, 12, 4, eps=decoder.eps)
    assert [layer.attends for layer in decoder.layers] == [False, False, True, False]
    assert [layer.mixed for layer in decoder.layers] == [False, True, True, True]
    assert decoder.rotated == 0 and decoder.latent.shared == 4 and decoder.experts.top == 2
    kinds = ["full_attention" if one.attends else "linear_attention" for one in decoder.layers]
    told = {"layer_types": kinds, "linear_head_dim": 12, "linear_num_heads": 4}
    told["mlp_layer_types"] = ["dense", "sparse", "sparse", "sparse"]
    assert describe({**config, **told}) == (decoder, names)


def test_a_falcon_h1_multiplies_its_matrices():
    config = {**CONFIG, **HEADS, "model_type": "falcon_h1", "mamba_d_ssm": 64, "key_multiplier": 0.5}
    config |= {"attention_in_multiplier": 3.0, "ssm_in_multiplier": 2.0, "ssm_multipliers": [1, 2, 3, 4, 5]}
    decoder, names = describe(config)
    assert all(layer.attends and layer.recurs and layer.feeds for layer in decoder.layers)
    assert names.factors["self_attn.k_proj"] == ((16, 1.5),) and names.factors["self_attn.o_proj"] == (
        (32, 1.0),
    )
    runs = ((64, 2.0), (64, 4.0), (8, 6.0), (8, 8.0), (8, 10.0))
    assert names.factors["mamba.in_proj"] == runs and decoder.recurrence.eps == 0.0
    with pytest.raises(ModelError, match="mlp_bias"):
        describe({**config, "mlp_bias": True})


def test_a_jamba():
    periods = {f"{name}_layer_{what}": n for name in ("attn", "expert") for what, n in PERIOD.items()}
    sizes = {"num_experts": 4, "num_experts_per_tok": 2, "mamba_d_state": 6, "mamba_dt_rank": 5}
    decoder, names = describe({**CONFIG, **periods, **sizes, "model_type": "jamba"})
    assert decoder.recurrence == Recurrence("mamba", 64, 4, state=6, steps=5, eps=decoder.eps)
    assert [(layer.attends, layer.mixed) for layer in decoder.layers] == [(False, False), (True, True)]
    assert decoder.ropes == () and not decoder.experts.normalised and names.router == "feed_forward.router"
    decoder, _ = describe({**CONFIG, **periods, **sizes, "num_experts": 1, "model_type": "jamba"})
    assert not any(layer.mixed for layer in decoder.layers)


def test_a_nemotron_h_in_all_spellings():
    config = {
        **CONFIG,
        "model_type": "nemotron_h",
        "layer_norm_epsilon": 1e-5,
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "ssm_state_size": 12,
        "hybrid_override_pattern": "M-*E",
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "moe_shared_expert_intermediate_size": 20,
    }
    decoder, names = describe(config)
    assert decoder.recurrence == Recurrence("mamba2", 128, 4, 8, 12, 2, eps=1e-5)
    parts = [(one.recurs, one.attends, one.feeds, one.mixed) for one in decoder.layers]
    assert parts == [
        (True, False, False, False),
        (False, False, True, False),
        (False, True, False, False),
        (False, False, True, True),
    ]
    assert not decoder.gated and decoder.activation == "relu2" and decoder.experts.shared == 20
    del config["hybrid_override_pattern"]
    kinds = ["linear_attention", "mlp", "full_attention", "moe"]
    assert describe({**config, "layers_block_type": kinds}) == (decoder, names)
    with pytest.raises(ModelError, match="moe_latent_size is 16"):
        describe({**config, "layers_block_type": kinds, "moe_latent_size": 16})
    with pytest.raises(ModelError, match="layers_block_type|hybrid_override_pattern"):
        describe(config)
