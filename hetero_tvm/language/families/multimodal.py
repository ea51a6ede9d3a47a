"""Text parts of models that see and hear as well: families of this package in other words.

Positions of text alone are the same in all the parts that such models split them into (``mrope``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from hetero_tvm.errors import ModelError
from hetero_tvm.language.families.configuration import Config
from hetero_tvm.language.families.decoder import Decoder, Experts, Names
from hetero_tvm.language.families.defaults import DEFAULTS
from hetero_tvm.language.families.gemmas import glm4
from hetero_tvm.language.families.llamas import (
    MULTIMODAL,
    granite,
    llama,
    mistral,
    phi3,
    qwen2,
    qwen3,
    with_pairs,
    without_rotation,
)
from hetero_tvm.language.families.mixtures import glm4_moe, qwen3_moe
from hetero_tvm.ops.decoding.contracts import Growth

Family = Callable[[Config], tuple[Decoder, Names]]


def text_of(config: Config) -> tuple[Config, bool]:
    """The configuration of the part that continues texts, and whether it is a part of the given one.

    Its name is that of transformers, or of InternVL's own files (``llm_config``).
    """
    whole = config.get("thinker_config")
    whole = {**config, **whole} if isinstance(whole, Mapping) else config
    part = whole.get("text_config") or whole.get("llm_config")
    if not isinstance(part, Mapping):
        return config, False
    text = {**part}
    if text.get("eos_token_id") is None and whole.get("eos_token_id") is not None:
        text["eos_token_id"] = whole["eos_token_id"]
    if whole.get("tie_word_embeddings") is not None:  # the whole model ties them, whatever its parts would do
        text["tie_word_embeddings"] = whole["tie_word_embeddings"]
    return {**DEFAULTS.get(str(text.get("model_type")), {}), **text}, True


def of_part(names: Names) -> Names:
    """The names of a part, which begin in other ways."""
    inner = tuple(f"language_model.{prefix}" for prefix in names.prefixes if prefix)
    return dataclasses.replace(names, prefixes=tuple(dict.fromkeys((*MULTIMODAL, *inner))))


def _part(family: Family) -> Family:
    """The family as a part."""

    def described(config: Config) -> tuple[Decoder, Names]:
        decoder, names = family(config)
        return decoder, of_part(names)

    return described


_OF_MINICPMV = {"2.6": qwen2, "4.5": qwen3}
"""Version of a MiniCPM-V -> the family of its text part."""


def _minicpmv(config: Config) -> tuple[Decoder, Names]:
    """The text part of a MiniCPM-V or MiniCPM-o, whose words are among those of the whole."""
    version = str(config.get("version", "2.6"))
    if version not in _OF_MINICPMV:
        known = " and ".join(_OF_MINICPMV)
        raise ModelError(f"the text part of version {version} of MiniCPM-V is not known; known are {known}")
    return _OF_MINICPMV[version](config)


def _qwen3_experts(config: Config) -> tuple[Decoder, Names]:
    """A mixture of Qwen3 whose shares have the sum 1."""
    return qwen3_moe({"norm_topk_prob": True, **config})


def _glm4v(config: Config) -> tuple[Decoder, Names]:
    """A GLM-4 whose heads are rotated whole unless it says otherwise."""
    return glm4({"partial_rotary_factor": 1.0, **config})


def _glm4v_moe(config: Config) -> tuple[Decoder, Names]:
    """A GLM-4.5 in these words."""
    return glm4_moe({"norm_topk_prob": True, "first_k_dense_replace": 1, **config})


def _mllama(config: Config) -> tuple[Decoder, Names]:
    """A Llama between whose layers there are others that texts without images leave out, and whose table
    ends with tokens of images."""
    decoder, names = llama({"rope_theta": 500000.0, **config})
    across = config.get("cross_attention_layers")
    left_out = set(range(3, len(decoder.layers), 5) if across is None else map(int, across))
    layers = tuple(
        dataclasses.replace(layer, attends=False, feeds=False) if number in left_out else layer
        for number, layer in enumerate(decoder.layers)
    )
    return dataclasses.replace(decoder, layers=layers, spare_tokens=8), names


def _llama4(config: Config) -> tuple[Decoder, Names]:
    """Layers that rotate and see a chunk, others that do neither and whose scores grow with the position, and
    experts whose rows are multiplied by their shares (Llama 4)."""
    count = int(config["num_hidden_layers"])
    every = int(config.get("no_rope_layer_interval") or 4)
    turns = [bool(one) for one in config.get("no_rope_layers") or ((i + 1) % every for i in range(count))]
    step = int(config.get("interleave_moe_layer_step") or 1)
    told = config.get("moe_layers")
    mixed = set(range(step - 1, count, step) if told is None else map(int, told))
    normed = bool(config.get("use_qk_norm", True))
    inner = int(config["intermediate_size"])
    sizes = {"intermediate_size": config.get("intermediate_size_mlp") or inner}
    decoder, names = with_pairs(*llama({"rope_theta": 500000.0, **config, **sizes}))
    decoder = without_rotation(decoder, turns)
    chunk, growth = config.get("attention_chunk_size"), None
    kinds = config.get("layer_types") or ["chunked_attention" if one else "full_attention" for one in turns]
    if config.get("attn_temperature_tuning", True):
        share, first = config.get("attn_scale"), int(config.get("floor_scale") or 8192)
        growth = Growth(0.1 if share is None else float(share), first, ahead=1)
    layers = tuple(
        dataclasses.replace(
            layer,
            mixed=number in mixed,
            bare_heads=not turned,
            chunk=int(chunk) if chunk and kind == "chunked_attention" else 0,
            growth=None if turned else growth,
        )
        for number, (layer, turned, kind) in enumerate(zip(decoder.layers, turns, kinds, strict=True))
    )
    experts = Experts(
        int(config["num_local_experts"]),
        int(config["num_experts_per_tok"]),
        inner,
        normalised=False,
        shared=inner,
        sigmoid=True,
        scaled_rows=True,
    )
    return dataclasses.replace(
        decoder, layers=layers, experts=experts, head_norms=normed, plain_head_norms=True
    ), dataclasses.replace(
        names,
        up=("feed_forward.gate_proj", "feed_forward.up_proj"),
        down="feed_forward.down_proj",
        router="feed_forward.router",
        expert="feed_forward.experts.",
        expert_up=("gate_up_proj",),
        expert_transposed=True,
        shared_expert="feed_forward.shared_expert.",
    )


def _phi4_multimodal(config: Config) -> tuple[Decoder, Names]:
    """A Phi-3; its adapters are for images and audio, and stand beside the matrices in its makers' files."""
    decoder, names = phi3(config)
    return decoder, dataclasses.replace(
        names,
        aliases=tuple(
            (f".{name}", f".{name}.base_layer")
            for name in ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
        ),
    )


PARTS: Mapping[str, Family] = {
    kind: _part(family)
    for kind, family in {
        **dict.fromkeys(
            (
                "qwen2_vl",
                "qwen2_vl_text",
                "qwen2_5_vl",
                "qwen2_5_vl_text",
                "qwen2_5_omni_text",
                "llava_qwen",
                "llava_qwen2",
            ),
            qwen2,
        ),
        **dict.fromkeys(("llava", "llava_llama"), llama),
        "llava_mistral": mistral,
        **dict.fromkeys(("minicpmv", "minicpmo"), _minicpmv),
        "qwen3_vl_text": qwen3,
        **dict.fromkeys(("qwen3_vl_moe_text", "qwen3_omni_moe_text"), _qwen3_experts),
        "glm4v_text": _glm4v,
        "glm4v_moe_text": _glm4v_moe,
        "mllama_text_model": _mllama,
        "llama4_text": _llama4,
        "granite4_vision_text": granite,
        **dict.fromkeys(("phi3_v", "phi4_multimodal", "phi4mm"), _phi4_multimodal),
    }.items()
}
"""``model_type`` of such a part, or of a model whose file has it among its own words -> what reads it."""
