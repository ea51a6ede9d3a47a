"""Arithmetic on strided regions, shared by limits, costs and footprints of all instructions.

A region is ``extents`` (outermost first) with ``strides`` in bytes and elements of ``width`` bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hetero_tvm.targets.npu.encoding import Access
from hetero_tvm.targets.npu.spec import BANK_BYTES

Dims = list[tuple[int, int]]
"""(extent, stride in bytes), outermost first."""


def normalize(extents: Sequence[int], strides: Sequence[int], width: int) -> tuple[Dims, int]:
    """Drop extents of 1, merge what is contiguous: outer dimensions and the bytes of one run."""
    dims = [(n, s) for n, s in zip(extents, strides, strict=True) if n > 1]
    run = width
    while dims and dims[-1][1] == run:
        run *= dims.pop()[0]
    merged: Dims = []
    for n, s in dims:
        if merged and merged[-1][1] == n * s:
            merged[-1] = (merged[-1][0] * n, s)
        else:
            merged.append((n, s))
    return merged, run


def distinct(extents: Sequence[int], strides: Sequence[int]) -> tuple[list[int], list[int]]:
    """Without the dimensions of stride 0, which repeat the same bytes."""
    kept = [(n, s) for n, s in zip(extents, strides, strict=True) if s != 0]
    return [n for n, _ in kept], [s for _, s in kept]


def overlaps_itself(extents: Sequence[int], strides: Sequence[int], width: int) -> bool:
    """Whether two elements may share a byte: dimensions must nest, each beyond the inner ones."""
    span = width
    for stride, extent in sorted((abs(s), n) for n, s in zip(extents, strides, strict=True) if n > 1):
        if stride < span:
            return True
        span += stride * (extent - 1)
    return False


def granules(extents: Sequence[int], strides: Sequence[int], width: int) -> int:
    """Bank-wide pieces that an access reads or writes: every run begins a new one.

    Repeated elements (stride 0) are fetched once per outer step that moves.
    """
    dims, run = normalize(*distinct(extents, strides), width)
    return math.prod(n for n, _ in dims) * -(-run // BANK_BYTES)


def bank_cycles(extents: Sequence[int], strides: Sequence[int], width: int, bytes_per_cycle: int) -> float:
    """Cycles for which an access keeps all banks of a scratchpad busy.

    Bank ``b`` holds the granules ``b, b + banks, ...``.  Runs that step by a multiple of a granule
    may hit few banks: a step of all banks is served one run per cycle.
    """
    banks = bytes_per_cycle // BANK_BYTES
    dims, run = normalize(*distinct(extents, strides), width)
    pieces = math.prod(n for n, _ in dims) * -(-run // BANK_BYTES)
    usable = banks
    if dims and dims[-1][1] % BANK_BYTES == 0:
        step = abs(dims[-1][1]) // BANK_BYTES
        usable = min(banks, banks // math.gcd(banks, step) * -(-run // BANK_BYTES))
    return pieces / usable


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
    return any(
        _meet(a + i * s, a_dims[1:], a_run, b, b_dims, b_run) for i in range(first, last + 1)
    )
