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
from hetero_tvm.language.checkpoints.checkpoint import refuse_pointer
from hetero_tvm.language.checkpoints.gguf_families import FAMILIES, MIXTURES, expert_names
from hetero_tvm.language.checkpoints.gguf_words import EXPERTS
from hetero_tvm.language.families.decoder import Names
from hetero_tvm.ops.decoding.storage import QuantizedWeight, Storage, Weight

_BLOCK = 32
_FLOATS = {"F32": np.float32, "F16": np.float16}
_LARGEST_GEMMA = {"gemma2": 46, "gemma3": 62}
"""Layers of the Gemmas of 27 B.  They scale queries by the width of the model over its heads, which is not
the channels of a head, and files do not say so."""
_UNSAID = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "attention.sliding_window": 4096}
"""Values that the first files of Gemma 2 leave out."""
_PREFIX = re.compile(r"^(?:model\.language_model|language_model\.model|model|transformer|backbone)\.")
_LAYER = re.compile(r"^(?:layers|h)\.(\d+)\.(.+)$")
_EXPERT = re.compile(r"(?:mlp|block_sparse_moe|feed_forward)\.experts\.(\d+)\.(\w+)\.(?:weight|bias)$")
_STREAM = re.compile(r"altup_\w+\.(\d+)\.weight$")


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
            refuse_pointer(path)
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
        if self._kind not in FAMILIES:
            raise ModelError(
                f"{path} holds a model of type {self._kind!r}",
                hint=f"known: {', '.join(FAMILIES)}; "
                "build the folder of transformers that the file was made of, with --precision int4",
            )
        self._family = FAMILIES[self._kind]
        self._words = self._family.words
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
        names = dataclasses.replace(names, transposed=False, factors={})
        if self._kind == "granitemoe":
            return expert_names(names)
        if self._kind == "qwen3next":  # parts of all heads lie together, and gates are apart
            return dataclasses.replace(names, recurrent_in=("in_proj_qkv", "in_proj_z"), recurrent_rows=())
        if self._kind == "stablelm":  # norms of all heads are in one tensor
            return dataclasses.replace(names, head_norms=Names().head_norms)
        if self._kind == "gemma4":
            factor = f"{names.layer_factor}.weight"
            return dataclasses.replace(names, layer_factor=factor, expert="mlp.experts.{}.")
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
        stored = self._stored_name(name)
        return stored in self._tensors or self._halves(stored) is not None

    def array(self, name: str) -> np.ndarray:
        """A tensor as float32; :class:`ModelError` when it is not there."""
        value = self.matrix(name)
        value = value.dequantized() if isinstance(value, QuantizedWeight) else value
        value = np.asarray(value, np.float32)
        of_norm = name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight")
        if self._family.norm_offset and value.ndim == 1 and of_norm:
            value = value - 1  # the file has the sum with the offset of the norm
        if name.endswith(("conv.conv.weight", "conv1d.weight")):
            value = value.reshape(len(value), 1, -1)  # channels, rows
        elif name.endswith("shared_expert_gate.weight"):
            value = value.reshape(1, -1)
        elif name.endswith("A_log"):
            value = np.log(-value)
        if name.endswith((".A_log", ".D", "mamba.norm.weight")) and self._family.heads:
            value = value.reshape(-1)
        return value

    def matrix(self, name: str) -> Weight:
        """A matrix [N, K]: floats, or integers with scales as they are stored."""
        stored = self._stored_name(name)
        if stored not in self._tensors and (halves := self._halves(stored)) is not None:
            return self._joined(*halves)
        if stored not in self._tensors:
            raise ModelError(f"{self.path} has no tensor {stored!r} ({name})")
        try:
            part = _EXPERT.search(name) or _STREAM.search(name)
            return self._turned_back(name, self._weight(stored, int(part[1]) if part else None))
        except (TypeError, ValueError) as error:
            raise ModelError(f"{stored} in {self.path} is damaged: {error}") from error

    def _halves(self, stored: str) -> tuple[str, str] | None:
        """Names of keys and values of latent attention, where the file has two tensors of them."""
        halves = tuple(stored.replace(".attn_kv_b.", f".attn_{half}_b.") for half in "kv")
        there = ".attn_kv_b." in stored and all(half in self._tensors for half in halves)
        return (halves[0], halves[1]) if there else None

    def _joined(self, keys: str, values: str) -> np.ndarray:
        """Matrix [heads * (key + value), K] of keys [heads, K, key] and values [heads, value, K]."""
        try:
            parts = [np.asarray(self._weight(name), np.float32) for name in (keys, values)]
            joined = np.concatenate([parts[0].swapaxes(1, 2), parts[1]], 1)
        except (TypeError, ValueError, IndexError) as error:
            raise ModelError(f"{keys} and {values} in {self.path} do not fit together: {error}") from error
        return joined.reshape(-1, joined.shape[2])

    def _weight(self, stored: str, expert: int | None = None) -> Weight:
        """A tensor by its name in the file; the matrix of one expert, or one stream, where it has all."""
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
        if not self._family.interleaved or role not in ("q_proj", "k_proj"):
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
            if one := self._words.get(f"{layer[2]}.{suffix}"):
                return f"blk.{layer[1]}.{one}"
            if expert := _EXPERT.match(f"{layer[2]}.{suffix}"):
                return f"blk.{layer[1]}.{EXPERTS.get(expert[2], expert[2])}.{suffix}"
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
        if self._kind == "mamba":
            return self._mamba()
        heads, width = int(self._need("attention.head_count")), int(self._need("embedding_length"))
        ends = (self._fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
        stop = list(dict.fromkeys(int(token) for token in ends if token is not None))
        dim = int(self._get("attention.key_length") or width // heads)
        rotated = int(self._get("rope.dimension_count") or dim)
        vocab = int(self._tensors["token_embd.weight"].shape[1])
        epsilon = self._get("attention.layer_norm_rms_epsilon") or self._get("attention.layer_norm_epsilon")
        epsilon = float(str(np.float32(epsilon)))  # the number that was rounded to float32
        common = {
            "model_type": self._family.model_type,
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
        common |= self._family.more(self._get, self._tensors)
        inner = int(self._get("expert_feed_forward_length") or 0)
        kv_heads = self._get("attention.head_count_kv") or heads
        if self._kind.startswith("lfm2"):  # a number per layer, 0 where it has no attention
            listed = [int(count) for count in kv_heads] if isinstance(kv_heads, list) else []
            kv_heads = max(listed, default=0) or heads
            common |= {
                "layer_types": ["full_attention" if count else "conv" for count in listed],
                "conv_L_cache": int(self._need("shortconv.l_cache")),
                "norm_eps": epsilon,
                "block_auto_adjust_ff_dim": False,
                "tie_word_embeddings": "output.weight" not in self._tensors,
            }
        each = self._get("feed_forward_length") or inner or self._need("feed_forward_length")
        layers = int(self._need("block_count")) - int(self._get("nextn_predict_layers") or 0)
        return {
            "moe_intermediate_size": inner or None,
            "hidden_size": width,
            "num_attention_heads": heads,
            "num_key_value_heads": int(max(kv_heads) if isinstance(kv_heads, list) else kv_heads),
            "num_hidden_layers": layers,
            "intermediate_size": int(max(each) if isinstance(each, list) else each),
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
            **common,
        }

    def _mamba(self) -> dict[str, Any]:
        """Entries of a Mamba, or of a Falcon-Mamba, which normalises what steps are made of."""
        normalised = bool(self._get("ssm.dt_b_c_rms"))
        stop = self._fields.get("tokenizer.ggml.eos_token_id")
        epsilon = float(str(np.float32(self._need("attention.layer_norm_rms_epsilon"))))
        return {
            "model_type": "falcon_mamba" if normalised else "mamba",
            "vocab_size": int(self._tensors["token_embd.weight"].shape[1]),
            "eos_token_id": None if stop is None else [int(stop)],
            "hidden_size": int(self._need("embedding_length")),
            "num_hidden_layers": int(self._need("block_count")),
            "intermediate_size": int(self._need("ssm.inner_size")),
            "conv_kernel": int(self._need("ssm.conv_kernel")),
            "state_size": int(self._need("ssm.state_size")),
            "time_step_rank": int(self._need("ssm.time_step_rank")),
            "layer_norm_epsilon": epsilon,
            "mixer_rms_eps": 1e-6,  # of all Falcon-Mambas; files do not say it
            "tie_word_embeddings": "output.weight" not in self._tensors,
        }

    def _experts(self, count: int) -> dict[str, Any]:
        """Entries of a mixture of experts."""
        if self._kind not in MIXTURES:
            raise ModelError(
                f"{self.path} holds a mixture of experts of type {self._kind!r}, which is not known"
            )
        model_type, normalised = MIXTURES[self._kind]
        told = self._get("expert_weights_norm")
        return {
            "model_type": model_type,
            "num_local_experts": count,
            "num_experts": count,
            "n_routed_experts": count,
            "num_experts_per_tok": int(self._need("expert_used_count")),
            "norm_topk_prob": normalised if told is None else bool(told),
            "routed_scaling_factor": float(str(np.float32(self._get("expert_weights_scale") or 1.0))),
        }

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
