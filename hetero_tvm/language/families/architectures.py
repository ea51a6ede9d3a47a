"""Configurations of transformers -> :class:`Decoder` and the names of its tensors, one function per
family."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hetero_tvm.errors import ModelError
from hetero_tvm.language.families import (
    gemmas,
    gpts,
    linear_attention,
    llamas,
    mixtures,
    modernberts,
    multimodal,
    recurrent,
    sigmoid_mixtures,
)
from hetero_tvm.language.families.configuration import Config
from hetero_tvm.language.families.decoder import Decoder, Names

_LAYER_COUNTS = (
    "num_hidden_layers",
    "n_layer",
    "num_layers",
    "num_decoder_layers",
    "encoder_layers",
    "decoder_layers",
)
_MOST_LAYERS = 1 << 12


def describe(config: Config) -> tuple[Decoder, Names]:
    """The decoder that a ``config.json`` means, and its tensors' names.

    Raises
    ------
    ModelError : the architecture is unknown, or the configuration asks for what it cannot have.
    """
    config, part = multimodal.text_of(config)
    kind = kind_of(config)
    if kind not in ARCHITECTURES:
        lack = _LACKING.get(kind)
        raise ModelError(
            f"there is no language model of type {kind!r}" + (f": it has {lack}" if lack else ""),
            hint=(
                "hetero_tvm.build_embedding_model makes what embeds texts of it; "
                if kind in EMBEDDERS
                else ""
            )
            + "export the model to ONNX or by torch.export.save(program, 'net.pt2') and "
            "build that file, or run it in PyTorch by torch.compile(model, backend='hetero_tvm')"
            + ("" if lack else f"; known: {', '.join(sorted(ARCHITECTURES))}"),
        )
    if config.get("quantization_config"):
        method = dict(config["quantization_config"]).get("quant_method", "an unknown method")
        raise ModelError(
            f"the weights are quantized by {method}, which cannot be read",
            hint="build from the float checkpoint with --precision int8 or int4, or from a GGUF file",
        )
    with reading(config, kind):
        decoder, names = ARCHITECTURES[kind](config)
    if part:
        names = multimodal.of_part(names)
    decoder = dataclasses.replace(decoder, tied=bool(config.get("tie_word_embeddings", decoder.tied)))
    check_sizes(decoder)
    return decoder, names


EMBEDDERS = ("bert", "camembert", "distilbert", "electra", "modernbert", "mpnet", "roberta", "xlm-roberta")
"""Types that ``language/embedding`` builds, and that continue no text."""
_LACKING = {
    **dict.fromkeys(
        ("rwkv", "xlstm"),
        "layers whose state is no list of keys and values (a scan), for which there are no kernels here",
    ),
    **dict.fromkeys(
        (
            "zamba",
            "zamba2",
            "recurrent_gemma",
        ),
        "scans between its layers of attention, for which there are no kernels here",
    ),
    **dict.fromkeys(
        ("lfm3",),
        "more than short convolutions between its layers of attention, for which there are no kernels here",
    ),
    **dict.fromkeys(
        (
            "minimax",
            "bailing_hybrid",
        ),
        "linear attention, whose state is no list of keys and values: there are no kernels for it here",
    ),
}
"""Parts of models that nothing here computes, by the type of the model."""


def kind_of(config: Config) -> str:
    """The model's type as a configuration says it; text of what is no name."""
    return str(config.get("model_type"))


@contextmanager
def reading(config: Config, kind: str) -> Iterator[None]:
    """Reading of the configuration of a model of a type: what is missing or damaged is a :class:`ModelError`,
    and so are more layers than any model has, before there is an object for each."""
    _check_counts(config)
    try:
        yield
    except KeyError as error:
        raise ModelError(f"config.json of a {kind} model has no {error.args[0]!r}") from None
    except (TypeError, ValueError, ZeroDivisionError, OverflowError, AttributeError, MemoryError) as error:
        raise ModelError(f"config.json of a {kind} model is damaged: {error}") from error


def _check_counts(config: Config) -> None:
    for name in _LAYER_COUNTS:
        count = config.get(name)
        if isinstance(count, int | float) and count > _MOST_LAYERS:
            raise ModelError(f"{name} is {count}, and no model has more than {_MOST_LAYERS}")


def check_sizes(d: Decoder) -> None:
    """Raise :class:`ModelError` for sizes that no model has; lists all."""
    problems = []
    sizes = ("vocab", "width", "inner", "heads", "kv_heads", "dim", "context")
    for name in sizes:
        value = getattr(d, name)
        if not isinstance(value, int) or not 0 < value < 1 << 31:
            problems.append(f"{name} is {value!r}")
    if not d.layers:
        problems.append("there are no layers")
    if not problems and d.heads % d.kv_heads:
        problems.append(f"{d.heads} query heads cannot share {d.kv_heads} key heads")
    if not problems and (d.rotated % 2 or d.rotated > d.dim):
        problems.append(f"{d.rotated} of {d.dim} channels of a head cannot be rotated")
    if not problems and d.experts is not None and not 0 < d.experts.top <= d.experts.count < 1 << 16:
        problems.append(f"rows go through {d.experts.top} of {d.experts.count} experts")
    if problems:
        raise ModelError(f"this {d.architecture} configuration makes no model", problems=problems)


