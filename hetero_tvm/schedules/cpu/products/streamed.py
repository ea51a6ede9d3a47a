"""Products of few rows with a matrix that is read once, row by row as it lies.

Loop structure::

    parallel over batch x strips of columns:
        for each few rows of B:
            for each vector of the strip:
                acc[all rows of A] += A[:, rows] * B[rows, vector]          (acc in L1)
        acc -> Y

A panel of a few vectors would jump from row to row, and fetch a page for 128 bytes; a strip of several rows
runs through memory as the hardware fetches ahead.
"""

from __future__ import annotations

from collections.abc import Callable

from hetero_tvm.host.tvm import Buffer, Expr
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.batch_matmul import BatchMatmul
from hetero_tvm.schedules.emit import Index, Kernel, vector_loop

MOST_ROWS = 8
"""Most rows of A: with more the register tile, which reads them again, is no slower."""

_FACTORS = 16
"""Factors of A between two accesses of an accumulator, of all its rows."""
_MOST_AT_ONCE = 8
"""Rows of B that are read side by side: the hardware fetches ahead for few streams, and rows that lie a page
apart meet in one set of L1."""
_STRIP_BYTES = 8 << 10
"""Bytes of the accumulators."""


def strip_of(op: BatchMatmul, machine: CpuModel) -> int:
    """Columns of a strip: all rows of it in L1, and strips for all threads."""
    wanted = -(-op.n // max(1, -(-machine.threads // op.batch)))
    whole = -(-wanted // machine.lanes) * machine.lanes
    return min(op.n, whole, max(machine.lanes, _STRIP_BYTES // 4 // op.m // machine.lanes * machine.lanes))


def emit_strip(
    k: Kernel,
    op: BatchMatmul,
    width: int,
    lanes: int,
    a_at: Callable[[int, Index], Expr],
    b_at: Callable[[Index, Index, int], Expr],
    put: Callable[[int, Index, int, Expr], None],
) -> None:
    """The products of one strip, in a kernel that is being built.

    Parameters
    ----------
    width : columns of the strip.
    a_at : (row, k) -> scalar of A.
    b_at : (k, column, lanes) -> vector of B.
    put : called with (row, column, lanes, value) for each vector of the result.
    """
    acc: Buffer = k.scratch((op.m, width))
    for r in range(op.m):
        vector_loop(k, width, lanes, lambda c, w, r=r: k.store(acc, k.splat(0.0, w), [r, k.ramp(c, w)]))

    def take(first: Index, count: int) -> None:
        factors = [[k.let(a_at(r, first + u)) for u in range(count)] for r in range(op.m)]

        def add(column: Index, w: int) -> None:
            rows = [k.let(b_at(first + u, column, w)) for u in range(count)]
            for r in range(op.m):
                value = k.load(acc, [r, k.ramp(column, w)])
                for u in range(count):
                    value = value + k.splat(factors[r][u], w) * rows[u]
                k.store(acc, value, [r, k.ramp(column, w)])

        vector_loop(k, width, 2 * lanes, add)

    count = max(2, min(_MOST_AT_ONCE, _FACTORS // op.m))
    full, rest = divmod(op.k, count)
    if full:
        with k.serial(full) as step:
            take(step * count, count)
    if rest:
        take(full * count, rest)
    for r in range(op.m):
        vector_loop(k, width, lanes, lambda c, w, r=r: put(r, c, w, k.load(acc, [r, k.ramp(c, w)])))
