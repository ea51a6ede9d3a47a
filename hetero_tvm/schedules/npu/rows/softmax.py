"""Softmax of rows on the vector unit.

Loops: those of :mod:`hetero_tvm.schedules.npu.rows.normalization`, in place in one buffer::

    for tile of rows:   UB <- DRAM;  max, subtract, exp, sum, multiply (vector);  DRAM <- UB

Why it is fast: exponentials stay in 2 bytes, so all lanes work, and rows are divided by one multiplication
with the reciprocal of their sum.
"""

from __future__ import annotations

from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.npu.emit import UB, At, Kernel
from hetero_tvm.schedules.npu.rows.row_tiles import RowSpace, tile_rows
from hetero_tvm.schedules.npu.tiles import ceil_div, extent_at

_MOST_SUMMED = 1 << 13
"""Longest row whose sum is kept in 2 bytes."""


class NpuSoftmaxSpace(RowSpace):
    """``ops.Softmax`` on the vector unit."""

    name = "npu.softmax"
    version = 1
    operator = Softmax

    def unsupported(self, op: Softmax, machine: NpuMachine) -> str | None:
        return "the axis is not the last" if op.trail else self.does_not_fit(op, machine)

    def ranked(self, op: Softmax, machine: NpuMachine) -> list[int]:
        return tile_rows(op.n, op.rows, 1, machine.spec, shared=1024)

    def emit(self, op: Softmax, point: Point, machine: NpuMachine) -> PrimFunc:
        rows, n, dtype = point["rows"], op.n, machine.dtype
        k = Kernel()
        with k:
            x = k.argument("X", (op.rows, n), dtype)
            y = k.argument("Y", (op.rows, n), dtype)
            with k.loop(ceil_div(op.rows, rows), buffers=2) as t:
                high = extent_at(op.rows, rows, t)
                buffer = k.alloc(UB, (rows, n), dtype)
                peaks = k.alloc(UB, (rows,), dtype)
                # A sum of more would come near the end of float16, its reciprocal too near to zero.
                sums = k.alloc(UB, (rows,), dtype if n <= _MOST_SUMMED else "float32")
                box, tile = (high, n), At(buffer, lambda i, j: (i, j))
                peak, total = (At(column, lambda i, *_: (i,)) for column in (peaks, sums))
                k.load(box, tile, At(x, lambda i, j: (t * rows + i, j)))
                k.reduce("max", box, [1], peak, tile)
                k.binary("sub", box, tile, tile, peak)
                k.unary("exp", box, tile, tile)
                # Summed in float32 and rounded once; with 2-byte operands the pass runs at the full rate.
                k.reduce("sum", box, [1], total, tile)
                k.unary("reciprocal", box[:1], total, total)
                k.binary("mul", box, tile, tile, total)
                k.store(box, At(y, lambda i, j: (t * rows + i, j)), tile)
        return k.function
