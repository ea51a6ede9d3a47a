"""Tiny models of many architectures with random weights, and the fusions that each must show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("onnxscript")

HIDDEN, HEADS, INNER, VOCABULARY = 64, 4, 128, 96
BATCH, LENGTH, TARGET = 2, 16, 12
_LOGITS = ("logits",)

#: ONNX Runtime's GPT-2 and others also take the sum before a norm that the residual needs again.
EITHER = frozenset({"embedding_norm"})

NAMES = (
    "attention",
    "qkv",
    "layer_norm",
    "rms_norm",
    "group_norm",
    "gelu",
    "quick_gelu",
    "silu",
    "gated_mlp",
    "rope",
    "embedding_norm",
)


class Positional(torch.nn.Module):
    """A model as a function of tensors in order, that returns tensors; what exporters take best."""

    def __init__(self, model: Any, names: tuple[str, ...], outputs: tuple[str, ...]):
        super().__init__()
        self.model, self.names, self.outputs = model, names, outputs
        cached = outputs == _LOGITS or "decoder_input_ids" in names
        self.fixed = {"use_cache": False} if cached else {}

    def forward(self, *tensors: Any) -> Any:
        result = self.model(**dict(zip(self.names, tensors, strict=True)), **self.fixed)
        picked = tuple(getattr(result, name) for name in self.outputs)
        return picked if len(picked) > 1 else picked[0]


@dataclass(frozen=True)
class Architecture:
    """One architecture, two layers (or two per stage) of it.

    Parameters
    ----------
    config : configuration class of transformers, and the arguments that differ from the common ones.
    model : model class.
    inputs : names of what the model takes.
    counts : fusions by name; names that are not given must not occur.
    """

    config: str
    model: str
    inputs: tuple[str, ...]
    counts: Mapping[str, int]
    options: Mapping[str, Any]
    outputs: tuple[str, ...] = ("last_hidden_state",)
    encoder: bool = False
    """Only the encoder of an encoder-decoder model."""

    def build(self, attention: str) -> tuple[Any, dict[str, Any]]:
        """The module in evaluation mode, and seeded inputs by name."""
        torch.manual_seed(0)
        config = getattr(transformers, self.config)(attn_implementation=attention, **self.options)
        model = getattr(transformers, self.model)(config)
        model = _trained(model.encoder if self.encoder else model)
        inputs = {name: _INPUTS[name](config) for name in self.inputs}
        return Positional(model, self.inputs, self.outputs).eval(), inputs


def _trained(model: Any) -> Any:
    """Weights as training leaves them: no zeros, no two biases alike, results of order one."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.dim() < 2:
                weight.copy_(1 + 0.2 * noise if "weight" in name else 0.1 * noise)
            else:
                weight.copy_(noise * (0.7 if "embed" in name else 0.8 / weight[0].numel() ** 0.5))
    return model


def _tokens(length: int, seed: int) -> Callable[[Any], Any]:
    generator = torch.Generator().manual_seed(seed)
    return lambda config: torch.randint(3, VOCABULARY, (BATCH, length), generator=generator)


def _mask(config: Any) -> Any:
    mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    mask[0, -3:] = mask[1, -1:] = 0
    return mask


def _noise(*dims: int) -> Callable[[Any], Any]:
    return lambda config: torch.randn(BATCH, *dims, generator=torch.Generator().manual_seed(2))


_INPUTS: dict[str, Callable[[Any], Any]] = {
    "input_ids": _tokens(LENGTH, 3),
    "decoder_input_ids": _tokens(TARGET, 4),
    "attention_mask": _mask,
    "token_type_ids": lambda config: torch.arange(LENGTH).repeat(BATCH, 1) // (LENGTH // 2),
    "pixel_values": _noise(3, 32, 32),
    "input_features": _noise(16, 40),
}

# ---- the architectures --------------------------------------------------------------------------

