"""Parts of configurations of transformers that many families of models have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hetero_tvm.errors import ModelError
from hetero_tvm.generation.rules import TextRules

Config = Mapping[str, Any]

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "relu2": "relu2",
    "gelu": "gelu_erf",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "quick_gelu": "quick_gelu",
}
_UNHEEDED: Mapping[str, Any] = {
    "sequence_bias": None,
    "guidance_scale": 1.0,
    "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0,
    "exponential_decay_length_penalty": None,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
}
"""Rules of transformers that are not applied, and the values that ask for nothing."""


def stop_of(config: Config) -> tuple[int, ...]:
    """Tokens that end a text."""
    stop = config.get("eos_token_id")
    if stop is None:
        return ()
    return tuple(map(int, stop)) if isinstance(stop, (list, tuple)) else (int(stop),)


def penalty_of(config: Config) -> float:
    """Penalty of repetitions that a checkpoint asks for; 1 for none."""
    penalty = config.get("repetition_penalty")
    penalty = 1.0 if penalty is None else penalty
    if not isinstance(penalty, int | float) or not 0 < penalty < float("inf"):
        raise ModelError(f"repetition_penalty is {penalty!r}, expected more than 0")
    return float(penalty)


def rules_of(config: Config) -> TextRules:
    """Rules about the tokens that may come next, which a checkpoint asks for.

    Raises
    ------
    ModelError : a rule that is not what transformers writes; lists all.
    """
    problems: list[str] = []

    def given(name: str, fits: Callable[[Any], bool], expected: str, default: Any) -> Any:
        value = config.get(name)
        if value is None:
            return default
        if not fits(value):
            problems.append(f"{name} is {value!r}, expected {expected}")
            return default
        return value

    def count(name: str) -> int:
        return given(name, lambda value: _is_token(value) and value >= 0, "0 or more", 0)

    def tokens(name: str) -> tuple[int, ...]:
        found = given(name, lambda value: _is_token(value) or _are_tokens(value), "a list of tokens", ())
        return (found,) if _is_token(found) else tuple(found)

    newer = config.get("min_new_tokens") is not None  # where both are given, min_length does not count
    rules = TextRules(
        suppressed=tokens("suppress_tokens"),
        suppressed_first=tokens("begin_suppress_tokens"),
        bad_words=tuple(map(tuple, given("bad_words_ids", _are_words, "lists of tokens", ()))),
        no_repeat=count("no_repeat_ngram_size"),
        least=0 if newer else count("min_length"),
        least_new=count("min_new_tokens"),
        forced_first=given("forced_bos_token_id", _is_token, "a token", None),
        forced_last=tokens("forced_eos_token_id"),
    )
    if problems:
        raise ModelError("the checkpoint has rules for texts that cannot be", problems=problems)
    return rules


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _are_tokens(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_token, value))


def _are_words(value: Any) -> bool:
    return isinstance(value, list) and all(_are_tokens(word) and word for word in value)


def hints_of(generation: Config) -> list[str]:
    """Lines for people: what a ``generation_config.json`` asks for and texts do not have by themselves."""
    hints = [
        f"generation_config.json: {name} is {generation[name]!r}, which is not heeded"
        for name, neutral in _UNHEEDED.items()
        if generation.get(name, neutral) not in (neutral, None)
    ]

    def flags(names: Mapping[str, str]) -> str:
        told = (f"{flag} {generation[name]}" for name, flag in names.items() if generation.get(name))
        return " ".join(told)

    if generation.get("do_sample") is True:
        names = ("temperature", "top_k", "top_p", "min_p")
        asked = flags({name: "--" + name.replace("_", "-") for name in names})
        asked = asked if generation.get("temperature") else f"--temperature 1.0 {asked}".strip()
        hints.append(f"texts are greedy unless asked; its makers draw them: generate {asked}")
    beams = generation.get("num_beams")
    if isinstance(beams, int) and beams > 1:
        asked = flags({"num_beams": "--beams", "length_penalty": "--length-penalty"})
        hints.append(f"texts are greedy unless asked; its makers search them: generate {asked}")
    return hints


def activation_of(config: Config, key: str) -> str:
    """Our name of an activation; :class:`ModelError` when it has no kernel."""
    name = config[key]
    if name not in _ACTIVATIONS:
        raise ModelError(
            f"the activation {name!r} has no kernel", hint=f"known: {', '.join(sorted(_ACTIVATIONS))}"
        )
    return _ACTIVATIONS[name]


def windows_of(config: Config, active: bool = True) -> tuple[int, ...]:
    """The window of each layer; ``layer_types`` names the layers that have one, else all have it."""
    count = int(config["num_hidden_layers"])
    window = config.get("sliding_window") if active else None
    kinds = config.get("layer_types")
    if not window:
        return (0,) * count
    if kinds is None:
        return (int(window),) * count
    return tuple(int(window) if kind == "sliding_attention" else 0 for kind in kinds[:count])


def kinds_of(config: Config, every: int) -> list[str]:
    """``layer_types``; where a configuration has none, each ``every``-th layer sees all keys and the others
    have windows (``every`` 0: all have)."""
    count = int(config["num_hidden_layers"])
    kinds = config.get("layer_types")
    if kinds is not None:
        return list(kinds)[:count]
    return ["full_attention" if every and (i + 1) % every == 0 else "sliding_attention" for i in range(count)]


def refuse(config: Config, *options: str) -> None:
    """Raise :class:`ModelError` for options that a configuration sets and that no kernel has; lists all."""
    problems = [f"{name} is {config[name]!r}" for name in options if config.get(name)]
    if problems:
        kind = config.get("model_type")
        raise ModelError(f"{kind} models with these options are not supported", problems=problems)


def rows_of_pairs(heads: int, kv_heads: int, dim: int, rotated: int) -> tuple[int, ...]:
    """Rows of stacked queries, keys and values whose heads have rotated pairs as neighbours (2c, 2c + 1), in
    the order of halves that kernels rotate (c, c + rotated / 2)."""
    head = np.concatenate([np.arange(0, rotated, 2), np.arange(1, rotated, 2), np.arange(rotated, dim)])
    turned = (np.arange(heads + kv_heads)[:, None] * dim + head).reshape(-1)
    rest = np.arange(kv_heads * dim) + (heads + kv_heads) * dim
    return tuple(np.concatenate([turned, rest]).tolist())


def rows_of_groups(heads: int, kv_heads: int, dim: int) -> tuple[int, ...]:
    """Rows of a matrix whose heads are groups of queries, their key, their value, in the order queries, keys,
    values."""
    group = heads // kv_heads
    rows = np.arange((heads + 2 * kv_heads) * dim).reshape(kv_heads, group + 2, dim)
    parts = [part.reshape(-1) for part in (rows[:, :group], rows[:, group], rows[:, group + 1])]
    return tuple(np.concatenate(parts).tolist())
