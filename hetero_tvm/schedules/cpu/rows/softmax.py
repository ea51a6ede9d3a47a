"""Softmax of rows.

Loop structure::

    parallel chunks of rows:
        for each row (it stays in L1 over the passes):
            pass 1: max, in 4 independent vector accumulators
            pass 2: exp(x - max) by a vector polynomial, stored, and its sum
            pass 3: times 1 / sum
"""

from __future__ import annotations

from typing import Any

from hetero_tvm.codegen import vector_math
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.base import DesignSpace, Knob, Point
from hetero_tvm.schedules.cpu.rows import row
from hetero_tvm.schedules.cpu.rows.row_tiles import chunk_choices, default_chunks, each_row
from hetero_tvm.schedules.emit import Kernel, constant

LOWEST = -2.0e38
"""Start of a running maximum: finite, so that a wholly masked row gets equal weights."""


class SoftmaxSpace(DesignSpace):
    """Knob: into how many parallel chunks the rows are cut."""

    name = "cpu.softmax"
    version = 1

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, Softmax):
            return "not a softmax"
        return "an extent is zero" if 0 in (op.rows, op.n) else None

    def knobs(self, op: Softmax, machine: CpuModel) -> tuple[Knob, ...]:
        return (Knob("chunks", chunk_choices(op.rows, machine)),)

    def default(self, op: Softmax, machine: CpuModel) -> Point:
        return {"chunks": default_chunks(op.rows, op.nbytes, machine)}

    def emit(self, op: Softmax, point: Point, machine: CpuModel) -> Any:
        k = Kernel()
        with k:
            x, y = k.argument("X", op.inputs[0].shape), k.argument("Y", op.output.shape)
            x, y = k.view(x, (op.rows, op.n)), k.view(y, (op.rows, op.n))

            def softmax_row(i: Any) -> None:
                normalize(
                    k, op.n, machine.lanes,
                    get=lambda c, w: k.load(x, [i, k.ramp(c, w)]),
                    put=lambda c, w, value: k.store(y, value, [i, k.ramp(c, w)]),
                    scaled=lambda c, w, factor: k.store(
                        y, k.load(y, [i, k.ramp(c, w)]) * k.splat(factor, w), [i, k.ramp(c, w)]
                    ),
                )  # fmt: skip

            each_row(k, op.rows, point["chunks"], softmax_row)
        return k.function


def normalize(k: Kernel, n: int, lanes: int, get: Any, put: Any, scaled: Any) -> None:
    """The three passes over one row of ``n`` values (see the module's loop structure)."""
    stats = k.scratch((2,))
    peak = row.reduce_row(k, n, lanes, get, row.maximum, LOWEST)
    k.store(stats, peak, [0])
    total = row.RowReduction(k, lanes, row.add, 0.0)

    def exponent(c: Any, width: int, slot: int) -> None:
        value = k.let(vector_math.softmax_exp(get(c, width), k.splat(k.load(stats, [0]), width)))
        put(c, width, value)
        total.take(value, width, slot)

    row.each_vector(k, n, lanes, exponent)
    k.store(stats, constant(1.0) / total.finish(), [1])
    row.each_vector(k, n, lanes, lambda c, width, _slot: scaled(c, width, k.load(stats, [1])))
