"""Configurations of mixtures; numbers are in ``tests/campaign/language_models.py``."""

import dataclasses

import pytest

from hetero_tvm.errors import ModelError
from hetero_tvm.language.families.architectures import describe
from hetero_tvm.language.families.decoder import Experts
from tests.tiny_llama import CONFIG


def test_mixtures_of_command():
    """Plain layers come first, and rotate where they have a pattern of their own of one layer."""
    config = {
        **CONFIG,
        "model_type": "cohere2_moe",
        "num_hidden_layers": 5,
        "sliding_window": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "prefix_dense_intermediate_size": 24,
        "num_shared_experts": 2,
        "rms_norm_eps": None,
    }
    decoder, names = describe(config)
    assert [layer.mixed for layer in decoder.layers] == [False] + [True] * 4
    assert [layer.window for layer in decoder.layers] == [0, 8, 8, 8, 0]
    assert [layer.rope for layer in decoder.layers] == [0, 0, 0, 0, 1]
    assert (decoder.inner, decoder.centered, decoder.parallel) == (24, True, True)
    assert decoder.experts == Experts(4, 2, CONFIG["intermediate_size"], shared=80, scale=0.5)
    assert names.factors == {"mlp.shared_experts.down_proj": ((32, 0.5),)}
    summed = {"shared_expert_combination_strategy": "sum", "rms_norm_eps": 1e-6}
    decoder, names = describe({**config, **summed, "expert_selection_fn": "sigmoid"})
    assert (decoder.experts.sigmoid, decoder.experts.scale, decoder.centered) == (True, 1.0, False)
    assert not names.factors
    with pytest.raises(ModelError, match="'product'"):
        describe({**config, "shared_expert_combination_strategy": "product"})


def test_sarvam_in_its_own_words():
    latent = {"kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
    own = {"num_experts": 4, "num_shared_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    yarn = {"type": "deepseek_yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    decoder, _ = describe({**CONFIG, **own, **latent, "model_type": "sarvam_mla", "rope_scaling": yarn})
    theirs = {"n_routed_experts": 4, "n_shared_experts": 2, "rope_scaling": {**yarn, "type": "yarn"}}
    same, _ = describe(
        {**CONFIG, **own, **latent, **theirs, "model_type": "glm4_moe_lite", "routed_scaling_factor": 2.5}
    )
    assert dataclasses.replace(same, architecture="sarvam_mla") == decoder
    decoder, names = describe({**CONFIG, **own, "model_type": "sarvam_moe"})
    assert (decoder.experts.count, decoder.experts.shared, decoder.experts.scale) == (4, 32, 2.5)
    assert names.qkv == ("attention.query_key_value",) and decoder.rotated == decoder.dim
