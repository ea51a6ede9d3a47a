"""Families whose layers keep a state of a text: in the place of attention, or beside layers that have it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from hetero_tvm.errors import ModelError
from hetero_tvm.language.families.configuration import Config, refuse, stop_of
from hetero_tvm.language.families.decoder import Decoder, Experts, Layer, Names, Recurrence
from hetero_tvm.language.families.llamas import granite, llama
from hetero_tvm.language.families.mixtures import granite_moe

_UNBOUNDED = 1 << 20
"""Context of a model whose texts may have any length."""


def mamba(config: Config, eps: float = 0.0) -> tuple[Decoder, Names]:
    """Mamba; ``eps`` of norms within its layers, where there are some."""
    inner, steps = int(config.get("intermediate_size") or 0), config.get("time_step_rank", "auto")
    width = int(config["hidden_size"])
    inner = inner or int(config.get("expand", 2) * width)
    recurrence = Recurrence(
        "mamba",
        inner,
        int(config.get("conv_kernel", 4)),
        state=int(config["state_size"]),
        steps=math.ceil(width / 16) if steps == "auto" else int(steps),
        eps=eps,
    )
    return _states_alone({"tie_word_embeddings": True, **config}, recurrence)


def falcon_mamba(config: Config) -> tuple[Decoder, Names]:
    """A Mamba that normalises what steps are made of, B and C."""
    return mamba(config, float(config.get("mixer_rms_eps") or 1e-6))


def mamba2(config: Config) -> tuple[Decoder, Names]:
    """A Mamba whose steps are of heads, and that has a gated norm behind its scan."""
    inner = int(config.get("expand", 2) * int(config["hidden_size"]))
    sizes = {"n_heads": "num_heads", "d_head": "head_dim", "n_groups": "n_groups", "d_state": "state_size"}
    named = {f"mamba_{ours}": config[theirs] for ours, theirs in sizes.items()}
    named["mamba_d_conv"] = config.get("conv_kernel", 4)
    eps = float(config["layer_norm_epsilon"])
    return _states_alone(config, _heads({**config, **named}, inner, eps))


def lfm2(config: Config) -> tuple[Decoder, Names]:
    """Short convolutions, and attention in some layers (LFM2)."""
    inner = int(config.get("block_ff_dim") or config["intermediate_size"])
    if config.get("block_auto_adjust_ff_dim", True):
        inner, factor = int(2 * inner / 3), config.get("block_ffn_dim_multiplier", 1.0)
        if factor is not None:
            each = int(config.get("block_multiple_of", 256))
            inner = -(-int(factor * inner) // each) * each
    decoder, names = _lfm2({**config, "intermediate_size": inner})
    return decoder, dataclasses.replace(names, up=("feed_forward.w1", "feed_forward.w3"))


def lfm2_moe(config: Config) -> tuple[Decoder, Names]:
    """An LFM2 whose MLPs are mixtures of experts but in the first layers."""
    decoder, names = _lfm2(config)
    corrected = bool(config.get("use_expert_bias", True))
    experts = Experts(
        int(config["num_experts"]),
        int(config["num_experts_per_tok"]),
        int(config["moe_intermediate_size"]),
        bool(config.get("norm_topk_prob", True)),
        sigmoid=True,
        scale=float(config.get("routed_scaling_factor") or 1.0),
    )
    dense = int(config.get("num_dense_layers") or 0)
    layers = tuple(
        dataclasses.replace(layer, mixed=number >= dense) for number, layer in enumerate(decoder.layers)
    )
    return dataclasses.replace(decoder, experts=experts, layers=layers), dataclasses.replace(
        names,
        up=("feed_forward.w1", "feed_forward.w3"),
        router="feed_forward.gate",
        correction="feed_forward.expert_bias" if corrected else "",
        expert="feed_forward.experts.{}.",
        expert_up=("w1", "w3"),
        expert_down="w2",
    )


def bamba(config: Config) -> tuple[Decoder, Names]:
    """Mamba 2, and attention in some layers, each with an MLP behind it."""
    attending = set(config.get("attn_layer_indices") or ())
    decoder, names = llama({"partial_rotary_factor": 0.5, **config})
    inner = int(config.get("mamba_expand", 2)) * decoder.width
    recurrence = _heads(config, inner, decoder.eps)
    decoder = with_states(decoder, recurrence, [n in attending for n in range(len(decoder.layers))])
    return decoder, dataclasses.replace(
        names,
        recurrence="mamba.",
        mlp_norm="pre_ff_layernorm",
        up=("feed_forward.gate_proj", "feed_forward.up_proj"),
        down="feed_forward.down_proj",
        norm="final_layernorm",
    )


def falcon_h1(config: Config) -> tuple[Decoder, Names]:
    """Mamba 2 and attention beside each other in every layer, whose matrices are multiplied by numbers."""
    refuse(config, "attention_bias", "mlp_bias", "projectors_bias", "mamba_proj_bias")
    decoder, names = llama(
        config,
        embed_scale=float(config.get("embedding_multiplier") or 1.0),
        final_scale=float(config.get("lm_head_multiplier") or 1.0),
    )
    inner = int(config.get("mamba_d_ssm") or int(config.get("mamba_expand", 2)) * decoder.width)
    recurrence = _heads(config, inner, decoder.eps if config.get("mamba_rms_norm") else 0.0)
    recurrence = dataclasses.replace(recurrence, before=bool(config.get("mamba_norm_before_gate", True)))
    layers = tuple(dataclasses.replace(layer, recurs=True) for layer in decoder.layers)

    def factor(name: str) -> float:
        value = config.get(f"{name}_multiplier")
        return 1.0 if value is None else float(value)

    d, r, dim = decoder, recurrence, decoder.dim
    of_gate, of_down = config.get("mlp_multipliers") or (1.0, 1.0)
    parts = [r.inner, r.inner, r.groups * r.state, r.groups * r.state, r.heads]
    of_parts = [factor("ssm_in") * float(value) for value in config.get("ssm_multipliers") or [1.0] * 5]
    factors = {
        "self_attn.q_proj": ((d.heads * dim, factor("attention_in")),),
        "self_attn.k_proj": ((d.kv_heads * dim, factor("attention_in") * factor("key")),),
        "self_attn.v_proj": ((d.kv_heads * dim, factor("attention_in")),),
        "self_attn.o_proj": ((d.width, factor("attention_out")),),
        "mamba.in_proj": tuple(zip(parts, of_parts, strict=True)),
        "mamba.out_proj": ((d.width, factor("ssm_out")),),
        "feed_forward.gate_proj": ((d.inner, float(of_gate)),),
        "feed_forward.down_proj": ((d.width, float(of_down)),),
    }
    return dataclasses.replace(decoder, layers=layers, recurrence=recurrence), dataclasses.replace(
        names,
        recurrence="mamba.",
        mlp_norm="pre_ff_layernorm",
        up=("feed_forward.gate_proj", "feed_forward.up_proj"),
        down="feed_forward.down_proj",
        norm="final_layernorm",
        factors=factors,
    )


def granite_hybrid(config: Config) -> tuple[Decoder, Names]:
    """A Granite of Mamba 2 and attention, with experts or without (Granite 4)."""
    multipliers = ("embedding", "residual", "attention")
    neutral: dict[str, Any] = {f"{name}_multiplier": 1.0 for name in multipliers} | {"logits_scaling": 1.0}
    config = {**neutral, **config}
    inner = int(config["shared_intermediate_size"])
    if config.get("num_local_experts"):
        decoder, names = granite_moe(config)
    else:
        decoder, names = granite({**config, "intermediate_size": inner})
        names = dataclasses.replace(names, up=("shared_mlp.input_linear",), down="shared_mlp.output_linear")
    if config.get("position_embedding_type") != "rope":
        decoder = dataclasses.replace(decoder, ropes=(), rotated=0)
    recurrence = _heads(
        config, int(config.get("mamba_expand", 2)) * decoder.width, float(config["rms_norm_eps"])
    )
    kinds = config.get("layer_types") or config.get("layers_block_type") or ["mamba"] * len(decoder.layers)
    decoder = with_states(decoder, recurrence, [attends(str(kind)) for kind in kinds])
    return decoder, dataclasses.replace(names, recurrence="mamba.")


def jamba(config: Config) -> tuple[Decoder, Names]:
    """Mamba and attention without positions, with a mixture of experts in some layers (Jamba)."""
    count = int(config["num_hidden_layers"])
    decoder, names = llama(config)
    steps, inner = config.get("mamba_dt_rank", "auto"), int(config.get("mamba_expand", 2)) * decoder.width
    recurrence = Recurrence(
        "mamba",
        inner,
        int(config.get("mamba_d_conv", 4)),
        state=int(config.get("mamba_d_state", 16)),
        steps=math.ceil(decoder.width / 16) if steps == "auto" else int(steps),
        eps=decoder.eps,
    )

    def every(name: str) -> list[bool]:
        period, offset = int(config[f"{name}_layer_period"]), int(config[f"{name}_layer_offset"])
        return [number % period == offset for number in range(count)]

    number, top = int(config.get("num_experts") or 1), int(config.get("num_experts_per_tok") or 1)
    experts = Experts(number, top, decoder.inner, normalised=False) if number > 1 else None
    decoder = with_states(dataclasses.replace(decoder, ropes=(), rotated=0), recurrence, every("attn"))
    layers = tuple(
        dataclasses.replace(layer, mixed=mixed and experts is not None)
        for layer, mixed in zip(decoder.layers, every("expert"), strict=True)
    )
    return dataclasses.replace(decoder, layers=layers, experts=experts), dataclasses.replace(
        names,
        recurrence="mamba.",
        mlp_norm="pre_ff_layernorm",
        up=("feed_forward.gate_proj", "feed_forward.up_proj"),
        down="feed_forward.down_proj",
        router="feed_forward.router",
        expert="feed_forward.experts.{}.",
        norm="final_layernorm",
    )


_NEMOTRON_KINDS = {
    **dict.fromkeys(("M", "mamba", "linear_attention"), "state"),
    **dict.fromkeys(("*", "attention", "full_attention"), "attention"),
    **dict.fromkeys(("-", "mlp"), "mlp"),
    **dict.fromkeys(("E", "moe"), "experts"),
}
"""Kinds of layers of a Nemotron-H in all spellings."""


def nemotron_h(config: Config) -> tuple[Decoder, Names]:
    """Layers of one part each: Mamba 2, attention without positions, an MLP, or experts."""
    refuse(config, "moe_latent_size")
    told = config.get("layers_block_type") or config.get("layer_types")
    kinds = [_NEMOTRON_KINDS[str(kind)] for kind in told or str(config["hybrid_override_pattern"])]
    sizes = {"num_hidden_layers": len(kinds), "rms_norm_eps": config["layer_norm_epsilon"]}
    decoder, names = llama({**config, **sizes, "hidden_act": config.get("mlp_hidden_act", "relu2")})
    named = {
        "mamba_n_heads": config["mamba_num_heads"],
        "mamba_d_head": config["mamba_head_dim"],
        "mamba_n_groups": config["n_groups"],
        "mamba_d_state": config["ssm_state_size"],
        "mamba_d_conv": config.get("conv_kernel", 4),
    }
    inner = int(config["mamba_num_heads"]) * int(config["mamba_head_dim"])
    recurrence = _heads({**config, **named}, inner, decoder.eps)
    experts = None
    if "experts" in kinds:
        shared = int(config.get("moe_shared_expert_intermediate_size") or 0)
        experts = Experts(
            int(config["n_routed_experts"]),
            int(config["num_experts_per_tok"]),
            int(config["moe_intermediate_size"]),
            bool(config.get("norm_topk_prob", True)),
            shared=shared * int(config.get("n_shared_experts") or 1),
            sigmoid=True,
            groups=int(config.get("n_group") or 1),
            kept=int(config.get("topk_group") or 1),
            scale=float(config.get("routed_scaling_factor") or 1.0),
        )
    layers = tuple(
        Layer(
            mixed=kind == "experts",
            attends=kind == "attention",
            recurs=kind == "state",
            feeds=kind in ("mlp", "experts"),
        )
        for kind in kinds
    )
    decoder = dataclasses.replace(
        decoder,
        ropes=(),
        rotated=0,
        gated=False,
        layers=layers,
        recurrence=recurrence,
        experts=experts,
    )
    return decoder, dataclasses.replace(
        names,
        prefixes=("backbone.", "model.", ""),
        embed="embeddings",
        shared="embed_tokens",
        attention_norm="norm",
        qkv=("mixer.q_proj", "mixer.k_proj", "mixer.v_proj"),
        out="mixer.o_proj",
        recurrence="mixer.",
        mlp_norm="norm",
        up=("mixer.up_proj",),
        down="mixer.down_proj",
        norm="norm_f",
        router="mixer.gate",
        correction="mixer.gate.e_score_correction_bias",
        expert="mixer.experts.{}.",
        expert_up=("up_proj",),
        shared_expert="mixer.shared_experts.",
        shared_up=("up_proj",),
    )


# parts -----------------------------------------------------------------------------------------
def _states_alone(config: Config, recurrence: Recurrence) -> tuple[Decoder, Names]:
    """A decoder of such layers alone, which has neither attention nor MLPs."""
    _check_activation(config)
    decoder = Decoder(
        architecture=str(config["model_type"]),
        vocab=int(config["vocab_size"]),
        width=int(config["hidden_size"]),
        inner=recurrence.inner,
        heads=1,
        kv_heads=1,
        dim=1,
        layers=(Layer(attends=False, recurs=True, feeds=False),) * int(config["num_hidden_layers"]),
        context=_UNBOUNDED,
        eps=float(config["layer_norm_epsilon"]),
        recurrence=recurrence,
        tied=bool(config.get("tie_word_embeddings")),
        stop=stop_of(config),
    )
    return decoder, Names(
        prefixes=("backbone.", "model.", ""),
        embed="embeddings",
        attention_norm="norm",
        recurrence="mixer.",
        norm="norm_f",
    )


def _heads(config: Config, inner: int, eps: float) -> Recurrence:
    """A Mamba 2 as hybrids spell it."""
    limit = [_number(value) for value in config.get("time_step_limit") or (0.0, math.inf)]
    if limit[0] > 0.0 or limit[1] < math.inf:
        raise ModelError(f"{config['model_type']} models whose time_step_limit is {limit} are not supported")
    heads, dim = int(config["mamba_n_heads"]), config.get("mamba_d_head", "auto")
    if dim != "auto" and heads * int(dim) != inner:
        raise ModelError(f"{heads} heads of {dim} channels are not {inner} channels")
    groups = int(config.get("mamba_n_groups") or 1)
    if inner % heads or heads % groups or inner % groups:
        raise ModelError(f"{inner} channels make no {heads} heads in {groups} groups")
    state = int(config["mamba_d_state"])
    return Recurrence("mamba2", inner, int(config.get("mamba_d_conv", 4)), heads, state, groups, eps=eps)


def _number(value: Any) -> float:
    """A number of JSON, which has no infinity: transformers writes ``{"__float__": "Infinity"}``."""
    return float(value["__float__"] if isinstance(value, Mapping) else value)


def _lfm2(config: Config) -> tuple[Decoder, Names]:
    count = int(config["num_hidden_layers"])
    kinds, indices = config.get("layer_types"), config.get("full_attn_idxs")
    if kinds is None:
        indices = range(count) if indices is None else indices
        kinds = ["full_attention" if number in indices else "conv" for number in range(count)]
    tied = bool(config.get("tie_embedding", config.get("tie_word_embeddings", True)))
    config = {"rope_theta": 1000000.0, "hidden_act": "silu", **config, "rms_norm_eps": config["norm_eps"]}
    decoder, names = llama(config, head_norms=True, tied=tied)
    recurrence = Recurrence("convolution", decoder.width, int(config.get("conv_L_cache", 3)))
    decoder = with_states(decoder, recurrence, [attends(str(kind)) for kind in kinds])
    return decoder, dataclasses.replace(
        names,
        attention_norm="operator_norm",
        head_norms=("self_attn.q_layernorm", "self_attn.k_layernorm"),
        out="self_attn.out_proj",
        recurrence="conv.",
        mlp_norm="ffn_norm",
        down="feed_forward.w2",
        norm="embedding_norm",
    )


def attends(kind: str) -> bool:
    """Whether a layer of this kind has attention, in the words of configurations."""
    return kind.endswith("attention") and not kind.startswith("linear")


def with_states(decoder: Decoder, recurrence: Recurrence, attending: Iterable[bool]) -> Decoder:
    """The decoder, of whose layers some attend and the others have a state."""
    layers = tuple(
        dataclasses.replace(layer, attends=does, recurs=not does)
        for layer, does in zip(decoder.layers, attending, strict=True)
    )
    return dataclasses.replace(decoder, layers=layers, recurrence=recurrence)


def _check_activation(config: Config) -> None:
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        refuse(config, "hidden_act")
