"""Group and instance normalisation at run-time sizes, by the loops of ``rows/group_norm.py``."""

from __future__ import annotations

from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.cpu.rows.group_norm import group_norm_rows
from hetero_tvm.schedules.cpu.symbolic.tails import narrowed
from hetero_tvm.schedules.emit import Kernel
from hetero_tvm.schedules.extents import Unfit
from hetero_tvm.schedules.symbolic import Witnesses, shape_variables


def run_time_group_norm(witnesses: Witnesses, chunks: int, machine: CpuModel) -> PrimFunc:
    """The PrimFunc: X, scale, shift and Y.

    Raises
    ------
    Unfit : the number of channels or of groups depends on the sizes.
    """
    op, k = witnesses.largest, Kernel()
    if len({(one.channels, one.groups, one.activation) for one in witnesses.ops}) > 1:
        raise Unfit("the channels depend on the sizes")
    with k:
        variables = shape_variables(witnesses.symbols)
        shapes = witnesses.shapes(variables)
        operands = [
            k.argument(o.name, shape) for o, shape in zip((*op.inputs, op.output), shapes, strict=True)
        ]
        sizes = narrowed(k, variables)
        rows, n, spatial = (
            k.named(witnesses.value(of, sizes))
            for of in (lambda one: one.rows, lambda one: one.n, lambda one: one.spatial)
        )
        group_norm_rows(k, op, operands, (rows, n, spatial), chunks, machine)
    return k.function
