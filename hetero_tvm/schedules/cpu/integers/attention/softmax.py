"""Softmax of rows into 8 bits, of 8-bit values or floats.

Loop structure::

    parallel chunks of rows:
        for each row:
            pass 1: max
            pass 2: exp(x_scale * (x - max)) by a vector polynomial, kept in L1 as float32, and its sum
            pass 3: times 1 / (sum * y_scale), rounded, in 8 bits

A row in memory takes a byte per value each way, an eighth of a softmax between a kernel that dequantises and
one that quantises.
"""

from __future__ import annotations

import math

from hetero_tvm.codegen import vector_math
from hetero_tvm.codegen.saturation import between, nearest, saturation_ir
from hetero_tvm.host.tvm import Expr, PrimFunc
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.integers.softmax import QuantSoftmax
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.cpu.rows.row_chunks import RowSpace, each_row
from hetero_tvm.schedules.cpu.rows.row_reduction import RowReduction, add, each_vector, maximum, reduce_row
from hetero_tvm.schedules.emit import Index, Kernel, constant, int32

_MOST = 1 << 16
"""Values of a row that are kept as float32."""


class QuantSoftmaxSpace(RowSpace):
    """Design space of ``QuantSoftmax``; its chunks are of rows."""

    name = "cpu.quant_softmax"
    version = 1

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, QuantSoftmax):
            return "not a softmax of bytes"
        if op.n > _MOST:
            return f"rows are longer than {_MOST}"
        return "an extent is zero" if 0 in (op.rows, op.n) else None

    def emit(self, op: QuantSoftmax, point: Point, machine: CpuModel) -> PrimFunc:
        k, lanes = Kernel(), machine.lanes
        low, high = (end - op.y_zero for end in op.limits)
        with k:
            x, y = (k.argument(o.name, o.shape, o.dtype) for o in (*op.inputs, op.output))
            x, y = k.view(x, (op.rows, op.n)), k.view(y, (op.rows, op.n))

            def one_row(i: Expr) -> None:
                def value(c: Index, width: int) -> Expr:
                    number = k.load(x, [i, k.ramp(c, width)])
                    if op.x_dtype == "float32":
                        return number
                    many = f"x{width}" if width > 1 else ""
                    number = number.astype(f"int32{many}").astype(f"float32{many}")
                    return number * k.splat(constant(op.x_scale), width)

                exponents, stats = k.scratch((op.n,)), k.scratch((2,))
                k.store(stats, reduce_row(k, op.n, lanes, value, maximum, -math.inf), [0])
                # Two registers in one expression: the chain of one exponential leaves room for another.
                total = RowReduction(k, 2 * lanes, add, 0.0)

                def exponent(c: Index, width: int, slot: int) -> None:
                    peaks = k.splat(k.load(stats, [0]), width)
                    found = k.let(vector_math.softmax_exp(value(c, width), peaks))
                    k.store(exponents, found, [k.ramp(c, width)])
                    total.take(found, width, slot)

                def rounded(c: Index, width: int, _slot: int) -> None:
                    factor = k.splat(k.load(stats, [1]), width)
                    share = between(k.load(exponents, [k.ramp(c, width)]) * factor, low, high, width)
                    whole = nearest(share, width) + k.splat(int32(op.y_zero), width)
                    k.store(
                        y, whole.astype(f"{op.out}x{width}" if width > 1 else op.out), [i, k.ramp(c, width)]
                    )

                each_vector(k, op.n, 2 * lanes, exponent)
                k.store(stats, constant(1.0) / (total.finish() * constant(op.y_scale)), [1])
                each_vector(k, op.n, lanes, rounded)

            with k.imported(saturation_ir()):
                each_row(k, op.rows, point["chunks"], one_row)
        return k.function
