"""Configurations of encoders of transformers -> :class:`Decoder` and the names of its tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hetero_tvm.errors import ModelError
from hetero_tvm.language.families.architectures import ARCHITECTURES, check_sizes, kind_of, reading
from hetero_tvm.language.families.configuration import Config, activation_of
from hetero_tvm.language.families.decoder import Decoder, Layer, Names, Relative
from hetero_tvm.language.families.encoder_decoders import describe_pair
from hetero_tvm.language.families.gemmas import gemma3
from hetero_tvm.language.families.rope import rope_of

_BERT = Names(
    prefixes=("", "bert.", "roberta.", "electra.", "mpnet.", "distilbert.", "model."),
    embed="embeddings.word_embeddings",
    positions="embeddings.position_embeddings",
    segments="embeddings.token_type_embeddings",
    embed_norm="embeddings.LayerNorm",
    layer="encoder.layer.{}.",
    attention_norm="attention.output.LayerNorm",
    qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
    out="attention.output.dense",
    mlp_norm="output.LayerNorm",
    up=("intermediate.dense",),
    down="output.dense",
)
_DISTILBERT = dataclasses.replace(
    _BERT,
    segments="",
    layer="transformer.layer.{}.",
    attention_norm="sa_layer_norm",
    qkv=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    out="attention.out_lin",
    mlp_norm="output_layer_norm",
    up=("ffn.lin1",),
    down="ffn.lin2",
)
_MPNET = dataclasses.replace(
    _BERT,
    segments="",
    attention_norm="attention.LayerNorm",
    qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
    out="attention.attn.o",
    relative="encoder.relative_attention_bias",
)
_TASKS = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
)
"""Ends of architectures that give something else than rows of a text."""
_MPNET_DISTANCE = 128


def is_encoder(config: Config) -> bool:
    """Whether a ``config.json`` is that of a known encoder."""
    kind = kind_of(config)
    return kind in ENCODERS and (kind not in ARCHITECTURES or bool(config.get("use_bidirectional_attention")))


def describe_encoder(config: Config) -> tuple[Decoder, Names]:
    """The encoder that a ``config.json`` means, and its tensors' names.

    Raises
    ------
    ModelError : the configuration is damaged, or asks for what it cannot have.
    """
    kind = kind_of(config)
    classes = config.get("architectures")
    for name in classes if isinstance(classes, list) else ():
        if str(name).endswith(_TASKS):
            raise ModelError(
                f"a {name} classifies texts, and embeds none",
                hint="export the model to ONNX and build that file",
            )
    if config.get("quantization_config"):
        raise ModelError(
            f"the weights of this {kind} are quantized, which cannot be read",
            hint="build from the float checkpoint with --precision int8 or int4",
        )
    with reading(config, kind):
        encoder, names = ENCODERS[kind](config)
    check_sizes(encoder)
    return encoder, names


def _encoder(config: Config, keys: Mapping[str, str], offset: int = 0, **fields: Any) -> Decoder:
    """An encoder of BERT's form; ``keys`` are its configuration's names of the sizes."""
    width, heads = int(config[keys["width"]]), int(config[keys["heads"]])
    if heads < 1 or width % heads:
        raise ModelError(f"{heads} heads of equal size do not make {width} channels")
    positions = int(config["max_position_embeddings"])
    common: dict[str, Any] = {
        "architecture": kind_of(config),
        "vocab": int(config["vocab_size"]),
        "width": width,
        "inner": int(config[keys["inner"]]),
        "heads": heads,
        "kv_heads": heads,
        "dim": width // heads,
        "layers": (Layer(),) * int(config[keys["layers"]]),
        "context": positions - offset,
        "eps": float(config.get("layer_norm_eps", 1e-12)),
        "centered": True,
        "activation": activation_of(config, keys["activation"]),
        "gated": False,
        "scale": (width // heads) ** -0.5,
        "learned": positions,
        "learned_offset": offset,
        "embed_norm": True,
        "norms_after": True,
    }
    return Decoder(**{**common, **fields})


_KEYS = {
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "inner": "intermediate_size",
    "layers": "num_hidden_layers",
    "activation": "hidden_act",
}
_DISTILBERT_KEYS = {
    "width": "dim",
    "heads": "n_heads",
    "inner": "hidden_dim",
    "layers": "n_layers",
    "activation": "activation",
}


def _bert(config: Config, offset: int = 0) -> tuple[Decoder, Names]:
    problems = []
    if config.get("position_embedding_type", "absolute") not in (None, "absolute"):
        problems.append(f"position_embedding_type is {config['position_embedding_type']!r}")
    if config.get("is_decoder"):
        problems.append("is_decoder is true")
    if config.get("embedding_size", config["hidden_size"]) != config["hidden_size"]:
        problems.append(f"embedding_size is {config['embedding_size']}, not hidden_size")
    if problems:
        raise ModelError(f"{kind_of(config)} models with these options are not built", problems=problems)
    return _encoder(config, _KEYS, offset), _BERT


def _roberta(config: Config) -> tuple[Decoder, Names]:
    return _bert(config, _after_padding(config))


def _distilbert(config: Config) -> tuple[Decoder, Names]:
    return _encoder({**config, "layer_norm_eps": 1e-12}, _DISTILBERT_KEYS), _DISTILBERT


def _mpnet(config: Config) -> tuple[Decoder, Names]:
    relative = Relative(int(config.get("relative_attention_num_buckets", 32)), _MPNET_DISTANCE)
    return _encoder(config, _KEYS, _after_padding(config), relative=relative), _MPNET


def _t5(config: Config) -> tuple[Decoder, Names]:
    pair = describe_pair(config)
    return pair.encoder, pair.encoder_names


def _modernbert(config: Config) -> tuple[Decoder, Names]:
    """Norms before the blocks, rotations, and windows in most layers."""
    count, every = int(config["num_hidden_layers"]), int(config.get("global_attn_every_n_layers") or 3)
    kinds = config.get("layer_types")
    if kinds is None:
        kinds = ["sliding_attention" if number % every else "full_attention" for number in range(count)]
    parameters = config.get("rope_parameters") or {
        "full_attention": {"rope_theta": config.get("global_rope_theta", 160000.0)},
        "sliding_attention": {"rope_theta": config.get("local_rope_theta") or 10000.0},
    }
    config = {"norm_eps": 1e-5, "hidden_activation": "gelu", **config, "rope_parameters": parameters}
    encoder = _encoder(
        config, {**_KEYS, "activation": "hidden_activation"}, eps=float(config["norm_eps"]), learned=0
    )
    ropes = tuple(rope_of(config, encoder.dim, kind)[0] for kind in ("full_attention", "sliding_attention"))
    window = int(config.get("local_attention", 128)) // 2 + 1
    layers = tuple(
        Layer(window * (kind == "sliding_attention"), int(kind == "sliding_attention"), bare=not number)
        for number, kind in enumerate(kinds)
    )
    encoder = dataclasses.replace(
        encoder, norms_after=False, gated=True, ropes=ropes, rotated=encoder.dim, layers=layers
    )
    return encoder, Names(
        prefixes=("", "model."),
        embed="embeddings.tok_embeddings",
        embed_norm="embeddings.norm",
        attention_norm="attn_norm",
        qkv=("attn.Wqkv",),
        out="attn.Wo",
        mlp_norm="mlp_norm",
        up=("mlp.Wi",),
        down="mlp.Wo",
        norm="final_norm",
    )


def _gemma(config: Config) -> tuple[Decoder, Names]:
    """A Gemma 3 whose tokens see those that follow: on each side, half of a window."""
    encoder, names = gemma3({**config, "use_bidirectional_attention": False})
    layers = tuple(
        dataclasses.replace(layer, window=layer.window // 2 + 1 if layer.window else 0)
        for layer in encoder.layers
    )
    if encoder.softcap or encoder.rotated != encoder.dim:
        raise ModelError(
            "a gemma3 that embeds texts has neither bounded scores nor heads that rotate in part"
        )
    group, dim = encoder.heads // encoder.kv_heads, encoder.dim
    # Every query has a key and a value of its own: those of its group, once more.
    rows = np.arange((encoder.heads + 2 * encoder.kv_heads) * dim).reshape(-1, dim)
    keys, values = np.split(rows[encoder.heads :], 2)
    parts = [rows[: encoder.heads], *(np.repeat(part, group, axis=0) for part in (keys, values))]
    names = dataclasses.replace(names, qkv_rows=tuple(np.concatenate(parts).reshape(-1).tolist()))
    return dataclasses.replace(encoder, layers=layers), names


def _after_padding(config: Config) -> int:
    """Place of the first token: rows of the table up to that of the padding are no token's."""
    padding = config.get("pad_token_id")
    return (1 if padding is None else int(padding)) + 1


ENCODERS: dict[str, Callable[[Config], tuple[Decoder, Names]]] = {
    "bert": _bert,
    "electra": _bert,
    "roberta": _roberta,
    "xlm-roberta": _roberta,
    "camembert": _roberta,
    "distilbert": _distilbert,
    "mpnet": _mpnet,
    "t5": _t5,
    "modernbert": _modernbert,
    "gemma3_text": _gemma,
}
"""``model_type`` -> what reads its configuration."""
