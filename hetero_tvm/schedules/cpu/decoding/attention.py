"""Attention of new rows over keys and values in pages.

Structure::

    threads share (row, key head):
        scores = Q K^T   of all query heads of the key head at once: K is read once, 16 keys per step
        softmax          in the row of scores, whole vectors; what is not visible is far below
        O = P V          likewise

The pool keeps 16 keys beside each other for each channel, as a register tile wants them, so nothing is packed
per call.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from hetero_tvm.codegen import vector_math
from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, Var, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.decoding.contracts import KEYS, Append, AppendSource, CachedAttention, Heads
from hetero_tvm.schedules.cpu.decoding.symbolic import SymbolicKernel, each_row, quotient, remainder
from hetero_tvm.schedules.cpu.register_tile import RegisterTile, accumulate
from hetero_tvm.schedules.cpu.rows.row_reduction import RowReduction, add, maximum, reduce_row
from hetero_tvm.schedules.emit import Index, constant, int32

_LOWEST = -3.0e38
_UNROLL = 4


class _Pool:
    """Keys and values of one layer, as arguments of a kernel."""

    def __init__(self, k: SymbolicKernel, heads: Heads, lanes: int):
        self._k, self._heads, self._lanes = k, heads, lanes
        pages = k.symbol("p")
        keys, values = heads.pools(pages)
        self.keys, self.values = k.argument("K", keys, heads.cache), k.argument("V", values, heads.cache)
        self.layer: Expr = int32(0)

    @property
    def _integers(self) -> bool:
        return self._heads.cache == "int8"

    def key(self, page: Expr, head: Expr, panel: Index, channel: Index, key: Index, width: int) -> Expr:
        """One channel of ``width`` neighbouring keys; without their scales."""
        at = [page, self.layer, head, panel, channel, self._k.ramp(key, width)]
        return _widened(self._k.load(self.keys, at), self._heads, width)

    def value(self, page: Expr, head: Expr, panel: Expr, row: Index, channel: Index, width: int) -> Expr:
        """Neighbouring channels of the ``row``-th value of a panel; without its scale."""
        at = [page, self.layer, head, *self._value_at(panel, row, channel, width)]
        return _widened(self._k.load(self.values, at), self._heads, width)

    def key_scales(self, page: Expr, head: Expr, panel: Index, key: int, width: int) -> Expr | None:
        """Scales of neighbouring keys of a panel; None where they have none."""
        return self._scales(self.keys, page, head, panel, key, width)

    def value_scales(self, page: Expr, head: Expr, panel: Index, row: int, width: int) -> Expr | None:
        """Scales of neighbouring values of a panel; None where they have none."""
        return self._scales(self.values, page, head, panel, row, width)

    def put(
        self,
        page: Expr,
        head: Expr,
        slot: Expr,
        key_at: Callable[[Index, int], Expr],
        value_at: Callable[[Index, int], Expr],
    ) -> None:
        """Write the key and the value of a head, float32 by (channel, width), to a slot of a page."""
        k, dim = self._k, self._heads.dim
        panel, key = k.let(quotient(slot, KEYS)), k.let(remainder(slot, KEYS))
        stored = self._stored(key_at, self.keys, page, head, panel, key)
        with k.serial(dim) as d:
            k.store(self.keys, stored(d), [page, self.layer, head, panel, d, key])
        stored = self._stored(value_at, self.values, page, head, panel, key)
        with k.serial(dim) as d:
            k.store(self.values, stored(d), [page, self.layer, head, *self._value_at(panel, key, d, 1)])

    def _value_at(self, panel: Expr, row: Index, channel: Index, width: int) -> list[Index]:
        if self._integers:  # rows of values one after the other in the bytes of a panel
            return [panel, 0, self._k.ramp(row * self._heads.dim + channel, width)]
        return [panel * KEYS + row, self._k.ramp(channel, width)]

    def _stored(
        self,
        get: Callable[[Index, int], Expr],
        pool: Buffer,
        page: Expr,
        head: Expr,
        panel: Expr,
        slot: Expr,
    ) -> Callable[[Expr], Expr]:
        """Channel -> number as the pool stores it; writes the scale where there is one."""
        k, cache = self._k, self._heads.cache
        if not self._integers:
            return lambda d: get(d, 1) if cache == "float32" else tirx.Cast(cache, get(d, 1))
        peak = k.let(
            reduce_row(
                k, self._heads.dim, self._lanes, lambda c, width: tirx.abs(get(c, width)), maximum, 0.0
            )
        )
        scale = tirx.reinterpret("int8x4", k.let(peak * constant(1.0 / 127)))
        k.store(pool, scale, [page, self.layer, head, panel, self._heads.dim, k.ramp(slot * 4, 4)])
        factor = k.let(tirx.Select(peak > constant(0.0), constant(127.0) / peak, constant(0.0)))
        return lambda d: tirx.Cast("int8", tirx.nearbyint(get(d, 1) * factor))

    def _scales(
        self, pool: Buffer, page: Expr, head: Expr, panel: Index, first: int, width: int
    ) -> Expr | None:
        if not self._integers:
            return None
        at = [page, self.layer, head, panel, self._heads.dim, self._k.ramp(first * 4, 4 * width)]
        return tirx.reinterpret(f"float32x{width}", self._k.load(pool, at))


def _widened(value: Expr, heads: Heads, width: int) -> Expr:
    if heads.cache == "float32":
        return value
    return tirx.Cast(f"float32x{width}" if width > 1 else "float32", value)


def _places(k: SymbolicKernel, rows: Var) -> tuple[Buffer, Buffer, Buffer, Var]:
    """Arguments that say where rows belong: positions, sequences, tables; and pages of a table."""
    pages = k.symbol("w")
    positions, sequences = (
        k.argument("positions", (rows,), "int32"),
        k.argument("sequences", (rows,), "int32"),
    )
    return positions, sequences, k.argument("tables", (k.symbol("s"), pages), "int32"), pages


def emit_append(op: Append, machine: CpuModel) -> PrimFunc:
    """Kernel with arguments QKV [rows, width], positions, sequences, tables, rope [positions, tables,
    rotated], scales of query and key heads when there are norms, layer [1], K, V, Q [rows, heads * dim]."""
    h = op.heads
    half = op.rotated // 2
    k = SymbolicKernel("append")
    with k:
        symbol = k.symbol("n")
        qkv = k.argument("QKV", (symbol, h.width))
        positions, sequences, tables, _ = _places(k, symbol)
        rope = k.argument("rope", (k.symbol("c"), k.symbol("t"), max(op.rotated, 1)))
        extents = [h.heads * h.dim, h.kv_heads * h.dim] if op.wide else [h.dim] * 2
        names = ("q_scale", "k_scale") if op.norm_eps else ()
        scales = [k.argument(name, (n,)) for name, n in zip(names, extents, strict=False)]
        layer = k.argument("layer", (1,), "int32")
        pool = _Pool(k, h, machine.lanes)
        out = k.argument("Q", (symbol, h.heads * h.dim))
        rows = k.count(symbol)

        def one_row(i: Expr) -> None:
            pool.layer = k.let(k.load(layer, [0]))
            position = k.let(k.load(positions, [i]))
            row = k.let(k.load(sequences, [i]))
            page = k.let(k.load(tables, [row, quotient(position, h.page)]))
            slot = k.let(remainder(position, h.page))
            head_values = k.scratch((h.dim,))

            def unit(base: Expr | int, extent: int) -> Expr:
                """Factor that gives channels a mean square of 1."""

                def square(c: Index, width: int) -> Expr:
                    value = k.let(k.load(qkv, [i, k.ramp(base + c, width)]))
                    return value * value

                mean = reduce_row(k, extent, machine.lanes, square, add, 0.0) * constant(1.0 / extent)
                return k.let(constant(1.0) / tirx.sqrt(mean + constant(op.norm_eps)))

            firsts = (0, h.heads * h.dim)
            wide = [unit(*part) for part in zip(firsts, extents, strict=True)] if op.wide else []

            def normalized(head: Expr, which: int) -> None:
                """Copy a head to scratch, scaled to unit mean square when the model wants that."""
                base, width = firsts[which] + head * h.dim, math.gcd(h.dim, machine.lanes)
                factor = None
                if op.norm_eps:
                    factor = wide[which] if op.wide else unit(base, h.dim)
                for c in range(0, h.dim, width):
                    value = k.load(qkv, [i, k.ramp(base + c, width)])
                    if factor is not None:
                        at = head * h.dim + c if op.wide else c
                        value = value * k.splat(factor, width) * k.load(scales[which], [k.ramp(at, width)])
                    k.store(head_values, value, [k.ramp(c, width)])

            def rotated() -> None:
                width = math.gcd(half, machine.lanes)
                for c in range(0, half, width):
                    low, high = [k.ramp(c, width)], [k.ramp(half + c, width)]
                    a, b = k.let(k.load(head_values, low)), k.let(k.load(head_values, high))
                    cos = k.let(k.load(rope, [position, op.rope, k.ramp(c, width)]))
                    sin = k.let(k.load(rope, [position, op.rope, k.ramp(half + c, width)]))
                    k.store(head_values, a * cos - b * sin, low)
                    k.store(head_values, b * cos + a * sin, high)

            with k.serial(h.heads) as head:
                normalized(head, 0)
                rotated()
                width = math.gcd(h.dim, machine.lanes)
                with k.serial(h.dim // width) as c:
                    value = k.load(head_values, [k.ramp(c * width, width)])
                    k.store(out, value, [i, k.ramp(head * h.dim + c * width, width)])
            with k.serial(h.kv_heads) as head:
                normalized(head, 1)
                rotated()
                value_at = (h.heads + h.kv_heads + head) * h.dim
                pool.put(
                    page,
                    head,
                    slot,
                    lambda d, width: k.load(head_values, [k.ramp(d, width)]),
                    lambda d, width: k.load(qkv, [i, k.ramp(value_at + d, width)]),
                )

        each_row(k, rows, machine, one_row)
    return k.function


def emit_append_source(op: AppendSource, machine: CpuModel) -> PrimFunc:
    """Kernel with arguments KV [rows, 2 * kv_heads * dim], positions, sequences, tables, layer [1], K, V."""
    h = op.heads
    k = SymbolicKernel("append_source")
    with k:
        symbol = k.symbol("n")
        kv = k.argument("KV", (symbol, 2 * h.kv_heads * h.dim))
        positions, sequences, tables, _ = _places(k, symbol)
        layer = k.argument("layer", (1,), "int32")
        pool = _Pool(k, h, machine.lanes)

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


def emit_attention(op: CachedAttention, machine: CpuModel) -> PrimFunc:
    """Kernel with arguments Q [rows, heads * dim], positions, sequences, tables, layer [1], K, V, the table
    of biases when there is one, sinks [heads] when there are some, O as Q."""
    h = op.heads
    k = SymbolicKernel("attention")
    with k:
        symbol = k.symbol("n")
        q = k.argument("Q", (symbol, h.heads * h.dim))
        positions, sequences, tables, pages = _places(k, symbol)
        layer = k.argument("layer", (1,), "int32")
        pool = _Pool(k, h, machine.lanes)
        biases = k.argument("biases", (h.heads, op.relative + KEYS)) if op.relative else None
        sinks = k.argument("sinks", (h.heads,)) if op.sinks else None
        out = k.argument("O", (symbol, h.heads * h.dim))
        rows = k.count(symbol)
        longest = k.count(pages) * h.page
        with k.shared_out(rows * h.kv_heads) as work:
            i, head = k.let(quotient(work, h.kv_heads)), k.let(remainder(work, h.kv_heads))
            pool.layer = k.let(k.load(layer, [0]))
            sequence = k.let(k.load(sequences, [i]))
            length = k.let(k.load(positions, [i]) + 1)
            start = k.let(tirx.max(length - op.window, int32(0))) if op.window else int32(0)
            row = _Row(k, op, machine, q, out, pool, tables, biases, sinks, i, head, sequence, start, length)
            group = h.heads // h.kv_heads
            most = 6 if machine.registers < 32 else 12
            pieces = -(-group // most)
            for piece in range(pieces):
                first = group * piece // pieces
                row.emit(first, group * (piece + 1) // pieces - first, longest)
    return k.function


class _Row:
    """Attention of one row: some query heads that share a key head."""

    def __init__(
        self,
        k: SymbolicKernel,
        op: CachedAttention,
        machine: CpuModel,
        q: Buffer,
        out: Buffer,
        pool: _Pool,
        tables: Buffer,
        biases: Buffer | None,
        sinks: Buffer | None,
        row: Expr,
        head: Expr,
        sequence: Expr,
        start: Expr,
        length: Expr,
    ):
        self._k, self._op, self._machine = k, op, machine
        self._q, self._out, self._pool, self._tables = q, out, pool, tables
        self._biases, self._sinks = biases, sinks
        self._row, self._head, self._sequence = row, head, sequence
        self._start, self._length = start, length
        self._first = k.let(quotient(start, KEYS))
        self._panels = k.let(quotient(length + (KEYS - 1), KEYS) - self._first)
        self._per_page = op.heads.page // KEYS

    def emit(self, first: int, count: int, longest: Expr) -> None:
        """Query heads ``first .. first + count`` of the key head."""
        k = self._k
        scores, factor = k.scratch((count, longest)), k.scratch((count,))
        head = self._head * (self._op.heads.heads // self._op.heads.kv_heads) + first
        base = head * self._op.heads.dim
        self._scores(scores, count, base, first)
        self._softmax(scores, factor, count, head)
        self._values(scores, factor, count, base)

    def _page(self, panel: Expr) -> Expr:
        """Page of a panel of 16 keys, counted from the first visible one."""
        whole = self._first + panel
        return self._k.let(self._k.load(self._tables, [self._sequence, quotient(whole, self._per_page)]))

    def _scores(self, scores: Buffer, count: int, base: Expr, first: int) -> None:
        k, op, dim = self._k, self._op, self._op.heads.dim
        group = op.heads.heads // op.heads.kv_heads
        lanes = min(self._machine.lanes, KEYS)
        with k.serial(self._panels) as p:
            page, inner = self._page(p), k.let(remainder(self._first + p, self._per_page))
            acc = k.scratch((count, KEYS))
            accumulate(
                k,
                acc,
                RegisterTile(count, KEYS // lanes),
                lanes,
                dim,
                _UNROLL,
                lambda r, d: k.load(self._q, [self._row, base + r * dim + d]),
                lambda d, at: self._pool.key(page, self._head, inner, d, at.base, lanes),
            )
            pieces = range(0, KEYS, lanes)
            scales = {c: self._pool.key_scales(page, self._head, inner, c, lanes) for c in pieces}
            scales = {c: None if s is None else k.let(s) for c, s in scales.items()}
            for r in range(count):
                for c in pieces:
                    value = k.load(acc, [r, k.ramp(c, lanes)]) * k.splat(op.scale, lanes)
                    if scales[c] is not None:
                        value = value * scales[c]
                    if op.softcap:
                        capped = vector_math.tanh(value * k.splat(1.0 / op.softcap, lanes))
                        value = capped * k.splat(op.softcap, lanes)
                    if self._biases is not None:
                        # The last panel reads up to KEYS - 1 places behind the table's last distance.
                        place = (self._first + p) * KEYS + (op.relative + c) - self._length
                        at = [self._head * group + (first + r), k.ramp(place, lanes)]
                        value = value + k.load(self._biases, at)
                    key = k.ramp((self._first + p) * KEYS + c, lanes)
                    visible = key < k.splat(self._length, lanes)
                    if op.window:
                        visible = tirx.And(visible, key >= k.splat(self._start, lanes))
                    value = tirx.Select(visible, value, k.splat(_LOWEST, lanes))
                    k.store(scores, value, [r, k.ramp(p * KEYS + c, lanes)])

    def _softmax(self, scores: Buffer, factor: Buffer, count: int, head: Expr) -> None:
        """Weights of the values in place, times the values' scales where they have some, for query heads from
        ``head`` on."""
        k, integers = self._k, self._op.heads.cache == "int8"
        lanes = min(self._machine.lanes, KEYS)
        with k.serial(count) as r:
            peak = RowReduction(k, lanes, maximum, _LOWEST)
            with k.serial(self._panels) as p:
                for slot, c in enumerate(range(0, KEYS, lanes)):
                    peak.take(k.load(scores, [r, k.ramp(p * KEYS + c, lanes)]), lanes, slot % 4)
            highest, sink = peak.finish(), None
            if self._sinks is not None:
                sink = k.let(k.load(self._sinks, [head + r]))
                highest = tirx.max(highest, sink)
            top = k.let(highest)
            total = RowReduction(k, lanes, add, 0.0)
            with k.serial(self._panels) as p:
                page = self._page(p) if integers else None
                inner = k.let(remainder(self._first + p, self._per_page)) if integers else None
                for slot, c in enumerate(range(0, KEYS, lanes)):
                    at = [r, k.ramp(p * KEYS + c, lanes)]
                    value = k.let(vector_math.softmax_exp(k.load(scores, at), k.splat(top, lanes)))
                    scales = self._pool.value_scales(page, self._head, inner, c, lanes)
                    k.store(scores, value if scales is None else value * scales, at)
                    total.take(value, lanes, slot % 4)
            whole = total.finish()
            if sink is not None:
                whole = whole + vector_math.exp(sink - top)
            k.store(factor, constant(1.0) / whole, [r])

    def _values(self, scores: Buffer, factor: Buffer, count: int, base: Expr) -> None:
        """Weighted sums of values.  Only keys that are there are read: the rest of a page may be anything."""
        k, dim = self._k, self._op.heads.dim
        lanes = math.gcd(dim, self._machine.lanes)
        most = 12 if self._machine.registers < 32 else 24
        vectors = max(v for v in (1, 2, 4, 8) if dim // lanes % v == 0 and (v == 1 or count * v <= most))
        width = vectors * lanes
        whole = k.let(quotient(self._length, KEYS) - self._first)
        with k.serial(dim // width) as part:
            acc = k.scratch((count, width))
            for r in range(count):
                for v in range(vectors):
                    k.store(acc, k.splat(0.0, lanes), [r, k.ramp(v * lanes, lanes)])

            def panel(p: Expr, keys: Index) -> None:
                page = self._page(p)
                in_page = k.let(remainder(self._first + p, self._per_page))

                def step(j: Expr) -> None:
                    for v in range(vectors):
                        channel = part * width + v * lanes
                        value = k.let(self._pool.value(page, self._head, in_page, j, channel, lanes))
                        for r in range(count):
                            at = [r, k.ramp(v * lanes, lanes)]
                            weight = k.splat(k.load(scores, [r, p * KEYS + j]), lanes)
                            k.store(acc, k.load(acc, at) + weight * value, at)

                if isinstance(keys, int):
                    with k.serial(keys // _UNROLL) as outer, k.unroll(_UNROLL) as inner:
                        step(outer * _UNROLL + inner)
                else:
                    with k.serial(keys) as j:
                        step(j)

            with k.serial(whole) as p:
                panel(p, KEYS)
            with k.when(whole < self._panels):
                panel(whole, self._length - (self._first + whole) * KEYS)
            for r in range(count):
                scale = k.splat(k.load(factor, [r]), lanes)
                for v in range(vectors):
                    place = [self._row, k.ramp(base + r * dim + part * width + v * lanes, lanes)]
                    k.store(self._out, k.load(acc, [r, k.ramp(v * lanes, lanes)]) * scale, place)
