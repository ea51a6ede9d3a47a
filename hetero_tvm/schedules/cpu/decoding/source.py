"""Kernels of an encoder over the rows of one source: attention in both directions, biases by distance, and
rows side by side for convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.attention import Attention
from hetero_tvm.ops.decoding.contracts import RelativeBias, SourceAttention, Unfold
from hetero_tvm.schedules.cpu.attention.space import AttentionSpace
from hetero_tvm.schedules.cpu.decoding.symbolic import SymbolicKernel, each_row, quotient
from hetero_tvm.schedules.cpu.register_tile import RegisterTile
from hetero_tvm.schedules.cpu.rows.row_reduction import each_vector
from hetero_tvm.schedules.cpu.symbolic.attention import RunTimeAttentionKernel
from hetero_tvm.schedules.emit import Index, int32
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
    """Kernel with arguments QKV [rows, 3 * heads * dim], the bias [heads, rows, rows] when there is one, O
    [rows, heads * dim]."""

    def at(rows: int) -> Attention:
        mask = (1, op.heads, rows, rows) if op.bias else ()
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
