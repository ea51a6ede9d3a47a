"""Kernels of models whose layers see several streams of rows, and of MLPs of which few channels are not 0."""

from __future__ import annotations

from hetero_tvm.codegen import vector_math
from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.decoding.streams import Mix, Rescale, SparseGate
from hetero_tvm.schedules.cpu.decoding.symbolic import SymbolicKernel, each_row
from hetero_tvm.schedules.cpu.rows.row_reduction import add, each_vector, reduce_row
from hetero_tvm.schedules.emit import Index, constant


def emit_mix(op: Mix, machine: CpuModel) -> PrimFunc:
    """Kernel with arguments X of all streams that are given, [rows, width] each, shares [rows, made * given]
    unless they are fixed, Y of all that are made."""
    k = SymbolicKernel("mix")
    with k:
        symbol = k.symbol("n")
        given = [k.argument(f"X{i}", (symbol, op.width)) for i in range(op.given)]
        shares = None if op.fixed else k.argument("shares", (symbol, op.made * op.given))
        made = [k.argument(f"Y{o}", (symbol, op.width)) for o in range(op.made)]

        def one_row(i: Expr) -> None:
            def share(number: int) -> Expr:
                return constant(op.fixed[number]) if shares is None else k.let(k.load(shares, [i, number]))

            of_row = [share(number) for number in range(op.made * op.given)]

            def vector(c: Index, width: int, _slot: int) -> None:
                at = [i, k.ramp(c, width)]
                rows = [k.let(k.load(x, at)) for x in given]
                for o, y in enumerate(made):
                    terms = zip(of_row[o * op.given :], rows, strict=False)
                    first, *rest = (k.splat(factor, width) * row for factor, row in terms)
                    k.store(y, sum(rest, first), at)

            each_vector(k, op.width, machine.lanes, vector)

        each_row(k, k.count(symbol), machine, one_row)
    return k.function


def emit_rescale(op: Rescale, machine: CpuModel) -> PrimFunc:
    """Kernel with arguments X, other, Y, each [rows, width]."""
    k = SymbolicKernel("rescale")
    with k:
        symbol = k.symbol("n")
        x, other, y = (k.argument(name, (symbol, op.width)) for name in ("X", "other", "Y"))

        def one_row(i: Expr) -> None:
            def mean_square(rows: Buffer) -> Expr:
                def square(c: Index, width: int) -> Expr:
                    value = k.let(k.load(rows, [i, k.ramp(c, width)]))
                    return value * value

                total = reduce_row(k, op.width, machine.lanes, square, add, 0.0)
                return k.let(total * constant(1.0 / op.width))

            wanted, has = tirx.sqrt(mean_square(other)), mean_square(x)
            factor = k.let(wanted / tirx.sqrt(tirx.max(has, constant(op.least))))

            def vector(c: Index, width: int, _slot: int) -> None:
                at = [i, k.ramp(c, width)]
                k.store(y, k.load(x, at) * k.splat(factor, width), at)

            each_vector(k, op.width, machine.lanes, vector)

        each_row(k, k.count(symbol), machine, one_row)
    return k.function


def emit_sparse_gate(op: SparseGate, machine: CpuModel) -> PrimFunc:
    """Kernel with arguments X [rows, 2 * width], Y [rows, width]."""
    k = SymbolicKernel("sparse_gate")
    with k:
        symbol = k.symbol("n")
        x, y = k.argument("X", (symbol, 2 * op.width)), k.argument("Y", (symbol, op.width))

        def one_row(i: Expr) -> None:
            def gate(c: Index, width: int) -> Expr:
                return k.load(x, [i, k.ramp(c, width)])

            def square(c: Index, width: int) -> Expr:
                value = k.let(gate(c, width) - k.splat(mean, width))
                return value * value

            each = constant(1.0 / op.width)
            mean = k.let(reduce_row(k, op.width, machine.lanes, gate, add, 0.0) * each)
            variance = k.let(reduce_row(k, op.width, machine.lanes, square, add, 0.0) * each)
            bound = k.let(mean + tirx.sqrt(variance) * constant(op.cut))

            def vector(c: Index, width: int, _slot: int) -> None:
                above = tirx.max(gate(c, width) - k.splat(bound, width), k.splat(0.0, width))
                value = vector_math.ACTIVATIONS["gelu_tanh"](k.let(above))
                k.store(y, value * k.load(x, [i, k.ramp(c + op.width, width)]), [i, k.ramp(c, width)])

            each_vector(k, op.width, machine.lanes, vector)

        each_row(k, k.count(symbol), machine, one_row)
    return k.function
