"""Families whose MLPs are mixtures of experts."""

from __future__ import annotations

import dataclasses
import math

from hetero_tvm.errors import ModelError
from hetero_tvm.language.families import gemmas, llamas
from hetero_tvm.language.families.configuration import Config, kinds_of, refuse, windows_of
from hetero_tvm.language.families.decoder import Decoder, Experts, Latent, Names

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
    experts = Experts(expert_count(config), int(config["num_experts_per_tok"]), decoder.inner)
    return mixed_in(decoder, experts), dataclasses.replace(
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
    experts = Experts(expert_count(config), int(config["num_experts_per_tok"]), decoder.inner, shares)
    decoder = dataclasses.replace(decoder, head_norms=True, wide_head_norms=True)
    return mixed_in(decoder, experts), names


def flex_olmo(config: Config) -> tuple[Decoder, Names]:
    """An OLMo 2 whose MLPs are the mixtures of an OLMoE."""
    decoder, names = gemmas.olmo2(config)
    shares = bool(config.get("norm_topk_prob"))
    experts = Experts(expert_count(config), int(config["num_experts_per_tok"]), decoder.inner, shares)
    return mixed_in(decoder, experts), names


def mellum(config: Config) -> tuple[Decoder, Names]:
    """A mixture of Qwen3 whose layers with windows have positions of their own."""
    kinds = list(config.get("layer_types") or ["full_attention"] * int(config["num_hidden_layers"]))
    config = {"norm_topk_prob": True, **config, "layer_types": kinds}
    mlps = config.get("mlp_layer_types") or ()
    config["mlp_only_layers"] = [i for i, kind in enumerate(mlps) if kind != "sparse"]
    decoder, names = llamas.llama(config, windows=windows_of(config))
    decoder = gemmas.by_kinds(dataclasses.replace(decoder, head_norms=True), config, kinds)
    return _of_some_layers(decoder, config), names


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
        expert_count(config),
        int(config["num_experts_per_tok"]),
        decoder.inner,
        limit=limit,
        activation="quick_gelu",
    )
    inner = range(2 * decoder.inner)
    return mixed_in(dataclasses.replace(decoder, sinks=True), experts), dataclasses.replace(
        names,
        router="mlp.router",
        expert="mlp.experts.",
        expert_up=("gate_up_proj",),
        expert_rows=(*inner[::2], *inner[1::2]),
        expert_transposed=True,
    )


def granite_moe(config: Config) -> tuple[Decoder, Names]:
    """A Granite whose experts lie in one array; some have one more that all rows go through."""
    decoder, names = llamas.granite(config)
    shared = int(config.get("shared_intermediate_size") or 0)
    experts = Experts(expert_count(config), int(config["num_experts_per_tok"]), decoder.inner, shared=shared)
    return mixed_in(decoder, experts), dataclasses.replace(
        names,
        router="block_sparse_moe.router.layer",
        expert="block_sparse_moe.",
        expert_up=("input_linear",),
        expert_down="output_linear",
        shared_expert="shared_mlp.",
        shared_up=("input_linear",),
        shared_down="output_linear",
    )


def granite_moe_swa(config: Config) -> tuple[Decoder, Names]:
    decoder, names = granite_moe({"shared_intermediate_size": 0, **config})
    names = dataclasses.replace(
        names,
        router="block_sparse_moe.router",
        expert="block_sparse_moe.experts.",
        expert_up=("gate_up_proj",),
        expert_down="down_proj",
    )
    return llamas.with_layers_of_swa(decoder, names, config)


