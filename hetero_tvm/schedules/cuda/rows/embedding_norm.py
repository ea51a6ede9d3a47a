"""Embeddings looked up, added and normalised on a GPU."""

from __future__ import annotations

import math

from hetero_tvm.host.tvm import Expr, PrimFunc, tirx
from hetero_tvm.machines.gpu import GpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.embedding_norm import EmbeddingNorm
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.cuda.rows.normalization import finish
from hetero_tvm.schedules.cuda.rows.row_tiles import RowKernel
from hetero_tvm.schedules.cuda.rows.space import RowSpace
from hetero_tvm.schedules.cuda.values import cast
from hetero_tvm.schedules.emit import Kernel, broadcast_position


class CudaEmbeddingNormSpace(RowSpace):
    """Rows of the tables are gathered into registers, added there, and normalised (see :mod:`.row_tiles`).

    A row's indices are read once by each of its threads, from one cache line.
    """

    name = "cuda.embedding_norm"

    def refuses(self, op: FusedOp, machine: GpuModel) -> str | None:
        if not isinstance(op, EmbeddingNorm):
            return f"it serves embedding_norm, not {op.kind}"
        if any(x.rows * op.n >= 2**31 for x in op.lookups):
            return "a table has 2**31 values or more"
        return "an extent is zero" if 0 in (op.rows, op.n, *(x.rows for x in op.lookups)) else None

    def emit(self, op: EmbeddingNorm, point: Point, machine: GpuModel) -> PrimFunc:
        k = Kernel("embedding_norm")
        shape = self.shape(op, point)
        with k:
            buffers = [k.argument(o.name, o.shape, o.dtype) for o in op.inputs]
            y = k.view(k.argument("Y", op.output.shape, op.dtype), (op.rows, op.n))
            count = 2 * len(op.lookups)
            indices = [
                k.view(buffer, (math.prod(x.indices),))
                for buffer, x in zip(buffers[:count:2], op.lookups, strict=True)
            ]
            tables, rest = buffers[1:count:2], buffers[count:]
            added = k.view(rest.pop(0), (math.prod(op.added[:-1]), op.n)) if op.added else None
            kernel = RowKernel(k, shape, op.dtype, held="float32")
            with kernel.threads(reductions=2):
                found = []
                for x, at in zip(op.lookups, indices, strict=True):
                    index = k.load(at, [broadcast_position(kernel.row, op.lead, x.indices)])
                    wrapped = tirx.floormod(index, tirx.const(x.rows, x.dtype))
                    found.append(k.let(tirx.Cast("int32", wrapped)))
                at_added = k.let(broadcast_position(kernel.row, op.lead, op.added[:-1])) if op.added else None

                def gather(column: Expr, lanes: int) -> Expr:
                    at = k.ramp(column, lanes)
                    value = _wide(k.load(added, [at_added, at]), lanes) if op.added else None
                    for x, table, index in zip(op.lookups, tables, found, strict=True):
                        term = _wide(k.load(table, [index, at]), lanes)
                        if x.factor != 1.0:
                            term = term * k.splat(x.factor, lanes)
                        value = term if value is None else value + term
                    return value

                kernel.load(gather, 0.0)
                finish(k, kernel, op, rest, y)
        return k.function


def _wide(value: Expr, lanes: int) -> Expr:
    """A vector of ``lanes`` values as float32."""
    return cast(value, f"float32x{lanes}" if lanes > 1 else "float32")
