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

from hetero_tvm.codegen import vector_math
from hetero_tvm.codegen.vector_functions import log1p
from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.decoding.contracts import KEYS, CachedAttention
from hetero_tvm.schedules.cpu.decoding.pool import Pool, places
from hetero_tvm.schedules.cpu.decoding.symbolic import SymbolicKernel, quotient, remainder
from hetero_tvm.schedules.cpu.register_tile import RegisterTile, accumulate
from hetero_tvm.schedules.cpu.rows.row_reduction import RowReduction, add, maximum
from hetero_tvm.schedules.emit import Index, constant, int32

_LOWEST = -3.0e38
_UNROLL = 4
_AHEAD = 8
"""Panels of 16 keys or values between what is asked for and what is multiplied.  Those of a page lie in one
piece of some KiB, and the next page is anywhere: what processors fetch by themselves ends with a piece."""


def emit_attention(op: CachedAttention, machine: CpuModel) -> PrimFunc:
    """Kernel with arguments Q [rows, heads * dim], positions, sequences, tables, layer [1], K, V, the table
    of biases when there is one, sinks [heads] when there are some, O [rows, heads * value_dim]."""
    h = op.heads
    k = SymbolicKernel("attention")
    with k:
        symbol = k.symbol("n")
        q = k.argument("Q", (symbol, h.heads * h.dim))
        positions, sequences, tables, pages = places(k, symbol)
        layer = k.argument("layer", (1,), "int32")
        pool = Pool(k, h, machine.lanes)
        biases = k.argument("biases", (h.heads, op.relative + KEYS)) if op.relative else None
        sinks = k.argument("sinks", (h.heads,)) if op.sinks else None
        out = k.argument("O", (symbol, h.heads * h.value_dim))
        rows = k.count(symbol)
        longest = k.count(pages) * h.page
        with k.shared_out(rows * h.kv_heads) as work:
            i, head = k.let(quotient(work, h.kv_heads)), k.let(remainder(work, h.kv_heads))
            pool.layer = k.let(k.load(layer, [0]))
            sequence = k.let(k.load(sequences, [i]))
            length = k.let(k.load(positions, [i]) + 1)
            start = k.let(tirx.max(length - op.window, int32(0))) if op.window else int32(0)
            if op.chunk:
                start = k.let(tirx.max(length - 1 - remainder(length - 1, op.chunk), start))
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
        pool: Pool,
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
        self._scale: Expr = constant(op.scale)
        if op.growth is not None:
            g = op.growth
            times = tirx.Cast("float32", quotient(length + (g.ahead - 1), g.every))
            self._scale = k.let(constant(op.scale) * (constant(1.0) + constant(g.share) * log1p(times)))

    def emit(self, first: int, count: int, longest: Expr) -> None:
        """Query heads ``first .. first + count`` of the key head."""
        k = self._k
        scores, factor = k.scratch((count, longest)), k.scratch((count,))
        head = self._head * (self._op.heads.heads // self._op.heads.kv_heads) + first
        self._scores(scores, count, head * self._op.heads.dim, first)
        self._softmax(scores, factor, count, head)
        self._values(scores, factor, count, head * self._op.heads.value_dim)

    def _place(self, panel: Expr) -> tuple[Expr, Expr]:
        """Page of a panel of 16 keys, counted from the first visible one, and the panel's place in it."""
        k, whole = self._k, self._first + panel
        page = k.let(k.load(self._tables, [self._sequence, quotient(whole, self._per_page)]))
        return page, k.let(remainder(whole, self._per_page))

    def _ahead(self, panel: Expr) -> tuple[Expr, Expr]:
        """Place of the panel to ask for beside a panel."""
        return self._place(self._k.let(tirx.min(panel + _AHEAD, self._panels - 1)))

    def _scores(self, scores: Buffer, count: int, base: Expr, first: int) -> None:
        k, op, dim = self._k, self._op, self._op.heads.dim
        group = op.heads.heads // op.heads.kv_heads
        lanes = min(self._machine.lanes, KEYS)
        with k.serial(self._panels) as p:
            page, inner = self._place(p)
            later = self._ahead(p)
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
                lambda step: self._pool.fetch_keys(later[0], self._head, later[1], step * _UNROLL, _UNROLL),
            )
            pieces = range(0, KEYS, lanes)
            scales = {c: self._pool.key_scales(page, self._head, inner, c, lanes) for c in pieces}
            scales = {c: None if s is None else k.let(s) for c, s in scales.items()}
            for r in range(count):
                for c in pieces:
                    value = k.load(acc, [r, k.ramp(c, lanes)]) * k.splat(self._scale, lanes)
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
                    if op.window or op.chunk:
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
                page, inner = self._place(p) if integers else (None, None)
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
        k, dim = self._k, self._op.heads.value_dim
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
                page, in_page = self._place(p)
                later = self._ahead(p)

                def step(j: Expr) -> None:
                    self._pool.fetch_value(later[0], self._head, later[1], j, part * width, width)
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
