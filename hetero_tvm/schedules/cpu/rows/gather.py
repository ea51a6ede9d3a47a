"""Elements of a tensor at computed places along an axis, which are checked on the way.

Loop structure::

    parallel over lines of the places (or pieces of few):
        wrong = any place of the piece lies outside of the axis                   vectors
        fail if wrong
        for each place:  Y[line, i] = X[..., place (+ extent where below zero), ...]

The places of a piece come from memory once: they lie in L1 when they are used.
"""

from __future__ import annotations

from hetero_tvm.host.tvm import Expr, PrimFunc, T, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.emit import LAUNCH_FLOPS, Index, Kernel, for_graph, int32

_WORK = 8
"""Operations that an element stands for."""


def emit_gather(
    machine: CpuModel,
    outer: int,
    extent: int,
    inner: int,
    count: int,
    dtypes: tuple[str, str],
    from_end: bool,
    failure: tuple[str, str],
    ranges: bool = False,
) -> PrimFunc:
    """The kernel of X [outer, extent, inner], places [outer, count, inner], Y [outer, count, inner].

    Parameters
    ----------
    dtypes : of X, and of the places.
    from_end : whether places below zero count from the end; else they are wrong.
    failure : kind of the error about a place outside of the axis, and its text.
    ranges : whether the kernel is lifted to extents that are known at run time only.
    """
    dtype, index = dtypes
    lines, length = (outer, count) if inner == 1 else (outer * count, inner)
    k = Kernel()
    with k:
        x = k.argument("X", (outer, extent, inner), dtype)
        given = k.argument("places", (outer, count, inner), index)
        result = k.argument("Y", (outer, count, inner), dtype)
        places, y = (k.view(buffer, (lines, length)) for buffer in (given, result))
        many: tuple[Index, ...] = (outer, count, inner)
        alone: Expr | bool = _WORK * lines * length < LAUNCH_FLOPS
        parts = 1
        if ranges:
            many = tuple(k.counted(*many))
            alone = many[0] * many[1] * many[2] < LAUNCH_FLOPS // _WORK
        elif lines < machine.threads:
            parts = next(n for n in range(machine.threads, 0, -1) if not length % n)
        pieces = (many[0] if inner == 1 else many[0] * many[1]) * parts
        part = length // parts if not ranges else many[1] if inner == 1 else many[2]
        zero, end = tirx.const(0, index), tirx.const(extent, index)
        least = tirx.const(-extent if from_end else 0, index)

        def piece(item: Expr) -> None:
            line, start = tirx.floordiv(item, parts), tirx.floormod(item, parts) * part
            wrong = k.scratch((1,), "int32")
            k.store(wrong, int32(0), [int32(0)])
            with k.serial(part) as i:
                place = k.load(places, [line, start + i])
                outside = tirx.any(place < least, place >= end)
                seen = k.load(wrong, [int32(0)])
                k.store(wrong, tirx.bitwise_or(seen, tirx.Cast("int32", outside)), [int32(0)])
            kind, text = failure
            with T.Assert(tirx.EQ(k.load(wrong, [int32(0)]), 0), text, kind):
                pass
            with k.serial(part) as i:
                place = k.load(places, [line, start + i])
                if from_end:
                    place = tirx.Select(place < zero, place + end, place)
                place = tirx.Cast("int32", place)
                at = [line, place, 0] if inner == 1 else [tirx.floordiv(line, many[1]), place, start + i]
                k.store(y, k.load(x, at), [line, start + i])

        k.shared_unless(alone, pieces, piece)
    return for_graph(k.function, lines * length)
