"""Layer and RMS normalisation of rows.

Loop structure::

    parallel chunks of rows:
        for each row (it stays in L1 over the passes):
            pass 1: sum of x - x[0], in 4 independent vector accumulators        (skipped for RMS)
            pass 2: sum of (x - mean)**2
            pass 3: (x - mean) * rstd * scale + shift, stored

Bound by load bandwidth from L1/L2; the centred second pass keeps float32 accurate, and so do differences to
one of the row's values in the first, where all of them are far from 0.  Rows are read where
they lie (the heads of a packed projection, say), so they are neither sliced nor transposed before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.cpu.rows.row_chunks import RowSpace, each_row
from hetero_tvm.schedules.cpu.rows.row_reduction import add, each_vector, reduce_row
from hetero_tvm.schedules.emit import Index, Kernel, constant, strided_position


class NormalizeSpace(RowSpace):
    """Design space of ``Normalization`` over the last axis; its chunks are of rows."""

    name = "cpu.normalize"
    version = 1

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, Normalization):
            return "not a normalisation"
        if op.dtype != "float32":
            return f"the operands are {op.dtype}"
        if op.trail:
            return op.special
        return "an extent is zero" if 0 in (op.rows, op.n) else None

    def emit(self, op: Normalization, point: Point, machine: CpuModel) -> PrimFunc:
        k = Kernel()
        with k:
            x, *vectors = (k.argument(o.name, o.shape) for o in op.inputs)
            y = k.argument("Y", op.output.shape)
            y = k.view(y, (op.rows, op.n))
            x = k.view(x, (math.prod(op.source),) if op.place else (op.rows, op.n))

            def one_row(i: Expr) -> None:
                start = k.let(strided_position(i, op.lead, op.place)) if op.place else None

                def get(c: Index, width: int) -> Expr:
                    return k.load(x, [i, k.ramp(c, width)] if start is None else [k.ramp(start + c, width)])

                def put(c: Index, width: int, value: Expr) -> None:
                    k.store(y, value, [i, k.ramp(c, width)])

                normalize_row(k, op, machine.lanes, get, get, put, vectors)

            each_row(k, op.rows, point["chunks"], one_row)
        return k.function


def normalize_row(
    k: Kernel,
    op: Normalization,
    lanes: int,
    first: Callable[[Index, int], Expr],
    again: Callable[[Index, int], Expr],
    put: Callable[[Index, int, Expr], None],
    vectors: Sequence[Buffer],
    plain: Callable[[Index, int], Expr] | None = None,
    extent: Index | None = None,
) -> None:
    """The passes over one row.

    Parameters
    ----------
    first, again : (column, width) -> the row's values, in the first pass over it and in later ones.
    put : (column, width, value) stores the result.
    vectors : buffers of scale and, when there is one, shift.
    plain : the values once more, in front of the first pass, where that one stores something as well.
    extent : values of the row, if a run says how many there are.
    """
    n, stats = op.n if extent is None else extent, k.scratch((2,))
    share = constant(1.0 / n) if isinstance(n, int) else constant(1.0) / tirx.Cast("float32", n)

    def centered(value: Expr, width: int) -> Expr:
        return value - k.splat(k.load(stats, [0]), width) if op.centered else value

    def square(value: Expr) -> Expr:
        value = k.let(value)
        return value * value

    if op.centered:
        k.store(stats, (plain or first)(0, 1), [0])  # see the module's text
        total = reduce_row(k, n, lanes, lambda c, w: centered(first(c, w), w), add, 0.0)
        k.store(stats, k.load(stats, [0]) + total * share, [0])
    read = again if op.centered else first
    squares = reduce_row(k, n, lanes, lambda c, w: square(centered(read(c, w), w)), add, 0.0)
    k.store(stats, constant(1.0) / tirx.sqrt(squares * share + constant(op.eps)), [1])

    def write(c: Index, width: int, _slot: int) -> None:
        at = [k.ramp(c, width)]
        value = centered(again(c, width), width) * k.splat(k.load(stats, [1]), width) * k.load(vectors[0], at)
        put(c, width, value + k.load(vectors[1], at) if op.shifted else value)

    each_vector(k, n, lanes, write)