def afmoe(config: Config) -> tuple[Decoder, Names]:
    """Norms on both sides, gates of what attention gives, windows with rotations or neither (Trinity)."""
    kinds = kinds_of(config, int(config.get("global_attn_every_n_layers") or 4))
    config = {**config, "layer_types": kinds}
    decoder, names = llamas.llama(config, windows=windows_of(config))
    decoder = llamas.without_rotation(decoder, [kind == "sliding_attention" for kind in kinds])
    inner, dense = int(config["moe_intermediate_size"]), int(config.get("num_dense_layers") or 0)
    experts = Experts(
        int(config["num_experts"]),
        int(config["num_experts_per_tok"]),
        inner,
        shared=inner * int(config.get("num_shared_experts") or 0),
        sigmoid=True,
        scale=float(config.get("route_scale") or 1.0),
    )
    decoder = dataclasses.replace(
        decoder,
        post_norms=True,
        head_norms=True,
        gated_heads=True,
        embed_scale=math.sqrt(decoder.width) if config.get("mup_enabled") else 1.0,
    )
    decoder = mixed_in(decoder, experts, [i >= dense for i in range(len(kinds))])
    return decoder, dataclasses.replace(
        names,
        attention_post_norm="post_attention_layernorm",
        mlp_norm="pre_mlp_layernorm",
        mlp_post_norm="post_mlp_layernorm",
        gate="self_attn.gate_proj",
        router="mlp.router.gate",
        shared_expert="mlp.shared_experts.",
        correction="mlp.expert_bias",
    )


def phimoe(config: Config) -> tuple[Decoder, Names]:
    """Layer norms, and two experts that are picked one after the other (SparseMixer)."""
    scaling = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    factors = [scaling.get(f"{length}_mscale") for length in ("short", "long")]
    if factors[0] != factors[1]:
        raise ModelError(f"phimoe models whose positions have two factors, {factors}, are not supported")
    if factors[0]:
        part = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
        config = {**config, part: {**scaling, "attention_factor": float(factors[0])}}
    decoder, names = mixtral(config)
    assert decoder.experts is not None
    if decoder.experts.top != 2:
        raise ModelError(
            f"phimoe models whose rows go through {decoder.experts.top} experts are not supported"
        )
    sparse = float(config.get("router_jitter_noise") or 0.01)
    experts = dataclasses.replace(decoder.experts, sparse=sparse)
    decoder = dataclasses.replace(decoder, centered=True, experts=experts)
    return decoder, dataclasses.replace(names, head_bias="lm_head.bias")


def hunyuan_moe(config: Config) -> tuple[Decoder, Names]:
    for name in ("num_experts", "moe_topk"):
        values = config[name] if isinstance(config[name], list) else [config[name]]
        if len(set(values)) > 1:
            raise ModelError(f"hunyuan models whose layers differ in {name} are not supported")
        config = {**config, name: int(values[0])}
    decoder, names = llamas.hunyuan(config)
    experts = Experts(
        int(config["num_experts"]), int(config["moe_topk"]), decoder.inner, shared=decoder.inner
    )
    return mixed_in(decoder, experts), dataclasses.replace(
        names, router="mlp.gate.wg", shared_expert="mlp.shared_mlp."
    )


def minimax_m2(config: Config) -> tuple[Decoder, Names]:
    """Experts that are judged by a sigmoid, and norms of all heads together."""
    if config.get("rotary_dim"):
        share = int(config["rotary_dim"]) / int(config["head_dim"])
        config = {"partial_rotary_factor": share, **config}
    decoder, names = mixtral(config)
    assert decoder.experts is not None
    experts = dataclasses.replace(decoder.experts, sigmoid=True)
    decoder = dataclasses.replace(decoder, experts=experts, head_norms=True, wide_head_norms=True)
    return decoder, dataclasses.replace(names, correction="block_sparse_moe.e_score_correction_bias")


def ernie_moe(config: Config) -> tuple[Decoder, Names]:
    decoder, names = llamas.ernie(config)
    inner, last = int(config["moe_intermediate_size"]), int(config.get("moe_layer_end_index", -1))
    first, step = int(config.get("moe_layer_start_index") or 0), int(config.get("moe_layer_interval") or 1)
    shared = inner * int(config.get("moe_num_shared_experts") or 0)
    experts = Experts(int(config["moe_num_experts"]), int(config["moe_k"]), inner, shared=shared)
    count = len(decoder.layers)
    last = count - 1 if last < 0 else last
    mixed = [(i + 1) % step == 0 and first <= i <= last for i in range(count)]
    return mixed_in(decoder, experts, mixed), dataclasses.replace(
        names,
        shared_expert="mlp.shared_experts.",
        head_bias="lm_head.bias",
        correction="mlp.moe_statics.e_score_correction_bias",
    )