_TEXT, _MASKED = ("input_ids",), ("input_ids", "attention_mask")
_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
    "max_position_embeddings": 66,
}
_IMAGE = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
    "image_size": 32,
    "patch_size": 8,
}
_GROUPED = {**_COMMON, "num_key_value_heads": 2, "pad_token_id": 0}
_CLIP_TEXT = {**_COMMON, "max_position_embeddings": 24, "eos_token_id": 2}

_BERT = {"attention": 2, "qkv": 2, "layer_norm": 5, "gelu": 2, "embedding_norm": 1}
_LLAMA = {"attention": 2, "qkv": 2, "rms_norm": 5, "silu": 2, "gated_mlp": 2, "rope": 4}
_VIT = {"attention": 2, "qkv": 2, "layer_norm": 5, "gelu": 2}

ARCHITECTURES: dict[str, Architecture] = {
    "bert": Architecture("BertConfig", "BertModel", (*_MASKED, "token_type_ids"), _BERT, _COMMON),
    "roberta": Architecture("RobertaConfig", "RobertaModel", _TEXT, _BERT, _COMMON),
    "distilbert": Architecture(
        "DistilBertConfig",
        "DistilBertModel",
        _MASKED,
        _BERT,
        {"vocab_size": VOCABULARY, "dim": HIDDEN, "n_layers": 2, "n_heads": HEADS, "hidden_dim": INNER},
    ),
    "albert": Architecture("AlbertConfig", "AlbertModel", _MASKED, _BERT, {**_COMMON, "embedding_size": 32}),
    # Its norms are scales and shifts without statistics; Q and K share an input that V does not have.
    "mobilebert": Architecture(
        "MobileBertConfig",
        "MobileBertModel",
        _MASKED,
        {"attention": 2, "qkv": 2},
        {**_COMMON, "embedding_size": 32, "num_attention_heads": 2, "intra_bottleneck_size": 32},
    ),
    "gpt2": Architecture(
        "GPT2Config",
        "GPT2LMHeadModel",
        _MASKED,
        {"attention": 2, "layer_norm": 5, "gelu": 2},
        {"vocab_size": VOCABULARY, "n_embd": HIDDEN, "n_layer": 2, "n_head": HEADS, "n_positions": 64},
        _LOGITS,
    ),
    "opt": Architecture(
        "OPTConfig",
        "OPTForCausalLM",
        _MASKED,
        {"attention": 2, "qkv": 2, "layer_norm": 5},
        {**_COMMON, "ffn_dim": INNER, "word_embed_proj_dim": HIDDEN},
        _LOGITS,
    ),
    "llama": Architecture("LlamaConfig", "LlamaForCausalLM", _MASKED, _LLAMA, _GROUPED, _LOGITS),
    "qwen2": Architecture("Qwen2Config", "Qwen2ForCausalLM", _MASKED, _LLAMA, _GROUPED, _LOGITS),
    # Q and K have norms of their own.
    "qwen3": Architecture(
        "Qwen3Config",
        "Qwen3ForCausalLM",
        _MASKED,
        {**_LLAMA, "rms_norm": 9},
        {**_GROUPED, "head_dim": 32},
        _LOGITS,
    ),
    # One norm per layer, half of each head rotated.
    "phi": Architecture(
        "PhiConfig",
        "PhiForCausalLM",
        _MASKED,
        {"attention": 2, "qkv": 2, "layer_norm": 3, "gelu": 2, "rope": 4},
        {**_COMMON, "partial_rotary_factor": 0.5, "pad_token_id": 0},
        _LOGITS,
    ),
    "gemma": Architecture(
        "GemmaConfig",
        "GemmaForCausalLM",
        _MASKED,
        {**_LLAMA, "silu": 0, "gelu": 2},
        {**_GROUPED, "head_dim": 32},
        _LOGITS,
    ),
    # Cross attention projects K and V of the encoder's result together.
    "t5": Architecture(
        "T5Config",
        "T5Model",
        (*_MASKED, "decoder_input_ids"),
        {"attention": 6, "qkv": 6, "rms_norm": 12},
        {
            "vocab_size": VOCABULARY,
            "d_model": HIDDEN,
            "d_kv": 16,
            "d_ff": INNER,
            "num_layers": 2,
            "num_heads": HEADS,
        },
    ),
    "bart": Architecture(
        "BartConfig",
        "BartModel",
        (*_MASKED, "decoder_input_ids"),
        {"attention": 6, "qkv": 6, "layer_norm": 12, "gelu": 4, "embedding_norm": 2},
        {
            "vocab_size": VOCABULARY,
            "d_model": HIDDEN,
            "max_position_embeddings": 64,
            **{
                f"{part}_{key}": value
                for part in ("encoder", "decoder")
                for key, value in (("layers", 2), ("attention_heads", HEADS), ("ffn_dim", INNER))
            },
        },
    ),
    "vit": Architecture("ViTConfig", "ViTModel", ("pixel_values",), _VIT, _IMAGE),
    "deit": Architecture("DeiTConfig", "DeiTModel", ("pixel_values",), _VIT, _IMAGE),
    "swin": Architecture(
        "SwinConfig",
        "SwinModel",
        ("pixel_values",),
        {"attention": 4, "qkv": 4, "layer_norm": 11, "gelu": 4},
        {
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 32,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": 4,
        },
    ),
    "clip": Architecture(
        "CLIPConfig",
        "CLIPModel",
        ("input_ids", "pixel_values", "attention_mask"),
        {"attention": 4, "qkv": 4, "layer_norm": 11, "quick_gelu": 4},
        {"text_config": _CLIP_TEXT, "vision_config": _IMAGE, "projection_dim": 32},
        ("logits_per_image", "text_embeds"),
    ),
    "whisper": Architecture(
        "WhisperConfig",
        "WhisperModel",
        ("input_features",),
        {"attention": 2, "qkv": 2, "layer_norm": 5, "gelu": 4},
        {
            "vocab_size": VOCABULARY,
            "num_mel_bins": 16,
            "d_model": HIDDEN,
            "encoder_layers": 2,
            "decoder_layers": 1,
            "encoder_attention_heads": HEADS,
            "decoder_attention_heads": HEADS,
            "encoder_ffn_dim": INNER,
            "max_source_positions": 20,
            "max_target_positions": 20,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        encoder=True,
    ),
}

#: Architectures in which one thing is written as nowhere above, each by one exporter alone.
FURTHER: dict[str, Architecture] = {
    # Every product is an einsum, positions are scores of their own, shifted.
    "xlnet": Architecture(
        "XLNetConfig",
        "XLNetModel",
        _MASKED,
        {"attention": 2, "qkv": 2, "layer_norm": 4, "gelu": 2},
        {
            "vocab_size": VOCABULARY,
            "d_model": HIDDEN,
            "n_layer": 2,
            "n_head": HEADS,
            "d_inner": INNER,
            "use_mems_eval": False,
        },
    ),
    # Norms in front of and behind each block, a soft cap, every second layer sees a window.
    "gemma2": Architecture(
        "Gemma2Config",
        "Gemma2ForCausalLM",
        _MASKED,
        {**_LLAMA, "silu": 0, "gelu": 2, "rms_norm": 9},
        {**_GROUPED, "head_dim": 32, "sliding_window": 5, "query_pre_attn_scalar": 20},
        _LOGITS,
    ),
    # One head of keys and values, gathered from the packed projection.
    "falcon": Architecture(
        "FalconConfig",
        "FalconForCausalLM",
        _MASKED,
        {"attention": 2, "layer_norm": 3, "gelu": 2, "rope": 4},
        {
            **{key: _COMMON[key] for key in _COMMON if "_size" not in key},
            "vocab_size": VOCABULARY,
            "hidden_size": HIDDEN,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        _LOGITS,
    ),
    # The first norm is over the channels of an image.
    "convnext": Architecture(
        "ConvNextConfig",
        "ConvNextModel",
        ("pixel_values",),
        {"layer_norm": 5, "gelu": 3},
        {"hidden_sizes": [8, 12], "depths": [2, 1], "num_stages": 2, "image_size": 32},
    ),
}
