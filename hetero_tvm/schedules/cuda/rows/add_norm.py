"""The addition of a residual and the norm of the sum on a GPU: one pass, one or two results."""

from __future__ import annotations

from hetero_tvm.host.tvm import Expr, PrimFunc, tirx
from hetero_tvm.machines.gpu import GpuModel
from hetero_tvm.ops.add_norm import AddNorm
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.cuda.rows.normalization import finish
from hetero_tvm.schedules.cuda.rows.row_tiles import RowKernel
from hetero_tvm.schedules.cuda.rows.space import RowSpace
from hetero_tvm.schedules.emit import Kernel


class CudaAddNormSpace(RowSpace):
    """The sum of both operands stays in registers (see :mod:`.row_tiles`): stored, where it is wanted, and
    normalised from there.
    """

    name = "cuda.add_norm"

    def refuses(self, op: FusedOp, machine: GpuModel) -> str | None:
        if not isinstance(op, AddNorm):
            return f"it serves add_norm, not {op.kind}"
        return "an extent is zero" if 0 in (op.rows, op.n) else None

    def weights(self, op: AddNorm) -> int:
        return 2

    def emit(self, op: AddNorm, point: Point, machine: GpuModel) -> PrimFunc:
        k, dtype = Kernel("add_norm"), op.output.dtype
        shape = self.shape(op, point)
        with k:
            arguments = [k.argument(o.name, o.shape, o.dtype) for o in (*op.inputs, *op.outputs)]
            x, r, *vectors = arguments[: len(op.inputs)]
            x, r = k.view(x, (op.rows, op.n)), k.view(r, (op.added_rows, op.n))
            *kept, y = (k.view(buffer, (op.rows, op.n)) for buffer in arguments[len(op.inputs) :])
            kernel = RowKernel(k, shape, dtype)
            with kernel.threads(reductions=2):
                row = kernel.row
                added = row if op.added_rows == op.rows else k.let(tirx.floormod(row, op.added_rows))

                def total(column: Expr, lanes: int) -> Expr:
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
