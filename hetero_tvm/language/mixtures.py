"""Families whose MLPs are mixtures of experts."""

from __future__ import annotations

import dataclasses

from hetero_tvm.errors import ModelError
from hetero_tvm.language import llamas
from hetero_tvm.language.configuration import Config, kinds_of, refuse, windows_of
from hetero_tvm.language.decoder import Decoder, Experts, Names

_QUICK = 1.702
"""Factor of the sigmoid in the activation that has a kernel."""
_GPT_OSS_POSITIONS = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""Scaling that configurations of gpt-oss need not say."""


def mixtral(config: Config) -> tuple[Decoder, Names]:
    decoder, names = llamas.mistral(config)
    experts = Experts(_count(config), int(config["num_experts_per_tok"]), decoder.inner)
    return _mixed(decoder, experts), dataclasses.replace(
        names,
        router="block_sparse_moe.gate",
        expert="block_sparse_moe.experts.{}.",
        expert_up=("w1", "w3"),
        expert_down="w2",
    )


def qwen2_moe(config: Config) -> tuple[Decoder, Names]:
    """Some layers may have an MLP of their own; one expert more is for all rows."""
    decoder, names = llamas.qwen2(config)
    return _of_some_layers(decoder, config, int(config["shared_expert_intermediate_size"])), names


def qwen3_moe(config: Config) -> tuple[Decoder, Names]:
    decoder, names = llamas.qwen3(config)
    return _of_some_layers(decoder, config), names


def olmoe(config: Config) -> tuple[Decoder, Names]:
    """A Llama that normalises all heads of the queries, and of the keys, together."""
    refuse(config, "clip_qkv")
    decoder, names = llamas.llama(config)
    shares = bool(config.get("norm_topk_prob"))
    experts = Experts(_count(config), int(config["num_experts_per_tok"]), decoder.inner, shares)
    decoder = dataclasses.replace(decoder, head_norms=True, wide_head_norms=True)
    return _mixed(decoder, experts), names


def gpt_oss(config: Config) -> tuple[Decoder, Names]:
    """Windows in every other layer, sinks, and experts with biases whose halves are bounded."""
    kinds = kinds_of(config, 2)
    alpha = float(config.get("swiglu_alpha") or _QUICK)
    if abs(alpha - _QUICK) > 1e-6:
        raise ModelError(f"gpt_oss models whose swiglu_alpha is {alpha} are not supported, but {_QUICK}")
    yarn = {"rope_scaling": _GPT_OSS_POSITIONS, "rope_theta": 150000.0, "head_dim": 64}
    config = {**yarn, **config, "layer_types": kinds}
    decoder, names = llamas.llama(config, windows=windows_of(config))
    limit = float(config.get("swiglu_limit") or 7.0)
    experts = Experts(
        _count(config),
        int(config["num_experts_per_tok"]),
        decoder.inner,
        limit=limit,
        activation="quick_gelu",
    )
    inner = range(2 * decoder.inner)
    return _mixed(dataclasses.replace(decoder, sinks=True), experts), dataclasses.replace(
        names,
        router="mlp.router",
        expert="mlp.experts.",
        expert_up=("gate_up_proj",),
        expert_rows=(*inner[::2], *inner[1::2]),
        expert_transposed=True,
    )


def _count(config: Config) -> int:
    """Number of experts, in either spelling."""
    return int(config["num_local_experts" if "num_local_experts" in config else "num_experts"])


def _of_some_layers(decoder: Decoder, config: Config, shared: int = 0) -> Decoder:
    """The decoder with mixtures in the layers that a configuration of Qwen means."""
    top, inner = int(config["num_experts_per_tok"]), int(config["moe_intermediate_size"])
    count = _count(config)
    step, dense = int(config.get("decoder_sparse_step") or 1), config.get("mlp_only_layers") or ()
    layers = range(len(decoder.layers))
    mixed = [count > 0 and (i + 1) % step == 0 and i not in dense for i in layers]
    return _mixed(decoder, Experts(count, top, inner, bool(config.get("norm_topk_prob")), shared), mixed)


def _mixed(decoder: Decoder, experts: Experts, mixed: list[bool] | None = None) -> Decoder:
    """The decoder whose layers are mixtures, all or some."""
    mixed = [True] * len(decoder.layers) if mixed is None else mixed
    layers = tuple(
        dataclasses.replace(layer, mixed=one) for layer, one in zip(decoder.layers, mixed, strict=True)
    )
    return dataclasses.replace(decoder, layers=layers, experts=experts)
