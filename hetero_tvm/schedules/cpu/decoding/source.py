"""Kernels of an encoder over the rows of one source: attention in both directions, biases by distance, and
rows side by side for convolutions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.attention import Attention
from hetero_tvm.ops.decoding.contracts import RelativeBias, Rotate, SourceAttention, Unfold
from hetero_tvm.schedules.cpu.attention.space import AttentionSpace
from hetero_tvm.schedules.cpu.decoding.symbolic import SymbolicKernel, each_row, quotient
from hetero_tvm.schedules.cpu.register_tile import RegisterTile
from hetero_tvm.schedules.cpu.rows.row_reduction import add, each_vector, reduce_row
from hetero_tvm.schedules.cpu.symbolic.attention import RunTimeAttentionKernel
from hetero_tvm.schedules.emit import Index, constant, int32
from hetero_tvm.schedules.symbolic import Witnesses


class _RowWitnesses(Witnesses):
    """Contracts of one batch, whose operands have no axis for it."""

    def shapes(self, variables: Mapping[str, Expr]) -> list[tuple[Any, ...]]:
        return [shape[1:] for shape in super().shapes(variables)]


class _RowAttention(RunTimeAttentionKernel):
    """Attention of one batch, whose result has no axis for it either."""

    def result(self, shape: tuple[Index, ...]) -> Buffer:
        return self.k.view(self.k.argument("O", shape), (1, *shape))


def emit_source_attention(op: SourceAttention, machine: CpuModel) -> PrimFunc:
    """Kernel with arguments QKV [rows, 3 * heads * dim], the bias [heads or 1, rows, rows] when there is one,
    O [rows, heads * dim]."""

    def at(rows: int) -> Attention:
        mask = (1, 1 if op.shared else op.heads, rows, rows) if op.bias else ()
        return Attention(1, op.heads, rows, rows, op.dim, op.scale, op.heads, True, mask)

    # Sizes that no head or channel has, so that what differs between them is the rows.
    sizes = [max(op.longest, 8), 7 * max(op.longest, 8) + 3, 3 * max(op.longest, 8) + 1]
    witnesses = _RowWitnesses(
        (at(sizes[0]), at(sizes[1]), at(sizes[2])), tuple({"n": size} for size in sizes)
    )
    point = AttentionSpace().default(at(sizes[0]), machine)
    tile = RegisterTile.of(point["tile"])
    kernel = _RowAttention(witnesses, tile, point["pieces"], point["unroll"], machine.lanes)
    return kernel.emit()


def emit_rotate(op: Rotate, machine: CpuModel) -> PrimFunc:
    """Kernel with arguments QKV [rows, 3 * heads * dim], table [longest, dim], scales of queries and keys
    [dim] when there are norms, Y like QKV."""
    total, half = op.heads * op.dim, op.dim // 2
    k = SymbolicKernel("rotate")
    with k:
        symbol = k.symbol("n")
        qkv = k.argument("QKV", (symbol, 3 * total))
        table = k.argument("table", (op.longest, op.dim))
        names = () if op.norm_eps is None else ("q_scale", "k_scale")
        scales = [k.argument(name, (op.dim,)) for name in names]
        y = k.argument("Y", (symbol, 3 * total))
        width = math.gcd(half, machine.lanes)

        def one_row(i: Expr) -> None:
            for which in range(2):
                with k.serial(op.heads) as head:
                    base, factor = k.let(head * op.dim + which * total), k.scratch((1,))
                    if op.norm_eps is not None:

                        def square(c: Index, lanes: int, base: Expr = base) -> Expr:
                            value = k.let(k.load(qkv, [i, k.ramp(base + c, lanes)]))
                            return value * value

                        mean = reduce_row(k, op.dim, machine.lanes, square, add, 0.0) * constant(1.0 / op.dim)
                        k.store(factor, constant(1.0) / tirx.sqrt(mean + constant(op.norm_eps)), [0])

                    def channels(c: Expr, which: int = which, base: Expr = base, factor: Buffer = factor):
                        value = k.load(qkv, [i, k.ramp(base + c, width)])
                        if scales:
                            scale = k.load(scales[which], [k.ramp(c, width)])
                            value = value * k.splat(k.load(factor, [0]), width) * scale
                        return k.let(value)

                    with k.serial(half // width) as vector:
                        c = k.let(vector * width)
                        low, high = channels(c), channels(c + half)
                        cos, sin = (k.let(k.load(table, [i, k.ramp(c + at, width)])) for at in (0, half))
                        k.store(y, low * cos - high * sin, [i, k.ramp(base + c, width)])
                        k.store(y, high * cos + low * sin, [i, k.ramp(base + c + half, width)])

            def copied(c: Index, lanes: int, _slot: int) -> None:
                at = [i, k.ramp(c + 2 * total, lanes)]
                k.store(y, k.load(qkv, at), at)

            each_vector(k, total, machine.lanes, copied)

        each_row(k, k.count(symbol), machine, one_row)
    return k.function


def emit_relative_bias(op: RelativeBias, machine: CpuModel) -> PrimFunc:
    """Kernel with arguments rows [rows] int32, table [heads, 2 * longest - 1], Y [heads, rows, rows]."""
    k = SymbolicKernel("relative_bias")
    with k:
        symbol = k.symbol("n")
        k.argument("rows", (symbol,), "int32")
        table = k.argument("table", (op.heads, 2 * op.longest - 1))
        y = k.argument("Y", (op.heads, symbol, symbol))
        rows = k.count(symbol)
        with k.shared_out(rows * op.heads) as work:
            head, i = k.let(tirx.truncdiv(work, rows)), k.let(tirx.truncmod(work, rows))
            full = k.let(quotient(rows, machine.lanes))

            def piece(j: Expr, width: int) -> None:
                at = [head, k.ramp(j - i + (op.longest - 1), width)]
                k.store(y, k.load(table, at), [head, i, k.ramp(j, width)])

            with k.serial(full) as vector:
                piece(vector * machine.lanes, machine.lanes)
            with k.serial(rows - full * machine.lanes) as rest:
                piece(full * machine.lanes + rest, 1)
    return k.function


def emit_unfold(op: Unfold, machine: CpuModel) -> PrimFunc:
    """Kernel with arguments X [frames, width], Y [rows, size * width]."""
    k = SymbolicKernel("unfold")
    with k:
        length, symbol = k.symbol("f"), k.symbol("n")
        x = k.argument("X", (length, op.width))
        y = k.argument("Y", (symbol, op.size * op.width))
        frames = k.count(length)

        def one_row(i: Expr) -> None:
            with k.serial(op.size) as t:
                frame = k.let(i * op.stride + t - op.size // 2)

                def copied(c: Index, width: int, _slot: int) -> None:
                    inside = k.load(x, [frame, k.ramp(c, width)])
                    k.store(y, inside, [i, k.ramp(t * op.width + c, width)])

                def cleared(c: Index, width: int, _slot: int) -> None:
                    k.store(y, k.splat(0.0, width), [i, k.ramp(t * op.width + c, width)])

                k.branch(
                    tirx.all(frame >= int32(0), frame < frames),
                    lambda: each_vector(k, op.width, machine.lanes, copied),
                    lambda: each_vector(k, op.width, machine.lanes, cleared),
                )

        each_row(k, k.count(symbol), machine, one_row)
    return k.function
