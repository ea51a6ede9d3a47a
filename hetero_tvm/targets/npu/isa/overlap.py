"""Overlap of strided regions, which limits and data races depend on.

A region is ``extents`` (outermost first) with ``strides`` in bytes and elements of ``width`` bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from hetero_tvm.machines.npu.banks import Dims
from hetero_tvm.targets.npu.isa.encoding import Access


def overlaps_itself(extents: Sequence[int], strides: Sequence[int], width: int) -> bool:
    """Whether two elements may share a byte: dimensions must nest, each beyond the inner ones."""
    span = width
    for stride, extent in sorted((abs(s), n) for n, s in zip(extents, strides, strict=True) if n > 1):
        if stride < span:
            return True
        span += stride * (extent - 1)
    return False


def overlap(a: Access, b: Access) -> bool:
    """Whether two accesses share a byte, exactly; both must be of the same memory (and DRAM slot)."""
    return _meet(*_ordered(a), *_ordered(b))


def _ordered(access: Access) -> tuple[int, Dims, int]:
    """(base, dimensions by descending positive stride, run): what the run could absorb is in it."""
    base, dims = access.base, []
    for n, s in zip(access.extents, access.strides, strict=True):
        if n > 1 and s:
            base += min(0, s * (n - 1))
            dims.append((n, abs(s)))
    dims.sort(key=lambda d: -d[1])
    run = access.run
    while dims and dims[-1][1] <= run:
        n, s = dims.pop()
        run += s * (n - 1)
    return base, dims, run


def _meet(a: int, a_dims: Dims, a_run: int, b: int, b_dims: Dims, b_run: int) -> bool:
    a_span = a_run + sum((n - 1) * s for n, s in a_dims)
    b_span = b_run + sum((n - 1) * s for n, s in b_dims)
    if a >= b + b_span or b >= a + a_span:
        return False
    if not a_dims and not b_dims:
        return True
    if not a_dims or (b_dims and b_span > a_span):
        return _meet(b, b_dims, b_run, a, a_dims, a_run)
    n, s = a_dims[0]
    child = a_span - (n - 1) * s
    first = max(0, -((a + child - 1 - b) // s))
    last = min(n - 1, (b + b_span - 1 - a) // s)
    return any(_meet(a + i * s, a_dims[1:], a_run, b, b_dims, b_run) for i in range(first, last + 1))
