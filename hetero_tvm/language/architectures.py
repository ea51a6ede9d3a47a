"""Configurations of transformers -> :class:`Decoder` and the names of its tensors, one function per
family."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hetero_tvm.errors import ModelError
from hetero_tvm.language.decoder import Decoder, Layer, Names
from hetero_tvm.language.rope import rope_of

Config = Mapping[str, Any]

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "gelu": "gelu_erf",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "quick_gelu": "quick_gelu",
}
_MULTIMODAL = ("model.language_model.", "language_model.model.", "model.", "")


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
    kind = kind_of(config)
    if kind not in ARCHITECTURES and isinstance(config.get("text_config"), Mapping):
        outer = config
        config = {**outer["text_config"]}
        for name in ("eos_token_id", "tie_word_embeddings"):
            if config.get(name) is None and outer.get(name) is not None:
                config[name] = outer[name]
        kind = kind_of(config)
    if kind not in ARCHITECTURES:
        raise ModelError(
            f"there is no language model of type {kind!r}", hint=f"known: {', '.join(sorted(ARCHITECTURES))}"
        )
    if config.get("quantization_config"):
        method = dict(config["quantization_config"]).get("quant_method", "an unknown method")
        raise ModelError(
            f"the weights are quantized by {method}, which cannot be read",
            hint="build from the float checkpoint with --precision int8 or int4, or from a GGUF file",
        )
    with reading(config, kind):
        decoder, names = ARCHITECTURES[kind](config)
    decoder = dataclasses.replace(decoder, tied=bool(config.get("tie_word_embeddings", decoder.tied)))
    check_sizes(decoder)
    return decoder, names


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
    if problems:
        raise ModelError(f"this {d.architecture} configuration makes no model", problems=problems)


def stop_of(config: Config) -> tuple[int, ...]:
    """Tokens that end a text."""
    stop = config.get("eos_token_id")
    if stop is None:
        return ()
    return tuple(map(int, stop)) if isinstance(stop, (list, tuple)) else (int(stop),)


def activation_of(config: Config, key: str) -> str:
    """Our name of an activation; :class:`ModelError` when it has no kernel."""
    name = config[key]
    if name not in _ACTIVATIONS:
        raise ModelError(
            f"the activation {name!r} has no kernel", hint=f"known: {', '.join(sorted(_ACTIVATIONS))}"
        )
    return _ACTIVATIONS[name]


def _windows(config: Config, active: bool = True) -> tuple[int, ...]:
    """The window of each layer; ``layer_types`` names the layers that have one, else all have it."""
    count = int(config["num_hidden_layers"])
    window = config.get("sliding_window") if active else None
    kinds = config.get("layer_types")
    if not window:
        return (0,) * count
    if kinds is None:
        return (int(window),) * count
    return tuple(int(window) if kind == "sliding_attention" else 0 for kind in kinds[:count])


def _llama(config: Config, **changes: Any) -> tuple[Decoder, Names]:
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
        "context": int(config["max_position_embeddings"]),
        "eps": float(config["rms_norm_eps"]),
        "ropes": (rope,),
        "rotated": rotated,
        "scale": dim**-0.5,
        "stop": stop_of(config),
    }
    if "activation" not in changes:
        changes["activation"] = activation_of(config, "hidden_act")
    return Decoder(**{**fields, **changes}), Names(prefixes=("model.", ""))


def _mistral(config: Config) -> tuple[Decoder, Names]:
    return _llama(config, windows=_windows(config))


def _qwen2(config: Config) -> tuple[Decoder, Names]:
    active = bool(config.get("use_sliding_window"))
    if active and config.get("layer_types") is None:
        first, count = int(config.get("max_window_layers", 0)), int(config["num_hidden_layers"])
        kinds = ["full_attention" if i < first else "sliding_attention" for i in range(count)]
        config = {**config, "layer_types": kinds}
    return _llama(config, windows=_windows(config, active))


def _qwen3(config: Config) -> tuple[Decoder, Names]:
    decoder, names = _qwen2(config)
    return dataclasses.replace(decoder, head_norms=True), names


def _phi3(config: Config) -> tuple[Decoder, Names]:
    decoder, names = _llama(config, windows=_windows(config))
    return decoder, dataclasses.replace(names, qkv=("self_attn.qkv_proj",), up=("mlp.gate_up_proj",))


def _granite(config: Config) -> tuple[Decoder, Names]:
    """A Llama whose branches are multiplied before they are added: the stream is kept divided by that number,
    which its norms do not see but for their epsilon."""
    decoder, names = _llama(config, scale=float(config["attention_multiplier"]))
    share = float(config["residual_multiplier"])
    return dataclasses.replace(
        decoder,
        eps=decoder.eps / share**2,
        embed_scale=float(config["embedding_multiplier"]) / share,
        final_scale=1.0 / float(config["logits_scaling"]),
    ), names


def _starcoder2(config: Config) -> tuple[Decoder, Names]:
    config = {**config, "rms_norm_eps": config["norm_epsilon"]}
    decoder, names = _llama(config, windows=_windows(config), centered=True, gated=False)
    return decoder, dataclasses.replace(names, up=("mlp.c_fc",), down="mlp.c_proj")


def _stablelm(config: Config) -> tuple[Decoder, Names]:
    _refuse_head_norms(config)
    parallel = bool(config.get("use_parallel_residual"))
    config = {"partial_rotary_factor": 0.25, **config, "rms_norm_eps": config["layer_norm_eps"]}
    return _llama(config, centered=True, parallel=parallel)


def _phi(config: Config) -> tuple[Decoder, Names]:
    _refuse_head_norms(config)
    config = {"partial_rotary_factor": 0.5, **config, "rms_norm_eps": config["layer_norm_eps"]}
    decoder, names = _llama(config, centered=True, gated=False, parallel=True)
    return decoder, dataclasses.replace(
        names,
        out="self_attn.dense",
        up=("mlp.fc1",),
        down="mlp.fc2",
        norm="final_layernorm",
        head_bias="lm_head.bias",
    )


def _refuse_head_norms(config: Config) -> None:
    if config.get("qk_layernorm"):
        raise ModelError(f"{config['model_type']} models with qk_layernorm are not supported")


def _gemma2(config: Config) -> tuple[Decoder, Names]:
    count = int(config["num_hidden_layers"])
    if config.get("layer_types") is None:
        kinds = ["full_attention" if i % 2 else "sliding_attention" for i in range(count)]
        config = {**config, "layer_types": kinds}
    return _gemma(config, _windows(config))


def _gemma3(config: Config) -> tuple[Decoder, Names]:
    count = int(config["num_hidden_layers"])
    if config.get("layer_types") is None:
        every = int(config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or 6)
        kinds = ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(count)]
        config = {**config, "layer_types": kinds}
    if config.get("use_bidirectional_attention"):
        raise ModelError("this gemma3 model attends in both directions: it generates no text")
    decoder, names = _gemma(config, _windows(config))
    local, _ = rope_of(config, decoder.dim, "sliding_attention")
    whole, rotated = rope_of(config, decoder.dim, "full_attention")
    kinds = config["layer_types"]
    layers = tuple(
        Layer(layer.window, int(kind == "full_attention"))
        for layer, kind in zip(decoder.layers, kinds, strict=False)
    )
    return dataclasses.replace(
        decoder, ropes=(local, whole), rotated=rotated, layers=layers, head_norms=True
    ), names


def _gemma(config: Config, windows: tuple[int, ...]) -> tuple[Decoder, Names]:
    config = {**config, "hidden_act": config.get("hidden_activation") or "gelu_pytorch_tanh"}
    decoder, names = _llama(config, windows=windows)
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
        prefixes=_MULTIMODAL,
        attention_post_norm="post_attention_layernorm",
        mlp_norm="pre_feedforward_layernorm",
        mlp_post_norm="post_feedforward_layernorm",
    )


def _gpt2(config: Config) -> tuple[Decoder, Names]:
    for option in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        if config.get(option):
            raise ModelError(f"gpt2 models with {option} are not supported")
    width, heads = int(config["n_embd"]), int(config["n_head"])
    dim = width // heads
    decoder = Decoder(
        architecture="gpt2",
        vocab=int(config["vocab_size"]),
        width=width,
        inner=int(config.get("n_inner") or 4 * width),
        heads=heads,
        kv_heads=heads,
        dim=dim,
        layers=(Layer(),) * int(config["n_layer"]),
        context=int(config["n_positions"]),
        eps=float(config["layer_norm_epsilon"]),
        centered=True,
        learned=int(config["n_positions"]),
        activation=activation_of(config, "activation_function"),
        gated=False,
        scale=dim**-0.5 if config.get("scale_attn_weights", True) else 1.0,
        stop=stop_of(config),
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


def _opt(config: Config) -> tuple[Decoder, Names]:
    width, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
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
    dim = width // heads
    decoder = Decoder(
        architecture="opt",
        vocab=int(config["vocab_size"]),
        width=width,
        inner=int(config["ffn_dim"]),
        heads=heads,
        kv_heads=heads,
        dim=dim,
        layers=(Layer(),) * int(config["num_hidden_layers"]),
        context=int(config["max_position_embeddings"]),
        eps=1e-5,
        centered=True,
        learned=int(config["max_position_embeddings"]) + 2,
        learned_offset=2,
        activation=activation_of(config, "activation_function"),
        gated=False,
        scale=dim**-0.5,
        embed_width=0 if inner == width else inner,
        norms_after=not before,
        stop=stop_of(config),
    )
    names = Names(
        prefixes=("model.decoder.", "decoder.", ""),
        positions="embed_positions",
        attention_norm="self_attn_layer_norm",
        out="self_attn.out_proj",
        mlp_norm="final_layer_norm",
        up=("fc1",),
        down="fc2",
        norm="final_layer_norm",
    )
    return decoder, names


ARCHITECTURES: dict[str, Callable[[Config], tuple[Decoder, Names]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "phi3": _phi3,
    "granite": _granite,
    "starcoder2": _starcoder2,
    "stablelm": _stablelm,
    "phi": _phi,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gpt2": _gpt2,
    "opt": _opt,
}
"""``model_type`` -> what reads its configuration."""
