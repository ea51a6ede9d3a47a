"""Gemma, whose blocks have norms on both sides, and families that have norms behind their blocks too."""

from __future__ import annotations

import dataclasses
from statistics import NormalDist

from hetero_tvm.errors import ModelError
from hetero_tvm.language.families.configuration import Config, kinds_of, windows_of
from hetero_tvm.language.families.decoder import Decoder, Experts, Layer, Names, Rope
from hetero_tvm.language.families.llamas import MULTIMODAL, glm, llama, without_rotation
from hetero_tvm.language.families.rope import rope_of

_LAYER_INPUTS = (
    "embed_tokens_per_layer",
    "per_layer_model_projection",
    "per_layer_projection_norm",
    "per_layer_input_gate",
    "per_layer_projection",
    "post_per_layer_input_norm",
)


def gemma2(config: Config) -> tuple[Decoder, Names]:
    config = {**config, "layer_types": kinds_of(config, 2)}
    return _gemma(config, windows_of(config))


def gemma3(config: Config) -> tuple[Decoder, Names]:
    every = int(config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or 6)
    kinds = kinds_of(config, every)
    config = {**config, "layer_types": kinds}
    if config.get("use_bidirectional_attention"):
        raise ModelError(
            "this gemma3 model attends in both directions: it generates no text",
            hint="hetero_tvm.build_embedding_model makes what embeds texts of it",
        )
    decoder, names = _gemma(config, windows_of(config))
    return dataclasses.replace(by_kinds(decoder, config, kinds), head_norms=True), names


def gemma(config: Config) -> tuple[Decoder, Names]:
    """The first Gemma: no norms behind the blocks."""
    decoder, names = _gemma(config, windows_of(config))
    decoder = dataclasses.replace(decoder, post_norms=False, scale=decoder.dim**-0.5)
    return decoder, dataclasses.replace(
        names, attention_post_norm="", mlp_norm="post_attention_layernorm", mlp_post_norm=""
    )


def vaultgemma(config: Config) -> tuple[Decoder, Names]:
    """A Gemma 2 without norms behind the blocks."""
    decoder, names = gemma2(config)
    return dataclasses.replace(decoder, post_norms=False), dataclasses.replace(
        names, attention_post_norm="", mlp_post_norm=""
    )


