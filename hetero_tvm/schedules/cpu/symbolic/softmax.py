"""Softmax of any size, by the loops of ``rows/softmax.py`` and ``rows/softmax_axis.py``."""

from __future__ import annotations

import math

from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.schedules.cpu.rows.softmax import softmax_rows
from hetero_tvm.schedules.cpu.rows.softmax_axis import softmax_of_neighbours
from hetero_tvm.schedules.cpu.symbolic.tails import narrowed
from hetero_tvm.schedules.emit import Kernel
from hetero_tvm.schedules.symbolic import Witnesses, shape_variables


def run_time_softmax(witnesses: Witnesses, chunks: int, lanes: int) -> PrimFunc:
    """The PrimFunc: X and Y."""
    op, k = witnesses.largest, Kernel()
    with k:
        variables = shape_variables(witnesses.symbols)
        shapes = witnesses.shapes(variables)
        x, y = (k.argument(name, shape) for name, shape in zip(("X", "Y"), shapes, strict=True))
        sizes = narrowed(k, variables)
        outer, n, inner = (
            k.named(witnesses.value(of, sizes))
            for of in (lambda one: math.prod(one.lead), lambda one: one.n, lambda one: math.prod(one.trail))
        )
        if op.trail:
            softmax_of_neighbours(k, x, y, (outer, n, inner), op.log, chunks, lanes)
        else:
            softmax_rows(k, x, y, outer, n, op.log, chunks, lanes)
    return k.function
