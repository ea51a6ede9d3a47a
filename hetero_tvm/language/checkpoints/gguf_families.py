"""Architectures of GGUF files: transformers' names for them and for their tensors, and what their metadata
mean beyond what all of them say."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hetero_tvm.language.families.decoder import Names

Get = Callable[[str], Any]
"""A value of the metadata by its name behind the architecture's; None where there is none."""
Entries = dict[str, Any]

_COMMON = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
}
EXPERTS = {
    "gate_proj": "ffn_gate_exps",
    "up_proj": "ffn_up_exps",
    "down_proj": "ffn_down_exps",
    "gate_up_proj": "ffn_gate_up_exps",
    "w1": "ffn_gate_exps",
    "w3": "ffn_up_exps",
    "w2": "ffn_down_exps",
}
"""Matrices of all experts in one tensor, by their names behind the expert's number."""
_SHARED = {"gate_proj": "ffn_gate_shexp", "up_proj": "ffn_up_shexp", "down_proj": "ffn_down_shexp"}
_GEMMA = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_GEMMA4 = {
    **_GEMMA,
    "embed_tokens_per_layer": "per_layer_token_embd",
    "per_layer_model_projection": "per_layer_model_proj",
    "per_layer_projection_norm": "per_layer_proj_norm",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
    "layer_scalar": "layer_output_scale",
    "router.proj": "ffn_gate_inp",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
}
_NORMS_BEHIND = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_GPT_OSS = {
    "post_attention_layernorm": "post_attention_norm",
    "mlp.router": "ffn_gate_inp",
    "self_attn.sinks": "attn_sinks",
}
_LFM2 = {
    "embedding_norm": "token_embd_norm",
    "operator_norm": "attn_norm",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "self_attn.out_proj": "attn_output",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down",
    "feed_forward.gate": "ffn_gate_inp",
    "feed_forward.expert_bias": "exp_probs_b.bias",
    "conv.conv": "shortconv.conv",
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
}
_GPT2 = {
    "wte": "token_embd",
    "wpe": "position_embd",
    "ln_f": "output_norm",
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
_GLM4 = {
    "post_self_attn_layernorm": "post_attention_norm",
    "post_mlp_layernorm": "post_ffw_norm",
}
_GLM4_MOE = {
    "post_attention_layernorm": "post_attention_norm",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    **{f"mlp.shared_experts.{name}": stored for name, stored in _SHARED.items()},
}
_PHI2 = {
    "final_layernorm": "output_norm",
    "self_attn.dense": "attn_output",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}
_QWEN2_MOE = {
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    **{f"mlp.shared_expert.{name}": stored for name, stored in _SHARED.items()},
}
_GRANITE_MOE = {
    "block_sparse_moe.router.layer": "ffn_gate_inp",
    **{f"shared_mlp.{name}": stored for name, stored in _SHARED.items()},
}


def _states(base: str) -> dict[str, str]:
    """Names of the parts of a Mamba."""
    return {
        f"{base}.in_proj": "ssm_in",
        f"{base}.conv1d": "ssm_conv1d",
        f"{base}.x_proj": "ssm_x",
        f"{base}.dt_proj": "ssm_dt",
        f"{base}.dt_bias": "ssm_dt.bias",
        f"{base}.A_log": "ssm_a",
        f"{base}.D": "ssm_d",
        f"{base}.norm": "ssm_norm",
        f"{base}.out_proj": "ssm_out",
    }


_MAMBA = {
    "embeddings": "token_embd",
    "norm_f": "output_norm",
    "lm_head": "output",
    "norm": "attn_norm",
    **_states("mixer"),
}
_FALCON_H1 = {
    "final_layernorm": "output_norm",
    "pre_ff_layernorm.weight": "ffn_norm",
    "feed_forward.gate_proj": "ffn_gate",
    "feed_forward.up_proj": "ffn_up",
    "feed_forward.down_proj": "ffn_down",
    **_states("mamba"),
}


def _nothing(get: Get, tensors: Mapping[str, Any]) -> Entries:
    return {}


@dataclass(frozen=True)
class Family:
    """An architecture.

    Parameters
    ----------
    model_type : transformers' name of it.
    words : transformers' names of tensors -> those of the file, without the layer.
    interleaved : rows of queries and keys are stored with the halves of each head interleaved.
    norm_offset : scales of norms are stored with 1 added.
    heads : its states are of heads (Mamba 2).
    more : entries of the configuration that other architectures do not have.
    """

    model_type: str
    words: Mapping[str, str] = field(default_factory=lambda: _COMMON)
    interleaved: bool = False
    norm_offset: bool = False
    heads: bool = False
    more: Callable[[Get, Mapping[str, Any]], Entries] = _nothing


def _float(value: Any) -> float:
    """The number that was rounded to float32."""
    return float(str(np.float32(value)))


def _layer_norm(get: Get, tensors: Mapping[str, Any]) -> Entries:
    """Layer norms, whose epsilon has several names."""
    epsilon = _float(get("attention.layer_norm_epsilon") or 1e-5)
    return {"layer_norm_eps": epsilon, "norm_epsilon": epsilon, "norm_eps": epsilon}


def _granite(get: Get, tensors: Mapping[str, Any]) -> Entries:
    scales = {
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "attention_multiplier": "attention.scale",
        "logits_scaling": "logit_scale",
    }
    entries: Entries = {name: _float(get(stored) or 1.0) for name, stored in scales.items()}
    return entries | {"shared_intermediate_size": int(get("expert_shared_feed_forward_length") or 0)}


def _mistral3(get: Get, tensors: Mapping[str, Any]) -> Entries:
    """Mistral Small 3; a Ministral 3 has positions by YaRN, and queries that grow beyond one context."""
    beta = get("attention.temperature_scale")
    if not beta:
        return {"model_type": "mistral"}
    return {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": _float(get("rope.freq_base") or 10000.0),
            "factor": _float(get("rope.scaling.factor") or 1.0),
            "original_max_position_embeddings": int(get("rope.scaling.original_context_length")),
            "beta_fast": _float(get("rope.scaling.yarn_beta_fast") or 32.0),
            "beta_slow": _float(get("rope.scaling.yarn_beta_slow") or 1.0),
            "mscale": 1.0,
            "mscale_all_dim": _float(get("rope.scaling.yarn_log_multiplier") or 1.0),
            "llama_4_scaling_beta": _float(beta),
        }
    }


