"""Arithmetic on tiles that the NPU's spaces share.

Sizes that change from tile to tile are expressions of the loops; what is a plain number stays one.
"""

from __future__ import annotations

import math

from hetero_tvm.host.tvm import tirx
from hetero_tvm.schedules.emit import Index

ISSUE = 12
"""Cycles that an instruction costs its queue beyond its work: its own issue and its flags'."""


def ceil_div(a: int, b: int) -> int:
    """``a / b``, rounded up."""
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    """Least multiple of ``b`` that is not below ``a``."""
    return -(-a // b) * b


def tile_count(total: Index, size: int) -> Index:
    """Number of tiles of ``size`` that cover ``total``."""
    return (total + size - 1) // size


def least(a: Index, b: Index) -> Index:
    """The smaller of two extents."""
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else tirx.min(a, b)


def greatest(a: Index, b: Index) -> Index:
    """The larger of two extents."""
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else tirx.max(a, b)


def extent_at(total: Index, size: int, index: Index) -> Index:
    """Elements of tile ``index`` when ``total`` is cut into tiles of ``size``: fewer in the last one."""
    if isinstance(total, int):
        if total % size == 0:
            return size
        if total < size:
            return total
    return tirx.min(size, total - index * size)


def aligned_rows(rows: int, row_bytes: int, alignment: int) -> int:
    """Least number of rows, at least ``rows``, behind which another tile may begin."""
    return round_up(rows, alignment // math.gcd(alignment, row_bytes))


def even(total: int, most: int, step: int = 1) -> int:
    """The tile size that cuts ``total`` into as few tiles as ``most`` allows, as even as ``step`` allows."""
    most = max(step, most // step * step)
    return min(most, round_up(ceil_div(total, ceil_div(total, most)), step))
