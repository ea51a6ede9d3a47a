"""A residual added, and layer or RMS normalisation of the sum.

Loop structure::

    parallel chunks of rows:
        for each row (it stays in L1 over the passes):
            pass 1: x + r, stored as the sum when it is a result; its sum (of squares for RMS)
            then the passes of ``schedules/cpu/rows/normalization.py`` over that row

Bound by memory: x and r are read once and each result is written once, where an addition of its own
writes the sum for the norm to read again.  Every element is read before it is written and never again, so
either result may take the place of an operand.
"""

from __future__ import annotations

from hetero_tvm.host.tvm import Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.add_norm import AddNorm
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.cpu.rows.normalization import normalize_row
from hetero_tvm.schedules.cpu.rows.row_chunks import RowSpace, each_row
from hetero_tvm.schedules.emit import Index, Kernel


class AddNormSpace(RowSpace):
    """Design space of ``AddNorm``; its chunks are of rows."""

    name = "cpu.add_norm"
    version = 1

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, AddNorm):
            return "not an addition with its norm"
        return "an extent is zero" if 0 in (op.rows, op.n) else None

    def emit(self, op: AddNorm, point: Point, machine: CpuModel) -> PrimFunc:
        k, rows = Kernel(), (op.rows, op.n)
        with k:
            arguments = [k.argument(o.name, o.shape) for o in (*op.inputs, *op.outputs)]
            x, r, *vectors = arguments[: len(op.inputs)]
            x, r = k.view(x, rows), k.view(r, (op.added_rows, op.n))
            *kept, y = (k.view(buffer, rows) for buffer in arguments[len(op.inputs) :])

            def one_row(i: Expr) -> None:
                j = i if op.added_rows == op.rows else k.let(tirx.floormod(i, op.added_rows))

                def total(c: Index, width: int) -> Expr:
                    at = k.ramp(c, width)
                    return k.load(x, [i, at]) + k.load(r, [j, at])

                def first(c: Index, width: int) -> Expr:
                    if not kept:
                        return total(c, width)
                    value = k.let(total(c, width))
                    k.store(kept[0], value, [i, k.ramp(c, width)])
                    return value

                def again(c: Index, width: int) -> Expr:
                    return k.load(kept[0], [i, k.ramp(c, width)]) if kept else total(c, width)

                def put(c: Index, width: int, value: Expr) -> None:
                    k.store(y, value, [i, k.ramp(c, width)])

                normalize_row(k, op.norm, machine.lanes, first, again, put, vectors, total)

            each_row(k, op.rows, point["chunks"], one_row)
        return k.function