def _starcoder2(get: Get, tensors: Mapping[str, Any]) -> Entries:
    return _layer_norm(get, tensors) | {"hidden_act": "gelu_pytorch_tanh"}


def _stablelm(get: Get, tensors: Mapping[str, Any]) -> Entries:
    return _layer_norm(get, tensors) | {
        "use_parallel_residual": bool(get("use_parallel_residual")),
        "qk_layernorm": "blk.0.attn_q_norm.weight" in tensors,
    }


def _phi2(get: Get, tensors: Mapping[str, Any]) -> Entries:
    return _layer_norm(get, tensors) | {"hidden_act": "gelu_new"}


def _cohere(get: Get, tensors: Mapping[str, Any]) -> Entries:
    return _layer_norm(get, tensors) | {
        "logit_scale": _float(get("logit_scale") or 1.0),
        "use_qk_norm": "blk.0.attn_q_norm.weight" in tensors,
    }


def _nemotron(get: Get, tensors: Mapping[str, Any]) -> Entries:
    return _layer_norm(get, tensors) | {"hidden_act": "relu2"}


def _arcee(get: Get, tensors: Mapping[str, Any]) -> Entries:
    return {"hidden_act": "relu2"}


def _exaone4(get: Get, tensors: Mapping[str, Any]) -> Entries:
    pattern = get("attention.sliding_window_pattern")
    count, kinds = int(get("block_count")), ("full_attention", "sliding_attention")
    if not get("attention.sliding_window"):
        return {"layer_types": ["full_attention"] * count}
    slides = pattern if isinstance(pattern, list) else [(i + 1) % 4 != 0 for i in range(count)]
    return {"layer_types": [kinds[bool(one)] for one in slides[:count]]}


