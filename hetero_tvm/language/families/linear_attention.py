"""Families between whose layers of attention there is linear attention by a delta rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from hetero_tvm.errors import ModelError
from hetero_tvm.language.families.configuration import Config
from hetero_tvm.language.families.decoder import Decoder, Names, Recurrence
from hetero_tvm.language.families.gemmas import olmo2
from hetero_tvm.language.families.llamas import MULTIMODAL, llama
from hetero_tvm.language.families.mixtures import of_deepseek, qwen2_moe, with_latent
from hetero_tvm.language.families.recurrent import attends, with_states

_SHORT_CONVOLUTIONS = ("q_conv1d", "k_conv1d", "v_conv1d")


def qwen3_next(config: Config) -> tuple[Decoder, Names]:
    """Linear attention between layers of attention whose heads are gated, and experts (Qwen3-Next)."""
    config = {"norm_topk_prob": True, **config}
    decoder, names = _linear_attention(config, *qwen2_moe({"partial_rotary_factor": 0.25, **config}))
    r = decoder.recurrence
    assert r is not None
    group = r.heads // r.groups
    of_qkvz = [r.state, r.state, group * (r.inner // r.heads), group * (r.inner // r.heads)]
    return decoder, dataclasses.replace(
        names,
        recurrent_in=("in_proj_qkvz",),
        recurrent_rows=_rows_of_parts(r.groups, of_qkvz),
        recurrent_few=("in_proj_ba",),
        recurrent_few_rows=_rows_of_parts(r.groups, [group, group]),
    )


def qwen3_5(config: Config) -> tuple[Decoder, Names]:
    """A Qwen3-Next without experts, whose matrices are apart (Qwen3.5)."""
    return _linear_attention(config, *llama({"partial_rotary_factor": 0.25, **config}))


def qwen3_5_moe(config: Config) -> tuple[Decoder, Names]:
    """A Qwen3.5 of experts."""
    inner = config["moe_intermediate_size"]
    config = {"norm_topk_prob": True, "intermediate_size": inner, "partial_rotary_factor": 0.25, **config}
    return _linear_attention(config, *qwen2_moe(config))


def olmo_hybrid(config: Config) -> tuple[Decoder, Names]:
    """An OLMo 3 whose other layers have linear attention with gates apart, and norms in front."""
    heads = int(config["num_attention_heads"])
    keys = int(config.get("linear_num_key_heads") or heads)
    dim = int(config.get("linear_key_head_dim") or 0.75 * int(config["hidden_size"]) / keys)
    sizes = {
        "linear_num_key_heads": keys,
        "linear_num_value_heads": config.get("linear_num_value_heads") or heads,
        "linear_key_head_dim": dim,
        "linear_value_head_dim": config.get("linear_value_head_dim") or 2 * dim,
    }
    theta = (config.get("rope_parameters") or {}).get("rope_theta") or config.get("rope_theta")
    decoder, names = olmo2(config)
    if not theta:
        decoder = dataclasses.replace(decoder, ropes=(), rotated=0)
    recurrence = dataclasses.replace(
        _delta({**config, **sizes}, 1e-5), doubled=bool(config.get("linear_allow_neg_eigval", True))
    )
    kinds = config.get("layer_types")
    if kinds is None:
        kinds = ["linear", "linear", "linear", "full_attention"] * len(decoder.layers)
        kinds = kinds[: len(decoder.layers)]
        if "full_attention" not in kinds:
            kinds[-1] = "full_attention"
    decoder = with_states(decoder, recurrence, [attends(str(kind)) for kind in kinds])
    layers = tuple(dataclasses.replace(layer, norms_first=layer.recurs) for layer in decoder.layers)
    return dataclasses.replace(decoder, layers=layers), dataclasses.replace(
        names,
        recurrence="linear_attn.",
        recurrent_in=("q_proj", "k_proj", "v_proj", "g_proj"),
        recurrent_few=("b_proj", "a_proj"),
        recurrent_filters=_SHORT_CONVOLUTIONS,
        recurrent_norm="o_norm",
        recurrent_out="o_proj",
        aliases=(
            ("input_layernorm", "attention_layer_norm"),
            ("post_attention_layernorm", "feedforward_layer_norm"),
        ),
    )


def kimi_linear(config: Config) -> tuple[Decoder, Names]:
    """Latent attention without positions between layers whose delta rule forgets channel by channel."""
    words = {
        "max_position_embeddings": "model_max_length",
        "norm_topk_prob": "moe_renormalize",
        "n_group": "num_expert_group",
        "n_routed_experts": "num_experts",
        "num_experts_per_tok": "num_experts_per_token",
        "n_shared_experts": "num_shared_experts",
    }
    config = {**{name: config[other] for name, other in words.items() if other in config}, **config}
    config = {"norm_topk_prob": True, "first_k_dense_replace": 1, **config}
    told = dict(config.get("linear_attn_config") or {})
    count = int(config["num_hidden_layers"])
    kinds = config.get("layer_types")
    if kinds is None and "full_attn_layers" in told:  # counted from 1
        whole = {int(number) - 1 for number in told["full_attn_layers"]}
        kinds = ["full_attention" if i in whole else "linear" for i in range(count)]
    elif kinds is None:
        kinds = ["full_attention" if i and i % 4 == 0 else "linear" for i in range(count)]
    heads = int(told.get("num_heads") or config.get("linear_num_heads") or 32)
    dim = int(told.get("head_dim") or config.get("linear_head_dim") or 128)
    size = int(told.get("short_conv_kernel_size") or config.get("linear_conv_kernel_dim") or 4)
    decoder, names = of_deepseek(*with_latent(config, pairs=False), config)
    decoder = dataclasses.replace(decoder, ropes=(), rotated=0)
    recurrence = Recurrence("channel_delta", heads * dim, size, heads, dim, heads, eps=decoder.eps)
    decoder = with_states(decoder, recurrence, [attends(str(kind)) for kind in kinds])
    return decoder, dataclasses.replace(
        names,
        recurrence="self_attn.",
        recurrent_in=("q_proj", "k_proj", "v_proj"),
        recurrent_few=("f_a_proj", "f_b_proj"),
        recurrent_filters=_SHORT_CONVOLUTIONS,
        recurrent_norm="o_norm",
        recurrent_out="o_proj",
        router="block_sparse_moe.gate",
        expert="block_sparse_moe.experts.{}.",
        expert_up=("w1", "w3"),
        expert_down="w2",
        shared_expert="block_sparse_moe.shared_experts.",
        correction="block_sparse_moe.gate.e_score_correction_bias",
        aliases=(("mlp.", "block_sparse_moe."),),
    )


# parts -----------------------------------------------------------------------------------------
def _delta(config: Config, eps: float) -> Recurrence:
    """The gated delta rule in the words of Qwen3-Next."""
    heads, keys = int(config["linear_num_value_heads"]), int(config["linear_num_key_heads"])
    inner = heads * int(config["linear_value_head_dim"])
    if heads % keys:
        raise ModelError(f"{heads} heads of linear attention cannot share {keys} keys")
    size, dim = int(config.get("linear_conv_kernel_dim", 4)), int(config["linear_key_head_dim"])
    return Recurrence("delta", inner, size, heads, dim, keys, eps=eps)


def _linear_attention(config: Config, decoder: Decoder, names: Names) -> tuple[Decoder, Names]:
    """The decoder with the gated delta rule in the place of attention where its layers say so."""
    recurrence = _delta(config, decoder.eps)
    kinds, every = config.get("layer_types"), int(config.get("full_attention_interval") or 4)
    if kinds is None:
        count = len(decoder.layers)
        kinds = ["linear" if (number + 1) % every else "full_attention" for number in range(count)]
    decoder = with_states(decoder, recurrence, [attends(str(kind)) for kind in kinds])
    width = decoder.heads * decoder.dim
    both = _rows_of_parts(decoder.heads, [decoder.dim, decoder.dim])
    rest = range(2 * width, 2 * width + 2 * decoder.kv_heads * decoder.dim)
    decoder = dataclasses.replace(decoder, head_norms=True, norm_offset=1.0, gated_heads=True)
    return decoder, dataclasses.replace(
        names,
        prefixes=MULTIMODAL,
        qkv_rows=(*both[:width], *rest),
        gate_rows=both[width:],
        recurrence="linear_attn.",
        recurrent_in=("in_proj_qkv", "in_proj_z"),
        recurrent_few=("in_proj_b", "in_proj_a"),
    )


def _rows_of_parts(groups: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Rows of a matrix whose groups have parts of these sizes, in the order of the parts."""
    ends = np.cumsum([0, *sizes])
    rows = np.arange(groups * ends[-1]).reshape(groups, -1)
    parts = (rows[:, start:end].reshape(-1) for start, end in zip(ends, ends[1:], strict=False))
    return tuple(np.concatenate(list(parts)).tolist())
