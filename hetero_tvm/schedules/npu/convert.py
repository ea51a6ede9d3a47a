"""Kernels that change type or layout: at the borders of regions, and between operators that want
different layouts.

Loops: pieces of the tensor that fit the unified buffer pass through it; one vector copy converts
(and, for layouts, permutes by its strides).  DMA moves long runs only::

    for piece:   UB <- DRAM;  copy (vector);  DRAM <- UB
"""

from __future__ import annotations

from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.schedules.npu.emit import UB, At, Kernel
from hetero_tvm.schedules.npu.tiles import ceil_div, even, extent_at

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "int32": 4, "int64": 8, "uint8": 1, "bool": 1}
_HELD = {"int64": "int32", "uint8": "int8", "bool": "int8"}
"""Types of the host that the machine has no name for: the type of their bytes (int64: of its halves)."""
_VERSIONS = 4
"""Versions of the buffers of a permutation: the DRAM's latency passes behind the pieces before."""


def cast(elements: int, source: str, target: str, spec: NPUSpec) -> PrimFunc:
    """Kernel that converts a whole tensor element by element.

    int64 is read by its lower half and written with its sign in the upper one; uint8 is kept less 128.
    """
    room = spec.scratchpad("ub") // (2 * (_BYTES[source] + _BYTES[target] + 4)) - 64
    size = even(elements, min(room, 128 * spec.vector_lanes), 16) if elements > 16 else elements
    wide_in, wide_out = (2 if dtype == "int64" else 1 for dtype in (source, target))
    k = Kernel()
    with k:
        x = k.argument("X", (elements, wide_in), _HELD.get(source, source))
        y = k.argument("Y", (elements, wide_out), _HELD.get(target, target))
        with k.loop(ceil_div(elements, size), buffers=2) as t:
            count = extent_at(elements, size, t)
            a = k.alloc(UB, (size, wide_in), _HELD.get(source, source))
            b = k.alloc(UB, (size, wide_out), _HELD.get(target, target))
            k.load((count, wide_in), At(a, lambda i, j: (i, j)), At(x, lambda i, j: (t * size + i, j)))
            whole, out = At(a, lambda i: (i, 0)), At(b, lambda i: (i, 0))
            if "uint8" in (source, target) and source != target:
                # The upper half of the bytes' values is the lower half of the numbers.
                shift = At(k.alloc(UB, (size,), "int32"), lambda i: (i,))
                k.binary("lt", (count,), shift, whole, 0.0)
                k.unary("copy", (count,), shift, shift, mul=256.0, add=-128.0)
                k.binary("add", (count,), out, whole, shift)
            else:
                k.unary("copy", (count,), out, whole)
            if target == "int64":
                upper = At(b, lambda i: (i, 1))
                k.binary("lt", (count,), upper, whole, 0.0)
                k.unary("neg", (count,), upper, upper)
            k.store((count, wide_out), At(y, lambda i, j: (t * size + i, j)), At(b, lambda i, j: (i, j)))
    return k.function


def permute(outer: int, rows: int, columns: int, source: str, target: str, spec: NPUSpec) -> PrimFunc:
    """Kernel [outer, rows, columns] -> [outer, columns, rows], converted: the swap between channels-first and
    channels-last (rows: channels, columns: pixels, or the other way round)."""
    each = _VERSIONS * (_BYTES[source] + _BYTES[target])
    room = (spec.scratchpad("ub") - 4096) // each - 64
    wide = min(columns, max(1, room // (min(rows | 1, 65) + 1)), max(512, 8192 // rows))
    if wide < columns and wide > 32:
        wide = wide // 16 * 16  # pieces begin on whole banks
    high = min(rows, max(1, room // wide - 1))
    k = Kernel()
    with k:
        x = k.argument("X", (outer, rows, columns), source)
        y = k.argument("Y", (outer, columns, rows), target)
        with (
            k.loop(outer) as n,
            k.loop(ceil_div(rows, high)) as r,
            k.loop(ceil_div(columns, wide), buffers=_VERSIONS) as t,
        ):
            row, column = r * high, t * wide
            tall, broad = extent_at(rows, high, r), extent_at(columns, wide, t)
            # An odd pitch spreads a column over all banks; the copy runs along the source's rows.
            a, b = k.alloc(UB, (high, wide), source), k.alloc(UB, (wide, high | 1), target)
            piece = At(a, lambda i, j: (i, j))
            k.load((tall, broad), piece, At(x, lambda i, j: (n, row + i, column + j)))
            k.unary("copy", (tall, broad), At(b, lambda i, j: (j, i)), piece)
            swapped = At(b, lambda j, i: (j, i))
            k.store((broad, tall), At(y, lambda j, i: (n, column + j, row + i)), swapped)
    return k.function
