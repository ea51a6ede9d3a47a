"""Group and instance normalisation on a GPU."""

from __future__ import annotations

from typing import Any

from hetero_tvm.host.tvm import tirx
from hetero_tvm.machines.gpu import GpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.group_norm import GroupNorm
from hetero_tvm.schedules.base import DesignSpace, Knob, Point
from hetero_tvm.schedules.cuda.activations import ACTIVATIONS
from hetero_tvm.schedules.cuda.rows import row_tiles as rows
from hetero_tvm.schedules.cuda.rows.normalization import statistics
from hetero_tvm.schedules.emit import Kernel, int32


class CudaGroupNormSpace(DesignSpace):
    """A group of a sample is a row (see :mod:`.rows`): its values lie side by side.

    Scale and shift belong to a channel: one pair for a vector where channels hold whole vectors.  The
    activation is applied before the only write.  Knob ``block``: threads a row, rows a block.
    """

    name = "cuda.group_norm"

    def refuses(self, op: FusedOp, machine: GpuModel) -> str | None:
        if not isinstance(op, GroupNorm):
            return f"it serves group_norm, not {op.kind}"
        return "an extent is zero" if 0 in (op.rows, op.n) else None

    def _shapes(self, op: GroupNorm, machine: GpuModel) -> list[rows.RowShape]:
        return rows.shapes(op.rows, op.n, rows.vector_of(op.n, op.dtype), machine)

    def knobs(self, op: GroupNorm, machine: GpuModel) -> tuple[Knob, ...]:
        return rows.knobs(self._shapes(op, machine))

    def default(self, op: GroupNorm, machine: GpuModel) -> Point:
        return rows.default(self._shapes(op, machine))

    def features(self, op: GroupNorm, point: Point, machine: GpuModel) -> list[float]:
        return rows.chosen(op.rows, op.n, rows.vector_of(op.n, op.dtype), point).features

    def emit(self, op: GroupNorm, point: Point, machine: GpuModel) -> Any:
        k = Kernel("group_norm")
        shape = rows.chosen(op.rows, op.n, rows.vector_of(op.n, op.dtype), point)
        with k:
            x, scale, shift = (k.argument(o.name, o.shape, o.dtype) for o in op.inputs)
            y = k.argument("Y", op.output.shape, op.dtype)
            x, y = k.view(x, (op.rows, op.n)), k.view(y, (op.rows, op.n))
            kernel = rows.RowKernel(k, shape, op.dtype)
            with kernel.threads(reductions=2):
                kernel.load(lambda c, lanes: k.load(x, [kernel.row, k.ramp(c, lanes)]), 0.0)
                centered, factor = statistics(k, kernel, op)
                of_channel = k.scratch((2,))
                first = k.let(kernel.row % op.groups * (op.channels // op.groups))

                def result(value: Any, column: Any, e: int) -> Any:
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
