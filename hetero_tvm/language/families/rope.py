"""Tables of rotary positions: which angles a configuration asks for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from hetero_tvm.errors import ModelError
from hetero_tvm.language.families.decoder import Rope

_THETA = 10000.0
_MOST_CHANNELS = 1 << 16
"""Channels of a head that a table is made for; no model comes near."""


def rope_of(config: Mapping[str, Any], dim: int, kind: str | None = None) -> tuple[Rope, int]:
    """The rotations of a configuration, in the spelling of any version of transformers.

    Parameters
    ----------
    dim : channels of a head.
    kind : name of the kind of layer, for models whose kinds differ.

    Returns
    -------
    The table, and how many channels of a head it rotates.

    Raises
    ------
    ModelError : an unknown kind of scaling, or heads that no model has.
    """
    options = _options(config, kind)
    theta = float(options.get("rope_theta") or config.get("rope_theta") or _THETA)
    part = float(options.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0)
    rotated = int(dim * part)
    if rotated > _MOST_CHANNELS:
        raise ModelError(f"heads of {rotated} rotated channels make no model")
    name = options.get("rope_type") or options.get("type") or "default"
    inverse = 1.0 / (np.float32(theta) ** (np.arange(0, rotated, 2, dtype=np.float32) / np.float32(rotated)))
    factor, longer, most = 1.0, None, 0
    if name == "linear":
        inverse = inverse / np.float32(options["factor"])
    elif name == "llama3":
        inverse = _llama3(inverse, options)
    elif name == "yarn":
        inverse, factor = _yarn(theta, rotated, options, config)
    elif name == "proportional":  # the first channels of each half turn, by angles of whole heads
        turned = int(part * dim // 2)
        waves = np.float32(theta) ** (np.arange(0, 2 * turned, 2, dtype=np.float32) / np.float32(dim))
        inverse = np.zeros(dim // 2, np.float32)
        inverse[:turned] = 1.0 / waves / np.float32(options.get("factor") or 1.0)
        rotated = dim
    elif name in ("longrope", "su"):
        inverse, factor, longer, most = _longrope(inverse, options, config)
    elif name not in ("default", "dynamic", "mrope"):
        # dynamic: another table beyond the model's own context only; mrope: texts are not split
        raise ModelError(
            f"rotary positions with {name!r} scaling are not supported",
            hint="known: default, dynamic, linear, llama3, yarn, longrope, proportional",
        )
    return Rope(_numbers(inverse), factor, () if longer is None else _numbers(longer), most), rotated


def context_of(config: Mapping[str, Any]) -> int:
    """Tokens of a text: those that a configuration has positions for.

    Where a user stretches the positions (YaRN, in the words of Qwen's and of other model cards; linear, as
    Vicuna and LongChat were trained), ``max_position_embeddings`` stays that of the first context.
    """
    most = int(config["max_position_embeddings"])
    options = _options(config, None)
    name = options.get("rope_type") or options.get("type")
    first = options.get("original_max_position_embeddings")
    if name == "yarn" and first:
        return max(most, int(float(first) * float(options["factor"])))
    if name == "linear":
        return max(most, int(config.get("max_sequence_length") or 0))
    return most


def _numbers(inverse: np.ndarray) -> tuple[float, ...]:
    return tuple(float(value) for value in inverse)


def _options(config: Mapping[str, Any], kind: str | None) -> Mapping[str, Any]:
    options = config.get("rope_parameters") or {}
    if kind is not None and kind in options:
        return options[kind]
    if any(isinstance(value, Mapping) for value in options.values()):
        return next(value for value in options.values() if isinstance(value, Mapping))
    if options:
        return options
    if kind == "sliding_attention":  # earlier spelling of gemma3
        return {"rope_theta": config.get("rope_local_base_freq", _THETA)}
    return config.get("rope_scaling") or {}


def _llama3(inverse: np.ndarray, options: Mapping[str, Any]) -> np.ndarray:
    """Long waves are slowed down by ``factor``, short ones stay, and those between are mixed."""
    factor, low, high = (float(options[k]) for k in ("factor", "low_freq_factor", "high_freq_factor"))
    context = float(options["original_max_position_embeddings"])
    wave = 2 * math.pi / inverse
    smooth = np.clip((context / wave - low) / (high - low), 0.0, 1.0).astype(np.float32)
    return ((1 - smooth) * inverse / np.float32(factor) + smooth * inverse).astype(np.float32)


def _yarn(
    theta: float, dim: int, options: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[np.ndarray, float]:
    """YaRN (Peng et al., 2023): a ramp between the original and the stretched frequencies."""
    factor = float(options["factor"])
    fast, slow = float(options.get("beta_fast") or 32), float(options.get("beta_slow") or 1)
    context = float(
        options.get("original_max_position_embeddings")
        or config.get("original_max_position_embeddings")
        or config["max_position_embeddings"]
    )

    def channel(rotations: float) -> float:
        return dim * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = channel(fast), channel(slow)
    if options.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 0.001), 0, 1).astype(np.float32)
    waves = theta ** (np.arange(0, dim, 2, dtype=np.float32) / dim)
    inverse = (1 / (factor * waves)) * ramp + (1 / waves) * (1 - ramp)

    def scale(weight: float = 1.0) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    given = options.get("attention_factor")
    if given is None:
        parts = options.get("mscale"), options.get("mscale_all_dim")
        given = scale(parts[0]) / scale(parts[1]) if all(parts) else scale()
    return inverse.astype(np.float32), float(given)


def _longrope(
    inverse: np.ndarray, options: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[np.ndarray, float, np.ndarray | None, int]:
    """LongRoPE (Ding et al., 2024): a factor per channel, another for texts beyond the first context."""
    original = float(
        options.get("original_max_position_embeddings")
        or config.get("original_max_position_embeddings")
        or config["max_position_embeddings"]
    )
    longest = float(config["max_position_embeddings"])
    names = ("short_factor", "long_factor") if longest > original else ("short_factor",)
    tables = []
    for factors in (np.asarray(options[name], np.float32) for name in names):
        if factors.shape != inverse.shape:
            raise ModelError(f"{factors.size} factors of rotary positions for {inverse.size} frequencies")
        tables.append((inverse / factors).astype(np.float32))
    given = options.get("attention_factor")
    if given is None:
        stretch = float(options.get("factor") or longest / original)
        given = math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0
    longer = tables[1] if len(tables) > 1 else None
    return tables[0], float(given), longer, 0 if longer is None else int(original)