def glm4_moe(config: Config) -> tuple[Decoder, Names]:
    decoder, names = llamas.llama({"partial_rotary_factor": 0.5, **config})
    decoder = dataclasses.replace(decoder, head_norms=bool(config.get("use_qk_norm")))
    return of_deepseek(decoder, names, config)


def solar_open(config: Config) -> tuple[Decoder, Names]:
    """A GLM-4.5 of mixtures alone, whose heads are rotated whole."""
    config = {"rope_theta": 1000000.0, "norm_topk_prob": True, "n_shared_experts": 1, **config}
    sizes = {"intermediate_size": config["moe_intermediate_size"], "use_qk_norm": False}
    return glm4_moe({"partial_rotary_factor": 1.0, **config, **sizes, "first_k_dense_replace": 0})


def dots1(config: Config) -> tuple[Decoder, Names]:
    decoder, names = llamas.qwen3({"use_sliding_window": True, **config})
    return of_deepseek(decoder, names, config)


def exaone_moe(config: Config) -> tuple[Decoder, Names]:
    """Layers without windows do not rotate."""
    decoder, names = gemmas.exaone4(config)
    decoder = dataclasses.replace(decoder, pre_norms=True, post_norms=False)
    names = dataclasses.replace(
        names,
        attention_post_norm="",
        mlp_post_norm="",
        mlp_norm="post_attention_layernorm",
    )
    experts = {"n_routed_experts": expert_count(config), "n_shared_experts": config.get("num_shared_experts")}
    decoder, names = of_deepseek(decoder, names, {**config, **experts})
    return decoder, dataclasses.replace(names, correction="mlp.e_score_correction_bias")


def deepseek_v2(config: Config) -> tuple[Decoder, Names]:
    """Latent attention, and experts by a softmax, perhaps of some groups only."""
    method = config.get("topk_method") or "greedy"
    if method not in ("greedy", "group_limited_greedy"):
        raise ModelError(f"deepseek_v2 models whose topk_method is {method!r} are not supported")
    decoder, names = with_latent(config, pairs=True)
    whole = {"n_group": 1, "topk_group": 1} if method == "greedy" else {}
    decoder, names = of_deepseek(decoder, names, {**config, **whole, "norm_topk_prob": False})
    assert decoder.experts is not None
    experts = dataclasses.replace(decoder.experts, sigmoid=False)
    return dataclasses.replace(decoder, experts=experts), dataclasses.replace(names, correction="")


def deepseek_v3(config: Config) -> tuple[Decoder, Names]:
    """Latent attention, and experts by a sigmoid, of some groups."""
    decoder, names = with_latent(config, bool(config.get("rope_interleave", True)))
    return of_deepseek(decoder, names, {"norm_topk_prob": True, **config})


def glm4_moe_lite(config: Config) -> tuple[Decoder, Names]:
    """A DeepSeek V3 whose first layer is plain."""
    return deepseek_v3({"first_k_dense_replace": 1, **config})


def youtu(config: Config) -> tuple[Decoder, Names]:
    """Latent attention beside plain MLPs."""
    config = {"tie_word_embeddings": True, **config}
    return with_latent(config, bool(config.get("rope_interleave", True)))


