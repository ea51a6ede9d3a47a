"""Layout of the constant matrix of a product: transposed, in whole tiles, rounded where tf32 multiplies."""

from __future__ import annotations

import numpy as np

from hetero_tvm.schedules.cuda.products.fragments import Element
from hetero_tvm.schedules.cuda.products.tiles import Tile
from hetero_tvm.schedules.cuda.values import whole

_WIDEST = 256
"""Columns of the widest tile, which the others divide."""


def packed(w: np.ndarray, tile: Tile, element: Element) -> np.ndarray:
    """W [k, n] as [n, k] with zeros up to whole tiles; rounded to tf32 where that multiplies it."""
    k, n = w.shape
    result = np.zeros((weight_rows(n, tile), whole(k, tile.depth)), w.dtype)
    result[:n, :k] = w.T
    return round_to_tf32(result) if element.rounds else result


def weight_rows(n: int, tile: Tile) -> int:
    """Rows of a packed W: where there are many, the same for every tile, so that architectures with other
    tiles share the constant."""
    return whole(n, _WIDEST if n > _WIDEST else tile.columns)


def round_to_tf32(array: np.ndarray) -> np.ndarray:
    """float32 values rounded to the nearest with 10 bits after the point (ties away from zero)."""
    bits = np.ascontiguousarray(array, "float32").view("uint32")
    finite = (bits & 0x7F800000) != 0x7F800000
    return np.where(finite, (bits + 0x1000) & 0xFFFFE000, bits).astype("uint32").view("float32")