def _gemma4(get: Get, tensors: Mapping[str, Any]) -> Entries:
    """Layers that differ, and angles of which the last stand still: their factors in the file are huge."""
    count, slides = int(get("block_count")), [bool(one) for one in get("attention.sliding_window_pattern")]
    kv_heads, inner = get("attention.head_count_kv"), get("feed_forward_length")
    kv_heads = kv_heads if isinstance(kv_heads, list) else [kv_heads] * count
    inner = inner if isinstance(inner, list) else [inner] * count
    whole = int(get("attention.key_length"))
    own = count - int(get("attention.shared_kv_layers") or 0)
    factors = np.asarray(tensors["rope_freqs.weight"].data, np.float32)
    full = [i for i in range(count) if not slides[i]]
    return {
        "layer_types": ["sliding_attention" if one else "full_attention" for one in slides],
        "head_dim": int(get("attention.key_length_swa")),
        "num_key_value_heads": int(kv_heads[slides.index(True)] if True in slides else kv_heads[0]),
        "per_layer_config": {i: {"head_dim": whole, "num_key_value_heads": int(kv_heads[i])} for i in full},
        "attention_k_eq_v": any(f"blk.{i}.attn_v.weight" not in tensors for i in full if i < own),
        "num_kv_shared_layers": count - own,
        "intermediate_size": int(inner[0]),
        "use_double_wide_mlp": int(inner[-1]) == 2 * int(inner[0]),
        "hidden_size_per_layer_input": int(get("embedding_length_per_layer_input") or 0),
        "enable_moe_block": bool(get("expert_count")),
        "top_k_experts": get("expert_used_count"),
        "rope_parameters": {
            "sliding_attention": {"rope_theta": _float(get("rope.freq_base_swa") or 10000.0)},
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": _float(get("rope.freq_base")),
                "partial_rotary_factor": 2 * int((factors == 1).sum()) / whole,
            },
        },
    }


