"""First fit in a given order, in Python: the fallback without a compiler."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence

from hetero_tvm.memory.problem import Buffer

# Orders to try: largest first by size (TensorFlow Lite's planner), by area, by lifetime; then by start.
_ORDERS: tuple[Callable[[Buffer], tuple[int, ...]], ...] = (
    lambda b: (-b.size, b.lower),
    lambda b: (-b.size * (b.upper - b.lower), -b.size),
    lambda b: (b.lower - b.upper, -b.size),
    lambda b: (b.lower, -b.size),
)


def best_of_orders(buffers: Sequence[Buffer], aligns: Sequence[int]) -> tuple[list[int], int]:
    """Offsets with the lowest peak among all orders, and that peak, in bytes."""
    best: tuple[list[int], int] = ([], 0)
    for number, key in enumerate(_ORDERS):
        found = first_fit(
            buffers, aligns, sorted(range(len(buffers)), key=lambda i, key=key: key(buffers[i]))
        )
        if number == 0 or found[1] < best[1]:
            best = found
    return best


def first_fit(
    buffers: Sequence[Buffer], aligns: Sequence[int], order: Sequence[int]
) -> tuple[list[int], int]:
    """Give each buffer, in this order, the lowest offset that is free over its life."""
    offsets = [0] * len(buffers)
    placed: list[tuple[int, int, int, int]] = []  # (offset, end, lower, upper), ascending
    peak = 0
    for index in order:
        b, align = buffers[index], aligns[index]
        lower, upper, at = b.lower, b.upper, 0
        for offset, end, other_lower, other_upper in placed:
            if other_lower < upper and lower < other_upper:
                if offset >= at + b.size:
                    break
                if end > at:
                    at = -(-end // align) * align
        offsets[index] = at
        entry = (at, at + b.size, lower, upper)
        bisect.insort(placed, entry)
        peak = max(peak, entry[1])
    return offsets, peak
