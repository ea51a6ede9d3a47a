"""Softmax of rows on a GPU."""

from __future__ import annotations

import math
import operator

from hetero_tvm.host.tvm import Expr, PrimFunc, tirx
from hetero_tvm.machines.gpu import GpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.cuda import device
from hetero_tvm.schedules.cuda.rows.row_tiles import RowKernel
from hetero_tvm.schedules.cuda.rows.space import RowSpace
from hetero_tvm.schedules.cuda.values import const
from hetero_tvm.schedules.emit import Kernel

_BINARY = math.log2(math.e)


class CudaSoftmaxSpace(RowSpace):
    """Rows in registers (see :mod:`.row_tiles`): their maximum, exponentials and their sum, one write."""

    name = "cuda.softmax"

    def refuses(self, op: FusedOp, machine: GpuModel) -> str | None:
        if not isinstance(op, Softmax):
            return f"it serves softmax, not {op.kind}"
        if op.log:
            return "it gives no logarithms"
        if op.trail:
            return "the axis is not the last"
        return "an extent is zero" if 0 in (op.rows, op.n) else None

    def emit(self, op: Softmax, point: Point, machine: GpuModel) -> PrimFunc:
        k = Kernel("softmax")
        shape = self.shape(op, point)
        with k:
            x, y = k.argument("X", op.inputs[0].shape, op.dtype), k.argument("Y", op.output.shape, op.dtype)
            x, y = k.view(x, (op.rows, op.n)), k.view(y, (op.rows, op.n))
            kernel = RowKernel(k, shape, op.dtype)
            with kernel.threads(reductions=2):
                kernel.load(lambda c, lanes: k.load(x, [kernel.row, k.ramp(c, lanes)]), -math.inf)
                peak = kernel.reduce(lambda value: value, tirx.max, -math.inf, padded=False)

                def weight(value: Expr) -> Expr:
                    return device.value("htvm_exp2", (value - peak) * const(_BINARY), dtype="float32")

                if shape.resident:  # no exponential is computed twice
                    kernel.replace(weight)
                    weight = _itself
                total = kernel.reduce(weight, operator.add, 0.0, padded=not shape.resident)
                factor = k.let(const(1) / total)
                kernel.store(
                    lambda value, column, e: weight(value) * factor,
                    lambda c, vector: k.store(y, vector, [kernel.row, k.ramp(c, shape.vector)]),
                )
        return k.function


def _itself(value: Expr) -> Expr:
    return value
