"""Checkpoints: a folder of transformers (``config.json`` and safetensors) as named arrays."""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from hetero_tvm.errors import ModelError, shortened
from hetero_tvm.language.families.decoder import Names
from hetero_tvm.ops.decoding.storage import Weight

_DTYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
}
INTEGERS: Mapping[str, Any] = {"I8": np.int8, "I32": np.int32, "I64": np.int64}
"""Types of packed weights; elsewhere they are buffers such as masks."""
_GENERATION = (
    "eos_token_id",
    "decoder_start_token_id",
)
"""Entries of ``generation_config.json`` that count before those of ``config.json``."""
_RULES = (
    "forced_bos_token_id",
    "forced_eos_token_id",
    "suppress_tokens",
    "begin_suppress_tokens",
    "bad_words_ids",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "min_length",
    "min_new_tokens",
)
"""Entries that count in ``generation_config.json`` alone where there is one, as in transformers."""
_SCALES = ("weight_scale", "weight_scale_inv", "scale_weight", "scale")
"""Scales that lie beside weights of 8 bits."""
_POINTER = b"version https://git-lfs.github.com/spec/"
"""Start of a file that git-lfs has not fetched."""
_HEADER_LIMIT = 100 << 20
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


class Checkpoint(Protocol):
    """Weights by name, and the configuration that says what they are."""

    config: Mapping[str, Any]

    def names(self, names: Names) -> Names:
        """The names of an architecture, as this checkpoint spells them."""

    def __contains__(self, name: str) -> bool:
        """Whether there is such a tensor."""

    def array(self, name: str) -> np.ndarray:
        """A tensor as float32."""

    def matrix(self, name: str) -> Weight:
        """A matrix [N, K]: float32 or float16, or integers with scales where the file has those."""


class SafetensorsFolder:
    """A folder that ``save_pretrained`` wrote: one file of tensors, or several with an index.

    Raises
    ------
    ModelError : a file is missing, damaged, or leaves its folder.
    """

    _types = _DTYPES

    def __init__(self, folder: Path):
        self.folder = folder
        self.config: Mapping[str, Any] = read_json(folder / "config.json")
        if (folder / "generation_config.json").is_file():
            generation = read_json(folder / "generation_config.json")
            told = {name: generation[name] for name in _GENERATION if generation.get(name) is not None}
            rules = {name: generation.get(name) for name in _RULES}
            self.config = {**self.config, **told, **rules}
        self._tensors: dict[str, tuple[memoryview, str, tuple[int, ...]]] = {}
        for path in self._files():
            found = read_safetensors(path, self._types)
            self._tensors.update({_renamed(name): tensor for name, tensor in found.items()})

    def names(self, names: Names) -> Names:
        """The names as they are."""
        return names

    def _files(self) -> list[Path]:
        index = self.folder / _INDEX
        if not index.is_file():
            single = self.folder / _SINGLE
            if single.is_file():
                return [single]
            parts = sorted(path.name for path in self.folder.glob("model-*-of-*.safetensors"))
            raise ModelError(
                f"{self.folder} has neither {_SINGLE} nor {_INDEX}"
                + (f", but {parts[0]}, a part of a model" if parts else ""),
                hint=f"{_INDEX} of the same model says what lies in which part"
                if parts
                else "save the model with save_pretrained(folder, safe_serialization=True)",
            )
        names = read_json(index).get("weight_map")
        if not isinstance(names, Mapping) or not all(isinstance(name, str) for name in names.values()):
            raise ModelError(f"{index} has no weight_map")
        files = sorted(set(names.values()))
        outside = [name for name in files if Path(name).name != name]
        missing = [name for name in files if not (self.folder / name).is_file()]
        if outside or missing:
            problems = [f"{name}: not a file of this folder" for name in outside or missing]
            raise ModelError(
                f"{index} names files that are not there",
                problems=shortened(problems),
                hint="" if outside else f"fetch them too: the model has {len(files)} files of weights",
            )
        return [self.folder / name for name in files]

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def array(self, name: str) -> np.ndarray:
        """A tensor as float32; :class:`ModelError` when it is not there."""
        return np.asarray(self.matrix(name), np.float32)

    def matrix(self, name: str) -> np.ndarray:
        """A tensor as float32, or float16 where it is stored so."""
        if name not in self._tensors:
            raise ModelError(f"{self.folder} has no tensor {name!r}")
        base = name.removesuffix(".weight")
        scale = next((s for s in _SCALES if f"{base}.{s}" in self._tensors), None)
        if scale and self._tensors[name][1].startswith("F8"):
            raise ModelError(
                f"{name} in {self.folder} is of 8 bits and has scales ({base}.{scale}), and config.json has "
                "no quantization_config that says what they mean",
                hint="put its quantization_config back into config.json",
            )
        array = self._raw(name)
        return array if array.dtype in (np.float32, np.float16) else array.astype(np.float32)

    def _raw(self, name: str) -> np.ndarray:
        """A tensor as it is stored."""
        data, kind, shape = self._tensors[name]
        return np.frombuffer(data, self._types[kind]).reshape(shape)


def _renamed(name: str) -> str:
    """A tensor's name as transformers spells it now: scales and shifts of old BERTs are gamma and beta."""
    for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
        name = name.removesuffix(old) + new if name.endswith(old) else name
    return name


def read_safetensors(
    path: Path, types: Mapping[str, Any] = _DTYPES
) -> dict[str, tuple[memoryview, str, tuple[int, ...]]]:
    """Tensors of a file by name: bytes (mapped), element type in the format's words, shape.

    Integers that ``types`` does not have are left out.

    Raises
    ------
    ModelError : the file is damaged, or holds a type that no weight has.
    """
    try:
        refuse_pointer(path)
        with path.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        size = int.from_bytes(data[:8], "little")
        if len(data) < 8 or not 2 <= size <= min(_HEADER_LIMIT, len(data) - 8):
            raise ValueError("its header does not fit into the file")
        header = json.loads(bytes(data[8 : 8 + size]))
        found = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            kind, shape, (start, end) = entry["dtype"], tuple(map(int, entry["shape"])), entry["data_offsets"]
            if kind not in types:
                if kind in ("BOOL", "U8", "I8", "I16", "I32", "I64", "U16", "U32", "U64"):
                    continue  # buffers such as masks
                raise ValueError(f"{name} is of type {kind}")
            nbytes = math.prod(shape) * np.dtype(types[kind]).itemsize
            if (
                min(shape, default=0) < 0
                or end - start != nbytes
                or not 0 <= start <= end <= len(data) - 8 - size
            ):
                raise ValueError(f"{name} does not lie where the header says")
            found[name] = (data[8 + size + start : 8 + size + end], kind, shape)
        return found
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{path} is no safetensors file, or it is damaged: {error}") from error


def refuse_pointer(path: Path) -> None:
    """Raise :class:`ModelError` where a file is what git has in the place of a large one."""
    with path.open("rb") as file:
        start = file.read(len(_POINTER))
    if start == _POINTER:
        raise ModelError(
            f"{path} is a pointer of git-lfs, which has no content of the file",
            hint="run 'git lfs pull' in its folder, or download the file itself",
        )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; :class:`ModelError` when there is none."""
    try:
        refuse_pointer(path)
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} is no configuration: it holds no JSON object")
    return content
