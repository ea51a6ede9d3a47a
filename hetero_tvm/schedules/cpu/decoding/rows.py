"""Row by row kernels of a decoder's step: embeddings and norms."""

from __future__ import annotations

from collections.abc import Callable

from hetero_tvm.codegen import vector_math
from hetero_tvm.host.tvm import Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.decoding.contracts import Embed, LayerInputs, Linear, Multiply, RowNorm, Xielu
from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.schedules.cpu.decoding.layout import PanelLayout
from hetero_tvm.schedules.cpu.decoding.parts import half_of_pair
from hetero_tvm.schedules.cpu.decoding.symbolic import SymbolicKernel, each_row, quotient, remainder
from hetero_tvm.schedules.cpu.rows.normalization import normalize_row
from hetero_tvm.schedules.cpu.rows.row_reduction import each_vector
from hetero_tvm.schedules.emit import Index, constant, int32


def emit_embed(op: Embed, machine: CpuModel) -> PrimFunc:
    """Kernel with arguments ids [rows], positions [rows], the table (or the arrays of a packed weight), the
    table of positions when there is one, Y [rows, width]."""
    k = SymbolicKernel("embed")
    with k:
        symbol = k.symbol("n")
        ids, positions = (k.argument(name, (symbol,), "int32") for name in ("ids", "positions"))
        if op.packed:
            layout = PanelLayout.of(Linear(op.vocab, op.width, op.storage), machine)
            table = [k.argument(*array) for array in layout.arrays()]
        else:
            table = [k.argument("T", (op.vocab, op.width), op.storage.dtype)]
        learned = k.argument("P", (op.positions, op.width)) if op.positions else None
        y = k.argument("Y", (symbol, op.width))
        rows = k.count(symbol)

        def one_row(i: Expr) -> None:
            token = k.let(k.load(ids, [i]))
            if op.lacking:
                token = k.let(tirx.Select(token < op.vocab, token, int32(0)))
            place = k.let(k.load(positions, [i]) + op.offset)
            panel, column = None, None
            if op.packed:
                panel, column = k.let(quotient(token, layout.width)), k.let(remainder(token, layout.width))

            def finished(c: Index, width: int, value: Expr) -> None:
                if op.scale != 1.0:
                    value = value * k.splat(op.scale, width)
                if learned is not None:
                    value = value + k.load(learned, [place, k.ramp(c, width)])
                k.store(y, value, [i, k.ramp(c, width)])

            if panel is not None:
                with k.serial(op.width) as c:
                    finished(c, 1, _element(k, layout, table, panel, c, column))
            else:

                def vector(c: Index, width: int, _slot: int) -> None:
                    value = k.load(table[0], [token, k.ramp(c, width)])
                    if op.storage.dtype != "float32":
                        value = tirx.Cast(f"float32x{width}" if width > 1 else "float32", value)
                    finished(c, width, value)

                each_vector(k, op.width, machine.lanes, vector)

        each_row(k, rows, machine, one_row)
    return k.function


def _element(
    k: SymbolicKernel, layout: PanelLayout, table: list, panel: Expr, at: Expr, column: Expr
) -> Expr:
    """One number of a packed weight as float32."""
    storage = layout.op.storage
    if layout.pairs:
        return half_of_pair(k, k.load(table[0], [panel, quotient(at, 2), column]), at, 1)
    if not storage.bits:
        value = k.load(table[0], [panel, at, column])
        return value if storage.dtype == "float32" else tirx.Cast("float32", value)
    word = k.load(table[0], [panel, quotient(at, layout.per_word), column])
    place, half = remainder(at, layout.per_word), layout.per_word // 2
    shift = (remainder(place, half) * 2 + quotient(place, half)) * storage.bits
    q = tirx.bitwise_and(tirx.shift_right(word, shift), int32((1 << storage.bits) - 1))
    group = quotient(at, storage.group)
    zero = constant(float(storage.middle))
    if storage.zero_points:
        zero = tirx.Cast("float32", k.load(table[2], [panel, group, column]))
    scale = tirx.Cast("float32", k.load(table[1], [panel, group, column]))
    return (tirx.Cast("float32", q) - zero) * scale


