"""The addition of a residual and the norm of the sum on a GPU: one pass, one or two results."""

from __future__ import annotations

from typing import Any

from hetero_tvm.host.tvm import tirx
from hetero_tvm.machines.gpu import GpuModel
from hetero_tvm.ops.add_norm import AddNorm
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.schedules.base import DesignSpace, Knob, Point
from hetero_tvm.schedules.cuda.rows import row_tiles as rows
from hetero_tvm.schedules.cuda.rows.normalization import finish
from hetero_tvm.schedules.emit import Kernel


class CudaAddNormSpace(DesignSpace):
    """The sum of both operands stays in registers (see :mod:`.rows`): stored, where it is wanted, and
    normalised from there.  Knob ``block``: threads a row, rows a block.
    """

    name = "cuda.add_norm"

    def refuses(self, op: FusedOp, machine: GpuModel) -> str | None:
        if not isinstance(op, AddNorm):
            return f"it serves add_norm, not {op.kind}"
        return "an extent is zero" if 0 in (op.rows, op.n) else None

    def _shapes(self, op: AddNorm, machine: GpuModel) -> list[rows.RowShape]:
        return rows.shapes(op.rows, op.n, rows.vector_of(op.n, op.output.dtype), machine, beside=2)

    def knobs(self, op: AddNorm, machine: GpuModel) -> tuple[Knob, ...]:
        return rows.knobs(self._shapes(op, machine))

    def default(self, op: AddNorm, machine: GpuModel) -> Point:
        return rows.default(self._shapes(op, machine))

    def features(self, op: AddNorm, point: Point, machine: GpuModel) -> list[float]:
        return rows.chosen(op.rows, op.n, rows.vector_of(op.n, op.output.dtype), point).features

    def emit(self, op: AddNorm, point: Point, machine: GpuModel) -> Any:
        k, dtype = Kernel("add_norm"), op.output.dtype
        shape = rows.chosen(op.rows, op.n, rows.vector_of(op.n, dtype), point)
        with k:
            arguments = [k.argument(o.name, o.shape, o.dtype) for o in (*op.inputs, *op.outputs)]
            x, r, *vectors = arguments[: len(op.inputs)]
            x, r = k.view(x, (op.rows, op.n)), k.view(r, (op.added_rows, op.n))
            *kept, y = (k.view(buffer, (op.rows, op.n)) for buffer in arguments[len(op.inputs) :])
            kernel = rows.RowKernel(k, shape, dtype)
            with kernel.threads(reductions=2):
                row = kernel.row
                added = row if op.added_rows == op.rows else k.let(tirx.floormod(row, op.added_rows))

                def total(column: Any, lanes: int) -> Any:
                    at = k.ramp(column, lanes)
                    return k.load(x, [row, at]) + k.load(r, [added, at])

                kernel.load(total, 0.0)
                for buffer in kept:
                    kernel.store(
                        lambda value, column, e: value,
                        lambda c, vector, to=buffer: k.store(to, vector, [row, k.ramp(c, shape.vector)]),
                    )
                finish(k, kernel, op, vectors, y)
        return k.function
