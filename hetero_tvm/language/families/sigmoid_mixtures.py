"""Families of mixtures whose experts a sigmoid may judge, beside one that all rows go through."""

from __future__ import annotations

import dataclasses
from typing import Any

from hetero_tvm.errors import ModelError
from hetero_tvm.language.families import llamas, mixtures
from hetero_tvm.language.families.configuration import Config, kinds_of
from hetero_tvm.language.families.decoder import Decoder, Experts, Names


def cohere2_moe(config: Config) -> tuple[Decoder, Names]:
    """A Command R7B of mixtures, the first layers of which may be plain and have windows of their own."""
    count, first = int(config["num_hidden_layers"]), int(config.get("first_k_dense_replace") or 0)
    before, every = (
        int(config.get("prefix_dense_sliding_window_pattern") or 1),
        config.get("sliding_window_pattern"),
    )
    kinds = config.get("layer_types") or [
        *kinds_of({"num_hidden_layers": first}, before),
        *kinds_of({"num_hidden_layers": count - first}, int(every or 4)),
    ]
    mlps = config.get("mlp_layer_types") or ["dense"] * first + ["sparse"] * (count - first)
    inner = int(config["intermediate_size"])
    sizes = {"intermediate_size": config.get("prefix_dense_intermediate_size") or inner, "layer_types": kinds}
    config = {"layer_norm_eps": 1e-5, "logit_scale": 0.0625, **config, **sizes}
    decoder, names = llamas.cohere(config)
    if config.get("rms_norm_eps") is not None:
        decoder = dataclasses.replace(decoder, centered=False, eps=float(config["rms_norm_eps"]))
    turned = [
        kind == "sliding_attention" or mlp == "dense" and before == 1
        for kind, mlp in zip(kinds, mlps, strict=True)
    ]
    decoder = llamas.without_rotation(decoder, turned)
    selection = config.get("expert_selection_fn") or "softmax"
    strategy = config.get("shared_expert_combination_strategy") or "average"
    if selection not in ("softmax", "sigmoid") or strategy not in ("sum", "average"):
        raise ModelError(f"cohere2_moe models with {selection!r} and {strategy!r} are not supported")
    shared = inner * int(config.get("num_shared_experts") or 0)
    share = 0.5 if shared and strategy == "average" else 1.0
    experts = Experts(
        mixtures.expert_count(config),
        int(config["num_experts_per_tok"]),
        inner,
        selection == "softmax" or bool(config.get("norm_topk_prob", True)),
        shared=shared,
        sigmoid=selection == "sigmoid",
        scale=share,
    )
    names = dataclasses.replace(names, shared_expert="mlp.shared_experts.")
    if share != 1:
        factors = {"mlp.shared_experts.down_proj": ((decoder.width, share),)}
        names = dataclasses.replace(names, factors={**names.factors, **factors})
    return mixtures.mixed_in(decoder, experts, [mlp == "sparse" for mlp in mlps]), names


def hy_v3(config: Config) -> tuple[Decoder, Names]:
    """A Llama with norms of heads, whose first layer is plain and the others mixtures by a sigmoid (Hy3)."""
    decoder, names = llamas.llama({"rope_theta": 11158840.0, **config})
    experts = {
        "n_routed_experts": mixtures.expert_count(config),
        "n_shared_experts": config.get("num_shared_experts", 1),
        "routed_scaling_factor": config.get("router_scaling_factor", 2.826),
        "norm_topk_prob": True,
        "first_k_dense_replace": 1,
    }
    decoder = dataclasses.replace(decoder, head_norms=True)
    decoder, names = mixtures.of_deepseek(decoder, names, {**config, **experts})
    return decoder, dataclasses.replace(
        names, router="mlp.router.gate", shared_expert="mlp.shared_mlp.", correction="mlp.expert_bias"
    )


def sarvam_moe(config: Config) -> tuple[Decoder, Names]:
    """A GLM-4.5 whose heads are rotated whole."""
    kind = {"rope_theta": 8000000.0, "partial_rotary_factor": 1.0, "use_qk_norm": True}
    rest = {"norm_topk_prob": True, "routed_scaling_factor": 2.5, "n_shared_experts": 1}
    decoder, names = mixtures.glm4_moe({"first_k_dense_replace": 1, **kind, **rest, **_of_sarvam(config)})
    return decoder, dataclasses.replace(
        names,
        embed="word_embeddings",
        qkv=("attention.query_key_value",),
        head_norms=("attention.query_layernorm", "attention.key_layernorm"),
        out="attention.dense",
        correction="mlp.gate.expert_bias",
    )


def sarvam_mla(config: Config) -> tuple[Decoder, Names]:
    """A DeepSeek V3 whose first layer is plain, as Sarvam writes its configuration."""
    config = _of_sarvam(config)
    scaling = config.get("rope_scaling") or {}
    if scaling.get("type", scaling.get("rope_type")) == "deepseek_yarn":
        config["rope_scaling"] = {**scaling, "type": "yarn", "rope_type": "yarn"}
    return mixtures.glm4_moe_lite({"n_shared_experts": 1, "routed_scaling_factor": 2.5, **config})


def _of_sarvam(config: Config) -> dict[str, Any]:
    """A configuration in DeepSeek's words."""
    spelled = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
    spelled["attention_bias"] = "use_qkv_bias"
    return {**{ours: config[theirs] for ours, theirs in spelled.items() if theirs in config}, **config}