ARCHITECTURES: dict[str, Callable[[Config], tuple[Decoder, Names]]] = {
    "llama": llamas.llama,
    "mistral": llamas.mistral,
    "qwen2": llamas.qwen2,
    "qwen3": llamas.qwen3,
    "phi3": llamas.phi3,
    "internlm3": llamas.llama,
    "iquestcoder": llamas.llama,
    "granite": llamas.granite,
    "hyperclovax": llamas.hyperclovax,
    "starcoder2": llamas.starcoder2,
    "stablelm": llamas.stablelm,
    "phi": llamas.phi,
    "smollm3": llamas.smollm3,
    "ernie4_5": llamas.ernie,
    "helium": llamas.helium,
    "nemotron": llamas.nemotron,
    "arcee": llamas.arcee,
    "jais2": llamas.jais2,
    "cwm": llamas.cwm,
    "exaone": llamas.exaone,
    "bitnet": llamas.bitnet,
    "seed_oss": llamas.llama,
    "ministral": llamas.mistral,
    "ministral3": llamas.ministral3,
    "hunyuan_v1_dense": llamas.hunyuan,
    "glm": llamas.glm,
    "cohere": llamas.cohere,
    "olmo": llamas.olmo,
    "cohere2": llamas.cohere2,
    "gemma": gemmas.gemma,
    "gemma2": gemmas.gemma2,
    "vaultgemma": gemmas.vaultgemma,
    "gemma3_text": gemmas.gemma3,
    "gemma3n_text": gemmas.gemma3n,
    "gemma4_text": gemmas.gemma4,
    "gemma4_unified_text": gemmas.gemma4,
    "granite_swa": llamas.granite_swa,
    "granitemoe_swa": mixtures.granite_moe_swa,
    "afmoe": mixtures.afmoe,
    "glm4": gemmas.glm4,
    "olmo2": gemmas.olmo2,
    "olmo3": gemmas.olmo3,
    "exaone4": gemmas.exaone4,
    "mixtral": mixtures.mixtral,
    "qwen2_moe": mixtures.qwen2_moe,
    "qwen3_moe": mixtures.qwen3_moe,
    "olmoe": mixtures.olmoe,
    "flex_olmo": mixtures.flex_olmo,
    "mellum": mixtures.mellum,
    "gpt_oss": mixtures.gpt_oss,
    "granitemoe": mixtures.granite_moe,
    "granitemoeshared": mixtures.granite_moe,
    "phimoe": mixtures.phimoe,
    "cohere2_moe": sigmoid_mixtures.cohere2_moe,
    "hy_v3": sigmoid_mixtures.hy_v3,
    "sarvam_moe": sigmoid_mixtures.sarvam_moe,
    "sarvam_mla": sigmoid_mixtures.sarvam_mla,
    "hunyuan_v1_moe": mixtures.hunyuan_moe,
    "minimax_m2": mixtures.minimax_m2,
    "ernie4_5_moe": mixtures.ernie_moe,
    "glm4_moe": mixtures.glm4_moe,
    "solar_open": mixtures.solar_open,
    "dots1": mixtures.dots1,
    "exaone_moe": mixtures.exaone_moe,
    "deepseek_v2": mixtures.deepseek_v2,
    "deepseek_v3": mixtures.deepseek_v3,
    "kimi_k2": mixtures.deepseek_v3,
    "glm4_moe_lite": mixtures.glm4_moe_lite,
    "youtu": mixtures.youtu,
    "mamba": recurrent.mamba,
    "falcon_mamba": recurrent.falcon_mamba,
    "mamba2": recurrent.mamba2,
    "jamba": recurrent.jamba,
    "nemotron_h": recurrent.nemotron_h,
    "lfm2": recurrent.lfm2,
    "lfm2_moe": recurrent.lfm2_moe,
    "bamba": recurrent.bamba,
    "falcon_h1": recurrent.falcon_h1,
    "granitemoehybrid": recurrent.granite_hybrid,
    "qwen3_next": linear_attention.qwen3_next,
    "qwen3_5_text": linear_attention.qwen3_5,
    "qwen3_5_moe_text": linear_attention.qwen3_5_moe,
    "olmo_hybrid": linear_attention.olmo_hybrid,
    "kimi_linear": linear_attention.kimi_linear,
    "minicpm": llamas.minicpm,
    "minicpm3": mixtures.minicpm3,
    "internlm2": llamas.internlm2,
    "apertus": llamas.apertus,
    "nanochat": llamas.nanochat,
    "persimmon": gpts.persimmon,
    "modernbert-decoder": modernberts.modernbert_decoder,
    "gpt2": gpts.gpt2,
    "gpt_bigcode": gpts.gpt_bigcode,
    "gpt_neo": gpts.gpt_neo,
    "biogpt": gpts.biogpt,
    "xglm": gpts.xglm,
    "opt": gpts.opt,
    "gpt_neox": gpts.gpt_neox,
    "gptj": gpts.gptj,
    "codegen": gpts.codegen,
    "falcon": gpts.falcon,
    "bloom": gpts.bloom,
    "mpt": gpts.mpt,
    **multimodal.PARTS,
}
"""``model_type`` -> what reads its configuration."""
