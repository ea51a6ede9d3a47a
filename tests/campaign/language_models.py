"""``python -m tests.campaign.language_models``: tokens of every architecture beside those of transformers.

Tiny models with random weights, greedy: a text of 64 new tokens, and three with padding.  10 s each.  Forms
of an architecture (scalings of positions, windows, widths) have names of their own; those of ``ALONE`` are
compared without padding: transformers lets the longest text of a batch say how the others count positions,
and padding change a state by the biases of what leads to it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

NEW_TOKENS = 64
PROMPTS = ([3, 17, 99, 4, 160, 23, 77], [5, 6], [8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19])
_ENDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
_COMMON = {
    "vocab_size": 211,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 112,
    "max_position_embeddings": 256,
    **_ENDS,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 10000.0,
}
_PARTIAL = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}
_GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 20}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _COMMON),
    "llama3": (
        "LlamaConfig",
        {
            **_COMMON,
            "rope_parameters": _LLAMA3,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "mistral": ("MistralConfig", {**_COMMON, "sliding_window": 24}),
    "qwen2": (
        "Qwen2Config",
        {**_COMMON, "num_attention_heads": 7, "num_key_value_heads": 1, "hidden_size": 112},
    ),
    "qwen3": ("Qwen3Config", {**_COMMON, "head_dim": 24}),
    "phi3": (
        "Phi3Config",
        {
            **_COMMON,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "rope_parameters": _PARTIAL,
            "sliding_window": 20,
        },
    ),
    "gemma2": ("Gemma2Config", {**_COMMON, **_GEMMA}),
    "gemma3_text": ("Gemma3TextConfig", {**_COMMON, **_GEMMA, "num_hidden_layers": 7}),
    "gpt2": (
        "GPT2Config",
        {"vocab_size": 211, "n_positions": 256, "n_embd": 60, "n_layer": 2, "n_head": 5, **_ENDS},
    ),
    "opt": (
        "OPTConfig",
        {
            "vocab_size": 211,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "ffn_dim": 112,
            "max_position_embeddings": 256,
            "num_attention_heads": 4,
            "word_embed_proj_dim": 64,
            **_ENDS,
        },
    ),
}
ALONE = ("longrope_crossing", "mamba_bias", "mamba2_bias", "lfm2_bias")
_PHI = {**_COMMON, "num_attention_heads": 4, "num_key_value_heads": 2}
_FACTORS = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 1.5, 3.0, 6.0]}


def _scaled(kind: str, **options: Any) -> dict[str, Any]:
    return {**_COMMON, "rope_parameters": {"rope_theta": 10000.0, "rope_type": kind, **options}}


CASES |= {
    "linear": ("LlamaConfig", _scaled("linear", factor=4.0)),
    "dynamic": ("LlamaConfig", _scaled("dynamic", factor=4.0)),
    "yarn": ("LlamaConfig", _scaled("yarn", factor=4.0, original_max_position_embeddings=64)),
    "qwen3_yarn": (
        "Qwen3Config",
        {**_scaled("yarn", factor=4.0, original_max_position_embeddings=64), "head_dim": 16},
    ),
    "longrope": ("Phi3Config", {**_scaled("longrope", **_FACTORS), "original_max_position_embeddings": 128}),
    "longrope_crossing": (
        "Phi3Config",
        {**_scaled("longrope", **_FACTORS), "original_max_position_embeddings": 40},
    ),
    "one_key_head": ("LlamaConfig", {**_COMMON, "num_key_value_heads": 1}),
    "odd_widths": (
        "LlamaConfig",
        {
            **_COMMON,
            "hidden_size": 60,
            "num_attention_heads": 5,
            "num_key_value_heads": 5,
            "intermediate_size": 37,
        },
    ),
    "short_window": ("MistralConfig", {**_COMMON, "sliding_window": 4}),
    "long_window": ("MistralConfig", {**_COMMON, "sliding_window": 512, "head_dim": 20}),
    "window_of_some_layers": (
        "Qwen2Config",
        {**_COMMON, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    "wide_heads": ("Qwen3Config", {**_COMMON, "head_dim": 32, "tie_word_embeddings": True}),
    "softcaps": (
        "Gemma2Config",
        {**_COMMON, **_GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    ),
    "granite": (
        "GraniteConfig",
        {
            **_COMMON,
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.2,
            "logits_scaling": 3.0,
            "tie_word_embeddings": True,
        },
    ),
    "starcoder2": ("Starcoder2Config", {**_COMMON, "sliding_window": 20}),
    "stablelm": ("StableLmConfig", {**_PHI, "use_qkv_bias": True}),
    "stablelm_parallel": ("StableLmConfig", {**_PHI, "use_parallel_residual": True}),
    "phi": ("PhiConfig", _PHI),
    "opt_350m": (
        "OPTConfig",
        {**CASES["opt"][1], "word_embed_proj_dim": 32, "do_layer_norm_before": False},
    ),
    "opt_projected": ("OPTConfig", {**CASES["opt"][1], "word_embed_proj_dim": 32}),
    "gpt2_by_layer": (
        "GPT2Config",
        {**CASES["gpt2"][1], "scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True},
    ),
    "gpt2_untied": (
        "GPT2Config",
        {**CASES["gpt2"][1], "tie_word_embeddings": False, "n_inner": 77, "activation_function": "relu"},
    ),
}

_GROUPS = {**_COMMON, "num_hidden_layers": 4, "sliding_window": 20}
_OLDER = {**_COMMON, "num_attention_heads": 4}
_GPTJ = {
    "vocab_size": 211,
    "n_positions": 256,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "rotary_dim": 8,
    **_ENDS,
}
_FALCON = {
    "vocab_size": 211,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "max_position_embeddings": 256,
    **_ENDS,
}
CASES |= {
    "gemma": ("GemmaConfig", {**_COMMON, "head_dim": 16}),
    "smollm3": ("SmolLM3Config", {**_COMMON, "num_hidden_layers": 5}),
    "smollm3_windows": ("SmolLM3Config", {**_GROUPS, "use_sliding_window": True}),
    "ernie4_5": ("Ernie4_5Config", {**_COMMON, "head_dim": 16, "use_bias": True}),
    "helium": ("HeliumConfig", {**_COMMON, "head_dim": 8}),
    "glm": ("GlmConfig", {**_COMMON, "head_dim": 16, "attention_bias": True}),
    "glm4": ("Glm4Config", {**_COMMON, "head_dim": 16, "attention_bias": True}),
    "cohere": ("CohereConfig", _COMMON),
    "cohere2": ("Cohere2Config", _GROUPS),
    "olmo2": ("Olmo2Config", _COMMON),
    "olmo3": (
        "Olmo3Config",
        {
            **_GROUPS,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {
                    "rope_type": "yarn",
                    "rope_theta": 10000.0,
                    "factor": 4.0,
                    "original_max_position_embeddings": 64,
                },
            },
        },
    ),
    "exaone4": ("Exaone4Config", _GROUPS),
    "exaone4_whole": (
        "Exaone4Config",
        {**_COMMON, "sliding_window": None, "layer_types": ["full_attention"] * 2},
    ),
    "gpt_neo": (
        "GPTNeoConfig",
        {
            "vocab_size": 211,
            "hidden_size": 64,
            "num_layers": 3,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1], [["local"], 1]],
            "window_size": 20,
            "max_position_embeddings": 256,
            **_ENDS,
        },
    ),
    "biogpt": ("BioGptConfig", {**_COMMON, "num_attention_heads": 4, "pad_token_id": 1}),
    "xglm": (
        "XGLMConfig",
        {
            "vocab_size": 211,
            "d_model": 64,
            "ffn_dim": 96,
            "num_layers": 2,
            "attention_heads": 4,
            "max_position_embeddings": 256,
            **_ENDS,
            "pad_token_id": 1,
        },
    ),
    "olmo": ("OlmoConfig", _COMMON),
    "olmo_bounded": ("OlmoConfig", {**_COMMON, "clip_qkv": 0.8}),
    "gpt_neox": ("GPTNeoXConfig", _OLDER),
    "gpt_neox_sequential": ("GPTNeoXConfig", {**_OLDER, "use_parallel_residual": False}),
    "gptj": ("GPTJConfig", _GPTJ),
    "codegen": ("CodeGenConfig", _GPTJ),
    "falcon": ("FalconConfig", _FALCON),
    "falcon_groups": ("FalconConfig", {**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon_sequential": (
        "FalconConfig",
        {**_FALCON, "multi_query": False, "parallel_attn": False, "bias": True},
    ),
    "bloom": ("BloomConfig", {"vocab_size": 211, "hidden_size": 60, "n_layer": 2, "n_head": 6, **_ENDS}),
    "mpt_bounded": (
        "MptConfig",
        {
            "vocab_size": 211,
            "d_model": 60,
            "n_layers": 2,
            "n_heads": 6,
            "max_seq_len": 256,
            "attn_config": {"clip_qkv": 0.7},
            **_ENDS,
        },
    ),
    "mpt": (
        "MptConfig",
        {"vocab_size": 211, "d_model": 60, "n_layers": 2, "n_heads": 6, "max_seq_len": 256, **_ENDS},
    ),
}

_EXPERTS = {**_COMMON, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
CASES |= {
    "mixtral": ("MixtralConfig", {**_COMMON, "num_local_experts": 4, "sliding_window": 24}),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {**_EXPERTS, "num_hidden_layers": 3, "mlp_only_layers": [1], "norm_topk_prob": True, "head_dim": 16},
    ),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        {**_EXPERTS, "num_experts_per_tok": 4, "shared_expert_intermediate_size": 48},
    ),
    "gpt_oss": (
        "GptOssConfig",
        {**_COMMON, "num_hidden_layers": 4, "head_dim": 16, "sliding_window": 20, "num_local_experts": 6},
    ),
    "gpt_oss_plain": (
        "GptOssConfig",
        {
            **_COMMON,
            "head_dim": 8,
            "num_local_experts": 4,
            "swiglu_limit": 1.5,
            "attention_bias": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
    "olmoe": ("OlmoeConfig", {**_COMMON, "num_experts": 8, "num_experts_per_tok": 3}),
}
_DEEPSEEK = {
    **_COMMON,
    "num_hidden_layers": 3,
    "num_key_value_heads": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.7,
}
_LATENT = {"kv_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 20}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "mscale": 1.0,
    "mscale_all_dim": 0.7,
}
_GRANITE = {
    **_COMMON,
    "num_local_experts": 4,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.2,
    "logits_scaling": 3.0,
}
CASES |= {
    "nemotron": ("NemotronConfig", {**_COMMON, "attention_bias": True}),
    "arcee": ("ArceeConfig", _COMMON),
    "jais2": ("Jais2Config", _COMMON),
    "seed_oss": ("SeedOssConfig", {**_COMMON, "head_dim": 16, "attention_out_bias": False}),
    "cwm": ("CwmConfig", {**_GROUPS, "head_dim": 8, "bos_token_id": 1}),
    "ministral": ("MinistralConfig", {**_GROUPS, "head_dim": 8}),
    "ministral3": ("Ministral3Config", {**_COMMON, "head_dim": 16}),
    "hunyuan": ("HunYuanDenseV1Config", {**_COMMON, "head_dim": 8}),
    "hunyuan_alpha": (
        "HunYuanDenseV1Config",
        {
            **_COMMON,
            "head_dim": 16,
            "rope_parameters": {
                "rope_type": "dynamic",
                "rope_theta": 10000.0,
                "alpha": 1000.0,
                "factor": 1.0,
            },
        },
    ),
    "vaultgemma": ("VaultGemmaConfig", {**_COMMON, **_GEMMA}),
    "gpt_bigcode": ("GPTBigCodeConfig", CASES["gpt2"][1]),
    "gpt_bigcode_heads": ("GPTBigCodeConfig", {**CASES["gpt2"][1], "multi_query": False}),
    "granitemoe": ("GraniteMoeConfig", _GRANITE),
    "granitemoeshared": ("GraniteMoeSharedConfig", {**_GRANITE, "shared_intermediate_size": 24}),
    "phimoe": (
        "PhimoeConfig",
        {
            **_COMMON,
            "num_local_experts": 6,
            "attention_bias": True,
            "lm_head_bias": True,
            "router_jitter_noise": 0.4,
        },
    ),
    "hunyuan_moe": ("HunYuanMoEV1Config", {**_COMMON, "head_dim": 8, "num_experts": 4, "moe_topk": 2}),
    "minimax_m2": (
        "MiniMaxM2Config",
        {**_COMMON, "head_dim": 16, "num_local_experts": 6, "num_experts_per_tok": 3},
    ),
    "ernie4_5_moe": (
        "Ernie4_5_MoeConfig",
        {
            **_COMMON,
            "num_hidden_layers": 3,
            "moe_num_experts": 6,
            "moe_k": 3,
            "moe_intermediate_size": 40,
            "moe_num_shared_experts": 1,
        },
    ),
    "glm4_moe": ("Glm4MoeConfig", {**_DEEPSEEK, "head_dim": 16, "use_qk_norm": True, "attention_bias": True}),
    "dots1": ("Dots1Config", {**_DEEPSEEK, "head_dim": 16, "sliding_window": 20, "max_window_layers": 1}),
    "exaone_moe": (
        "ExaoneMoeConfig",
        {**_GROUPS, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40},
    ),
    "deepseek_v2": (
        "DeepseekV2Config",
        {**_DEEPSEEK, **_LATENT, "q_lora_rank": None, "topk_method": "greedy"},
    ),
    "deepseek_v2_groups": (
        "DeepseekV2Config",
        {
            **_DEEPSEEK,
            **_LATENT,
            "q_lora_rank": 28,
            "topk_method": "group_limited_greedy",
            "rope_parameters": _YARN,
        },
    ),
    "deepseek_v3": (
        "DeepseekV3Config",
        {**_DEEPSEEK, **_LATENT, "q_lora_rank": 28, "rope_parameters": _YARN, "attention_bias": True},
    ),
    "deepseek_v3_halves": (
        "DeepseekV3Config",
        {**_DEEPSEEK, **_LATENT, "q_lora_rank": None, "rope_interleave": False, "v_head_dim": 12},
    ),
}
_KINDS = {
    "sliding_window": 20,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
}
_SOLAR = {**_DEEPSEEK, "head_dim": 16, "num_key_value_heads": 2}
del _SOLAR["intermediate_size"], _SOLAR["first_k_dense_replace"]
CASES |= {
    "internlm3": ("InternLM3Config", {**_COMMON, "head_dim": 16, "attention_bias": True, "mlp_bias": True}),
    "iquestcoder": ("IQuestCoderConfig", {**_COMMON, "head_dim": 16}),
    "hyperclovax": (
        "HyperCLOVAXConfig",
        {**_COMMON, "embedding_multiplier": 10.0, "attention_multiplier": 0.1, "logits_scaling": 0.125},
    ),
    "hyperclovax_before": (
        "HyperCLOVAXConfig",
        {**_COMMON, "residual_multiplier": 0.2, "use_post_norm": False},
    ),
    "glm4_moe_lite": (
        "Glm4MoeLiteConfig",
        {
            **_COMMON,
            "num_hidden_layers": 3,
            "num_key_value_heads": 8,
            "moe_intermediate_size": 48,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "kv_lora_rank": 32,
            "q_lora_rank": 48,
            "qk_rope_head_dim": 16,
            "qk_nope_head_dim": 16,
            "v_head_dim": 24,
        },
    ),
    "youtu": ("YoutuConfig", {**_COMMON, **_LATENT, "num_key_value_heads": 8, "q_lora_rank": 28}),
    "flex_olmo": ("FlexOlmoConfig", {**_COMMON, "num_experts": 6, "num_experts_per_tok": 3}),
    "mellum": ("MellumConfig", {**_EXPERTS, **_KINDS, "num_hidden_layers": 4, "head_dim": 16}),
    "solar_open": ("SolarOpenConfig", _SOLAR),
}
_GEMMA4 = {
    **_COMMON,
    "num_hidden_layers": 6,
    "head_dim": 16,
    "global_head_dim": 32,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 211,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "sliding_window": 20,
    "final_logit_softcapping": 30.0,
}
CASES |= {
    "gemma4": ("Gemma4TextConfig", {**_GEMMA4, "num_kv_shared_layers": 3, "use_double_wide_mlp": True}),
    "gemma4_moe": (
        "Gemma4TextConfig",
        {
            **_GEMMA4,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 6,
            "top_k_experts": 2,
            "moe_intermediate_size": 40,
            "attention_k_eq_v": True,
            "num_key_value_heads": 4,
            "num_global_key_value_heads": 2,
        },
    ),
}
CASES |= {
    "gemma4_unified": (
        "Gemma4UnifiedTextConfig",
        {name: value for name, value in _GEMMA4.items() if "per_layer" not in name},
    ),
    "granite_swa": ("GraniteSWAConfig", {**_GRANITE, "num_hidden_layers": 4, "sliding_window": 20}),
    "granite_swa_positions": (
        "GraniteSWAConfig",
        {**_GRANITE, "num_hidden_layers": 4, "sliding_window": 20, "layer_rope_theta": [0, 1e4, 3e5, 1e4]},
    ),
    "granitemoe_swa": ("GraniteMoeSWAConfig", {**_GRANITE, "num_hidden_layers": 4, "sliding_window": 20}),
    "afmoe": (
        "AfmoeConfig",
        {**_EXPERTS, "num_hidden_layers": 4, "head_dim": 16, "sliding_window": 20, "mup_enabled": True},
    ),
    "cohere2_moe": (
        "Cohere2MoeConfig",
        {**_EXPERTS, "num_hidden_layers": 4, "head_dim": 8, "sliding_window": 20},
    ),
    "cohere2_moe_dense": (
        "Cohere2MoeConfig",
        {
            **_EXPERTS,
            "num_hidden_layers": 4,
            "head_dim": 8,
            "sliding_window": 20,
            "first_k_dense_replace": 2,
            "prefix_dense_intermediate_size": 72,
            "num_shared_experts": 2,
            "expert_selection_fn": "sigmoid",
            "rms_norm_eps": 1e-6,
        },
    ),
    "hy_v3": ("HYV3Config", {**_EXPERTS, "head_dim": 16}),
    "sarvam_moe": ("SarvamMoEConfig", {**_DEEPSEEK, "head_dim": 16}),
    "sarvam_mla": ("SarvamMLAConfig", {**_DEEPSEEK, **_LATENT, "num_key_value_heads": 8}),
    "stablelm_head_norms": ("StableLmConfig", {**_PHI, "qk_layernorm": True}),
    "phi_head_norms": ("PhiConfig", {**_PHI, "qk_layernorm": True}),
    "cohere_head_norms": ("CohereConfig", {**_COMMON, "use_qk_norm": True}),
    "persimmon": ("PersimmonConfig", _OLDER),
    "apertus": ("ApertusConfig", {**_COMMON, "head_dim": 16}),
    "nanochat": ("NanoChatConfig", _COMMON),
    "minicpm3": ("MiniCPM3Config", {**_COMMON, **_LATENT, "num_key_value_heads": 8, "q_lora_rank": 28}),
    "modernbert_decoder": (
        "ModernBertDecoderConfig",
        {**_COMMON, "bos_token_id": 1, "num_hidden_layers": 4, "local_attention": 40, "norm_bias": True},
    ),
}

_MAMBA2 = {
    "vocab_size": 211,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_heads": 4,
    "head_dim": 16,
    "state_size": 12,
    "n_groups": 2,
    "chunk_size": 8,
    **_ENDS,
}
_HYBRID = {
    **_COMMON,
    "num_hidden_layers": 4,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 12,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 8,
}
_SOME = ["linear_attention", "full_attention", "linear_attention", "linear_attention"]
_LINEAR = {
    **_COMMON,
    "num_hidden_layers": 4,
    "layer_types": _SOME,
    "head_dim": 16,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 16,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
}
_LFM2 = {**_COMMON, "num_hidden_layers": 4, "layer_types": ["conv", "full_attention", "conv", "conv"]}
CASES |= {
    "mamba": (
        "MambaConfig",
        {"vocab_size": 211, "hidden_size": 40, "state_size": 6, "num_hidden_layers": 3, **_ENDS},
    ),
    "mamba_bias": (
        "MambaConfig",
        {
            "vocab_size": 211,
            "hidden_size": 32,
            "state_size": 16,
            "num_hidden_layers": 2,
            "use_bias": True,
            "use_conv_bias": False,
            "conv_kernel": 3,
            "time_step_rank": 7,
            "tie_word_embeddings": False,
            **_ENDS,
        },
    ),
    "falcon_mamba": (
        "FalconMambaConfig",
        {"vocab_size": 211, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 3, **_ENDS},
    ),
    "mamba2": ("Mamba2Config", _MAMBA2),
    "mamba2_bias": (
        "Mamba2Config",
        {**_MAMBA2, "n_groups": 1, "use_bias": True, "use_conv_bias": False, "tie_word_embeddings": True},
    ),
    "lfm2": ("Lfm2Config", _LFM2),
    "lfm2_bias": (
        "Lfm2Config",
        {**_LFM2, "conv_bias": True, "conv_L_cache": 5, "block_auto_adjust_ff_dim": False},
    ),
    "lfm2_moe": (
        "Lfm2MoeConfig",
        {
            **_LFM2,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 40,
            "num_dense_layers": 1,
        },
    ),
    "qwen3_next": ("Qwen3NextConfig", {**_LINEAR, "shared_expert_intermediate_size": 24}),
    "qwen3_5": ("Qwen3_5TextConfig", {**_LINEAR, "attention_bias": True}),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", {**_LINEAR, "shared_expert_intermediate_size": 24}),
    "bamba": ("BambaConfig", {**_HYBRID, "attn_layer_indices": [1]}),
    "falcon_h1": (
        "FalconH1Config",
        {
            **_HYBRID,
            "mamba_d_ssm": 128,
            "lm_head_multiplier": 0.7,
            "embedding_multiplier": 3.0,
            "mlp_multipliers": [0.8, 0.6],
            "key_multiplier": 0.5,
            "attention_out_multiplier": 0.9,
            "attention_in_multiplier": 1.3,
            "ssm_multipliers": [0.9, 0.8, 0.7, 1.2, 0.6],
            "ssm_in_multiplier": 1.4,
            "ssm_out_multiplier": 0.7,
        },
    ),
    "falcon_h1_norm": ("FalconH1Config", {**_HYBRID, "mamba_d_ssm": 128, "mamba_rms_norm": True}),
    "falcon_h1_norm_behind": (
        "FalconH1Config",
        {**_HYBRID, "mamba_d_ssm": 128, "mamba_rms_norm": True, "mamba_norm_before_gate": False},
    ),
    "granite_hybrid": (
        "GraniteMoeHybridConfig",
        {**_HYBRID, **_GRANITE, "num_hidden_layers": 4, "layer_types": _SOME, "shared_intermediate_size": 24},
    ),
    "granite_hybrid_dense": (
        "GraniteMoeHybridConfig",
        {
            **_HYBRID,
            "num_local_experts": 0,
            "layer_types": _SOME,
            "shared_intermediate_size": 72,
            "position_embedding_type": "rope",
            "attention_multiplier": 0.3,
        },
    ),
}
_NEMOTRON_H = {
    **_COMMON,
    "head_dim": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "ssm_state_size": 12,
    "n_groups": 2,
    "chunk_size": 8,
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp", "linear_attention"],
    "time_step_min": 1e-9,  # a bound of steps that transformers has for prompts alone
}
_JAMBA = {**_COMMON, "num_hidden_layers": 4, "attn_layer_period": 4, "attn_layer_offset": 1}
CASES |= {
    "exaone": ("ExaoneConfig", _COMMON),
    "bitnet": ("BitNetConfig", _COMMON),
    "jamba": ("JambaConfig", {**_JAMBA, "num_experts": 4, "mamba_dt_rank": 6}),
    "jamba_dense": ("JambaConfig", {**_JAMBA, "num_experts": 1, "num_experts_per_tok": 1}),
    "nemotron_h": ("NemotronHConfig", _NEMOTRON_H),
    "nemotron_h_experts": (
        "NemotronHConfig",
        {
            **_NEMOTRON_H,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "moe"],
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "moe_shared_expert_intermediate_size": 24,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.7,
        },
    ),
}

_KIMI = {
    **{name: value for name, value in _COMMON.items() if name != "max_position_embeddings"},
    **_LATENT,
    "num_hidden_layers": 4,
    "num_key_value_heads": 8,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "model_max_length": 256,
    "num_experts": 8,
    "num_experts_per_token": 3,
    "moe_intermediate_size": 48,
    "num_shared_experts": 1,
    "linear_head_dim": 24,
    "linear_num_heads": 4,
    "q_lora_rank": None,
}
_OLMO_HYBRID = {**_COMMON, "num_hidden_layers": 4, "layer_types": ["linear_attention", "full_attention"] * 2}
CASES |= {
    "kimi_linear": ("KimiLinearConfig", _KIMI),
    "olmo_hybrid": (
        "OlmoHybridConfig",
        {**_OLMO_HYBRID, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    ),
    "olmo_hybrid_bare": (
        "OlmoHybridConfig",
        {
            **_OLMO_HYBRID,
            "rope_parameters": None,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 12,
            "linear_value_head_dim": 16,
            "linear_allow_neg_eigval": False,
        },
    ),
}
_GEMMA3N = {
    **_COMMON,
    "num_hidden_layers": 7,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2 + ["sliding_attention"],
    "head_dim": 16,
    "sliding_window": 20,
    "hidden_size_per_layer_input": 12,
    "vocab_size_per_layer_input": 211,
    "laurel_rank": 6,
    "num_kv_shared_layers": 3,
    "activation_sparsity_pattern": [0.95, 0.6, 0.0, 0.95, 0.3, 0.0, 0.0],
    "intermediate_size": [112, 112, 96, 112, 80, 112, 112],
}
CASES |= {
    "gemma3n": ("Gemma3nTextConfig", _GEMMA3N),
    "gemma3n_two_streams": (
        "Gemma3nTextConfig",
        {**_GEMMA3N, "altup_num_inputs": 2, "altup_correct_scale": False, "vocab_size_per_layer_input": 150},
    ),
}


def reference(kind: str, folder: Path) -> tuple[list[int], list[list[int]]]:
    """Write a checkpoint; gives what transformers adds to the first prompt, and to all with padding."""
    import torch
    import transformers

    torch.manual_seed(0)
    name, options = CASES[kind]
    config = getattr(transformers, name)(**options)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        for tensor, values in model.named_parameters():
            if values.dim() == 1:
                values.add_(torch.randn(values.shape) * 0.1)
                continue
            positions = "wpe" in tensor or "embed_positions" in tensor
            words = "embed" in tensor or "wte" in tensor
            spread = 0.5 if positions else 0.08 if words else 2.5 / values.shape[-1] ** 0.5
            values.copy_(torch.randn(values.shape) * spread)
        for tensor, values in (*model.named_buffers(), *model.named_parameters()):
            if "correction" in tensor:  # zeros else, and integers of training in some
                values.copy_(torch.randn(values.shape) * 0.2)
            elif "layer_scalar" in tensor:
                values.copy_(torch.rand(values.shape) + 0.3)
        model.save_pretrained(folder)
        longest = max(map(len, PROMPTS))
        pads = [longest - len(prompt) for prompt in PROMPTS]
        ids = torch.tensor([[0] * pad + prompt for pad, prompt in zip(pads, PROMPTS, strict=True)])
        mask = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in pads])
        options = {"max_new_tokens": NEW_TOKENS, "do_sample": False}
        one = model.generate(torch.tensor([PROMPTS[0]]), **options)[0, len(PROMPTS[0]) :]
        three = model.generate(ids, attention_mask=mask, **options)[:, longest:]
    return one.tolist(), three.tolist()


def compare(kind: str, folder: Path) -> list[str]:
    """What differs between ours and transformers; empty when nothing does."""
    from hetero_tvm import build_language_model, load_language_model
    from hetero_tvm.generation.generate import generate

    one, three = reference(kind, folder / kind)
    model = load_language_model(build_language_model(folder / kind, folder / "out", page=16, rows=8))
    made = generate(model, PROMPTS[:1], max_new_tokens=NEW_TOKENS)
    found = [] if made[0].tokens == one else [f"{kind}: {made[0].tokens} instead of {one}"]
    if kind in ALONE:
        return found
    for request, want in zip(generate(model, PROMPTS, max_new_tokens=NEW_TOKENS), three, strict=True):
        if request.tokens != want:
            found.append(f"{kind}, with padding: {request.tokens} instead of {want}")
    return found


def main(description: str | None, kinds: Iterable[str], compare: Callable[[str, Path], list[str]]) -> int:
    """Compare each kind of model that the command line names, each in a folder of its own."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=list(kinds), metavar="KIND", help=", ".join(kinds))
    failed = 0
    for kind in parser.parse_args().kinds:
        with tempfile.TemporaryDirectory(prefix="hetero_tvm-language-") as folder:
            found = compare(kind, Path(folder))
        failed += bool(found)
        print("\n".join(found) if found else f"{kind}: all tokens are the same", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(__doc__, CASES, compare))
