"""GGUF files as checkpoints: weights under transformers' names, 4 and 8 bits as they are stored.

Q4_0 and Q8_0 become :class:`QuantizedWeight` without any rounding; other types that the package gguf knows
become float32 and are stored as the precision of the build says.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hetero_tvm.errors import ModelError, UsageError
from hetero_tvm.host.install import extra_command
from hetero_tvm.language.families.decoder import Names
from hetero_tvm.ops.decoding.storage import QuantizedWeight, Storage, Weight

_BLOCK = 32
_FLOATS = {"F32": np.float32, "F16": np.float16}
_MODEL_TYPES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "phi3": "phi3",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "gpt2": "gpt2",
    "olmo2": "olmo2",
    "olmoe": "olmoe",
    "gpt-oss": "gpt_oss",
    "lfm2": "lfm2",
}
_COMMON = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_EXPERTS = {
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "gate_proj": "ffn_gate_exps",
    "up_proj": "ffn_up_exps",
    "down_proj": "ffn_down_exps",
    "w1": "ffn_gate_exps",
    "w3": "ffn_up_exps",
    "w2": "ffn_down_exps",
}
"""The router; matrices of all experts in one tensor, by their names behind the expert's number."""
_GEMMA = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_OLMO2 = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_GPT_OSS = {
    "post_attention_layernorm": "post_attention_norm",
    "mlp.router": "ffn_gate_inp",
    "self_attn.sinks": "attn_sinks",
}
_LFM2 = {
    "embedding_norm": "token_embd_norm",
    "operator_norm": "attn_norm",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "self_attn.out_proj": "attn_output",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down",
    "conv.conv": "shortconv.conv",
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
}
_OTHER_WORDS = {
    "gemma2": _GEMMA,
    "gemma3": _GEMMA,
    "olmo2": _OLMO2,
    "gpt-oss": _GPT_OSS,
    "lfm2": _LFM2,
}
_GPT2 = {
    "wte": "token_embd",
    "wpe": "position_embd",
    "ln_f": "output_norm",
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
_LARGEST_GEMMA = {"gemma2": 46, "gemma3": 62}
"""Layers of the Gemmas of 27 B.  They scale queries by the width of the model over its heads, which is not
the channels of a head, and files do not say so."""
_UNSAID = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "attention.sliding_window": 4096}
"""Values that the first files of Gemma 2 leave out."""
_PREFIX = re.compile(r"^(?:model\.language_model|language_model\.model|model|transformer)\.")
_LAYER = re.compile(r"^(?:layers|h)\.(\d+)\.(.+)$")
_EXPERT = re.compile(r"(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)\.(?:weight|bias)$")


