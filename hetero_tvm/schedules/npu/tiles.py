"""Arithmetic on tiles that the NPU's spaces share."""

from __future__ import annotations

import math
from typing import Any

from hetero_tvm.host.tvm import tirx


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    return -(-a // b) * b


def extent_at(total: int, size: int, index: Any) -> Any:
    """Elements of tile ``index`` when ``total`` is cut into tiles of ``size``: less in the last."""
    if total % size == 0:
        return size
    if total < size:
        return total
    return tirx.min(size, total - index * size)


def aligned_rows(rows: int, row_bytes: int, alignment: int) -> int:
    """At least so many rows: as many as make a tile end where another may begin."""
    return round_up(rows, alignment // math.gcd(alignment, row_bytes))


def even(total: int, most: int, step: int = 1) -> int:
    """The tile size that cuts ``total`` into as few tiles as ``most`` allows, as even as ``step`` allows."""
    most = max(step, most // step * step)
    return min(most, round_up(ceil_div(total, ceil_div(total, most)), step))
