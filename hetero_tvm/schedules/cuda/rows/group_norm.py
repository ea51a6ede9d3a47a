"""Group and instance normalisation on a GPU."""

from __future__ import annotations

from hetero_tvm.host.tvm import Expr, PrimFunc, tirx
from hetero_tvm.machines.gpu import GpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.group_norm import GroupNorm
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.cuda.activations import ACTIVATIONS
from hetero_tvm.schedules.cuda.rows.normalization import statistics
from hetero_tvm.schedules.cuda.rows.row_tiles import RowKernel
from hetero_tvm.schedules.cuda.rows.space import RowSpace
from hetero_tvm.schedules.emit import Kernel, int32


class CudaGroupNormSpace(RowSpace):
    """A group of a sample is a row (see :mod:`.row_tiles`): its values lie side by side.

    Scale and shift belong to a channel: one pair for a vector where channels hold whole vectors.  The
    activation is applied before the only write.
    """

    name = "cuda.group_norm"

    def refuses(self, op: FusedOp, machine: GpuModel) -> str | None:
        if not isinstance(op, GroupNorm):
            return f"it serves group_norm, not {op.kind}"
        return "an extent is zero" if 0 in (op.rows, op.n) else None

    def emit(self, op: GroupNorm, point: Point, machine: GpuModel) -> PrimFunc:
        k = Kernel("group_norm")
        shape = self.shape(op, point)
        with k:
            x, scale, shift = (k.argument(o.name, o.shape, o.dtype) for o in op.inputs)
            y = k.argument("Y", op.output.shape, op.dtype)
            x, y = k.view(x, (op.rows, op.n)), k.view(y, (op.rows, op.n))
            kernel = RowKernel(k, shape, op.dtype)
            with kernel.threads(reductions=2):
                kernel.load(lambda c, lanes: k.load(x, [kernel.row, k.ramp(c, lanes)]), 0.0)
                centered, factor = statistics(k, kernel, op.n, op.eps)
                of_channel = k.scratch((2,))
                first = k.let(kernel.row % op.groups * (op.channels // op.groups))

                def result(value: Expr, column: Expr, e: int) -> Expr:
                    if e == 0 or op.spatial % shape.vector:
                        channel = first + tirx.floordiv(column + e, op.spatial)
                        weight = k.let(k.load(scale, [channel]) * factor)
                        k.store(of_channel, weight, [int32(0)])
                        k.store(of_channel, k.load(shift, [channel]), [int32(1)])
                    y = centered(value) * k.load(of_channel, [int32(0)]) + k.load(of_channel, [int32(1)])
                    return ACTIVATIONS[op.activation](k.let(y)) if op.activation else y

                kernel.store(
                    result, lambda c, vector: k.store(y, vector, [kernel.row, k.ramp(c, shape.vector)])
                )
        return k.function
