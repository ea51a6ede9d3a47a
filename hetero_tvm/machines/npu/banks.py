"""Arithmetic on strided accesses to banked scratchpads: contiguous runs, bank-wide pieces, cycles.

An access is ``extents`` (outermost first) with ``strides`` in bytes and elements of ``width`` bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hetero_tvm.machines.npu.spec import BANK_BYTES

Dims = list[tuple[int, int]]
"""Dimensions of an access, (extent, stride in bytes), outermost first."""


def _runs(extents: Sequence[int], strides: Sequence[int], width: int) -> tuple[Dims, int]:
    """Outer dimensions of an access, and the bytes of one contiguous run.

    Without dimensions of stride 0, which repeat the same bytes; dimensions that continue each other are one.
    """
    dims = [(n, s) for n, s in zip(extents, strides, strict=True) if n > 1 and s != 0]
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


def granules(extents: Sequence[int], strides: Sequence[int], width: int) -> int:
    """Bank-wide pieces that an access reads or writes: every run begins a new one.

    Repeated elements (stride 0) are fetched once per outer step that moves.
    """
    dims, run = _runs(extents, strides, width)
    return math.prod(n for n, _ in dims) * -(-run // BANK_BYTES)


def bank_cycles(extents: Sequence[int], strides: Sequence[int], width: int, bytes_per_cycle: int) -> float:
    """Cycles for which an access keeps all banks of a scratchpad busy.

    Bank ``b`` holds the granules ``b, b + banks, ...``.  Runs that step by a multiple of a granule
    may hit few banks: a step of all banks is served one run per cycle.
    """
    banks = bytes_per_cycle // BANK_BYTES
    dims, run = _runs(extents, strides, width)
    usable = banks
    if dims and dims[-1][1] % BANK_BYTES == 0:
        step = abs(dims[-1][1]) // BANK_BYTES
        usable = min(banks, banks // math.gcd(banks, step) * -(-run // BANK_BYTES))
    return granules(extents, strides, width) / usable
