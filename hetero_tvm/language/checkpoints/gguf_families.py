"""Architectures of GGUF files: transformers' names for them and for their tensors, and what their metadata
mean beyond what all of them say."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np

from hetero_tvm.language.checkpoints.gguf_words import (
    COMMON,
    DEEPSEEK,
    FALCON_H1,
    GEMMA,
    GEMMA3N,
    GEMMA4,
    GLM4,
    GLM4_MOE,
    GPT2,
    GPT_OSS,
    GRANITE_MOE,
    LFM2,
    MAMBA,
    NORMS_BEHIND,
    PHI2,
    QWEN2_MOE,
    QWEN3_NEXT,
)
from hetero_tvm.language.families.decoder import Names

Get = Callable[[str], Any]
"""A value of the metadata by its name behind the architecture's; None where there is none."""
Entries = dict[str, Any]


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
    words: Mapping[str, str] = field(default_factory=lambda: COMMON)
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


def _gemma3n(get: Get, tensors: Mapping[str, Any]) -> Entries:
    """Four streams; the file has deviations in the place of shares of channels."""
    slides, cuts = get("attention.sliding_window_pattern"), get("activation_sparsity_scale")
    inner = get("feed_forward_length")
    local = {"rope_theta": _float(get("rope.freq_base_swa") or 10000.0)}
    return {
        "layer_types": ["sliding_attention" if one else "full_attention" for one in slides],
        "activation_sparsity_pattern": [
            NormalDist().cdf(float(cut)) if math.isfinite(cut) else 0.0 for cut in cuts
        ],
        "intermediate_size": list(map(int, inner)) if isinstance(inner, list) else int(inner),
        "num_kv_shared_layers": int(get("attention.shared_kv_layers") or 0),
        "hidden_size_per_layer_input": int(get("embedding_length_per_layer_input")),
        "altup_active_idx": int(get("altup.active_idx") or 0),
        "altup_num_inputs": int(get("altup.num_inputs") or 4),
        "altup_correct_scale": "blk.0.altup_correct_scale.weight" in tensors,
        "laurel_rank": int(tensors["blk.0.laurel_l.weight"].shape[1]),
        "final_logit_softcapping": _float(get("final_logit_softcapping") or 30.0),
        "rope_parameters": {
            "sliding_attention": local,
            "full_attention": {"rope_theta": _float(get("rope.freq_base") or 1e6)},
        },
    }


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


def _qwen3_next(get: Get, tensors: Mapping[str, Any]) -> Entries:
    """Linear attention in the words of Mamba's metadata."""
    heads = int(get("ssm.time_step_rank"))
    return _qwen2_moe(get, tensors) | {
        "linear_conv_kernel_dim": int(get("ssm.conv_kernel")),
        "linear_key_head_dim": int(get("ssm.state_size")),
        "linear_num_key_heads": int(get("ssm.group_count")),
        "linear_num_value_heads": heads,
        "linear_value_head_dim": int(get("ssm.inner_size")) // heads,
        "layer_types": [
            "linear_attention" if f"blk.{i}.ssm_a" in tensors else "full_attention"
            for i in range(int(get("block_count")) - int(get("nextn_predict_layers") or 0))
        ],
    }


def _glm4_moe(get: Get, tensors: Mapping[str, Any]) -> Entries:
    return {
        "use_qk_norm": "blk.0.attn_q_norm.weight" in tensors,
        "n_shared_experts": int(get("expert_shared_count") or 0),
        "first_k_dense_replace": int(get("leading_dense_block_count") or 0),
        "n_group": int(get("expert_group_count") or 1),
        "topk_group": int(get("expert_group_used_count") or 1),
    }


