"""GPT-2 and families of its time: layer norms, MLPs without gates, positions of many kinds."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from hetero_tvm.errors import ModelError
from hetero_tvm.language.families.configuration import (
    Config,
    activation_of,
    refuse,
    rows_of_groups,
    rows_of_pairs,
    stop_of,
)
from hetero_tvm.language.families.decoder import FAIRSEQ_NAMES, Decoder, Layer, Names
from hetero_tvm.language.families.llamas import MULTIMODAL, with_head_layer_norms
from hetero_tvm.language.families.rope import rope_of


def gpt2(config: Config) -> tuple[Decoder, Names]:
    if config.get("add_cross_attention"):
        raise ModelError("gpt2 models with add_cross_attention are not supported")
    changes: dict[str, Any] = {} if config.get("scale_attn_weights", True) else {"scale": 1.0}
    if config.get("scale_attn_by_inverse_layer_idx"):
        changes["layers"] = tuple(Layer(share=1 / (n + 1)) for n in range(int(config["n_layer"])))
    decoder = older(
        _renamed(config, "n_embd", "n_head", "n_layer", "n_positions"),
        inner=int(config.get("n_inner") or 4 * int(config["n_embd"])),
        eps=float(config["layer_norm_epsilon"]),
        learned=int(config["n_positions"]),
        activation=activation_of(config, "activation_function"),
        **changes,
    )
    names = Names(
        prefixes=("transformer.", ""),
        embed="wte",
        positions="wpe",
        layer="h.{}.",
        attention_norm="ln_1",
        qkv=("attn.c_attn",),
        out="attn.c_proj",
        mlp_norm="ln_2",
        up=("mlp.c_fc",),
        down="mlp.c_proj",
        norm="ln_f",
        transposed=True,
    )
    return decoder, names


def gpt_bigcode(config: Config) -> tuple[Decoder, Names]:
    """A GPT-2 whose heads may share one key (StarCoder), with matrices the other way round."""
    shared = bool(config.get("multi_query", True))
    config = {"activation_function": "gelu_pytorch_tanh", **config}
    decoder, names = gpt2(config)
    heads = decoder.heads
    names = dataclasses.replace(names, transposed=False)
    if shared:
        return dataclasses.replace(decoder, kv_heads=1), names
    rows = rows_of_groups(heads, heads, decoder.dim)
    return decoder, dataclasses.replace(names, qkv_rows=rows)


def gpt_neo(config: Config) -> tuple[Decoder, Names]:
    """Scores that are not scaled, and windows in some layers (GPT-Neo, TinyStories)."""
    width, kinds = int(config["hidden_size"]), config.get("attention_layers")
    if kinds is None:
        kinds = [kind for names, times in config["attention_types"] for kind in [*names] * int(times)]
    decoder = older(
        {**config, "num_attention_heads": config["num_heads"], "num_hidden_layers": config["num_layers"]},
        inner=int(config.get("intermediate_size") or 4 * width),
        eps=float(config.get("layer_norm_epsilon", 1e-5)),
        learned=int(config["max_position_embeddings"]),
        activation=activation_of({"activation_function": "gelu_new", **config}, "activation_function"),
        layers=tuple(Layer(int(config["window_size"]) if kind == "local" else 0) for kind in kinds),
        scale=1.0,
        tied=True,
    )
    return decoder, Names(
        prefixes=("transformer.", ""),
        embed="wte",
        positions="wpe",
        layer="h.{}.",
        attention_norm="ln_1",
        qkv=("attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj"),
        out="attn.attention.out_proj",
        mlp_norm="ln_2",
        up=("mlp.c_fc",),
        down="mlp.c_proj",
        norm="ln_f",
    )


def biogpt(config: Config) -> tuple[Decoder, Names]:
    return _of_fairseq(
        config,
        activation=activation_of(config, "hidden_act"),
        inner=int(config["intermediate_size"]),
        prefixes=("biogpt.", ""),
        positions="embed_positions",
        heads=("output_projection",),
    )


def xglm(config: Config) -> tuple[Decoder, Names]:
    """A BioGPT whose positions are sinusoids."""
    names = {"num_layers": "num_hidden_layers", "attention_heads": "num_attention_heads"}
    names["d_model"] = "hidden_size"
    return _of_fairseq(
        {**config, **{ours: config[theirs] for theirs, ours in names.items()}},
        activation=activation_of(config, "activation_function"),
        inner=int(config["ffn_dim"]),
        prefixes=("model.", ""),
        sinusoids="m2m_100",
    )


def _of_fairseq(
    config: Config,
    activation: str,
    inner: int,
    prefixes: tuple[str, ...],
    positions: str = "",
    heads: tuple[str, ...] = ("lm_head",),
    sinusoids: str = "",
) -> tuple[Decoder, Names]:
    """Layer norms in front of the blocks and at the end, embeddings that are multiplied, two positions that
    no token has."""
    decoder = older(
        config,
        inner=inner,
        eps=1e-5,
        learned=int(config["max_position_embeddings"]) + 2,
        learned_offset=2,
        activation=activation,
        sinusoids=sinusoids,
        embed_scale=math.sqrt(int(config["hidden_size"])) if config.get("scale_embedding", True) else 1.0,
        tied=True,
    )
    return decoder, dataclasses.replace(FAIRSEQ_NAMES, prefixes=prefixes, positions=positions, heads=heads)


def opt(config: Config) -> tuple[Decoder, Names]:
    width = int(config["hidden_size"])
    problems = []
    before, inner = (
        bool(config.get("do_layer_norm_before", True)),
        int(config.get("word_embed_proj_dim") or width),
    )
    if before and config.get("_remove_final_layer_norm"):
        problems.append("it has no last norm (_remove_final_layer_norm)")
    if not config.get("layer_norm_elementwise_affine", True):
        problems.append("its norms have no scales")
    if problems:
        raise ModelError("this opt model is not supported", problems=problems)
    decoder = older(
        config,
        inner=int(config["ffn_dim"]),
        eps=1e-5,
        learned=int(config["max_position_embeddings"]) + 2,
        learned_offset=2,
        activation=activation_of(config, "activation_function"),
        embed_width=0 if inner == width else inner,
        norms_after=not before,
    )
    prefixes = ("model.decoder.", "decoder.", "")
    return decoder, dataclasses.replace(FAIRSEQ_NAMES, prefixes=prefixes, norm="final_layer_norm")


def gpt_neox(config: Config) -> tuple[Decoder, Names]:
    """Attention and MLP beside each other, each behind a norm of its own (Pythia, Dolly)."""
    rotary = {
        "rope_theta": config.get("rotary_emb_base"),
        "partial_rotary_factor": config.get("rotary_pct", 0.25),
    }
    parallel = bool(config.get("use_parallel_residual", True))
    decoder = _rotating(
        {**rotary, **config},
        inner=int(config["intermediate_size"]),
        eps=float(config["layer_norm_eps"]),
        activation=activation_of(config, "hidden_act"),
        parallel=parallel,
        parallel_norm=parallel,
    )
    return decoder, Names(
        prefixes=("gpt_neox.", ""),
        embed="embed_in",
        qkv=("attention.query_key_value",),
        qkv_rows=rows_of_groups(decoder.heads, decoder.heads, decoder.dim),
        out="attention.dense",
        up=("mlp.dense_h_to_4h",),
        down="mlp.dense_4h_to_h",
        norm="final_layer_norm",
        heads=("embed_out", "lm_head"),
    )


def persimmon(config: Config) -> tuple[Decoder, Names]:
    """A GPT-NeoX in sequence, with layer norms of its queries and keys (Persimmon, the text part of Fuyu)."""
    config = {"partial_rotary_factor": 0.5, "hidden_act": "relu2", "qk_layernorm": True, **config}
    decoder = _rotating(
        config,
        inner=int(config["intermediate_size"]),
        eps=float(config["layer_norm_eps"]),
        activation=activation_of(config, "hidden_act"),
    )
    names = Names(
        prefixes=MULTIMODAL,
        qkv=("self_attn.query_key_value",),
        qkv_rows=rows_of_groups(decoder.heads, decoder.heads, decoder.dim),
        out="self_attn.dense",
        up=("mlp.dense_h_to_4h",),
        down="mlp.dense_4h_to_h",
        norm="final_layernorm",
    )
    return with_head_layer_norms(decoder, names, config)


def falcon(config: Config) -> tuple[Decoder, Names]:
    """Falcon of 7 B (one key head) and of 40 B (groups that share one, two norms)."""
    refuse(config, "alibi")
    new = bool(config.get("new_decoder_architecture"))
    heads = int(config["num_attention_heads"])
    kv_heads = (
        int(config.get("num_kv_heads") or heads) if new else 1 if config.get("multi_query", True) else heads
    )
    parallel = new or bool(config.get("parallel_attn", True))
    two = new and int(config.get("num_ln_in_parallel_attn") or 2) == 2
    config = {"activation": "gelu", **config}
    decoder = _rotating(
        config,
        inner=int(config.get("ffn_hidden_size") or 4 * config["hidden_size"]),
        eps=float(config["layer_norm_epsilon"]),
        activation=activation_of(config, "activation"),
        kv_heads=kv_heads,
        parallel=parallel,
        parallel_norm=two,
        tied=bool(config.get("tie_word_embeddings", True)),
    )
    return decoder, Names(
        prefixes=("transformer.", ""),
        embed="word_embeddings",
        layer="h.{}.",
        attention_norm="ln_attn" if two else "input_layernorm",
        qkv=("self_attention.query_key_value",),
        qkv_rows=rows_of_groups(heads, kv_heads, decoder.dim),
        out="self_attention.dense",
        mlp_norm="ln_mlp" if two else "post_attention_layernorm",
        up=("mlp.dense_h_to_4h",),
        down="mlp.dense_4h_to_h",
        norm="ln_f",
    )


def gptj(config: Config) -> tuple[Decoder, Names]:
    decoder = _gptj(config)
    return decoder, Names(
        prefixes=("transformer.", ""),
        embed="wte",
        layer="h.{}.",
        attention_norm="ln_1",
        qkv=("attn.q_proj", "attn.k_proj", "attn.v_proj"),
        qkv_rows=rows_of_pairs(decoder.heads, decoder.heads, decoder.dim, decoder.rotated),
        out="attn.out_proj",
        up=("mlp.fc_in",),
        down="mlp.fc_out",
        norm="ln_f",
        head_bias="lm_head.bias",
    )


def codegen(config: Config) -> tuple[Decoder, Names]:
    """A GPT-J whose queries, values and keys lie in four parts."""
    decoder, names = gptj(config)
    width, parts = decoder.width, 4
    if decoder.heads % parts:
        raise ModelError(f"this codegen model has {decoder.heads} heads, which {parts} parts cannot share")
    rows = np.arange(3 * width).reshape(parts, 3, -1)
    plain = np.concatenate([rows[:, which].reshape(-1) for which in (0, 2, 1)])
    return decoder, dataclasses.replace(
        names, qkv=("attn.qkv_proj",), qkv_rows=tuple(plain[list(names.qkv_rows)].tolist())
    )


def bloom(config: Config) -> tuple[Decoder, Names]:
    refuse(config, "apply_residual_connection_post_layernorm")
    width = "hidden_size" if config.get("hidden_size") else "n_embed"
    heads = int(config["n_head"])
    decoder = older(
        _renamed({"seq_length": None, **config}, width, "n_head", "n_layer", "seq_length"),
        inner=4 * int(config[width]),
        eps=float(config["layer_norm_epsilon"]),
        activation="gelu_tanh",
        slopes=_slopes(heads),
        embed_norm=True,
        tied=True,
    )
    return decoder, Names(
        prefixes=("transformer.", ""),
        embed="word_embeddings",
        embed_norm="word_embeddings_layernorm",
        layer="h.{}.",
        qkv=("self_attention.query_key_value",),
        qkv_rows=rows_of_groups(heads, heads, decoder.dim),
        out="self_attention.dense",
        up=("mlp.dense_h_to_4h",),
        down="mlp.dense_4h_to_h",
        norm="ln_f",
    )


def mpt(config: Config) -> tuple[Decoder, Names]:
    options = config.get("attn_config") or {}
    refuse({"model_type": "mpt", **options}, "qk_ln", "prefix_lm", "attn_uses_sequence_id")
    refuse(config, "logit_scale")
    if not options.get("alibi", True):
        raise ModelError("mpt models without alibi are not supported")
    heads, width = int(config["n_heads"]), int(config["d_model"])
    decoder = older(
        _renamed(config, "d_model", "n_heads", "n_layers", "max_seq_len"),
        inner=int(config.get("expansion_ratio", 4)) * width,
        eps=float(config.get("layer_norm_epsilon", 1e-5)),
        activation="gelu_erf",
        scale=float(options.get("softmax_scale") or (width // heads) ** -0.5),
        slopes=_slopes(heads, float(options.get("alibi_bias_max", 8))),
        clip=float(options.get("clip_qkv") or 0.0),
        tied=True,
    )
    return decoder, Names(
        prefixes=("transformer.", ""),
        embed="wte",
        layer="blocks.{}.",
        attention_norm="norm_1",
        qkv=("attn.Wqkv",),
        out="attn.out_proj",
        mlp_norm="norm_2",
        up=("ffn.up_proj",),
        down="ffn.down_proj",
        norm="norm_f",
    )


def older(config: Config, **changes: Any) -> Decoder:
    """A decoder with layer norms, whose MLP has no gate."""
    width, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    dim = width // heads
    fields: dict[str, Any] = {
        "architecture": str(config["model_type"]),
        "vocab": int(config["vocab_size"]),
        "width": width,
        "heads": heads,
        "kv_heads": heads,
        "dim": dim,
        "layers": (Layer(),) * int(config["num_hidden_layers"]),
        "context": int(config.get("max_position_embeddings") or 2048),
        "centered": True,
        "gated": False,
        "scale": dim**-0.5,
        "stop": stop_of(config),
    }
    return Decoder(**{**fields, **changes})


def _rotating(config: Config, **changes: Any) -> Decoder:
    """One of these that rotates queries and keys."""
    dim = int(config["hidden_size"]) // int(config["num_attention_heads"])
    rope, rotated = rope_of(config, dim)
    return older(config, ropes=(rope,), rotated=rotated, **changes)


def _renamed(config: Config, width: str, heads: str, layers: str, context: str) -> Config:
    """The configuration with the names that most families have for these entries."""
    return {
        **config,
        "hidden_size": config[width],
        "num_attention_heads": config[heads],
        "num_hidden_layers": config[layers],
        "max_position_embeddings": config[context],
    }


def _gptj(config: Config) -> Decoder:
    width, heads = int(config["n_embd"]), int(config["n_head"])
    share = int(config.get("rotary_dim") or width // heads) / (width // heads)
    renamed = _renamed(config, "n_embd", "n_head", "n_layer", "n_positions")
    return _rotating(
        {**renamed, "partial_rotary_factor": share},
        inner=int(config.get("n_inner") or 4 * width),
        eps=float(config["layer_norm_epsilon"]),
        activation=activation_of(config, "activation_function"),
        parallel=True,
    )


def _slopes(heads: int, most: float = 8.0) -> tuple[float, ...]:
    """Slopes of ALiBi (Press et al., 2022) for each head; other numbers than powers of 2 take every other of
    twice as many."""
    whole = 1 << math.ceil(math.log2(heads))
    slopes = (2.0 ** -(np.arange(1, whole + 1, dtype=np.float64) * most / whole)).astype(np.float32)
    if whole != heads:
        slopes = np.concatenate([slopes[1::2], slopes[::2]])[:heads]
    return tuple(slopes.tolist())