def _minicpm(get: Get, tensors: Mapping[str, Any]) -> Entries:
    width, heads = int(get("embedding_length")), int(get("attention.head_count"))
    return _granite(get, tensors) | {"attention_multiplier": (width // heads) ** -0.5}


def _qwen2_moe(get: Get, tensors: Mapping[str, Any]) -> Entries:
    return {"shared_expert_intermediate_size": int(get("expert_shared_feed_forward_length") or 0)}


def _glm4_moe(get: Get, tensors: Mapping[str, Any]) -> Entries:
    return {
        "use_qk_norm": "blk.0.attn_q_norm.weight" in tensors,
        "n_shared_experts": int(get("expert_shared_count") or 0),
        "first_k_dense_replace": int(get("leading_dense_block_count") or 0),
        "n_group": int(get("expert_group_count") or 1),
        "topk_group": int(get("expert_group_used_count") or 1),
    }


def _lfm2_moe(get: Get, tensors: Mapping[str, Any]) -> Entries:
    dense = int(get("leading_dense_block_count") or 0)
    return {
        "num_dense_layers": dense,
        "use_expert_bias": any(name.endswith("exp_probs_b.bias") for name in tensors),
    }


def _falcon_h1(get: Get, tensors: Mapping[str, Any]) -> Entries:
    """Numbers that its matrices are multiplied by are in the matrices here."""
    heads = int(get("ssm.time_step_rank"))
    inner = int(get("ssm.inner_size"))
    return {
        "mamba_d_ssm": inner,
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_n_groups": int(get("ssm.group_count") or 1),
        "mamba_d_state": int(get("ssm.state_size")),
        "mamba_d_conv": int(get("ssm.conv_kernel")),
        "mamba_rms_norm": "blk.0.ssm_norm.weight" in tensors,
        "mamba_norm_before_gate": False,
    }


def expert_names(names: Names) -> Names:
    """Names of a mixture whose experts' gate and up are two matrices here, and are one elsewhere."""
    return dataclasses.replace(
        names,
        expert="mlp.experts.{}.",
        expert_up=("gate_proj", "up_proj"),
        expert_down="down_proj",
        shared_up=("gate_proj", "up_proj"),
        shared_down="down_proj",
    )


FAMILIES: Mapping[str, Family] = {
    "llama": Family("llama", interleaved=True),
    "mistral3": Family("ministral3", interleaved=True, more=_mistral3),
    "qwen2": Family("qwen2"),
    "qwen2moe": Family("qwen2_moe", _COMMON | _QWEN2_MOE, more=_qwen2_moe),
    "qwen3": Family("qwen3"),
    "qwen3moe": Family("qwen3_moe"),
    "phi2": Family("phi", _COMMON | _PHI2, more=_phi2),
    "phi3": Family("phi3"),
    "gemma": Family("gemma", norm_offset=True),
    "gemma2": Family("gemma2", _COMMON | _GEMMA, norm_offset=True),
    "gemma3": Family("gemma3_text", _COMMON | _GEMMA, norm_offset=True),
    "gemma4": Family("gemma4_text", _COMMON | _GEMMA4, more=_gemma4),
    "internlm2": Family("llama", interleaved=True),
    "minicpm": Family("granite", interleaved=True, more=_minicpm),
    "gpt2": Family("gpt2", _GPT2),
    "olmo2": Family("olmo2", _COMMON | _NORMS_BEHIND),
    "olmoe": Family("olmoe"),
    "gpt-oss": Family("gpt_oss", _COMMON | _GPT_OSS),
    "smollm3": Family("smollm3", interleaved=True),
    "granite": Family("granite", interleaved=True, more=_granite),
    "granitemoe": Family("granitemoe", _COMMON | _GRANITE_MOE, interleaved=True, more=_granite),
    "arcee": Family("arcee", interleaved=True, more=_arcee),
    "starcoder2": Family(
        "starcoder2", _COMMON | {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}, more=_starcoder2
    ),
    "stablelm": Family("stablelm", more=_stablelm),
    "command-r": Family("cohere", more=_cohere),
    "cohere2": Family("cohere2", more=_cohere),
    "nemotron": Family("nemotron", norm_offset=True, more=_nemotron),
    "exaone4": Family("exaone4", _COMMON | _NORMS_BEHIND, more=_exaone4),
    "seed_oss": Family("seed_oss", _COMMON | {"post_attention_layernorm": "post_attention_norm"}),
    "glm4": Family("glm4", _COMMON | _GLM4),
    "glm4moe": Family("glm4_moe", _COMMON | _GLM4_MOE, more=_glm4_moe),
    "ernie4_5": Family("ernie4_5"),
    "hunyuan-dense": Family(
        "hunyuan_v1_dense",
        _COMMON | {"self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm"},
    ),
    "lfm2": Family("lfm2", _COMMON | _LFM2),
    "lfm2moe": Family("lfm2_moe", _COMMON | _LFM2, more=_lfm2_moe),
    "mamba": Family("mamba", _MAMBA),
    "falcon-h1": Family("falcon_h1", _COMMON | _FALCON_H1, heads=True, more=_falcon_h1),
}
"""``general.architecture`` -> what its files hold."""
MIXTURES: Mapping[str, tuple[str, bool]] = {
    "llama": ("mixtral", True),
    "qwen2moe": ("qwen2_moe", False),
    "qwen3moe": ("qwen3_moe", True),
    "olmoe": ("olmoe", False),
    "gpt-oss": ("gpt_oss", True),
    "granitemoe": ("granitemoe", True),
    "glm4moe": ("glm4_moe", True),
    "lfm2moe": ("lfm2_moe", True),
    "gemma4": ("gemma4_text", True),
}
"""Architectures whose MLPs are mixtures of experts -> transformers' name, and whether the shares of a row
have the sum 1 where the file does not say it."""
