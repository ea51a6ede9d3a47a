"""Stored forms of constant weights: float32, float16, or integers of 8 or 4 bits with a scale per group.

A quantized weight is ``(q - zero) * scale``: q unsigned, ``group`` neighbours along K share scale and zero.
Arithmetic is float32 whatever the form; a form says how many bytes a product has to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from hetero_tvm.errors import UsageError
from hetero_tvm.runtime.arrays import numpy_dtype

_FLOATS = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_BITS = {"int8": 8, "int4": 4}
_GROUPS = {"int8": 128, "int4": 32}
GROUPS = (32, 64, 128)
"""Sizes of groups that kernels know."""


@dataclass(frozen=True)
class Storage:
    """Form of a stored weight.

    Parameters
    ----------
    name : ``f32``, ``f16``, ``bf16``, ``int8`` or ``int4``.
    group : neighbours along K that share a scale; 0 for floats.
    zero_points : whether groups have a zero of their own (otherwise it is the middle of the range).
    scales : type of the scales of groups.
    """

    name: str
    group: int = 0
    zero_points: bool = False
    scales: str = "float16"

    @classmethod
    def named(cls, name: str, group: int | None = None, zero_points: bool = False) -> Storage:
        """The storage that a precision asks for.

        Raises
        ------
        UsageError : there is no such precision or group.
        """
        if name in _FLOATS:
            if group is not None or zero_points:
                raise UsageError(f"{name} weights have neither groups nor zero points")
            return cls(name)
        if name not in _BITS:
            known = ", ".join([*_FLOATS, *_BITS])
            raise UsageError(f"weights cannot be stored as {name!r}", hint=f"one of {known}")
        group = _GROUPS[name] if group is None else group
        if group not in GROUPS:
            raise UsageError(f"groups of {group} weights", hint=f"one of {', '.join(map(str, GROUPS))}")
        return cls(name, group, zero_points)

    @property
    def bits(self) -> int:
        """Bits of one integer; 0 for floats."""
        return _BITS.get(self.name, 0)

    @property
    def dtype(self) -> str:
        """Element type of a float storage."""
        return _FLOATS[self.name]

    @property
    def middle(self) -> int:
        """Zero of a group that has none of its own."""
        return 1 << (self.bits - 1)

    @property
    def bytes_per_weight(self) -> float:
        """Bytes that a product reads for one weight, scales and zeros included."""
        if not self.bits:
            return numpy_dtype(self.dtype).itemsize
        return self.bits / 8 + (numpy_dtype(self.scales).itemsize + self.zero_points) / self.group


@dataclass(frozen=True)
class QuantizedWeight:
    """Integers with their scales, as they are stored: ``w[n, k] = (q[n, k] - zero[n, k // group]) * scale``.

    Parameters
    ----------
    q : uint8 [N, K], values below ``2**bits``.
    scale : [N, ceil(K / group)] of the storage's type of scales.
    zero : uint8, of the shape of ``scale``; None for the middle of the range.
    """

    storage: Storage
    q: np.ndarray
    scale: np.ndarray
    zero: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return self.q.shape

    def dequantized(self) -> np.ndarray:
        """The weights as float32 [N, K]."""
        k, group = self.q.shape[1], self.storage.group
        zero = self.storage.middle if self.zero is None else np.repeat(self.zero, group, 1)[:, :k]
        scale = np.repeat(self.scale.astype(np.float32), group, 1)[:, :k]
        return (self.q.astype(np.float32) - zero) * scale


Weight = np.ndarray | QuantizedWeight
"""A matrix [N, K] of a checkpoint: floats, or integers with scales."""


_AT_ONCE = 1 << 24
"""Numbers that are rounded at once: what that takes in float32 several times."""


def quantized(weight: np.ndarray, storage: Storage) -> QuantizedWeight:
    """Round a float matrix [N, K] to the integers of ``storage``."""
    rows = max(1, _AT_ONCE // max(1, weight.shape[1]))
    if weight.shape[0] <= rows:
        return _rounded(weight, storage)
    pieces = (weight[first : first + rows] for first in range(0, weight.shape[0], rows))
    return cast(QuantizedWeight, joined([_rounded(piece, storage) for piece in pieces]))


def _rounded(weight: np.ndarray, storage: Storage) -> QuantizedWeight:
    n, k = weight.shape
    group, bits = storage.group, storage.bits
    padded = np.zeros((n, -(-k // group) * group), np.float32)
    padded[:, :k] = weight
    parts = padded.reshape(n, -1, group)
    if storage.zero_points:
        low, high = np.minimum(parts.min(2), 0), np.maximum(parts.max(2), 0)
        scale = _scale((high - low) / (2**bits - 1))
        zero = np.clip(np.rint(-low / scale.astype(np.float32)), 0, 2**bits - 1).astype(np.uint8)
        middle: np.ndarray | int = zero[:, :, None]
    else:
        # The extreme of largest magnitude gets the lowest integer, which has one more than the highest.
        peak = np.take_along_axis(parts, np.abs(parts).argmax(2)[:, :, None], 2)[:, :, 0]
        scale = _scale(peak / -storage.middle) if bits == 4 else _scale(np.abs(peak) / (storage.middle - 1))
        zero, middle = None, storage.middle
    q = np.rint(parts / scale.astype(np.float32)[:, :, None]) + middle
    q = np.clip(q, 0, 2**bits - 1).astype(np.uint8).reshape(n, -1)[:, :k]
    return QuantizedWeight(storage, np.ascontiguousarray(q), scale, zero)


def _scale(wanted: np.ndarray) -> np.ndarray:
    """Scales as they are stored: float16, never 0."""
    scale = np.clip(wanted, -6e4, 6e4).astype(np.float16)
    return np.where(scale == 0, np.float16(6e-8), scale)


def stored(weight: Weight, storage: Storage) -> Weight:
    """A weight in the form that ``storage`` names; integers that a checkpoint brings stay as they are."""
    if isinstance(weight, QuantizedWeight):
        return weight
    if storage.bits:
        return quantized(weight, storage)
    return weight.astype(numpy_dtype(storage.dtype), copy=False)


def joined(weights: list[Weight]) -> Weight:
    """Matrices below one another: [N1, K], [N2, K] -> [N1 + N2, K]; all of the same form."""
    if isinstance(weights[0], np.ndarray):
        return np.concatenate(weights)
    zeros = [w.zero for w in weights]
    return QuantizedWeight(
        weights[0].storage,
        np.concatenate([w.q for w in weights]),
        np.concatenate([w.scale for w in weights]),
        None if zeros[0] is None else np.concatenate(zeros),
    )


def taken(weight: Weight, rows: Sequence[int]) -> Weight:
    """Some rows of a matrix, in this order."""
    at = np.asarray(rows)
    if isinstance(weight, np.ndarray):
        return weight[at]
    zero = None if weight.zero is None else weight.zero[at]
    return QuantizedWeight(weight.storage, weight.q[at], weight.scale[at], zero)


def storage_of(weight: Weight) -> Storage:
    """Form of a stored weight."""
    if isinstance(weight, QuantizedWeight):
        return weight.storage
    return Storage(next(name for name, dtype in _FLOATS.items() if weight.dtype == numpy_dtype(dtype)))
