"""Arrays that follow from fewer numbers by a small matrix, as transformed filters do from plain ones.

A library stores the fewer numbers, and computes the array when it is loaded (``runtime/cpp/constants.cc``).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hetero_tvm.host import mapped


class Origin(NamedTuple):
    """Origin of an array ``[outer, rows, inner]``: ``matrix`` times the middle axis of ``plain``.

    Attributes
    ----------
    matrix : float64 [rows, terms].
    plain : float32 [outer, terms, inner].
    """

    matrix: np.ndarray
    plain: np.ndarray


class Expanded(np.ndarray):
    """An array that knows its origin, in any shape; nothing else that is made of it does."""

    origin: Origin | None = None

    def reshape(self, *shape: Any, **how: Any) -> Expanded:
        made = super().reshape(*shape, **how)
        made.origin = self.origin
        return made


def expanded(matrix: np.ndarray, plain: np.ndarray) -> Expanded:
    """The product in float32, with sums in float64 in the order of terms: a library makes the same bits."""
    outer, terms, inner = plain.shape
    result = mapped.empty((outer, len(matrix), inner), np.float32)
    for part, source in zip(result, plain, strict=True):
        wide = source.astype(np.float64)
        for row, factors in zip(part, matrix, strict=True):
            total = np.zeros(inner)
            for n in range(terms):
                if factors[n] != 0:
                    total += factors[n] * wide[n]
            row[:] = total
        mapped.touched(part.nbytes + source.nbytes)
    made = result.view(Expanded)
    made.origin = Origin(matrix, plain)
    return made


def remember(tensor: Any, array: np.ndarray) -> None:
    """Note the origin of an array as that of the tensor made of it, where that lies in a mapped file."""
    if isinstance(array, Expanded) and array.origin is not None:
        matrix, plain = array.origin
        mapped.note(tensor.data_ptr(), Origin(matrix, mapped.mapped(plain)))


def origin_of(tensor: Any) -> Origin | None:
    """Origin that was noted for a tensor."""
    return mapped.noted(tensor.data_ptr())
