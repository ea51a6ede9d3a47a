"""Rows of updates written to, or combined with what is at, computed places of a tensor.

Loop structure::

    parallel pieces of X:  Y = X
    parallel pieces of a row:
        for each update, in order:
            Y[its place, piece] = U[update, piece], or the sum, product or extremum of both

A thread writes the same columns of all rows, so that places which occur twice need no order between threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hetero_tvm.host.tvm import Expr, PrimFunc, tirx, tvm
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.emit import Index, Kernel, for_graph, int32, reduced, vector_loop

_PIECE = 256
"""Elements of a row from which another thread is worth its share of reading the places."""


def emit_scatter_rows(
    machine: CpuModel,
    shape: Sequence[int],
    places: Sequence[int],
    dtype: str,
    index_dtype: str,
    reduction: str,
) -> PrimFunc:
    """The kernel of X [shape], places [count, depth] of the first ``depth`` axes, updates [count, row], Y.

    The places must be checked before; one beyond an axis counts as its nearest end.  NaN is kept by all of
    ``update``, ``add``, ``mul``, ``max`` and ``min``, as PyTorch's scatters keep it.
    """
    count, depth = places
    row, size = math.prod(shape[depth:]), math.prod(shape)
    lanes = max(1, machine.lanes * 32 // tvm.DataType(dtype).bits)
    k = Kernel()
    with k:
        x, at = k.argument("X", shape, dtype), k.argument("places", (count, depth), index_dtype)
        updates, y = k.argument("U", (count, *shape[depth:]), dtype), k.argument("Y", shape, dtype)
        x, updates, y = k.view(x, (size,)), k.view(updates, (count * row,)), k.view(y, (size,))

        parts = 4 * machine.threads
        part = -(-size // parts // lanes) * lanes
        with k.parallel(-(-size // part), 8 * size) as piece:

            def copy(start: Index, width: int) -> None:
                to = [k.ramp(piece * part + start, width)]
                k.store(y, k.load(x, to), to)

            last = size - (size - 1) // part * part
            if last == part:
                vector_loop(k, part, lanes, copy, unroll=4)
            else:
                k.branch(
                    piece < (size - 1) // part,
                    lambda: vector_loop(k, part, lanes, copy, unroll=4),
                    lambda: vector_loop(k, last, lanes, copy),
                )

        shares = max(1, min(machine.threads, row // _PIECE))
        while row % shares or shares > 1 and row // shares % lanes:
            shares -= 1
        width_of_share = row // shares
        with k.parallel(shares, 8 * count * row) as share:
            with k.serial(count) as n:
                place: Expr = int32(0)
                for axis in range(depth):
                    index = tirx.Cast("int32", k.load(at, [n, int32(axis)]))
                    index = tirx.min(tirx.max(index, 0), int32(shape[axis] - 1))
                    place = place + index * math.prod(shape[axis + 1 :])
                base = k.let(place + share * width_of_share)
                source = k.let(n * row + share * width_of_share)

                def write(start: Index, width: int) -> None:
                    value, to = (
                        k.load(updates, [k.ramp(source + start, width)]),
                        [k.ramp(base + start, width)],
                    )
                    k.store(y, reduced(reduction, k.load(y, to), value), to)

                vector_loop(k, width_of_share, lanes, write)
    return for_graph(k.function, count * row)
