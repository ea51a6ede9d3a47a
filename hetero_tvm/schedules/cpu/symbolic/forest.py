"""Decision trees for any number of rows, which are counted at the call: the loops are those of one size."""

from __future__ import annotations

from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.schedules.cpu.rows.forest import ForestKernel
from hetero_tvm.schedules.cpu.symbolic.tails import narrowed
from hetero_tvm.schedules.emit import as_index
from hetero_tvm.schedules.symbolic import Witnesses, shape_variables


def run_time_forest(witnesses: Witnesses, walks: int, threads: int) -> PrimFunc:
    """The kernel, in which ``walks`` go on at a time."""
    kernel, op = ForestKernel(witnesses.largest, walks, threads), witnesses.largest
    with kernel.k as k:
        variables = shape_variables(witnesses.symbols)
        shapes = witnesses.shapes(variables)
        operands = [k.argument(o.name, s, o.dtype) for o, s in zip(op.inputs, shapes, strict=False)]
        y = k.argument("Y", shapes[-1])
        rows = k.let(as_index(witnesses.value(lambda one: one.rows, narrowed(k, variables))))
        kernel.loops(operands, y, rows)
    return k.function