class GgufFile:
    """A GGUF file, or the first of several that a model was split into.

    Raises
    ------
    ModelError : it is damaged, one of several is missing, or the architecture is not among those known.
    UsageError : the package gguf is not installed.
    """

    def __init__(self, path: Path):
        self.path = path
        self._gguf = _package()
        try:
            reader = self._gguf.GGUFReader(path)
            self._fields = {name: field.contents() for name, field in reader.fields.items() if field.types}
            self._tensors = {tensor.name: tensor for tensor in reader.tensors}
            for other in self._others():
                self._tensors |= {tensor.name: tensor for tensor in self._gguf.GGUFReader(other).tensors}
        except ModelError:
            raise
        except Exception as error:  # the package raises what NumPy and its own checks raise
            raise ModelError(f"{path} is no GGUF file, or it is damaged: {error}") from error
        self._kind = str(self._fields.get("general.architecture"))
        if self._kind not in _MODEL_TYPES:
            raise ModelError(
                f"{path} holds a model of type {self._kind!r}", hint=f"known: {', '.join(_MODEL_TYPES)}"
            )
        self._words = _COMMON | _EXPERTS | _OTHER_WORDS.get(self._kind, {})
        if self._kind == "gpt2":
            self._words = _GPT2
        try:
            self.config: Mapping[str, Any] = self._configuration()
        except KeyError as error:
            raise ModelError(f"{path} does not say its {error}") from error
        except (TypeError, ValueError, IndexError, ZeroDivisionError, OverflowError) as error:
            raise ModelError(f"the configuration in {path} is damaged: {error}") from error

    def _others(self) -> list[Path]:
        """The other files of a model in several, of which the first has the metadata."""
        count = int(self._fields.get("split.count") or 1)
        if count < 2:
            return []
        parts = re.fullmatch(r"(.*)-\d{5}-of-\d{5}\.gguf", self.path.name)
        base = parts[1] if parts else self.path.stem
        names = [f"{base}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]
        if self._fields.get("split.no") or self.path.name != names[0]:
            raise ModelError(
                f"{self.path} is one of {count} files of a model", hint=f"give the first: {names[0]}"
            )
        others = [self.path.with_name(name) for name in names[1:]]
        if missing := [path.name for path in others if not path.is_file()]:
            raise ModelError(f"{self.path} is one of {count} files", problems=[f"missing: {missing[0]}"])
        return others

    def names(self, names: Names) -> Names:
        """Names as in a checkpoint of transformers; all matrices are [N, K] here, and gate and up are two."""
        names = dataclasses.replace(names, transposed=False)
        if self._kind != "gpt-oss":
            return names
        return dataclasses.replace(
            names,
            expert="mlp.experts.{}.",
            expert_up=("gate_proj", "up_proj"),
            expert_rows=(),
            expert_transposed=False,
            sinks="self_attn.sinks.weight",
        )

    def __contains__(self, name: str) -> bool:
        return self._stored_name(name) in self._tensors

    def array(self, name: str) -> np.ndarray:
        """A tensor as float32; :class:`ModelError` when it is not there."""
        value = self.matrix(name)
        value = value.dequantized() if isinstance(value, QuantizedWeight) else value
        value = np.asarray(value, np.float32)
        if self._kind.startswith("gemma") and value.ndim == 1:
            value = value - 1  # the file has the sum with the offset of the norm
        if name.endswith("conv.conv.weight"):
            value = value.reshape(len(value), 1, -1)  # channels, rows
        return value

    def matrix(self, name: str) -> Weight:
        """A matrix [N, K]: floats, or integers with scales as they are stored."""
        stored = self._stored_name(name)
        if stored not in self._tensors:
            raise ModelError(f"{self.path} has no tensor {stored!r} ({name})")
        try:
            expert = _EXPERT.search(name)
            return self._turned_back(name, self._weight(stored, int(expert[1]) if expert else None))
        except (TypeError, ValueError) as error:
            raise ModelError(f"{stored} in {self.path} is damaged: {error}") from error

    def _weight(self, stored: str, expert: int | None = None) -> Weight:
        """A tensor by its name in the file; the matrix of one expert where it has all."""
        tensor = self._tensors[stored]
        shape, data = tuple(int(extent) for extent in reversed(tensor.shape)), np.asarray(tensor.data)
        if expert is not None:
            if len(shape) != 2 + stored.endswith(".weight") or expert >= shape[0]:
                raise ValueError(f"it is {list(shape)} and has no expert {expert}")
            data, shape = data.reshape(*shape[:-1], -1)[expert], shape[1:]
        kind = tensor.tensor_type.name
        if kind in _FLOATS:
            return data.reshape(shape)
        if kind in ("Q4_0", "Q8_0") and len(shape) == 2:
            return _integers(data, kind, shape)
        try:
            return self._gguf.quants.dequantize(data, tensor.tensor_type).reshape(shape)
        except NotImplementedError as error:
            raise ModelError(f"{stored} is of type {kind}, which cannot be read: {error}") from error

    def _turned_back(self, name: str, value: Weight) -> Weight:
        """Queries and keys of Llama are stored with the halves of each head interleaved."""
        role = name.rpartition(".")[0].rpartition(".")[2]
        if self._kind != "llama" or role not in ("q_proj", "k_proj"):
            return value
        heads = self.config["num_attention_heads" if role == "q_proj" else "num_key_value_heads"]
        rows = np.arange(value.shape[0]).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
        if isinstance(value, QuantizedWeight):
            return QuantizedWeight(value.storage, value.q[rows], value.scale[rows])
        return value[rows]

    def _stored_name(self, name: str) -> str:
        """``model.layers.0.mlp.up_proj.weight`` -> ``blk.0.ffn_up.weight``."""
        base, _, suffix = _PREFIX.sub("", name).rpartition(".")
        if layer := _LAYER.match(base):
            if expert := _EXPERT.match(f"{layer[2]}.{suffix}"):
                return f"blk.{layer[1]}.{_EXPERTS.get(expert[2], expert[2])}.{suffix}"
            return f"blk.{layer[1]}.{self._words.get(layer[2], layer[2])}.{suffix}"
        return f"{self._words.get(base, base)}.{suffix}"

    # configuration -----------------------------------------------------------------------------
    def _get(self, name: str) -> Any:
        unsaid = _UNSAID.get(name) if self._kind == "gemma2" else None
        return self._fields.get(f"{self._kind}.{name}", unsaid)

    def _need(self, name: str) -> Any:
        return self._fields[f"{self._kind}.{name}"]

    def _configuration(self) -> dict[str, Any]:
        """The metadata as transformers would say it."""
        heads, width = int(self._need("attention.head_count")), int(self._need("embedding_length"))
        ends = (self._fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
        stop = list(dict.fromkeys(int(token) for token in ends if token is not None))
        dim = int(self._get("attention.key_length") or width // heads)
        rotated = int(self._get("rope.dimension_count") or dim)
        vocab = int(self._tensors["token_embd.weight"].shape[1])
        epsilon = self._get("attention.layer_norm_rms_epsilon") or self._get("attention.layer_norm_epsilon")
        epsilon = float(str(np.float32(epsilon)))  # the number that was rounded to float32
        common = {
            "model_type": _MODEL_TYPES[self._kind],
            "vocab_size": vocab,
            "eos_token_id": stop or None,  # of the text, of what one speaker says
        }
        if self._kind == "gpt2":
            return common | {
                "n_embd": width,
                "n_head": heads,
                "n_layer": int(self._need("block_count")),
                "n_inner": int(self._need("feed_forward_length")),
                "n_positions": int(self._need("context_length")),
                "layer_norm_epsilon": epsilon,
                "activation_function": "gelu_new",
            }
        if count := int(self._get("expert_count") or 0):
            common |= self._experts(count)
        inner = int(self._get("expert_feed_forward_length") or 0)
        kv_heads = self._get("attention.head_count_kv") or heads
        if self._kind == "lfm2":  # a number per layer, 0 where it has no attention
            listed = [int(count) for count in kv_heads] if isinstance(kv_heads, list) else []
            kv_heads = max(listed, default=0) or heads
            common |= {
                "layer_types": ["full_attention" if count else "conv" for count in listed],
                "conv_L_cache": int(self._need("shortconv.l_cache")),
                "norm_eps": epsilon,
                "block_auto_adjust_ff_dim": False,
                "tie_word_embeddings": "output.weight" not in self._tensors,
            }
        return common | {
            "moe_intermediate_size": inner or None,
            "hidden_size": width,
            "num_attention_heads": heads,
            "num_key_value_heads": int(kv_heads),
            "num_hidden_layers": int(self._need("block_count")),
            "intermediate_size": int(
                self._get("feed_forward_length") or inner or self._need("feed_forward_length")
            ),
            "max_position_embeddings": int(self._need("context_length")),
            "head_dim": dim,
            "rms_norm_eps": epsilon,
            "hidden_act": "silu",
            "rope_theta": float(self._get("rope.freq_base") or 10000.0),
            "partial_rotary_factor": rotated / dim,
            "rope_scaling": self._scaling(),
            "sliding_window": self._get("attention.sliding_window"),
            "attn_logit_softcapping": self._get("attn_logit_softcapping"),
            "final_logit_softcapping": self._get("final_logit_softcapping"),
            "query_pre_attn_scalar": width // heads if self._is_largest_gemma() else dim,
        }

    def _experts(self, count: int) -> dict[str, Any]:
        """Entries of a mixture of experts; llama's are Mixtral."""
        if self._kind not in ("llama", "qwen3moe", "olmoe", "gpt-oss"):
            raise ModelError(
                f"{self.path} holds a mixture of experts of type {self._kind!r}, which is not known"
            )
        entries = {
            "num_local_experts": count,
            "num_experts_per_tok": int(self._need("expert_used_count")),
            "norm_topk_prob": self._kind != "olmoe",
        }
        return entries | ({"model_type": "mixtral"} if self._kind == "llama" else {})

    def _is_largest_gemma(self) -> bool:
        return int(self._need("block_count")) == _LARGEST_GEMMA.get(self._kind)

    def _scaling(self) -> dict[str, Any] | None:
        kind = self._get("rope.scaling.type")
        if "rope_freqs.weight" in self._tensors:  # Llama 3: a factor per frequency
            factors = np.asarray(self._tensors["rope_freqs.weight"].data, np.float32).reshape(-1).tolist()
            return {"type": "longrope", "short_factor": factors, "attention_factor": 1.0}
        if kind in (None, "none"):
            return None
        options = {"type": str(kind), "factor": self._get("rope.scaling.factor")}
        options["original_max_position_embeddings"] = self._get("rope.scaling.original_context_length")
        if "rope_factors_long.weight" in self._tensors:
            for length in ("long", "short"):
                factors = np.asarray(self._tensors[f"rope_factors_{length}.weight"].data, np.float32)
                options[f"{length}_factor"] = factors.reshape(-1).tolist()
            options["attention_factor"] = self._get("rope.scaling.attn_factor")
            options["type"] = "longrope"
        return options | ({"truncate": False} if self._kind == "gpt-oss" else {})


def _integers(data: np.ndarray, kind: str, shape: tuple[int, ...]) -> QuantizedWeight:
    """Blocks of 32 with a float16 scale -> integers and scales."""
    blocks = np.ascontiguousarray(data).view(np.uint8).reshape(shape[0], shape[1] // _BLOCK, -1)
    scale = np.ascontiguousarray(blocks[:, :, :2]).view(np.float16)[:, :, 0]
    values = blocks[:, :, 2:]
    if kind == "Q8_0":
        q = (values.view(np.int8).astype(np.int16) + 128).astype(np.uint8)
        return QuantizedWeight(Storage("int8", _BLOCK), q.reshape(shape), scale)
    q = np.concatenate([values & 15, values >> 4], 2)
    return QuantizedWeight(Storage("int4", _BLOCK), q.reshape(shape), scale)


def _package() -> Any:
    try:
        import gguf
    except ImportError:
        raise UsageError(
            "reading a GGUF file needs the package gguf", hint=extra_command("generate")
        ) from None
    return gguf
