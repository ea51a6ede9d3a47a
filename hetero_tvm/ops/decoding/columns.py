"""Columns of weights that a model brings packed, found again by their values.

Passes put weights together, turn them, cut them and scale them.  Whatever they did, a column whose float32
values are those of a packed one, perhaps times a number, may be stored as that: no value is rounded again,
and no pass has to carry integers along.
"""

from __future__ import annotations

import bisect
import dataclasses

import numpy as np

from hetero_tvm.host import mapped
from hetero_tvm.ops.decoding.storage import QuantizedWeight

_ULPS = 2.5e-7
"""Difference of a product of float32 numbers and itself in another order, as a share: two roundings."""


class PackedColumns:
    """The packed weights of a model.

    Attributes
    ----------
    may_round : whether the model allows to round what they are multiplied with to 8 bits.
    """

    def __init__(self) -> None:
        self.may_round = False
        self._weights: list[QuantizedWeight] = []
        self._starts: list[int] = []
        self._first: dict[int, int] = {}
        self._others: dict[int, list[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._weights)

    def add(self, weight: QuantizedWeight) -> None:
        """Take a weight [N, K]."""
        start, zero = (self._starts[-1] + len(self._weights[-1].q) if self._weights else 0), weight.zero
        for number, values in enumerate(weight.dequantized(), start):
            key = _key(values)
            if self._first.setdefault(key, number) != number:
                self._others.setdefault(key, []).append(number)
        self._starts.append(start)
        self._weights.append(
            dataclasses.replace(
                weight,
                q=mapped.mapped(weight.q),
                scale=mapped.mapped(weight.scale),
                zero=None if zero is None else mapped.mapped(zero),
            )
        )

    def find(self, weights: np.ndarray) -> QuantizedWeight | None:
        """Packed form of float32 weights [K, N] whose columns are all known, of one storage; else None.

        Scales of columns that were multiplied are float32.
        """
        found = [self._place(values) for values in np.ascontiguousarray(weights.T)]
        mapped.touched(2 * weights.size)
        rows = [place for place in found if place is not None]
        storages = {weight.storage for weight, _, _ in rows}
        if len(rows) < len(found) or len(storages) != 1:
            return None
        storage = storages.pop()
        zero = None if rows[0][0].zero is None else np.stack([w.zero[n] for w, n, _ in rows])
        q = np.stack([weight.q[n] for weight, n, _ in rows])
        scale = np.stack([weight.scale[n] for weight, n, _ in rows])
        factors = np.array([factor for _, _, factor in rows], np.float32)
        if (factors != 1).any():
            storage = dataclasses.replace(storage, scales="float32")
            scale = scale.astype(np.float32) * factors[:, None]
        return QuantizedWeight(storage, q, scale, zero)

    def _place(self, values: np.ndarray) -> tuple[QuantizedWeight, int, float] | None:
        """Weight and row that have these values, and the number that they were multiplied with."""
        scaled = None
        key = _key(values)
        for number in [self._first[key], *self._others.get(key, [])] if key in self._first else []:
            which = bisect.bisect(self._starts, number) - 1
            weight, n = self._weights[which], number - self._starts[which]
            zero = None if weight.zero is None else weight.zero[n : n + 1]
            row = QuantizedWeight(weight.storage, weight.q[n : n + 1], weight.scale[n : n + 1], zero)
            stored = row.dequantized()[0]
            if np.array_equal(stored, values):
                return weight, n, 1.0
            top = int(np.abs(values).argmax()) if values.size else 0
            if scaled is None and values.size and np.isfinite(values[top]) and stored[top]:
                factor = np.float32(values[top] / stored[top])
                if factor != 1 and (np.abs(stored * factor - values) <= _ULPS * np.abs(values)).all():
                    scaled = weight, n, float(factor)
        return scaled


_SIGNS = 256
"""Values of a column whose signs tell it from others."""


def _key(values: np.ndarray) -> int:
    """Hash of the number of values, the place of the largest, how many are 0, and signs beside its: the same
    where all are multiplied."""
    if not values.size:
        return 0
    top = int(np.abs(values).argmax())
    above, below = (values[:_SIGNS] > 0).tobytes(), (values[:_SIGNS] < 0).tobytes()
    signs = (above, below) if values[top] > 0 else (below, above)
    return hash((values.size, top, int(np.count_nonzero(values)), *signs))
