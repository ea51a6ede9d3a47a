"""Checkpoints that bitsandbytes quantized, as transformers saves them.

=======  =================================  ============================================================
bits     ``NAME.weight``                    beside it
=======  =================================  ============================================================
4        uint8, two numbers in a byte, the  ``.absmax`` of each block, ``.quant_map`` of 16 numbers (NF4 or
         first in its upper half            FP4), and sizes as JSON in ``.quant_state.bitsandbytes__*``;
                                            the absmax may be bytes in blocks of their own (``.nested_*``)
8        int8 [N, K]                        ``NAME.SCB``: 127 times the scale of each row
=======  =================================  ============================================================

They become float32, and are stored as the build's precision says.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hetero_tvm.errors import ModelError
from hetero_tvm.language.checkpoints.checkpoint import SafetensorsFolder

_STATE = ".quant_state.bitsandbytes__"
_BYTES = {"U8": np.uint8, "I8": np.int8}


class BitsAndBytesFolder(SafetensorsFolder):
    """A folder of transformers whose ``quantization_config`` is of bitsandbytes."""

    _types = {**SafetensorsFolder._types, **_BYTES}

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.config = {name: value for name, value in self.config.items() if name != "quantization_config"}
        self._states = {}
        for name in self._tensors:
            base, found, _ = name.partition(_STATE)
            if found:
                self._states[base] = name

    def matrix(self, name: str) -> np.ndarray:
        """A tensor as float32, or float16 where it is stored so."""
        scale = name.removesuffix(".weight") + ".SCB"
        try:
            if name in self._states:
                return self._four_bits(name)
            if name.endswith(".weight") and scale in self._tensors:
                return self._raw(name) * (self._raw(scale).astype(np.float32)[:, None] / np.float32(127))
        except (KeyError, ValueError, IndexError, TypeError) as error:
            raise ModelError(f"the parts of {name} in {self.folder} do not fit together: {error}") from error
        if name in self._tensors and self._tensors[name][1] in _BYTES:
            raise ModelError(f"{name} in {self.folder} has bytes without what says their numbers")
        return super().matrix(name)

    def _four_bits(self, name: str) -> np.ndarray:
        state: Mapping[str, Any] = json.loads(bytes(self._raw(self._states[name])))
        shape, block = tuple(int(extent) for extent in state["shape"]), int(state["blocksize"])
        packed = self._raw(name).reshape(-1)
        if 2 * packed.size != math.prod(shape):
            raise ValueError(f"{packed.size} bytes of {list(shape)}")
        peaks = self._raw(f"{name}.absmax")
        if "nested_blocksize" in state:
            wide = self._raw(f"{name}.nested_absmax").astype(np.float32)
            wide = np.repeat(wide, int(state["nested_blocksize"]))[: peaks.size]
            peaks = self._raw(f"{name}.nested_quant_map").astype(np.float32)[peaks] * wide
            peaks = peaks + np.float32(state["nested_offset"])
        if peaks.size != -(-math.prod(shape) // block):
            raise ValueError(f"{peaks.size} peaks of blocks of {block}")
        levels = self._raw(f"{name}.quant_map").astype(np.float32)
        numbers = levels[np.stack([packed >> 4, packed & 15], 1).reshape(-1)]
        return (numbers * np.repeat(peaks.astype(np.float32), block)[: numbers.size]).reshape(shape)