def minicpm3(config: Config) -> tuple[Decoder, Names]:
    """Latent attention beside plain MLPs, with the numbers of a MiniCPM."""
    values = int(config.get("v_head_dim") or int(config["hidden_size"]) // int(config["num_attention_heads"]))
    config = {"tie_word_embeddings": True, **config, "v_head_dim": values}
    return llamas.branches_of_minicpm(config, *with_latent(config, pairs=False))


def with_latent(config: Config, pairs: bool) -> tuple[Decoder, Names]:
    """A Llama with latent attention; ``pairs``: rotated pairs are neighbours.

    The rotated channels of a head come first here, which its scores do not see.
    """
    turned, still, values = (int(config[f"{n}_head_dim"]) for n in ("qk_rope", "qk_nope", "v"))
    heads, few = int(config["num_attention_heads"]), int(config["kv_lora_rank"])
    decoder, names = llamas.llama({**config, "head_dim": turned, "num_key_value_heads": heads})
    dim = turned + still
    scale = dim**-0.5
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind != "default" and scaling.get("mscale_all_dim") and float(scaling["factor"]) > 1:
        scale *= (0.1 * float(scaling["mscale_all_dim"]) * math.log(float(scaling["factor"])) + 1.0) ** 2
    order = [*range(0, turned, 2), *range(1, turned, 2)] if pairs else list(range(turned))
    queries = [head * dim + c for head in range(heads) for c in (*(still + o for o in order), *range(still))]
    own = still + values
    keys = [head * own + c for head in range(heads) for c in range(still)]
    keys += [head * own + still + c for head in range(heads) for c in range(values)]
    latent = Latent(int(config.get("q_lora_rank") or 0), few, turned)
    decoder = dataclasses.replace(decoder, dim=dim, rotated=turned, scale=scale, latent=latent, values=values)
    shared = tuple(few + o for o in order)
    return decoder, dataclasses.replace(
        names,
        qkv=("self_attn.q_proj",),
        latent_rows=(tuple(queries), tuple(range(few)), shared, tuple(keys)),
    )


def of_deepseek(decoder: Decoder, names: Names, config: Config) -> tuple[Decoder, Names]:
    """The decoder whose later layers are mixtures in DeepSeek's words, judged by a sigmoid."""
    inner, count = int(config["moe_intermediate_size"]), int(config["n_routed_experts"])
    experts = Experts(
        count,
        int(config["num_experts_per_tok"]),
        inner,
        bool(config.get("norm_topk_prob")),
        shared=inner * int(config.get("n_shared_experts") or 0),
        sigmoid=True,
        groups=int(config.get("n_group") or 1),
        kept=int(config.get("topk_group") or 1),
        scale=float(config.get("routed_scaling_factor") or 1.0),
    )
    if count % experts.groups or not 0 < experts.kept <= experts.groups:
        raise ModelError(f"{count} experts in {experts.groups} groups, of which {experts.kept} are kept")
    kinds, first = config.get("mlp_layer_types"), int(config.get("first_k_dense_replace") or 0)
    layers, step = range(len(decoder.layers)), int(config.get("moe_layer_freq") or 1)
    mixed = [kinds[i] == "sparse" if kinds else i >= first and i % step == 0 for i in layers]
    return mixed_in(decoder, experts, mixed), dataclasses.replace(
        names,
        shared_expert="mlp.shared_experts.",
        correction="mlp.gate.e_score_correction_bias",
    )


def expert_count(config: Config) -> int:
    """Number of experts, in either spelling."""
    return int(config["num_local_experts" if "num_local_experts" in config else "num_experts"])


def _of_some_layers(decoder: Decoder, config: Config, shared: int = 0) -> Decoder:
    """The decoder with mixtures in the layers that a configuration of Qwen means."""
    top, inner = int(config["num_experts_per_tok"]), int(config["moe_intermediate_size"])
    count = expert_count(config)
    step, dense = int(config.get("decoder_sparse_step") or 1), config.get("mlp_only_layers") or ()
    layers = range(len(decoder.layers))
    mixed = [count > 0 and (i + 1) % step == 0 and i not in dense for i in layers]
    shares = bool(config.get("norm_topk_prob"))
    return mixed_in(decoder, Experts(count, top, inner, shares, shared, shared > 0), mixed)


def mixed_in(decoder: Decoder, experts: Experts, mixed: list[bool] | None = None) -> Decoder:
    """The decoder whose layers are mixtures, all or some."""
    mixed = [True] * len(decoder.layers) if mixed is None else mixed
    layers = tuple(
        dataclasses.replace(layer, mixed=one) for layer, one in zip(decoder.layers, mixed, strict=True)
    )
    return dataclasses.replace(decoder, layers=layers, experts=experts)
