"""Softmax of rows on a GPU."""

from __future__ import annotations

import math
from typing import Any

from hetero_tvm.host.tvm import tirx
from hetero_tvm.machines.gpu import GpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.base import DesignSpace, Knob, Point
from hetero_tvm.schedules.cuda import device
from hetero_tvm.schedules.cuda.rows import row_tiles as rows
from hetero_tvm.schedules.emit import Kernel

_BINARY = math.log2(math.e)


class CudaSoftmaxSpace(DesignSpace):
    """Rows in registers (see :mod:`.rows`): their maximum, exponentials and their sum, one write.

    Knob ``block``: threads a row, rows a block.
    """

    name = "cuda.softmax"

    def refuses(self, op: FusedOp, machine: GpuModel) -> str | None:
        if not isinstance(op, Softmax):
            return f"it serves softmax, not {op.kind}"
        return "an extent is zero" if 0 in (op.rows, op.n) else None

    def _shapes(self, op: Softmax, machine: GpuModel) -> list[rows.RowShape]:
        return rows.shapes(op.rows, op.n, rows.vector_of(op.n, op.dtype), machine)

    def knobs(self, op: Softmax, machine: GpuModel) -> tuple[Knob, ...]:
        return rows.knobs(self._shapes(op, machine))

    def default(self, op: Softmax, machine: GpuModel) -> Point:
        return rows.default(self._shapes(op, machine))

    def features(self, op: Softmax, point: Point, machine: GpuModel) -> list[float]:
        return rows.chosen(op.rows, op.n, rows.vector_of(op.n, op.dtype), point).features

    def emit(self, op: Softmax, point: Point, machine: GpuModel) -> Any:
        k = Kernel("softmax")
        shape = rows.chosen(op.rows, op.n, rows.vector_of(op.n, op.dtype), point)
        with k:
            x, y = k.argument("X", op.inputs[0].shape, op.dtype), k.argument("Y", op.output.shape, op.dtype)
            x, y = k.view(x, (op.rows, op.n)), k.view(y, (op.rows, op.n))
            kernel = rows.RowKernel(k, shape, op.dtype)
            with kernel.threads(reductions=2):
                kernel.load(lambda c, lanes: k.load(x, [kernel.row, k.ramp(c, lanes)]), -math.inf)
                peak = kernel.reduce(lambda value: value, tirx.max, -math.inf, padded=False)

                def weight(value: Any) -> Any:
                    return device.value("htvm_exp2", (value - peak) * rows.const(_BINARY), dtype="float32")

                if shape.resident:  # no exponential is computed twice
                    kernel.replace(weight)
                    weight = _itself
                total = kernel.reduce(weight, rows.add, 0.0, padded=not shape.resident)
                factor = k.let(rows.const(1) / total)
                kernel.store(
                    lambda value, column, e: weight(value) * factor,
                    lambda c, vector: k.store(y, vector, [kernel.row, k.ramp(c, shape.vector)]),
                )
        return k.function


def _itself(value: Any) -> Any:
    return value
