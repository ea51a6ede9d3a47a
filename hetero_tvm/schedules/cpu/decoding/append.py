"""Queries of new rows, and what goes into pages: their keys, rotated, and their values."""

from __future__ import annotations

import math
from collections.abc import Callable

from hetero_tvm.host.tvm import Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.decoding.contracts import Append, AppendSource
from hetero_tvm.schedules.cpu.decoding.pool import Pool, places
from hetero_tvm.schedules.cpu.decoding.symbolic import SymbolicKernel, each_row, quotient, remainder
from hetero_tvm.schedules.cpu.rows.row_reduction import add, reduce_row
from hetero_tvm.schedules.emit import Index, constant


def emit_append(op: Append, machine: CpuModel) -> PrimFunc:
    """Kernel with arguments QKV [rows, width] (or what stands in its place where keys share channels, and the
    queries alone where the layer only reads the pool), positions, sequences, tables, rope [positions, tables,
    rotated], scales (and shifts) of query and key heads when there are norms, layer [1], K, V, Q [rows, heads
    * dim]."""
    h = op.heads
    half, own = op.rotated // 2, h.dim - op.shared
    table = op.table or op.rotated
    k = SymbolicKernel("append")
    with k:
        symbol = k.symbol("n")
        if op.shared:
            qkv = k.argument("QS", (symbol, h.heads * h.dim))
            kv = k.argument("KV", (symbol, h.kv_heads * (own + h.value_dim)))
            shared = k.argument("S", (symbol, op.shared))
        else:
            qkv = k.argument("QKV", (symbol, h.heads * h.dim if op.reads else h.width))
        positions, sequences, tables, _ = places(k, symbol)
        rope = k.argument("rope", (k.symbol("c"), k.symbol("t"), max(table, 1)))
        extents = op.scales
        scales, shifts = [], []
        for name, n in zip("q" if op.reads else "qk", extents, strict=False):
            if op.norm_eps:
                scales.append(k.argument(f"{name}_scale", (n,)))
                shifts += [k.argument(f"{name}_shift", (n,))] if op.shifted else []
        layer = k.argument("layer", (1,), "int32")
        pool = Pool(k, h, machine.lanes)
        out = k.argument("Q", (symbol, h.heads * h.dim))
        rows = k.count(symbol)

        def one_row(i: Expr) -> None:
            pool.layer = k.let(k.load(layer, [0]))
            position = k.let(k.load(positions, [i]))
            row = k.let(k.load(sequences, [i]))
            page = k.let(k.load(tables, [row, quotient(position, h.page)]))
            slot = k.let(remainder(position, h.page))
            head_values = k.scratch((h.dim,))

            def unit(base: Expr | int, extent: int, centered: bool = op.centered) -> tuple[Expr, Expr | None]:
                """Factor that gives channels a mean square of 1, and their mean where that is taken off."""

                def channels(c: Index, width: int) -> Expr:
                    return k.load(qkv, [i, k.ramp(base + c, width)])

                def mean_of(get: Callable[[Index, int], Expr]) -> Expr:
                    return reduce_row(k, extent, machine.lanes, get, add, 0.0) * constant(1.0 / extent)

                middle = k.let(mean_of(channels)) if centered else None

                def square(c: Index, width: int) -> Expr:
                    value = channels(c, width)
                    value = k.let(value if middle is None else value - k.splat(middle, width))
                    return value * value

                return k.let(constant(1.0) / tirx.sqrt(mean_of(square) + constant(op.norm_eps))), middle

            firsts = (0, h.heads * h.dim)
            wide = [unit(*part) for part in zip(firsts, extents, strict=True)] if op.wide else []

            def bounded(value: Expr, width: int) -> Expr:
                if not op.clip:
                    return value
                return tirx.max(tirx.min(value, k.splat(op.clip, width)), k.splat(-op.clip, width))

            def normalized(head: Expr, which: int) -> None:
                """Copy a head to scratch, scaled to unit mean square when the model wants that."""
                base, width = firsts[which] + head * h.dim, math.gcd(h.dim, machine.lanes)
                factor, middle = None, None
                if op.norm_eps:
                    factor, middle = wide[which] if op.wide else unit(base, h.dim)
                for c in range(0, h.dim, width):
                    value = bounded(k.load(qkv, [i, k.ramp(base + c, width)]), width)
                    if middle is not None:
                        value = value - k.splat(middle, width)
                    if factor is not None:
                        value = value * k.splat(factor, width)
                        if not op.norm_last:
                            value = scaled(value, head, which, c, width)
                    k.store(head_values, value, [k.ramp(c, width)])

            def scaled(value: Expr, head: Expr, which: int, c: int, width: int) -> Expr:
                at = [k.ramp(head * h.dim + c if op.wide or op.by_head else c, width)]
                value = value * k.load(scales[which], at)
                return value + k.load(shifts[which], at) if op.shifted else value

            def key_of_parts(head: Expr) -> None:
                """Copy the shared channels of a key and its own to scratch."""
                parts = ((shared, 0, 0, op.shared), (kv, head * own, op.shared, own))
                for buffer, base, to, extent in parts:
                    width = math.gcd(math.gcd(extent, op.shared), machine.lanes)
                    for c in range(0, extent, width):
                        value = k.load(buffer, [i, k.ramp(base + c, width)])
                        k.store(head_values, value, [k.ramp(to + c, width)])

            def rotated(head: Expr, which: int) -> None:
                width = math.gcd(half, machine.lanes)
                for c in range(0, half, width):
                    low, high = [k.ramp(c, width)], [k.ramp(half + c, width)]
                    a, b = k.let(k.load(head_values, low)), k.let(k.load(head_values, high))
                    cos = k.let(k.load(rope, [position, op.rope, k.ramp(c, width)]))
                    sin = k.let(k.load(rope, [position, op.rope, k.ramp(table // 2 + c, width)]))
                    k.store(head_values, a * cos - b * sin, low)
                    k.store(head_values, b * cos + a * sin, high)
                width = math.gcd(h.dim, machine.lanes)
                for c in range(0, h.dim if op.norm_last else 0, width):
                    at = [k.ramp(c, width)]
                    k.store(head_values, scaled(k.load(head_values, at), head, which, c, width), at)

            with k.serial(h.heads) as head:
                normalized(head, 0)
                rotated(head, 0)
                width = math.gcd(h.dim, machine.lanes)
                with k.serial(h.dim // width) as c:
                    value = k.load(head_values, [k.ramp(c * width, width)])
                    k.store(out, value, [i, k.ramp(head * h.dim + c * width, width)])
            if op.reads:
                return
            with k.serial(h.kv_heads) as head:
                if op.shared:
                    key_of_parts(head)
                else:
                    normalized(head, 1)
                rotated(head, 1)
                values = kv if op.shared else qkv
                first = h.kv_heads * own if op.shared else (h.heads + h.kv_heads) * h.dim
                value_at = first + head * h.value_dim
                factor = unit(value_at, h.value_dim, centered=False)[0] if op.norm_values else None

                def value_of(d: Index, width: int) -> Expr:
                    value = bounded(k.load(values, [i, k.ramp(value_at + d, width)]), width)
                    return value if factor is None else value * k.splat(factor, width)

                pool.put(page, head, slot, lambda d, width: k.load(head_values, [k.ramp(d, width)]), value_of)

        each_row(k, rows, machine, one_row)
    return k.function


def emit_append_source(op: AppendSource, machine: CpuModel) -> PrimFunc:
    """Kernel with arguments KV [rows, 2 * kv_heads * dim], positions, sequences, tables, layer [1], K, V."""
    h = op.heads
    k = SymbolicKernel("append_source")
    with k:
        symbol = k.symbol("n")
        kv = k.argument("KV", (symbol, 2 * h.kv_heads * h.dim))
        positions, sequences, tables, _ = places(k, symbol)
        layer = k.argument("layer", (1,), "int32")
        pool = Pool(k, h, machine.lanes)

        def one_row(i: Expr) -> None:
            pool.layer = k.let(k.load(layer, [0]))
            position, row = k.let(k.load(positions, [i])), k.let(k.load(sequences, [i]))
            page = k.let(k.load(tables, [row, quotient(position, h.page)]))
            slot = k.let(remainder(position, h.page))
            with k.serial(h.kv_heads) as head:
                key_at, value_at = head * h.dim, (h.kv_heads + head) * h.dim
                pool.put(
                    page,
                    head,
                    slot,
                    lambda d, width: k.load(kv, [i, k.ramp(key_at + d, width)]),
                    lambda d, width: k.load(kv, [i, k.ramp(value_at + d, width)]),
                )

        each_row(k, k.count(symbol), machine, one_row)
    return k.function
