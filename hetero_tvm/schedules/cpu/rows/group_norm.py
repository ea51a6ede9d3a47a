"""Group normalisation: a row is one group of one sample.

Loop structure::

    parallel chunks of rows:
        pass 1: sum of x - x[0], in 4 independent vector accumulators
        pass 2: sum of (x - mean)**2
        for each channel of the group:
            pass 3: (x - mean) * (rstd * scale) + shift, the activation, stored

A group is contiguous, so the first two passes know no channels; the third has one scale and shift per
channel in registers (without spatial extents it takes vectors of them instead).
"""

from __future__ import annotations

from collections.abc import Sequence

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.group_norm import GroupNorm
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.cpu.activation_code import ActivationCode
from hetero_tvm.schedules.cpu.rows.row_chunks import RowSpace, each_row
from hetero_tvm.schedules.cpu.rows.row_reduction import add, each_vector, reduce_row
from hetero_tvm.schedules.emit import Index, Kernel, constant


class GroupNormSpace(RowSpace):
    """Design space of ``GroupNorm``; its chunks are of groups."""

    name = "cpu.group_norm"
    version = 1

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, GroupNorm):
            return "not a group normalisation"
        return "an extent is zero" if 0 in (op.rows, op.n) else None

    def emit(self, op: GroupNorm, point: Point, machine: CpuModel) -> PrimFunc:
        k = Kernel()
        with k:
            operands = [k.argument(o.name, o.shape) for o in (*op.inputs, op.output)]
            group_norm_rows(k, op, operands, (op.rows, op.n, op.spatial), point["chunks"], machine)
        return k.function


def group_norm_rows(
    k: Kernel,
    op: GroupNorm,
    operands: Sequence[Buffer],
    extents: tuple[Index, Index, Index],
    chunks: int,
    machine: CpuModel,
) -> None:
    """Emit the loops.

    Parameters
    ----------
    op : whose channels, groups and activation hold at all sizes.
    operands : X, scale, shift and Y.
    extents : groups of all samples, values of a group, values of a channel of one sample.
    """
    x, scale, shift, y = operands
    rows, n, spatial = extents
    lanes, per_group = machine.lanes, op.channels // op.groups
    activations = ActivationCode((op.activation,), machine)
    x, y = k.view(x, (rows, n)), k.view(y, (rows, n))
    share = constant(1.0 / n) if isinstance(n, int) else constant(1.0) / tirx.Cast("float32", n)

    def one_row(i: Expr) -> None:
        stats = k.scratch((4,))  # mean, 1 / deviation, then scale and shift of a channel
        first = tirx.floormod(i, op.groups) * per_group

        def get(c: Index, width: int) -> Expr:
            return k.load(x, [i, k.ramp(c, width)])

        def centered(c: Index, width: int) -> Expr:
            return get(c, width) - k.splat(k.load(stats, [0]), width)

        def put(c: Index, width: int, factor: Expr, offset: Expr) -> None:
            value = centered(c, width) * factor + offset
            if op.activation:
                value = activations.apply(op.activation, value, width)
            k.store(y, value, [i, k.ramp(c, width)])

        k.store(stats, get(0, 1), [0])  # differences: sums of values far from 0 are coarse
        total = reduce_row(k, n, lanes, centered, add, 0.0)
        k.store(stats, k.load(stats, [0]) + total * share, [0])
        squares = reduce_row(k, n, lanes, lambda c, w: centered(c, w) * centered(c, w), add, 0.0)
        deviation = tirx.sqrt(squares * share + constant(op.eps))
        k.store(stats, constant(1.0) / deviation, [1])

        def one_value_per_channel(c: Index, width: int, _slot: int) -> None:
            at = [k.ramp(first + c, width)]
            put(c, width, k.splat(k.load(stats, [1]), width) * k.load(scale, at), k.load(shift, at))

        if isinstance(spatial, int) and spatial == 1:
            each_vector(k, n, lanes, one_value_per_channel)
            return
        with k.serial(per_group) as channel:
            k.store(stats, k.load(stats, [1]) * k.load(scale, [first + channel]), [2])
            k.store(stats, k.load(shift, [first + channel]), [3])

            def of_channel(c: Index, width: int, _slot: int) -> None:
                factor, offset = (k.splat(k.load(stats, [at]), width) for at in (2, 3))
                put(channel * spatial + c, width, factor, offset)

            each_vector(k, spatial, lanes, of_channel)

    with k.imported(*activations.imports):
        each_row(k, rows, chunks, one_row)
