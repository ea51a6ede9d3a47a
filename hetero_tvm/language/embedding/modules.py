"""Folders of sentence-transformers: which modules a model is made of, and what they do."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetero_tvm.errors import ModelError
from hetero_tvm.generation.embedding import NORMALIZE, POOLINGS
from hetero_tvm.language.checkpoints.checkpoint import read_json

MODULES = "modules.json"
_POOLING_KEYS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
_ACTIVATIONS = {"Identity": None, "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu_erf", "Sigmoid": "sigmoid"}
_TRANSFORMER_FILES = ("sentence_bert_config.json", "sentence_roberta_config.json")


@dataclass(frozen=True)
class Dense:
    """A layer behind the pooling: its folder, the channels that it gives and takes, its activation."""

    folder: Path
    n: int
    k: int
    activation: str | None


@dataclass(frozen=True)
class Modules:
    """Description of a model by its folder of sentence-transformers.

    Parameters
    ----------
    encoder : folder of the transformer.
    poolings : names in :data:`hetero_tvm.generation.embedding.POOLINGS`.
    steps : what follows, in order: ``normalize``, or a dense layer.
    longest : tokens of a text at most; None for as many as the encoder takes.
    lower, prompts, prompt : of :class:`hetero_tvm.generation.embedding.EmbeddingFacts`.
    """

    encoder: Path
    poolings: tuple[str, ...] = ("mean",)
    steps: tuple[str | Dense, ...] = ()
    longest: int | None = None
    lower: bool = False
    prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    prompt: str = ""


def read_modules(folder: Path) -> Modules:
    """The modules of a folder; one without ``modules.json`` has its mean, as in sentence-transformers.

    Raises
    ------
    ModelError : a file is damaged, or names a module that is not built; lists all.
    """
    if not (folder / MODULES).is_file():
        return Modules(folder)
    listed = _read_list(folder / MODULES)
    kinds = [str(entry["type"]).rpartition(".")[2] for entry in listed]
    paths = [folder / _inside(str(entry["path"])) for entry in listed]
    if kinds[:2] != ["Transformer", "Pooling"]:
        raise ModelError(
            f"{folder / MODULES}: a model is built that begins with Transformer and Pooling, this one has "
            f"{', '.join(kinds) or 'no modules'}",
            hint="export the model to ONNX or by torch.export.save(program, 'net.pt2') and build that file",
        )
    steps: list[str | Dense] = []
    unknown = [kind for kind in kinds[2:] if kind not in ("Dense", "Normalize", "Dropout")]
    if unknown:
        raise ModelError(f"{folder / MODULES} has modules that are not built: {', '.join(unknown)}")
    for kind, path in zip(kinds[2:], paths[2:], strict=True):
        if kind != "Dropout":
            steps.append(_dense(path) if kind == "Dense" else NORMALIZE)
    longest, lower = _limits(paths[0])
    prompts, prompt = _prompts(folder)
    return Modules(paths[0], _poolings(paths[1]), tuple(steps), longest, lower, prompts, prompt)


def _read_list(path: Path) -> list[Mapping[str, Any]]:
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    if not isinstance(listed, list) or not all(
        isinstance(entry, dict) and {"type", "path"} <= entry.keys() for entry in listed
    ):
        raise ModelError(f"{path} is no list of modules with their types and paths")
    return listed


def _inside(path: str) -> str:
    """A path that stays in its folder."""
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise ModelError(f"{MODULES} names {path!r}, which is not in its folder")
    return path


def _poolings(folder: Path) -> tuple[str, ...]:
    """Poolings of rows, in the order in which their vectors are joined."""
    path = folder / "config.json"
    config = read_json(path)
    if config.get("include_prompt", True) is False:
        raise ModelError(f"{path}: include_prompt is false: prompts always count among a text's tokens here")
    named = config.get("pooling_mode")
    if named is not None:
        found = tuple(named) if isinstance(named, list) else (named,)
    else:
        found = tuple(name for name, key in _POOLING_KEYS.items() if config.get(key))
    unknown = [name for name in found if name not in POOLINGS]
    if unknown or not found:
        raise ModelError(f"{path}: texts are pooled by {unknown or 'nothing'}; known: {', '.join(POOLINGS)}")
    return found


def _dense(folder: Path) -> Dense:
    path = folder / "config.json"
    config = read_json(path)
    try:
        n, k = int(config["out_features"]), int(config["in_features"])
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path} is damaged: {error}") from error
    name = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    if name not in _ACTIVATIONS:
        raise ModelError(f"{path}: the activation {name!r} is not one of {', '.join(_ACTIVATIONS)}")
    return Dense(folder, n, k, _ACTIVATIONS[name])


def _limits(folder: Path) -> tuple[int | None, bool]:
    """Tokens of a text at most, and whether texts are written in small letters first."""
    path = next((folder / name for name in _TRANSFORMER_FILES if (folder / name).is_file()), None)
    if path is None:
        return None, False
    config = read_json(path)
    longest = config.get("max_seq_length")
    if longest is not None and (isinstance(longest, bool) or not isinstance(longest, int) or longest < 1):
        raise ModelError(f"{path}: max_seq_length is {longest!r}")
    return longest, config.get("do_lower_case") is True


def _prompts(folder: Path) -> tuple[Mapping[str, str], str]:
    """Texts that may stand before a text, and the name of the one that does by itself."""
    path = folder / "config_sentence_transformers.json"
    if not path.is_file():
        return {}, ""
    config = read_json(path)
    prompts, prompt = config.get("prompts") or {}, config.get("default_prompt_name") or ""
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise ModelError(f"{path}: prompts are no texts by name")
    if prompt and prompt not in prompts:
        raise ModelError(f"{path}: default_prompt_name is {prompt!r}, and there is no such prompt")
    return prompts, prompt
