"""Kernels that change type or layout: at the borders of regions, and between operators that want
different layouts.

Loops: pieces of the tensor that fit the unified buffer pass through it; one vector copy converts
(and, for layouts, permutes by its strides).  DMA moves long runs only.
"""

from __future__ import annotations

from typing import Any

from hetero_tvm.schedules.npu.emit import UB, At, Kernel
from hetero_tvm.schedules.npu.tiles import ceil_div, even, extent_at

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def cast(elements: int, source: str, target: str, spec: Any) -> Any:
    """Elementwise conversion of a whole tensor."""
    room = spec.scratchpad("ub") // (2 * (_BYTES[source] + _BYTES[target])) - 64
    size = even(elements, min(room, 128 * spec.vector_lanes), 16) if elements > 16 else elements
    k = Kernel()
    with k:
        x, y = k.argument("X", (elements,), source), k.argument("Y", (elements,), target)
        with k.loop(ceil_div(elements, size), buffers=2) as t:
            count = extent_at(elements, size, t)
            a, b = k.alloc(UB, (size,), source), k.alloc(UB, (size,), target)
            k.load((count,), At(a, lambda i: (i,)), At(x, lambda i: (t * size + i,)))
            k.unary("copy", (count,), At(b, lambda i: (i,)), At(a, lambda i: (i,)))
            k.store((count,), At(y, lambda i: (t * size + i,)), At(b, lambda i: (i,)))
    return k.function


def permute(outer: int, rows: int, columns: int, source: str, target: str, spec: Any) -> Any:
    """[outer, rows, columns] -> [outer, columns, rows], converted: the swap between channels-first and
    channels-last (rows: channels, columns: pixels, or the other way round)."""
    each = 2 * (_BYTES[source] + _BYTES[target])
    room = (spec.scratchpad("ub") - 4096) // each - 64
    wide = min(columns, max(1, room // min(rows | 1, 65)), 512)
    high = min(rows, max(1, room // wide - 1))
    k = Kernel()
    with k:
        x = k.argument("X", (outer, rows, columns), source)
        y = k.argument("Y", (outer, columns, rows), target)
        with k.loop(outer) as n, k.loop(ceil_div(rows, high)) as r, k.loop(
            ceil_div(columns, wide), buffers=2
        ) as t:  # fmt: skip
            tall, broad = extent_at(rows, high, r), extent_at(columns, wide, t)
            # An odd pitch spreads a column over all banks; the copy runs along the source's rows.
            a, b = k.alloc(UB, (high, wide), source), k.alloc(UB, (wide, high | 1), target)
            k.load(
                (tall, broad), At(a, lambda i, j: (i, j)),
                At(x, lambda i, j: (n, r * high + i, t * wide + j)),
            )  # fmt: skip
            k.unary("copy", (tall, broad), At(b, lambda i, j: (j, i)), At(a, lambda i, j: (i, j)))
            k.store(
                (broad, tall), At(y, lambda j, i: (n, t * wide + j, r * high + i)),
                At(b, lambda j, i: (j, i)),
            )  # fmt: skip
    return k.function