def emit_norm(op: RowNorm, machine: CpuModel) -> PrimFunc:
    """Kernel with arguments X [rows, n], scale [n], shift [n], residual [rows, n], index [picked],
    factor [1], Y."""
    contract = Normalization((1,), op.n, op.eps, centered=op.centered, shifted=op.shifted)
    k = SymbolicKernel("norm")
    with k:
        symbol = k.symbol("n")
        x = k.argument("X", (symbol, op.n))
        vectors = [k.argument(name, (op.n,)) for name in ("scale", "shift")[: 1 + op.shifted]]
        residual = k.argument("R", (symbol, op.n)) if op.residual else None
        made = k.symbol("r") if op.picked else symbol
        index = k.argument("index", (made,), "int32") if op.picked else None
        times = k.argument("factor", (1,)) if op.scaled else None
        y = k.argument("Y", (made, op.n))
        rows = k.count(made)

        def one_row(i: Expr) -> None:
            source = i if index is None else k.let(k.load(index, [i]))

            def get(c: Index, width: int) -> Expr:
                return k.load(x, [source, k.ramp(c, width)])

            def put(c: Index, width: int, value: Expr) -> None:
                at = [i, k.ramp(c, width)]
                value = value if residual is None else value + k.load(residual, at)
                k.store(y, value if times is None else value * k.splat(k.load(times, [0]), width), at)

            normalize_row(k, contract, machine.lanes, get, get, put, vectors)

        each_row(k, rows, machine, one_row)
    return k.function


def emit_layer_inputs(op: LayerInputs, machine: CpuModel) -> PrimFunc:
    """Kernel with arguments X [rows, layers * width], scale [width], other, Y, both like X."""
    contract = Normalization((1,), op.width, op.eps, centered=False, shifted=False)
    k = SymbolicKernel("layer_inputs")
    with k:
        symbol, total = k.symbol("n"), op.layers * op.width
        x, scale = k.argument("X", (symbol, total)), k.argument("scale", (op.width,))
        other, y = (k.argument(name, (symbol, total)) for name in ("other", "Y"))

        def one_row(i: Expr) -> None:
            with k.serial(op.layers) as layer:
                base = k.let(layer * op.width)

                def get(c: Index, width: int) -> Expr:
                    return k.load(x, [i, k.ramp(base + c, width)])

                def put(c: Index, width: int, value: Expr) -> None:
                    at = [i, k.ramp(base + c, width)]
                    k.store(y, value + k.load(other, at), at)

                normalize_row(k, contract, machine.lanes, get, get, put, [scale])

        each_row(k, k.count(symbol), machine, one_row)
    return k.function


def emit_multiply(op: Multiply, machine: CpuModel) -> PrimFunc:
    """Kernel with arguments X [rows, width], G [rows, total], Y [rows, width]."""
    k = SymbolicKernel("multiply")
    with k:
        symbol = k.symbol("n")
        x, g = k.argument("X", (symbol, op.width)), k.argument("G", (symbol, op.total))
        y = k.argument("Y", (symbol, op.width))

        def vector(i: Expr, c: Index, width: int) -> None:
            at = [i, k.ramp(c, width)]
            k.store(y, k.load(x, at) * k.load(g, [i, k.ramp(c + op.first, width)]), at)

        _each_vector(k, k.count(symbol), op.width, machine, vector)
    return k.function


def emit_xielu(op: Xielu, machine: CpuModel) -> PrimFunc:
    """Kernel with arguments X [rows, width], numbers [4], Y [rows, width]."""
    k = SymbolicKernel("xielu")
    with k:
        symbol = k.symbol("n")
        x, numbers = k.argument("X", (symbol, op.width)), k.argument("numbers", (4,))
        y = k.argument("Y", (symbol, op.width))

        def vector(i: Expr, c: Index, width: int) -> None:
            at = [i, k.ramp(c, width)]
            above, below, slope, least = (k.splat(k.load(numbers, [n]), width) for n in range(4))
            value = k.let(k.load(x, at))
            rest = vector_math.exp(tirx.min(value, least)) - k.splat(1.0, width) - value
            curve = tirx.Select(value > k.splat(0.0, width), above * value * value, below * rest)
            k.store(y, curve + slope * value, at)

        _each_vector(k, k.count(symbol), op.width, machine, vector)
    return k.function


def _each_vector(
    k: SymbolicKernel, rows: Expr, n: int, machine: CpuModel, body: Callable[[Expr, Index, int], None]
) -> None:
    """``body(row, column, width)`` for the vectors of all rows of ``n`` channels."""

    def one_row(i: Expr) -> None:
        each_vector(k, n, machine.lanes, lambda c, width, _slot: body(i, c, width))

    each_row(k, rows, machine, one_row)
