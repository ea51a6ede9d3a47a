"""Checkpoints that MLX quantized, as mlx-lm saves them.

``config.json`` has ``quantization: {"group_size": 64, "bits": 4}``, perhaps with other numbers for single
matrices.  ``NAME.weight`` is uint32 [N, K * bits / 32]: integers one after the other, low bits first, and
those of 3, 5 and 6 bits lie across words.  With ``NAME.scales`` and ``NAME.biases`` [N, K / group], weights
are ``q * scale + bias``.  They become float32, and are stored as the build's precision says.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hetero_tvm.errors import ModelError
from hetero_tvm.language.checkpoints.checkpoint import SafetensorsFolder

_BITS = (2, 3, 4, 5, 6, 8)
_GROUPS = (16, 32, 64, 128)
_PLANS = ("quantization", "quantization_config")
_AT_ONCE = 1 << 22
"""Integers that are unpacked at once."""


class MlxFolder(SafetensorsFolder):
    """A folder of mlx-lm whose ``config.json`` has a ``quantization``.

    Raises
    ------
    ModelError : a form of it that cannot be read.
    """

    _types = {**SafetensorsFolder._types, "U32": np.uint32}

    def __init__(self, folder: Path):
        super().__init__(folder)
        plan = next(self.config[name] for name in _PLANS if self.config.get(name))
        mode = plan.get("mode", "affine")
        if mode != "affine":
            raise ModelError(
                f"the weights are quantized by MLX in the mode {mode!r}, which cannot be read",
                hint="known is 'affine'; build from the float checkpoint with --precision int8 or int4",
            )
        self._plan: Mapping[str, Any] = plan
        self.config = {name: value for name, value in self.config.items() if name not in _PLANS}

    def matrix(self, name: str) -> np.ndarray:
        """A tensor as float32, or float16 where it is stored so."""
        if name not in self._tensors or self._tensors[name][1] != "U32":
            return super().matrix(name)
        base = name.removesuffix(".weight")
        parts = [f"{base}.{part}" for part in ("scales", "biases")]
        missing = [part for part in parts if part not in self._tensors]
        if missing:
            raise ModelError(f"{self.folder} has no tensor {missing[0]!r}, and {name} is integers")
        own = self._plan.get(base)
        form = {**self._plan, **(own if isinstance(own, Mapping) else {})}
        bits, group = form.get("bits"), form.get("group_size")
        if bits not in _BITS or group not in _GROUPS or form.get("mode", "affine") != "affine":
            raise ModelError(
                f"{base} in {self.folder} has {bits} bits in groups of {group}, which cannot be read"
            )
        words = self._raw(name)
        scales, biases = (self._raw(part).astype(np.float32) for part in parts)
        if words.ndim != 2 or scales.shape != (len(words), 32 * words.shape[1] // bits // group):
            raise ModelError(
                f"{name} in {self.folder} is {list(words.shape)}, and its scales are {list(scales.shape)}"
            )
        if scales.shape != biases.shape or scales.shape[1] * group * bits != 32 * words.shape[1]:
            raise ModelError(f"the parts of {base} in {self.folder} do not fit together")
        return _numbers(words, scales, biases, bits)


def is_mlx(config: Mapping[str, Any]) -> bool:
    """Whether a ``config.json`` is of MLX, which names no method."""
    plans = (config.get(name) for name in _PLANS)
    return any(
        isinstance(plan, Mapping) and "group_size" in plan and "bits" in plan and "quant_method" not in plan
        for plan in plans
    )


def _numbers(words: np.ndarray, scales: np.ndarray, biases: np.ndarray, bits: int) -> np.ndarray:
    """Weights [N, K] of packed integers and what their groups have."""
    n, groups = scales.shape
    k = 32 * words.shape[1] // bits
    weights = np.empty((n, k), np.float32)
    places = (1 << np.arange(bits)).astype(np.uint8)
    step = max(1, _AT_ONCE // k)
    for first in range(0, n, step):
        rows = slice(first, first + step)
        single = np.unpackbits(words[rows].view(np.uint8), axis=1, bitorder="little")
        q = single.reshape(-1, groups, k // groups, bits) @ places
        weights[rows] = (q * scales[rows, :, None] + biases[rows, :, None]).reshape(-1, k)
    return weights
