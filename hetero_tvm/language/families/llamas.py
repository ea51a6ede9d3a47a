"""Llama, and families that differ from it by a few options."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from hetero_tvm.errors import ModelError
from hetero_tvm.language.families.configuration import (
    Config,
    activation_of,
    kinds_of,
    refuse,
    rows_of_groups,
    rows_of_pairs,
    stop_of,
    windows_of,
)
from hetero_tvm.language.families.decoder import Decoder, Layer, Names
from hetero_tvm.language.families.rope import context_of, rope_of
from hetero_tvm.ops.decoding.contracts import Growth

_CWM_POSITIONS = {
    "rope_type": "llama3",
    "factor": 16.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
}
MULTIMODAL = (
    "model.language_model.",
    "language_model.model.",
    "language_model.",
    "model.",
    "",
    "model.text_model.",
    "thinker.model.",
    "thinker.",
    "llm.model.",
    "llm.",
)
"""Beginnings of the names of the text part of a model for images and text, by version of transformers."""


def llama(config: Config, **changes: Any) -> tuple[Decoder, Names]:
    heads = int(config["num_attention_heads"])
    dim = int(config.get("head_dim") or config["hidden_size"] // heads)
    rope, rotated = rope_of(config, dim)
    windows = changes.pop("windows", None) or (0,) * int(config["num_hidden_layers"])
    fields: dict[str, Any] = {
        "architecture": str(config["model_type"]),
        "vocab": int(config["vocab_size"]),
        "width": int(config["hidden_size"]),
        "inner": int(config["intermediate_size"]),
        "heads": heads,
        "kv_heads": int(config.get("num_key_value_heads") or heads),
        "dim": dim,
        "layers": tuple(Layer(window) for window in windows),
        "context": context_of(config),
        "eps": float(config["rms_norm_eps"]),
        "ropes": (rope,),
        "rotated": rotated,
        "scale": dim**-0.5,
        "stop": stop_of(config),
    }
    if "activation" not in changes:
        changes["activation"] = activation_of(config, "hidden_act")
    return Decoder(**{**fields, **changes}), Names(prefixes=("model.", ""))


def mistral(config: Config) -> tuple[Decoder, Names]:
    return llama(config, windows=windows_of(config))


def qwen2(config: Config) -> tuple[Decoder, Names]:
    active = bool(config.get("use_sliding_window"))
    if active and config.get("layer_types") is None:
        first, count = int(config.get("max_window_layers", 0)), int(config["num_hidden_layers"])
        kinds = ["full_attention" if i < first else "sliding_attention" for i in range(count)]
        config = {**config, "layer_types": kinds}
    return llama(config, windows=windows_of(config, active))


def qwen3(config: Config) -> tuple[Decoder, Names]:
    decoder, names = qwen2(config)
    return dataclasses.replace(decoder, head_norms=True), names


def phi3(config: Config) -> tuple[Decoder, Names]:
    decoder, names = llama(config, windows=windows_of(config))
    return decoder, dataclasses.replace(names, qkv=("self_attn.qkv_proj",), up=("mlp.gate_up_proj",))


def granite(config: Config) -> tuple[Decoder, Names]:
    """A Llama whose branches are multiplied before they are added: the stream is kept divided by that number,
    which its norms do not see but for their epsilon."""
    decoder, names = llama(config, scale=float(config["attention_multiplier"]))
    numbers = (config[f"{name}_multiplier"] for name in ("residual", "embedding"))
    return with_branches(decoder, *map(float, numbers), 1.0 / float(config["logits_scaling"])), names


def with_branches(decoder: Decoder, share: float, embed: float, final: float) -> Decoder:
    """The decoder whose branches, embeddings and last rows are multiplied by these numbers."""
    eps = decoder.eps / share**2
    return dataclasses.replace(decoder, eps=eps, embed_scale=embed / share, final_scale=final)


def minicpm(config: Config) -> tuple[Decoder, Names]:
    """A Llama with the numbers of a Granite in words of its own (MiniCPM 1, 2 and 4)."""
    refuse(config, "num_experts")
    return branches_of_minicpm(config, *llama(config))


def branches_of_minicpm(config: Config, decoder: Decoder, names: Names) -> tuple[Decoder, Names]:
    share = float(config.get("scale_depth") or 1.0) / math.sqrt(len(decoder.layers))
    final = float(config.get("dim_model_base") or decoder.width) / decoder.width
    return with_branches(decoder, share, float(config.get("scale_emb") or 1.0), final), names


def internlm2(config: Config) -> tuple[Decoder, Names]:
    """A Llama with names of its own, whose queries, keys and values lie in groups."""
    decoder, names = llama({"hidden_act": "silu", **config})
    return decoder, dataclasses.replace(
        names,
        embed="tok_embeddings",
        attention_norm="attention_norm",
        qkv=("attention.wqkv",),
        qkv_rows=rows_of_groups(decoder.heads, decoder.kv_heads, decoder.dim),
        out="attention.wo",
        mlp_norm="ffn_norm",
        up=("feed_forward.w1", "feed_forward.w3"),
        down="feed_forward.w2",
        heads=("output",),
    )


def apertus(config: Config) -> tuple[Decoder, Names]:
    """An MLP without a gate, whose activation has numbers that were learned."""
    config = {"hidden_act": "xielu", **config}
    learned = config["hidden_act"] == "xielu"
    changes = {"activation": "xielu"} if learned else {}
    decoder, names = llama(config, gated=False, head_norms=True, **changes)
    return decoder, dataclasses.replace(
        names,
        attention_norm="attention_layernorm",
        mlp_norm="feedforward_layernorm",
        up=("mlp.up_proj",),
        activation="mlp.act_fn." if learned else "",
    )


def nanochat(config: Config) -> tuple[Decoder, Names]:
    """Norms without scales, of the embeddings too; heads turn the other way round.

    Heads are normalised behind the rotation, which leaves their lengths as they are.
    """
    decoder, names = arcee(config)
    rope = decoder.ropes[0]
    decoder = dataclasses.replace(
        decoder,
        ropes=(dataclasses.replace(rope, inverse=tuple(-value for value in rope.inverse)),),
        plain_norms=True,
        embed_norm=True,
        head_norms=True,
        logits_softcap=float(config.get("final_logit_softcapping") or 0.0),
    )
    return decoder, dataclasses.replace(names, up=("mlp.fc1",), down="mlp.fc2")


def granite_swa(config: Config) -> tuple[Decoder, Names]:
    """A Granite with windows, sinks and positions of each layer."""
    return with_layers_of_swa(*granite(config), config)


def with_layers_of_swa(decoder: Decoder, names: Names, config: Config) -> tuple[Decoder, Names]:
    count = len(decoder.layers)
    kinds = config.get("layer_types") or [
        "sliding_attention" if i % 4 else "full_attention" for i in range(count)
    ]
    told = config.get("layer_rope_theta") or [None] * count
    thetas = sorted({theta for theta in told if theta}) or [None]
    ropes = []
    for theta in thetas:
        options = {
            **(config.get("rope_parameters") or {}),
            **({} if theta is None else {"rope_theta": theta}),
        }
        ropes.append(rope_of({**config, "rope_parameters": options}, decoder.dim)[0])
    windows = windows_of({**config, "layer_types": kinds})
    layers = [
        dataclasses.replace(layer, window=window, rope=thetas.index(theta) if theta else 0)
        for layer, window, theta in zip(decoder.layers, windows, told, strict=True)
    ]
    decoder = dataclasses.replace(decoder, layers=tuple(layers), ropes=tuple(ropes), sinks=True)
    return without_rotation(decoder, [theta != 0 for theta in told]), names


def hyperclovax(config: Config) -> tuple[Decoder, Names]:
    """A Granite that may have norms behind its blocks, and whose logits are multiplied."""
    heads = int(config["num_attention_heads"])
    dim = int(config.get("head_dim") or config["hidden_size"] // heads)
    neutral = {"residual_multiplier": 1.0, "embedding_multiplier": 1.0, "attention_multiplier": dim**-0.5}
    config = {**config, **{key: config.get(key) or value for key, value in neutral.items()}}
    config["logits_scaling"] = 1.0 / float(config.get("logits_scaling") or 1.0)
    decoder, names = granite(config)
    if not config.get("use_post_norm", True):
        return decoder, names
    if float(config["residual_multiplier"]) != 1.0:
        raise ModelError("hyperclovax models with use_post_norm and a residual_multiplier are not supported")
    return dataclasses.replace(decoder, post_norms=True), dataclasses.replace(
        names, attention_post_norm="post_norm1", mlp_post_norm="post_norm2"
    )


def starcoder2(config: Config) -> tuple[Decoder, Names]:
    config = {**config, "rms_norm_eps": config["norm_epsilon"]}
    decoder, names = llama(config, windows=windows_of(config), centered=True, gated=False)
    return decoder, dataclasses.replace(names, up=("mlp.c_fc",), down="mlp.c_proj")


def stablelm(config: Config) -> tuple[Decoder, Names]:
    parallel = bool(config.get("use_parallel_residual"))
    config = {"partial_rotary_factor": 0.25, **config, "rms_norm_eps": config["layer_norm_eps"]}
    decoder, names = llama(config, centered=True, parallel=parallel)
    heads = ("self_attn.q_layernorm.norms.{}", "self_attn.k_layernorm.norms.{}")
    decoder = dataclasses.replace(decoder, norms_by_head=bool(config.get("qk_layernorm")))
    return with_head_layer_norms(decoder, names, config, heads)


def phi(config: Config) -> tuple[Decoder, Names]:
    config = {"partial_rotary_factor": 0.5, **config, "rms_norm_eps": config["layer_norm_eps"]}
    decoder, names = llama(config, centered=True, gated=False, parallel=True)
    decoder, names = with_head_layer_norms(decoder, names, config)
    return decoder, dataclasses.replace(
        names,
        out="self_attn.dense",
        up=("mlp.fc1",),
        down="mlp.fc2",
        norm="final_layernorm",
        head_bias="lm_head.bias",
    )


def with_head_layer_norms(
    decoder: Decoder,
    names: Names,
    config: Config,
    norms: tuple[str, str] = ("self_attn.q_layernorm", "self_attn.k_layernorm"),
) -> tuple[Decoder, Names]:
    """The decoder with layer norms of its queries and keys, where the configuration has them."""
    if not config.get("qk_layernorm"):
        return decoder, names
    decoder = dataclasses.replace(decoder, head_norms=True, centered_head_norms=True)
    return decoder, dataclasses.replace(names, head_norms=norms)


def without_rotation(decoder: Decoder, rotates: list[bool]) -> Decoder:
    """The decoder, of whose layers only some rotate queries and keys: the others rotate by angles of 0."""
    still = dataclasses.replace(decoder.ropes[0], inverse=(0.0,) * len(decoder.ropes[0].inverse), factor=1.0)
    layers = tuple(
        dataclasses.replace(layer, rope=layer.rope if turns else len(decoder.ropes))
        for layer, turns in zip(decoder.layers, rotates, strict=True)
    )
    return dataclasses.replace(decoder, ropes=(*decoder.ropes, still), layers=layers)


def with_pairs(decoder: Decoder, names: Names) -> tuple[Decoder, Names]:
    """The same for a checkpoint whose rotated pairs are neighbours."""
    rows = rows_of_pairs(decoder.heads, decoder.kv_heads, decoder.dim, decoder.rotated)
    return decoder, dataclasses.replace(names, qkv_rows=rows)


def smollm3(config: Config) -> tuple[Decoder, Names]:
    config = {"rope_theta": 2000000.0, **config}
    count, every = int(config["num_hidden_layers"]), int(config.get("no_rope_layer_interval") or 4)
    rotates = config.get("no_rope_layers") or [(i + 1) % every for i in range(count)]
    windows = windows_of(config, bool(config.get("use_sliding_window")))
    decoder, names = llama(config, windows=windows)
    return without_rotation(decoder, [bool(turns) for turns in rotates[:count]]), names


def ernie(config: Config) -> tuple[Decoder, Names]:
    return with_pairs(*llama({"rope_theta": 500000.0, **config}))


def helium(config: Config) -> tuple[Decoder, Names]:
    return with_pairs(*llama(config))


def glm(config: Config) -> tuple[Decoder, Names]:
    decoder, names = llama({"partial_rotary_factor": 0.5, **config})
    return with_pairs(decoder, dataclasses.replace(names, up=("mlp.gate_up_proj",)))


def cohere(config: Config) -> tuple[Decoder, Names]:
    """Attention and MLP beside each other behind one norm, which has no shift."""
    config = {"tie_word_embeddings": True, **config, "rms_norm_eps": config["layer_norm_eps"]}
    decoder, names = llama(
        config,
        windows=windows_of(config),
        centered=True,
        parallel=True,
        final_scale=float(config["logit_scale"]),
        tied=bool(config["tie_word_embeddings"]),
    )
    if config.get("use_qk_norm"):
        norms = {"head_norms": True, "centered_head_norms": True, "norms_by_head": True}
        decoder = dataclasses.replace(decoder, **norms)
    return with_pairs(decoder, names)


def olmo(config: Config) -> tuple[Decoder, Names]:
    """A Llama with layer norms that have neither scales nor shifts."""
    clip = float(config.get("clip_qkv") or 0.0)
    decoder, names = llama({**config, "rms_norm_eps": 1e-5}, centered=True, clip=clip)
    return dataclasses.replace(decoder, plain_norms=True), names


def cohere2(config: Config) -> tuple[Decoder, Names]:
    """A Cohere whose layers have a window and rotations, or neither."""
    kinds = kinds_of(config, int(config.get("sliding_window_pattern") or 4))
    decoder, names = cohere({**config, "layer_types": kinds})
    return without_rotation(decoder, [kind == "sliding_attention" for kind in kinds]), names


def nemotron(config: Config) -> tuple[Decoder, Names]:
    """Layer norms whose scales are stored less 1, and an MLP without a gate."""
    eps = {"partial_rotary_factor": 0.5, "hidden_act": "relu2", **config, "rms_norm_eps": config["norm_eps"]}
    decoder, names = llama(eps, centered=True, gated=False, norm_offset=1.0)
    return decoder, dataclasses.replace(names, up=("mlp.up_proj",))


def arcee(config: Config) -> tuple[Decoder, Names]:
    decoder, names = llama({"hidden_act": "relu2", **config}, gated=False)
    return decoder, dataclasses.replace(names, up=("mlp.up_proj",))


def exaone(config: Config) -> tuple[Decoder, Names]:
    """A Llama with names of its own (EXAONE 3 and 3.5), also of its configuration."""
    spellings = {
        "num_layers": "num_hidden_layers",
        "layer_norm_epsilon": "rms_norm_eps",
        "activation_function": "hidden_act",
    }
    named = {theirs: config[own] for own, theirs in spellings.items() if own in config}
    decoder, names = llama({"rope_theta": 500000.0, **named, **config})
    return decoder, dataclasses.replace(
        names,
        prefixes=("transformer.", ""),
        embed="wte",
        layer="h.{}.",
        attention_norm="ln_1",
        qkv=tuple(f"attn.attention.{name}_proj" for name in "qkv"),
        out="attn.attention.out_proj",
        mlp_norm="ln_2",
        up=("mlp.c_fc_0", "mlp.c_fc_1"),
        down="mlp.c_proj",
        norm="ln_f",
    )


def bitnet(config: Config) -> tuple[Decoder, Names]:
    """A Llama that normalises what the last matrices of attention and MLP read."""
    decoder, names = llama({"rope_theta": 500000.0, "hidden_act": "relu2", **config})
    return decoder, dataclasses.replace(
        names, out_norm="self_attn.attn_sub_norm", down_norm="mlp.ffn_sub_norm"
    )


def jais2(config: Config) -> tuple[Decoder, Names]:
    decoder, names = arcee({**config, "rms_norm_eps": config["layer_norm_eps"]})
    return dataclasses.replace(decoder, centered=True), names


def cwm(config: Config) -> tuple[Decoder, Names]:
    """A Llama with windows in all but every fourth layer, of which the first is one without."""
    count = int(config["num_hidden_layers"])
    kinds = ["sliding_attention" if i % 4 else "full_attention" for i in range(count)]
    config = {"layer_types": kinds, "rope_theta": 1000000.0, "rope_scaling": _CWM_POSITIONS, **config}
    return llama(config, windows=windows_of(config))


def hunyuan(config: Config) -> tuple[Decoder, Names]:
    """Heads are normalised behind the rotation."""
    options = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    alpha = options.get("alpha")
    if alpha and options.get("rope_type", options.get("type")) == "dynamic":  # it is fixed: a larger base
        dim = int(config["head_dim"])
        theta = float(options.get("rope_theta") or config.get("rope_theta") or 10000.0)
        scaled = {"rope_type": "default", "rope_theta": theta * float(alpha) ** (dim / (dim - 2))}
        config = {**config, "rope_parameters": scaled}
    decoder, names = llama(config)
    names = dataclasses.replace(names, head_norms=("self_attn.query_layernorm", "self_attn.key_layernorm"))
    return dataclasses.replace(decoder, head_norms=True, last_head_norms=True), names


def ministral3(config: Config) -> tuple[Decoder, Names]:
    """A Mistral whose queries grow with the position beyond the first context."""
    options = config.get("rope_parameters") or {}
    decoder, names = mistral(config)
    if options.get("llama_4_scaling_beta") and options.get("original_max_position_embeddings"):
        first = int(options["original_max_position_embeddings"])
        growth = Growth(float(options["llama_4_scaling_beta"]), first)
        layers = tuple(dataclasses.replace(layer, growth=growth) for layer in decoder.layers)
        decoder = dataclasses.replace(decoder, layers=layers)
    return decoder, names
