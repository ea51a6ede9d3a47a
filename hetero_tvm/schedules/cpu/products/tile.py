"""The register tile: the innermost loops of every matrix product on a CPU.

::

    acc[rows][vectors] = 0                       (registers)
    for ko in k / unroll:                        (serial)
        prefetch a line or two of the next panel
        for ki in unroll:                        (unrolled)
            for r in rows, v in vectors:         (unrolled)
                acc[r][v] += splat(A[r, k]) * B[k, v]
    epilogue on acc, store

``rows * vectors`` independent accumulators hide the FMA latency; per k the tile loads ``vectors``
vectors and ``rows`` scalars for ``rows * vectors`` FMAs, so FMA issue is the bound, not the load
ports.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hetero_tvm.schedules.emit import Kernel, chunks


def accumulate(
    k: Kernel,
    acc: Any,
    rows: int,
    vectors: int,
    lanes: int,
    depth: Any,
    unroll: int,
    a_at: Callable[[Any, Any], Any],
    b_at: Callable[[Any, Any], Any],
    on_step: Callable[[Any], None] | None = None,
) -> None:
    """Emit the reduction of one register tile.

    Parameters
    ----------
    acc : local buffer [rows, vectors * lanes].
    depth, unroll : reduction length, and how much of it is unrolled (nothing of a run-time length).
    a_at : (row, k) -> scalar expression of the left operand.
    b_at : (k, column ramp) -> vector expression of the right operand.
    on_step : called with the number of the unrolled step, for prefetches.
    """

    def each(body: Callable[[Any, Any], None]) -> None:
        with k.unroll(rows) as r:
            with k.unroll(vectors) as v:
                body(r, k.ramp(v * lanes, lanes))

    each(lambda r, column: k.store(acc, k.splat(0.0, lanes), [r, column]))

    def step(k_index: Any) -> None:
        def fma(r: Any, column: Any) -> None:
            product = k.splat(a_at(r, k_index), lanes) * b_at(k_index, column)
            k.store(acc, k.load(acc, [r, column]) + product, [r, column])

        each(fma)

    if not isinstance(depth, int):
        with k.serial(depth) as ki:
            step(ki)
        return
    full = depth // unroll
    if full:
        with k.serial(full) as ko:
            if on_step is not None:
                on_step(ko)
            with k.unroll(unroll) as ki:
                step(ko * unroll + ki)
    for rest in range(full * unroll, depth):
        step(rest)


def store(
    k: Kernel,
    acc: Any,
    rows: int,
    columns: int,
    lanes: int,
    put: Callable[[Any, Any, int, Any], None],
) -> None:
    """Hand the tile's first ``columns`` columns to ``put(row, column, width, value)``, vector by vector."""
    with k.unroll(rows) as r:
        full = columns // lanes
        if full:
            with k.unroll(full) as v:
                put(r, v * lanes, lanes, k.load(acc, [r, k.ramp(v * lanes, lanes)]))
        for start, width in chunks(columns - full * lanes, lanes):
            column = full * lanes + start
            put(r, column, width, k.load(acc, [r, k.ramp(column, width)]))
