"""Reductions along one contiguous row, in vector registers."""

from __future__ import annotations

from collections.abc import Callable

from hetero_tvm.host.tvm import Expr, tirx
from hetero_tvm.schedules.emit import FLOAT, Index, Kernel, constant, int32, vector_loop

UNROLL = 4
"""Independent accumulators: enough to hide the latency of add and max (3 to 4 cycles)."""

_LONG, _BLOCK = 1 << 16, 1 << 14
"""Values from which on a row is summed up in blocks, and those of a block: some hundred per accumulator."""

Combine = Callable[[Expr, Expr], Expr]


def add(a: Expr, b: Expr) -> Expr:
    """Sum of two values."""
    return a + b


def maximum(a: Expr, b: Expr) -> Expr:
    """Larger of two values."""
    return tirx.max(a, b)


class RowReduction:
    """``combine`` over the values of a row, held in ``UNROLL`` vector accumulators.

    :meth:`take` accepts vectors of any width at any time, so one pass over the row can both
    transform and reduce it; :meth:`finish` folds the lanes and returns a scalar expression.
    """

    def __init__(self, k: Kernel, lanes: int, combine: Combine, start: float, dtype: str = FLOAT):
        self._k, self._lanes, self._combine = k, lanes, combine
        self._acc = k.scratch((UNROLL * lanes,), dtype)
        for u in range(UNROLL):
            k.store(self._acc, k.splat(constant(start, dtype), lanes), [k.ramp(u * lanes, lanes)])

    def take(self, value: Expr, width: int, slot: int = 0) -> None:
        """Combine a vector of ``width`` lanes with accumulator ``slot``."""
        at = [self._k.ramp(slot * self._lanes, width)]
        self._k.store(self._acc, self._combine(self._k.load(self._acc, at), value), at)

    def finish(self) -> Expr:
        """The reduced value; folds all lanes of all accumulators."""
        k, width = self._k, UNROLL * self._lanes
        while width > 1:
            width //= 2
            step = min(width, self._lanes)
            for start in range(0, width, step):
                low, high = [k.ramp(start, step)], [k.ramp(width + start, step)]
                k.store(self._acc, self._combine(k.load(self._acc, low), k.load(self._acc, high)), low)
        return k.load(self._acc, [0])


def reduce_row(
    k: Kernel,
    extent: Index,
    lanes: int,
    value_at: Callable[[Index, int], Expr],
    combine: Combine,
    start: float,
) -> Expr:
    """Reduce ``value_at(column, width)`` over ``extent`` columns; returns a scalar expression.

    Sums of rows that are long, or as long as the run says, are those of blocks, added up in float64.
    """

    def of(first: Index, count: Index) -> Expr:
        reduction = RowReduction(k, lanes, combine, start)
        each_vector(
            k, count, lanes, lambda c, width, slot: reduction.take(value_at(first + c, width), width, slot)
        )
        return reduction.finish()

    known = isinstance(extent, int)
    if combine is not add or (known and extent < _LONG):
        return of(0, extent)
    total = k.scratch((1,), "float64")
    k.store(total, constant(start, "float64"), [0])

    def block(first: Index, count: Index) -> None:
        k.store(total, k.load(total, [0]) + tirx.Cast("float64", of(first, count)), [0])

    whole = extent // _BLOCK if known else k.let(tirx.truncdiv(extent, int32(_BLOCK)))
    with k.serial(whole) as number:
        block(number * _BLOCK, _BLOCK)
    if not known or extent % _BLOCK:
        rest = extent - whole * _BLOCK
        block(whole * _BLOCK, rest if known else k.let(rest))
    return tirx.Cast(FLOAT, k.load(total, [0]))


def each_vector(k: Kernel, extent: Index, lanes: int, body: Callable[[Index, int, int], None]) -> None:
    """``body(column, width, slot)`` over a row; ``slot`` cycles so that accumulators stay independent."""
    calls = iter(range(1 << 30))
    vector_loop(k, extent, lanes, lambda c, width: body(c, width, next(calls) % UNROLL), unroll=UNROLL)
