"""Phases put side by side that are of any size, by the loops of ``images/interleave.py``."""

from __future__ import annotations

from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.ops.interleave import Interleave
from hetero_tvm.schedules.cpu.images.interleave import Extents, put_side_by_side
from hetero_tvm.schedules.cpu.symbolic.tails import narrowed, told_sizes
from hetero_tvm.schedules.emit import Kernel
from hetero_tvm.schedules.symbolic import Witnesses, shape_variables


def interleaved(witnesses: Witnesses, pixels: int) -> PrimFunc | None:
    """The PrimFunc: X, what only tells sizes, Y; None where the phases that are cut away differ."""
    op: Interleave = witnesses.largest
    if len({(one.strides, one.cut) for one in witnesses.ops}) > 1:
        return None
    k = Kernel()
    with k:
        variables = shape_variables(witnesses.symbols)
        shapes = witnesses.shapes(variables)
        x = k.argument("X", shapes[0], op.dtype)
        told_sizes(k, witnesses, shapes[1:-1])
        y = k.argument("Y", shapes[-1], op.dtype)
        sizes = narrowed(k, variables)
        extents = witnesses.value(lambda one: (one.batch, one.rows, one.columns, *one.out), sizes)
        put_side_by_side(k, op, x, y, Extents(*map(k.named, extents)), pixels)
    return k.function
