"""ModernBERT that continues texts: GPTs of its time with windows and gates."""

from __future__ import annotations

from hetero_tvm.language.families.configuration import Config, activation_of
from hetero_tvm.language.families.decoder import Decoder, Layer, Names
from hetero_tvm.language.families.gpts import older
from hetero_tvm.language.families.rope import rope_of


def modernbert_decoder(config: Config) -> tuple[Decoder, Names]:
    """A ModernBERT that continues texts (Ettin): windows in most layers, a matrix and a norm before the
    logits."""
    every = int(config.get("global_attn_every_n_layers") or 3)
    count, width = int(config["num_hidden_layers"]), int(config["hidden_size"])
    kinds = config.get("layer_types") or [
        "sliding_attention" if i % every else "full_attention" for i in range(count)
    ]
    window = int(config.get("local_attention") or 0) // 2
    thetas = {"full_attention": ("global", 160000.0), "sliding_attention": ("local", 10000.0)}
    told = config.get("rope_parameters") or {}
    ropes = []
    for kind, (word, theta) in thetas.items():
        options = {"rope_theta": config.get(f"{word}_rope_theta") or theta, **(told.get(kind) or {})}
        ropes.append(
            rope_of({**config, "rope_parameters": options}, width // int(config["num_attention_heads"]))
        )
    layers = [
        Layer(
            window if kind == "sliding_attention" else 0, int(kind == "sliding_attention"), bare=number == 0
        )
        for number, kind in enumerate(kinds)
    ]
    decoder = older(
        config,
        inner=int(config["intermediate_size"]),
        eps=float(config.get("norm_eps", 1e-5)),
        activation=activation_of({"hidden_activation": "gelu", **config}, "hidden_activation"),
        gated=True,
        layers=tuple(layers),
        ropes=tuple(rope for rope, _ in ropes),
        rotated=ropes[0][1],
        embed_norm=True,
        head_activation=activation_of({"classifier_activation": "gelu", **config}, "classifier_activation"),
        tied=bool(config.get("tie_word_embeddings", True)),
    )
    return decoder, Names(
        embed="embeddings.tok_embeddings",
        embed_norm="embeddings.norm",
        attention_norm="attn_norm",
        qkv=("attn.q_proj", "attn.k_proj", "attn.v_proj"),
        out="attn.Wo",
        mlp_norm="mlp_norm",
        up=("mlp.Wi",),
        down="mlp.Wo",
        norm="final_norm",
        heads=("decoder",),
        head_bias="decoder.bias",
        head_dense="lm_head.dense",
        head_norm="lm_head.norm",
        prefixes=("model.", ""),
    )
