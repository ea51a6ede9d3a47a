"""Embedding lookups, their sum and its norm, a row at a time.

Loop structure::

    parallel chunks of rows:
        the row of every table, from its indices
        pass 1: gathered, added, stored as the result's row; its sum (of squares for RMS)
        then the passes of ``schedules/cpu/rows/normalization.py`` over that row, in place, in L1

Bound by the way of the looked-up rows from memory: each is read once and the result written once,
where separate kernels write and read every partial sum.
"""

from __future__ import annotations

import math

from hetero_tvm.host.tvm import Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.embedding_norm import EmbeddingNorm
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.cpu.rows.normalization import normalize_row
from hetero_tvm.schedules.cpu.rows.row_chunks import RowSpace, each_row
from hetero_tvm.schedules.emit import Index, Kernel, broadcast_position

_MOST_ELEMENTS = 2**31
"""Elements of a table: places in it are int32."""


class EmbeddingNormSpace(RowSpace):
    """Design space of ``EmbeddingNorm``; its chunks are of rows of the result."""

    name = "cpu.embedding_norm"
    version = 1

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, EmbeddingNorm):
            return "not an embedding with its norm"
        if any(x.rows * op.n >= _MOST_ELEMENTS for x in op.lookups):
            return "a table has 2**31 values or more"
        return "an extent is zero" if 0 in (op.rows, op.n, *(x.rows for x in op.lookups)) else None

    def emit(self, op: EmbeddingNorm, point: Point, machine: CpuModel) -> PrimFunc:
        k, n = Kernel(), op.n
        with k:
            buffers = [k.argument(o.name, o.shape, o.dtype) for o in op.inputs]
            y = k.view(k.argument("Y", op.output.shape), (op.rows, n))
            tables = []
            for i, lookup in enumerate(op.lookups):
                indices = k.view(buffers[2 * i], (math.prod(lookup.indices),))
                tables.append((lookup, indices, buffers[2 * i + 1]))
            rest = buffers[2 * len(op.lookups) :]
            added = k.view(rest.pop(0), (math.prod(op.added[:-1]), n)) if op.added else None

            def one_row(i: Expr) -> None:
                # Named per row: the vectors of a row share the index arithmetic.
                found = []
                for lookup, indices, table in tables:
                    index = k.load(indices, [broadcast_position(i, op.lead, lookup.indices)])
                    wrapped = tirx.floormod(index, tirx.const(lookup.rows, lookup.dtype))
                    found.append((lookup, table, k.let(tirx.Cast("int32", wrapped))))
                at_added = k.let(broadcast_position(i, op.lead, op.added[:-1])) if op.added else None

                def gather(c: Index, width: int) -> Expr:
                    at = k.ramp(c, width)
                    value = k.load(added, [at_added, at]) if op.added else None
                    for lookup, table, index in found:
                        term = k.load(table, [index, at])
                        if lookup.factor != 1.0:
                            term = term * k.splat(lookup.factor, width)
                        value = term if value is None else value + term
                    value = k.let(value)
                    k.store(y, value, [i, at])
                    return value

                def again(c: Index, width: int) -> Expr:
                    return k.load(y, [i, k.ramp(c, width)])

                def put(c: Index, width: int, value: Expr) -> None:
                    k.store(y, value, [i, k.ramp(c, width)])

                normalize_row(k, op.norm, machine.lanes, gather, again, put, rest)

            each_row(k, op.rows, point["chunks"], one_row)
        return k.function
