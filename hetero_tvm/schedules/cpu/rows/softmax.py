"""Softmax of rows, and its logarithm.

Loop structure::

    parallel chunks of rows:
        for each row (it stays in L1 over the passes):
            pass 1: max, in 4 independent vector accumulators
            pass 2: exp(x - max) by a vector polynomial, stored, and its sum
            pass 3: times 1 / sum

For the logarithm pass 2 stores nothing, and pass 3 gives x - max - log(sum).
"""

from __future__ import annotations

import math

from hetero_tvm.codegen import vector_math
from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.cpu.rows.row_chunks import RowSpace, each_row
from hetero_tvm.schedules.cpu.rows.row_reduction import RowReduction, add, each_vector, maximum, reduce_row
from hetero_tvm.schedules.emit import Index, Kernel, constant


class SoftmaxSpace(RowSpace):
    """Design space of ``Softmax`` over the last axis; its chunks are of rows."""

    name = "cpu.softmax"
    version = 1

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, Softmax):
            return "not a softmax"
        if op.trail:
            return "the axis is not the last"
        return "an extent is zero" if 0 in (op.rows, op.n) else None

    def emit(self, op: Softmax, point: Point, machine: CpuModel) -> PrimFunc:
        k = Kernel()
        with k:
            x, y = k.argument("X", op.inputs[0].shape), k.argument("Y", op.output.shape)
            softmax_rows(k, x, y, op.rows, op.n, op.log, point["chunks"], machine.lanes)
        return k.function


def softmax_rows(
    k: Kernel, x: Buffer, y: Buffer, rows: Index, n: Index, log: bool, chunks: int, lanes: int
) -> None:
    """Emit softmax of ``rows`` rows of ``n`` values, which may be expressions."""
    x, y = k.view(x, (rows, n)), k.view(y, (rows, n))

    def softmax_row(i: Expr) -> None:
        def at(c: Index, width: int) -> list[Expr]:
            return [i, k.ramp(c, width)]

        stats = k.scratch((2,))  # the largest value; 1 / sum, or the logarithm of the sum
        peak = reduce_row(k, n, lanes, lambda c, w: k.load(x, at(c, w)), maximum, -math.inf)
        k.store(stats, peak, [0])
        # Two registers in one expression: the chain of one exponential leaves room for another.
        total = RowReduction(k, 2 * lanes, add, 0.0)

        def exponent(c: Index, width: int, slot: int) -> None:
            peaks = k.splat(k.load(stats, [0]), width)
            value = k.let(vector_math.softmax_exp(k.load(x, at(c, width)), peaks))
            if not log:
                k.store(y, value, at(c, width))
            total.take(value, width, slot)

        def scale(c: Index, width: int, _slot: int) -> None:
            first, second = (k.splat(k.load(stats, [s]), width) for s in range(2))
            if log:
                k.store(y, k.load(x, at(c, width)) - first - second, at(c, width))
            else:
                k.store(y, k.load(y, at(c, width)) * second, at(c, width))

        each_vector(k, n, 2 * lanes, exponent)
        sums = total.finish()
        k.store(stats, tirx.log(sums) if log else constant(1.0) / sums, [1])
        each_vector(k, n, lanes, scale)

    each_row(k, rows, chunks, softmax_row)