def gemma4(config: Config) -> tuple[Decoder, Names]:
    """Heads that differ between layers with windows and others, later layers that read keys and values of
    earlier ones, channels of each layer beside the stream; some have mixtures beside their MLPs."""
    if config.get("use_bidirectional_attention") == "all":
        raise ModelError("this gemma4 model attends in both directions: it generates no text")
    kinds = [*kinds_of(config, 6)[:-1], "full_attention"]
    config = {**config, "layer_types": kinds}
    decoder, names = _gemma(config, windows_of(config))
    sizes = _sizes_of_layers(config, kinds)
    sources = _sources_of_keys(kinds, int(config.get("num_kv_shared_layers") or 0), "gemma4")
    twice = 2 if config.get("use_double_wide_mlp") else 1
    layers = []
    for i, (window, kind) in enumerate(zip(windows_of(config), kinds, strict=True)):
        dim, kv_heads = sizes[i]
        whole = kind == "full_attention"
        layers.append(
            Layer(
                window,
                int(whole),
                mixed=bool(config.get("enable_moe_block")),
                dim=dim,
                kv_heads=kv_heads,
                inner=decoder.inner * (twice if sources[i] >= 0 else 1),
                keys_of=sources[i],
                shares_keys=whole and bool(config.get("attention_k_eq_v")),
            )
        )
    dim = max(layer.dim for layer in layers)
    ropes = []
    for kind in ("sliding_attention", "full_attention"):
        rope, turned = rope_of(
            config, next((s[0] for s, k in zip(sizes, kinds, strict=True) if k == kind), dim), kind
        )
        if 2 * len(rope.inverse) != turned or rope.longer:
            raise ModelError("these positions of a gemma4 model are not supported")
        ropes.append(dataclasses.replace(rope, inverse=(*rope.inverse, *(0.0,) * (dim // 2 - turned // 2))))
    decoder = dataclasses.replace(
        decoder,
        layers=tuple(layers),
        dim=dim,
        kv_heads=max(layer.kv_heads for layer in layers),
        ropes=tuple(ropes),
        rotated=dim,
        norm_offset=0.0,
        scale=1.0,
        head_norms=True,
        value_norms=True,
        scaled_layers=True,
        layer_inputs=int(config.get("hidden_size_per_layer_input") or 0),
        tied=True,
    )
    if config.get("enable_moe_block"):
        inner = int(config["moe_intermediate_size"])
        experts = Experts(int(config["num_experts"]), int(config["top_k_experts"]), inner)
        decoder = dataclasses.replace(decoder, experts=experts, mixtures_beside=True)
    return decoder, dataclasses.replace(
        names,
        layer_inputs=_LAYER_INPUTS,
        layer_factor="layer_scalar",
        router="router.proj",
        expert="experts.",
        expert_up=("gate_up_proj",),
        beside=(
            "post_feedforward_layernorm_1",
            "pre_feedforward_layernorm_2",
            "post_feedforward_layernorm_2",
            "router.scale",
            "router.per_expert_scale",
        ),
    )


def gemma3n(config: Config) -> tuple[Decoder, Names]:
    """Several streams, products of low rank beside attention, MLPs of which few channels count, and what a
    Gemma 4 has of layers that share keys and of channels beside the stream."""
    kinds = kinds_of(config, 5)
    config = {"final_logit_softcapping": 30.0, **config, "layer_types": kinds}
    if int(config.get("altup_active_idx") or 0):
        raise ModelError(
            "gemma3n models whose layers compute another stream than the first are not supported"
        )
    count, inner = len(kinds), config["intermediate_size"]
    inners = [int(n) for n in (inner if isinstance(inner, list | tuple) else [inner] * count)]
    decoder, names = _gemma({**config, "intermediate_size": max(inners)}, windows_of(config))
    decoder = by_kinds(decoder, config, kinds)
    shares = config.get("activation_sparsity_pattern")
    if shares is None:
        shares = [0.95 if count > 10 and i < 10 else 0.0 for i in range(count)]
    elif not isinstance(shares, list | tuple):
        shares = [shares] * count
    sources = _sources_of_keys(kinds, int(config.get("num_kv_shared_layers", 15)), "gemma3n")
    layers = tuple(
        dataclasses.replace(
            layer,
            inner=own,
            keys_of=source,
            cut=NormalDist().inv_cdf(float(share)) if share else None,
        )
        for layer, own, source, share in zip(decoder.layers, inners, sources, shares, strict=True)
    )
    decoder = dataclasses.replace(
        decoder,
        layers=layers,
        norm_offset=0.0,
        scale=1.0,
        head_norms=True,
        value_norms=True,
        layer_inputs=int(config.get("hidden_size_per_layer_input") or 256),
        streams=int(config.get("altup_num_inputs") or 4),
        scaled_streams=bool(config.get("altup_correct_scale", True)),
        low_rank=int(config.get("laurel_rank") or 64),
        tied=True,
    )
    return decoder, dataclasses.replace(
        names,
        layer_inputs=_LAYER_INPUTS,
        streams=(
            "altup_projections.{}",
            "altup_unembed_projections.{}",
            "altup.router_norm",
            "altup.modality_router",
            "altup.prediction_coefs",
            "altup.correction_coefs",
            "altup.correct_output_scale",
        ),
        low_rank=("laurel.linear_left", "laurel.linear_right", "laurel.post_laurel_norm"),
    )


def _sources_of_keys(kinds: list[str], shared: int, model: str) -> list[int]:
    """Layers whose keys the last ``shared`` layers read, the last of their kind before these; -1 for own."""
    own = len(kinds) - shared
    sources = [-1] * len(kinds)
    for i in range(max(own, 0), len(kinds)):
        earlier = [j for j in range(own) if kinds[j] == kinds[i]]
        if not earlier:
            raise ModelError(f"layer {i} of this {model} model reads keys that no layer has")
        sources[i] = earlier[-1]
    return sources


def _sizes_of_layers(config: Config, kinds: list[str]) -> list[tuple[int, int]]:
    """Channels of a head and key heads of each layer of a Gemma 4, in either spelling."""
    plain = {name: config[name] for name in ("head_dim", "num_key_value_heads")}
    told = config.get("per_layer_config")
    if told is None:
        whole = {"head_dim": config.get("global_head_dim") or 512}
        if config.get("attention_k_eq_v") and config.get("num_global_key_value_heads"):
            whole["num_key_value_heads"] = config["num_global_key_value_heads"]
        told = {i: whole for i, kind in enumerate(kinds) if kind == "full_attention"}
    told = {int(number): sizes for number, sizes in told.items()}
    each = ({**plain, **told.get(i, {})} for i in range(len(kinds)))
    return [(int(sizes["head_dim"]), int(sizes["num_key_value_heads"])) for sizes in each]


def _gemma(config: Config, windows: tuple[int, ...]) -> tuple[Decoder, Names]:
    config = {**config, "hidden_act": config.get("hidden_activation") or "gelu_pytorch_tanh"}
    decoder, names = llama(config, windows=windows)
    decoder = dataclasses.replace(
        decoder,
        norm_offset=1.0,
        post_norms=True,
        scale=float(config.get("query_pre_attn_scalar") or decoder.dim) ** -0.5,
        softcap=float(config.get("attn_logit_softcapping") or 0.0),
        logits_softcap=float(config.get("final_logit_softcapping") or 0.0),
        embed_scale=float(config["hidden_size"]) ** 0.5,
    )
    return decoder, dataclasses.replace(
        names,
        prefixes=MULTIMODAL,
        attention_post_norm="post_attention_layernorm",
        mlp_norm="pre_feedforward_layernorm",
        mlp_post_norm="post_feedforward_layernorm",
    )


def glm4(config: Config) -> tuple[Decoder, Names]:
    decoder, names = glm(config)
    return dataclasses.replace(decoder, post_norms=True), dataclasses.replace(
        names, attention_post_norm="post_self_attn_layernorm", mlp_post_norm="post_mlp_layernorm"
    )


def olmo2(config: Config) -> tuple[Decoder, Names]:
    """Norms behind the blocks only, and of all heads of the queries and keys together."""
    decoder, names = _norms_behind(*llama({"rope_theta": 500000.0, **config}))
    return dataclasses.replace(decoder, wide_head_norms=True), names


def olmo3(config: Config) -> tuple[Decoder, Names]:
    """An OLMo 2 with windows, whose scaling of positions is that of the layers without one."""
    kinds = kinds_of(config, 4)
    config = {"rope_theta": 500000.0, **config, "layer_types": kinds}
    decoder, names = olmo2(config)
    whole, _ = rope_of(config, decoder.dim, "full_attention")
    same = {**config, "rope_local_base_freq": config["rope_theta"]}  # in the spelling of earlier versions
    local, _ = rope_of(same, decoder.dim, "sliding_attention")
    return _by_windows(decoder, config, kinds, local, whole), names


def exaone4(config: Config) -> tuple[Decoder, Names]:
    """Norms behind the blocks, and head by head; beside layers with windows, those without do not rotate."""
    every = config.get("sliding_window_pattern", 4)
    if isinstance(every, str):
        every = len(every)
    kinds = kinds_of(config, int(every or 0))
    config = {**config, "layer_types": kinds}
    decoder, names = _norms_behind(*llama(config, windows=windows_of(config)))
    if config.get("sliding_window"):
        decoder = without_rotation(decoder, [kind == "sliding_attention" for kind in kinds])
    return decoder, names


def _norms_behind(decoder: Decoder, names: Names) -> tuple[Decoder, Names]:
    decoder = dataclasses.replace(decoder, pre_norms=False, post_norms=True, head_norms=True)
    return decoder, dataclasses.replace(
        names, attention_post_norm="post_attention_layernorm", mlp_post_norm="post_feedforward_layernorm"
    )


def by_kinds(decoder: Decoder, config: Config, kinds: list[str]) -> Decoder:
    """The decoder, of whose layers those with windows have rotations of their own."""
    local, _ = rope_of(config, decoder.dim, "sliding_attention")
    whole, rotated = rope_of(config, decoder.dim, "full_attention")
    return dataclasses.replace(_by_windows(decoder, config, kinds, local, whole), rotated=rotated)


def _by_windows(decoder: Decoder, config: Config, kinds: list[str], local: Rope, whole: Rope) -> Decoder:
    """The decoder whose layers with windows rotate by ``local`` angles, the others by ``whole`` ones."""
    layers = tuple(
        Layer(window, int(kind == "full_attention"))
        for window, kind in zip(windows_of(config), kinds, strict=True)
    )
    return dataclasses.replace(decoder, ropes=(local, whole), layers=layers)
