"""Configurations of encoder-decoders of transformers: speech recognition (Whisper), translation and
summaries (BART, mBART, Marian, M2M100, T5), one function per family."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hetero_tvm.errors import ModelError
from hetero_tvm.language.families.architectures import check_sizes, kind_of, reading
from hetero_tvm.language.families.configuration import activation_of, stop_of
from hetero_tvm.language.families.decoder import FAIRSEQ_NAMES, Decoder, Layer, Names, Relative

Config = Mapping[str, Any]
_RELATIVE_CONTEXT = 2048
"""Tokens for which models without a table of positions get biases by distance."""


@dataclass(frozen=True)
class EncoderDecoder:
    """An encoder, and a decoder that attends to what it gives.

    Parameters
    ----------
    encoder, decoder : the halves; the names of their tensors beside them.
    start : tokens that every text begins with.
    """

    encoder: Decoder
    encoder_names: Names
    decoder: Decoder
    decoder_names: Names
    start: tuple[int, ...] = ()


def is_encoder_decoder(config: Config) -> bool:
    """Whether a ``config.json`` is that of a known encoder-decoder."""
    return kind_of(config) in ENCODER_DECODERS


def describe_pair(config: Config) -> EncoderDecoder:
    """The encoder-decoder that a ``config.json`` means.

    Raises
    ------
    ModelError : the configuration is damaged, or asks for what it cannot have.
    """
    kind = config["model_type"]
    if config.get("quantization_config"):
        raise ModelError(
            f"the weights of this {kind} are quantized, which cannot be read",
            hint="build from the float checkpoint with --precision int8 or int4",
        )
    with reading(config, kind):
        pair = ENCODER_DECODERS[kind](config)
        names = ("decoder_start_token_id", "bos_token_id", "pad_token_id")
        start = next((config[name] for name in names if config.get(name) is not None), None)
        forced = config.get("forced_bos_token_id")
        begin = tuple(int(token) for token in (start, forced) if token is not None)
        pair = dataclasses.replace(pair, start=begin)
    for half in (pair.encoder, pair.decoder):
        check_sizes(half)
    first, second = ((h.heads, h.dim, h.width) for h in (pair.encoder, pair.decoder))
    if first[2] != second[2]:
        raise ModelError(f"rows of {first[2]} channels cannot be attended to by rows of {second[2]}")
    return pair


def _half(config: Config, side: str, kind: str, **fields: Any) -> Decoder:
    """Encoder or decoder of a BART-like configuration."""
    width, heads = int(config["d_model"]), int(config[f"{side}_attention_heads"])
    dim = width // heads
    if dim * heads != width:
        raise ModelError(f"{heads} heads of equal size do not make {width} channels")
    common: dict[str, Any] = {
        "architecture": kind,
        "vocab": int(config["vocab_size"]),
        "width": width,
        "inner": int(config[f"{side}_ffn_dim"]),
        "heads": heads,
        "kv_heads": heads,
        "dim": dim,
        "layers": (Layer(),) * int(config[f"{side}_layers"]),
        "eps": 1e-5,
        "centered": True,
        "activation": activation_of(config, "activation_function"),
        "gated": False,
        "scale": dim**-0.5,
        "embed_scale": float(width) ** 0.5 if config.get("scale_embedding") else 1.0,
        "cross": side == "decoder",
        "tied": bool(config.get("tie_word_embeddings", True)),
        "stop": stop_of(config),
    }
    return Decoder(**{**common, **fields})


def _names(side: str, **changes: str) -> Names:
    """Names of a half of a BART-like checkpoint."""
    names = dataclasses.replace(
        FAIRSEQ_NAMES,
        prefixes=(f"model.{side}.", f"{side}.", "model.", ""),
        embed_norm="layernorm_embedding",
        cross_norm="encoder_attn_layer_norm",
        cross_q="encoder_attn.q_proj",
        cross_kv=("encoder_attn.k_proj", "encoder_attn.v_proj"),
        cross_out="encoder_attn.out_proj",
        head_bias="final_logits_bias",
        heads=("lm_head", "proj_out"),
    )
    return dataclasses.replace(names, **changes)


def _whisper(config: Config) -> EncoderDecoder:
    encoder = _half(config, "encoder", "whisper", context=int(config["max_source_positions"]))
    decoder = _half(config, "decoder", "whisper", context=int(config["max_target_positions"]))
    encoder = dataclasses.replace(encoder, mels=int(config["num_mel_bins"]), learned=encoder.context)
    decoder = dataclasses.replace(decoder, learned=decoder.context)
    names = dataclasses.replace(_names("encoder"), convolutions=("conv1", "conv2"))
    return EncoderDecoder(encoder, names, decoder, _names("decoder"))


def _bart(config: Config, norms_after: bool = True) -> EncoderDecoder:
    context = int(config["max_position_embeddings"])
    fields: dict[str, Any] = {
        "context": context,
        "learned": context + 2,
        "learned_offset": 2,
        "embed_norm": True,
        "norms_after": norms_after,
    }
    kind = str(config["model_type"])
    halves = (_half(config, side, kind, **fields) for side in ("encoder", "decoder"))
    encoder, decoder = halves
    return EncoderDecoder(encoder, _names("encoder"), decoder, _names("decoder"))


def _mbart(config: Config) -> EncoderDecoder:
    return _bart(config, norms_after=False)


def _marian(config: Config) -> EncoderDecoder:
    if config.get("decoder_vocab_size", config["vocab_size"]) not in (None, config["vocab_size"]):
        raise ModelError("marian models with two vocabularies are not supported")
    context = int(config["max_position_embeddings"])
    fields: dict[str, Any] = {
        "context": context,
        "learned": context,
        "sinusoids": "marian",
        "norms_after": True,
    }
    encoder, decoder = (_half(config, side, "marian", **fields) for side in ("encoder", "decoder"))
    return EncoderDecoder(encoder, _names("encoder"), decoder, _names("decoder"))


def _m2m100(config: Config) -> EncoderDecoder:
    context = int(config["max_position_embeddings"])
    fields: dict[str, Any] = {
        "context": context,
        "learned": context + 2,
        "learned_offset": 2,
        "sinusoids": "m2m_100",
    }
    encoder, decoder = (_half(config, side, "m2m_100", **fields) for side in ("encoder", "decoder"))
    return EncoderDecoder(encoder, _names("encoder"), decoder, _names("decoder"))


def _t5(config: Config) -> EncoderDecoder:
    kind = str(config.get("feed_forward_proj", "relu"))
    gated = kind.startswith("gated-")
    name = "gelu_new" if kind == "gated-gelu" else kind.removeprefix("gated-")
    width, heads, layers = int(config["d_model"]), int(config["num_heads"]), int(config["num_layers"])
    tied = bool(config.get("tie_word_embeddings", True))
    # Later versions tie the matrices always, and note what it once meant.
    scaled = bool(config.get("scale_decoder_outputs", tied))
    fields: dict[str, Any] = {
        "architecture": "t5",
        "vocab": int(config["vocab_size"]),
        "width": width,
        "inner": int(config["d_ff"]),
        "heads": heads,
        "kv_heads": heads,
        "dim": int(config["d_kv"]),
        "context": _RELATIVE_CONTEXT,
        "eps": float(config.get("layer_norm_epsilon", 1e-6)),
        "activation": activation_of({"name": name}, "name"),
        "gated": gated,
        "relative": Relative(
            int(config.get("relative_attention_num_buckets", 32)),
            int(config.get("relative_attention_max_distance", 128)),
        ),
        "tied": tied,
        "stop": stop_of(config),
    }
    encoder = Decoder(**fields, layers=(Layer(),) * layers)
    count = int(config.get("num_decoder_layers") or layers)
    scale = float(width) ** -0.5 if scaled else 1.0
    decoder = Decoder(**fields, layers=(Layer(),) * count, cross=True, final_scale=scale)

    def names(side: str) -> Names:
        last = 2 if side == "decoder" else 1
        mlp = f"layer.{last}.DenseReluDense."
        return Names(
            prefixes=(f"{side}.", ""),
            layer="block.{}.",
            attention_norm="layer.0.layer_norm",
            qkv=tuple(f"layer.0.SelfAttention.{part}" for part in "qkv"),
            out="layer.0.SelfAttention.o",
            mlp_norm=f"layer.{last}.layer_norm",
            up=(mlp + "wi_0", mlp + "wi_1") if gated else (mlp + "wi",),
            down=mlp + "wo",
            norm="final_layer_norm",
            cross_norm="layer.1.layer_norm",
            cross_q="layer.1.EncDecAttention.q",
            cross_kv=("layer.1.EncDecAttention.k", "layer.1.EncDecAttention.v"),
            cross_out="layer.1.EncDecAttention.o",
            relative="block.0.layer.0.SelfAttention.relative_attention_bias",
        )

    return EncoderDecoder(encoder, names("encoder"), decoder, names("decoder"))


ENCODER_DECODERS: dict[str, Callable[[Config], EncoderDecoder]] = {
    "whisper": _whisper,
    "bart": _bart,
    "mbart": _mbart,
    "marian": _marian,
    "m2m_100": _m2m100,
    "t5": _t5,
    "mt5": _t5,
}
"""``model_type`` -> what reads its configuration."""
