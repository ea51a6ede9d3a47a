"""Normalisation at run-time sizes: of groups (``rows/group_norm.py``), over channels of images
(``rows/normalization_axis.py``), and of rows as long as a run says (``rows/normalization.py``)."""

from __future__ import annotations

import math

from hetero_tvm.host.tvm import Expr, PrimFunc
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.cpu.programs.reduction import PARALLEL_WORTH
from hetero_tvm.schedules.cpu.rows.group_norm import group_norm_rows
from hetero_tvm.schedules.cpu.rows.normalization import normalize_row
from hetero_tvm.schedules.cpu.rows.normalization_axis import VECTORS, normalize_block
from hetero_tvm.schedules.cpu.symbolic.tails import declared, narrowed
from hetero_tvm.schedules.emit import Index, Kernel, as_index, vector_pieces
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


def run_time_norm_of_axis(witnesses: Witnesses, machine: CpuModel) -> PrimFunc:
    """The PrimFunc: X, the vectors of the axis, Y.

    Raises
    ------
    Unfit : the extent of the axis depends on the sizes.
    """
    op, k = witnesses.largest, Kernel()
    if len({one.n for one in witnesses.ops}) > 1:
        raise Unfit("the axis depends on the sizes")
    with k:
        variables = shape_variables(witnesses.symbols)
        names = [operand.name for operand in (*op.inputs, op.output)]
        shapes = zip(names, witnesses.shapes(variables), strict=True)
        x, *vectors, y = (k.argument(name, shape) for name, shape in shapes)
        sizes = narrowed(k, variables)
        outer, inner = (
            k.let(as_index(witnesses.value(of, sizes)))
            for of in (lambda one: math.prod(one.lead), lambda one: math.prod(one.trail))
        )
        x, y = (k.view(buffer, (outer, op.n, inner)) for buffer in (x, y))
        alone = True if machine.threads == 1 else outer * inner * op.n < PARALLEL_WORTH

        def strip(image: Expr, first: Expr, width: int) -> None:
            normalize_block(k, op, x, y, vectors, image, first, vector_pieces(width, machine.lanes))

        k.strips(outer, inner, machine.lanes, VECTORS, alone, strip)
    return k.function


def run_time_norm_of_rows(witnesses: Witnesses, machine: CpuModel) -> PrimFunc | None:
    """The PrimFunc: X, the vectors of the row, Y; None where rows are parts of others, or of one length."""
    op, k = witnesses.largest, Kernel()
    if op.place or len({one.n for one in witnesses.ops}) == 1:
        return None
    with k:
        variables = shape_variables(witnesses.symbols)
        (x, *vectors), shape = declared(k, witnesses, variables)
        y = k.argument("Y", shape)
        sizes = narrowed(k, variables)
        rows, n = (
            k.let(as_index(witnesses.value(of, sizes))) for of in (lambda one: one.rows, lambda one: one.n)
        )
        x, y = (k.view(buffer, (rows, n)) for buffer in (x, y))

        def one_row(i: Expr) -> None:
            def get(c: Index, width: int) -> Expr:
                return k.load(x, [i, k.ramp(c, width)])

            def put(c: Index, width: int, value: Expr) -> None:
                k.store(y, value, [i, k.ramp(c, width)])

            normalize_row(k, op, machine.lanes, get, get, put, vectors, extent=n)

        alone = True if machine.threads == 1 else rows * n < PARALLEL_WORTH
        k.shared_unless(alone, rows, one_row)
    return k.function
