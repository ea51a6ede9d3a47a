"""Layout of stored weights for :mod:`.linear`: panels of two vectors of columns.

========  ====================================  =====================================================
form      array                                 content
========  ====================================  =====================================================
floats    ``[panels, k, 2 lanes]``              a vector of columns per k, twice
bfloat16  ``[panels, words, 2 lanes]``, int32   a word: two neighbours along K of a column, as tiles have them
integers  ``[panels, words, 2 lanes]``, int32   a word: ``32 / bits`` neighbours along K of a column
scales    ``[panels, groups, 2 lanes]``         float16 or float32, one per group of a column; zeros are uint8
========  ====================================  =====================================================

A gated product keeps a vector of gate columns beside the vector of the same up columns, so that both results
are in registers together.  Columns behind N, and K behind its end, are zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.decoding.contracts import Linear
from hetero_tvm.ops.decoding.storage import QuantizedWeight, Weight

VECTORS = 2
"""Vectors of columns in a panel."""
_GROUPS = (8, 4, 2, 1)
_STEP = 32
"""Neighbours of bfloat16 that a tile of a matrix unit has along K."""
_WIDE = 16
"""Lanes from which one panel's accumulators are enough."""
_NARROW = 4
"""Panels at once that hide the latency of an addition where vectors are shorter."""


@dataclass(frozen=True)
class PanelLayout:
    """Sizes of the packed weight of a product.

    Parameters
    ----------
    lanes : float32 values in a vector.
    together : panels that one row is multiplied with at once: enough accumulators to hide the latency.
    panels : panels stored, a multiple of ``together``.
    ahead : rows of a panel between what is fetched and what one row is multiplied with; 0: nothing is.
    """

    op: Linear
    lanes: int
    together: int
    panels: int
    ahead: int

    @classmethod
    def of(cls, op: Linear, machine: CpuModel) -> PanelLayout:
        """The layout of ``op`` for a machine: threads share groups of panels, so there are enough of them.

        One panel is one stream of memory: with vectors of 512 bits its two accumulators are faster than that,
        and the machine says how many streams it follows best.  Shorter vectors need several panels to hide
        the latency of an addition.
        """
        per_panel = machine.lanes if op.gated else VECTORS * machine.lanes
        count = -(-op.n // per_panel)
        most = machine.weight_streams if machine.lanes >= _WIDE else 2 if op.storage.bits else _NARROW

        def shared_evenly(group: int) -> bool:
            pieces = -(-count // group)
            return pieces >= 4 * machine.threads or count % (group * machine.threads) == 0

        together = next(g for g in _GROUPS if g == 1 or g <= most and shared_evenly(g))
        panels = -(-count // together) * together
        return cls(op, machine.lanes, together, panels, machine.streamed_ahead)

    @property
    def columns(self) -> int:
        """Results of a panel."""
        return self.lanes if self.op.gated else VECTORS * self.lanes

    @property
    def width(self) -> int:
        """Columns of the weight in a panel."""
        return VECTORS * self.lanes

    @property
    def per_word(self) -> int:
        """Integers in one 32-bit word."""
        return 32 // self.op.storage.bits

    @property
    def pairs(self) -> int:
        """Words along K of bfloat16, whole steps of tiles; 0 of other forms."""
        return -(-self.op.k // _STEP) * (_STEP // 2) if self.op.storage.name == "bf16" else 0

    def bit_of(self, neighbour: int) -> int:
        """Lowest bit of a neighbour in its word.

        The first half of the neighbours takes the even places: the lower halves of all bytes (4 bits), or the
        lower bytes of both halves (8 bits).  So one mask gives values that are neighbours in x too.
        """
        half = self.per_word // 2
        return (2 * (neighbour % half) + neighbour // half) * self.op.storage.bits

    @property
    def groups(self) -> int:
        """Groups along K."""
        return -(-self.op.k // self.op.storage.group)

    def arrays(self) -> list[tuple[str, tuple[int, ...], str]]:
        """Name, shape and type of each array of the packed weight."""
        storage = self.op.storage
        if self.pairs:
            return [("W", (self.panels, self.pairs, self.width), "int32")]
        if not storage.bits:
            return [("W", (self.panels, self.op.k, self.width), storage.dtype)]
        words = self.groups * storage.group // self.per_word
        parts = [("W", (self.panels, words, self.width), "int32")]
        parts.append(("S", (self.panels, self.groups, self.width), storage.scales))
        if storage.zero_points:
            parts.append(("Z", (self.panels, self.groups, self.width), "uint8"))
        return parts

    def pack(self, weight: Weight) -> list[np.ndarray]:
        """The arrays for a weight [n, k], or [2 n, k] when gated."""
        storage = self.op.storage
        if not isinstance(weight, QuantizedWeight):
            if not self.pairs:
                return [self._panels(weight)]
            bits = np.zeros((weight.shape[0], 2 * self.pairs), np.uint16)
            bits[:, : self.op.k] = np.ascontiguousarray(weight).view(np.uint16)
            return [self._panels(bits.view(np.int32))]
        padded = self.groups * storage.group
        middle = np.uint8(storage.middle)
        zero = weight.zero
        q = np.full((weight.q.shape[0], padded), middle, np.uint8)
        if zero is not None:
            q[:] = np.repeat(zero, storage.group, 1)
        q[:, : self.op.k] = weight.q
        words = np.zeros((q.shape[0], padded // self.per_word), np.uint32)
        for at in range(self.per_word):
            words |= q[:, at :: self.per_word].astype(np.uint32) << np.uint32(self.bit_of(at))
        parts = [self._panels(words).view(np.int32), self._panels(weight.scale)]
        return parts if zero is None else [*parts, self._panels(zero)]

    def pack_bias(self, bias: np.ndarray) -> np.ndarray:
        """A bias per column as float32 [panels, columns], in the order of the panels."""
        return self._panels(bias.astype(np.float32)[:, None])[:, 0]

    def _panels(self, matrix: np.ndarray) -> np.ndarray:
        """[N, X] -> [panels, X, width]."""
        if self.op.gated:
            halves = matrix.reshape(2, self.op.n, -1)
            stacked = np.zeros((2, self.panels * self.lanes, matrix.shape[1]), matrix.dtype)
            stacked[:, : self.op.n] = halves
            parts = stacked.reshape(2, self.panels, self.lanes, -1).transpose(1, 3, 0, 2)
        else:
            stacked = np.zeros((self.panels * self.width, matrix.shape[1]), matrix.dtype)
            stacked[: matrix.shape[0]] = matrix
            parts = stacked.reshape(self.panels, self.width, -1).transpose(0, 2, 1)
        return np.ascontiguousarray(parts).reshape(self.panels, -1, self.width)
