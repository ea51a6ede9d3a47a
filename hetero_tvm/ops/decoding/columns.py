"""Columns of weights that a model brings packed, found again by their values.

Passes put weights together, turn them and cut them.  Whatever they did, a column whose float32 values are
those of a packed one may be stored as that: nothing is rounded twice, and no pass carries integers along.
"""

from __future__ import annotations

import zlib

import numpy as np

from hetero_tvm.ops.decoding.storage import QuantizedWeight


class PackedColumns:
    """The packed weights of a model.

    Attributes
    ----------
    may_round : whether the model allows to round what they are multiplied with to 8 bits.
    """

    def __init__(self) -> None:
        self.may_round = False
        self._weights: list[QuantizedWeight] = []
        self._places: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def __bool__(self) -> bool:
        return bool(self._weights)

    def add(self, weight: QuantizedWeight) -> None:
        """Take a weight [N, K]."""
        number = len(self._weights)
        self._weights.append(weight)
        for n, values in enumerate(weight.dequantized()):
            self._places.setdefault(_key(values), []).append((number, n))

    def find(self, weights: np.ndarray) -> QuantizedWeight | None:
        """Packed form of float32 weights [K, N] whose columns are all known, of one storage; else None."""
        found = [self._place(values) for values in np.ascontiguousarray(weights.T)]
        places = [place for place in found if place is not None]
        storages = {self._weights[number].storage for number, _ in places}
        if len(places) < len(found) or len(storages) != 1:
            return None
        rows = [(self._weights[number], n) for number, n in places]
        zero = None if rows[0][0].zero is None else np.stack([w.zero[n] for w, n in rows])
        q = np.stack([weight.q[n] for weight, n in rows])
        return QuantizedWeight(storages.pop(), q, np.stack([weight.scale[n] for weight, n in rows]), zero)

    def _place(self, values: np.ndarray) -> tuple[int, int] | None:
        """Weight and row that have exactly these values."""
        for number, n in self._places.get(_key(values), ()):
            weight = self._weights[number]
            zero = None if weight.zero is None else weight.zero[n : n + 1]
            row = QuantizedWeight(weight.storage, weight.q[n : n + 1], weight.scale[n : n + 1], zero)
            if np.array_equal(row.dequantized()[0], values):
                return number, n
        return None


def _key(values: np.ndarray) -> tuple[int, int]:
    return values.size, zlib.crc32(np.ascontiguousarray(values))