def _deepseek(get: Get, tensors: Mapping[str, Any]) -> Entries:
    """Latent attention: a DeepSeek V3 or a GLM-4.7-Flash where a sigmoid judges experts, else a V2, or a
    model of plain MLPs (Youtu)."""
    turned, values = int(get("rope.dimension_count")), get("attention.value_length_mla")
    dim = int(get("attention.key_length_mla") or get("attention.key_length"))
    entries: Entries = {
        "model_type": "youtu",
        "q_lora_rank": int(get("attention.q_lora_rank") or 0) or None,
        "kv_lora_rank": int(get("attention.kv_lora_rank")),
        "qk_rope_head_dim": turned,
        "qk_nope_head_dim": dim - turned,
        "v_head_dim": int(values or get("attention.value_length")),
        "partial_rotary_factor": 1.0,
        "tie_word_embeddings": "output.weight" not in tensors,
    }
    if get("rope.scaling.type") == "yarn":
        entries["rope_scaling"] = {
            "type": "yarn",
            "factor": float(get("rope.scaling.factor")),
            "original_max_position_embeddings": int(get("rope.scaling.original_context_length")),
        }
        if weight := get("rope.scaling.yarn_log_multiplier"):
            same = _float(10 * weight)
            entries["rope_scaling"] |= {"mscale": same, "mscale_all_dim": same}
    if not get("expert_count"):
        return entries
    sigmoid = any(name.endswith("exp_probs_b.bias") for name in tensors)
    groups = {"topk_method": "group_limited_greedy" if int(get("expert_group_count") or 1) > 1 else "greedy"}
    kind = {"model_type": "deepseek_v3"} if sigmoid else {"model_type": "deepseek_v2", **groups}
    mixed = (f"blk.{layer}.ffn_gate_inp.weight" in tensors for layer in range(int(get("block_count"))))
    kinds = {"mlp_layer_types": ["sparse" if one else "dense" for one in mixed]}
    return entries | _glm4_moe(get, tensors) | kinds | kind


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
    "qwen2moe": Family("qwen2_moe", COMMON | QWEN2_MOE, more=_qwen2_moe),
    "qwen2vl": Family("qwen2"),
    "qwen3": Family("qwen3"),
    "qwen3moe": Family("qwen3_moe"),
    "qwen3vl": Family("qwen3"),
    "qwen3vlmoe": Family("qwen3_moe"),
    "qwen3next": Family("qwen3_next", COMMON | QWEN3_NEXT, norm_offset=True, more=_qwen3_next),
    "phi2": Family("phi", COMMON | PHI2, more=_phi2),
    "phi3": Family("phi3"),
    "gemma": Family("gemma", norm_offset=True),
    "gemma2": Family("gemma2", COMMON | GEMMA, norm_offset=True),
    "gemma3": Family("gemma3_text", COMMON | GEMMA, norm_offset=True),
    "gemma3n": Family("gemma3n_text", COMMON | GEMMA3N, more=_gemma3n),
    "gemma4": Family("gemma4_text", COMMON | GEMMA4, more=_gemma4),
    "internlm2": Family("llama", interleaved=True),
    "minicpm": Family("granite", interleaved=True, more=_minicpm),
    "gpt2": Family("gpt2", GPT2),
    "olmo2": Family("olmo2", COMMON | NORMS_BEHIND),
    "olmoe": Family("olmoe"),
    "gpt-oss": Family("gpt_oss", COMMON | GPT_OSS),
    "smollm3": Family("smollm3", interleaved=True),
    "granite": Family("granite", interleaved=True, more=_granite),
    "granitemoe": Family("granitemoe", COMMON | GRANITE_MOE, interleaved=True, more=_granite),
    "arcee": Family("arcee", interleaved=True, more=_arcee),
    "starcoder2": Family(
        "starcoder2", COMMON | {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}, more=_starcoder2
    ),
    "stablelm": Family("stablelm", more=_stablelm),
    "command-r": Family("cohere", more=_cohere),
    "cohere2": Family("cohere2", more=_cohere),
    "nemotron": Family("nemotron", norm_offset=True, more=_nemotron),
    "exaone4": Family("exaone4", COMMON | NORMS_BEHIND, more=_exaone4),
    "seed_oss": Family("seed_oss", COMMON | {"post_attention_layernorm": "post_attention_norm"}),
    "glm4": Family("glm4", COMMON | GLM4),
    "glm4moe": Family("glm4_moe", COMMON | GLM4_MOE, more=_glm4_moe),
    "deepseek2": Family("deepseek_v3", COMMON | DEEPSEEK, more=_deepseek),
    "ernie4_5": Family("ernie4_5"),
    "hunyuan-dense": Family(
        "hunyuan_v1_dense",
        COMMON | {"self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm"},
    ),
    "lfm2": Family("lfm2", COMMON | LFM2),
    "lfm2moe": Family("lfm2_moe", COMMON | LFM2, more=_lfm2_moe),
    "mamba": Family("mamba", MAMBA),
    "falcon-h1": Family("falcon_h1", COMMON | FALCON_H1, heads=True, more=_falcon_h1),
}
"""``general.architecture`` -> what its files hold."""
MIXTURES: Mapping[str, tuple[str, bool]] = {
    "llama": ("mixtral", True),
    "qwen2moe": ("qwen2_moe", False),
    "qwen3moe": ("qwen3_moe", True),
    "qwen3vlmoe": ("qwen3_moe", True),
    "qwen3next": ("qwen3_next", True),
    "olmoe": ("olmoe", False),
    "gpt-oss": ("gpt_oss", True),
    "granitemoe": ("granitemoe", True),
    "glm4moe": ("glm4_moe", True),
    "deepseek2": ("deepseek_v3", False),
    "lfm2moe": ("lfm2_moe", True),
    "gemma4": ("gemma4_text", True),
}
"""Architectures whose MLPs are mixtures of experts -> transformers' name, and whether the shares of a row
have the sum 1 where the file does not say it."""
