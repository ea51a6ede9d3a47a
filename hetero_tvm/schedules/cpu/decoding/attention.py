"""Attention of new rows over keys and values in pages.

Structure::

    threads share (rows of one text that follow each other, key head):
        scores = Q K^T   of all query heads of the key head at once: K is read once, 16 keys per step
        softmax          in the row of scores, whole vectors; what is not visible is far below
        O = P V          likewise

The pool keeps 16 keys beside each other for each channel, as a register tile wants them, so nothing is packed
per call.  One row has as many accumulators as query heads share the key head, one where none do; so the rows
of a prompt are taken as many together as registers hold.  A row's sums have the same order and bits alone and
among others: keys that only a later row sees have a weight of zero.

Many rows of a text are ``matrix_attention``'s where they may be rounded and there are tiles of bfloat16.
"""

from __future__ import annotations

import math

from hetero_tvm.codegen import vector_math
from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.decoding.contracts import KEYS, CachedAttention
from hetero_tvm.schedules.cpu.decoding.matrix_attention import PromptTiles, takes_prompts
from hetero_tvm.schedules.cpu.decoding.pool import Pool, places
from hetero_tvm.schedules.cpu.decoding.symbolic import SymbolicKernel, quotient, remainder
from hetero_tvm.schedules.cpu.decoding.visible import first_key, scale_of
from hetero_tvm.schedules.cpu.register_tile import RegisterTile, accumulate
from hetero_tvm.schedules.cpu.rows.row_reduction import RowReduction, add, maximum
from hetero_tvm.schedules.emit import Index, constant, int32

_LOWEST = -3.0e38
_UNROLL = 4
_ENOUGH_ROWS = 4
"""Register tiles of rows from which on rows are taken together: fewer are shared among threads one by one."""
_AHEAD = 8
"""Panels of 16 keys or values between what is asked for and what is multiplied.  Those of a page lie in one
piece of some KiB, and the next page is anywhere: what processors fetch by themselves ends with a piece."""


def emit_attention(op: CachedAttention, machine: CpuModel, rounds: bool = False) -> PrimFunc:
    """Kernel with arguments Q [rows, heads * dim], positions, sequences, tables, layer [1], K, V, the table
    of biases when there is one, sinks [heads] when there are some, O [rows, heads * value_dim].

    Where it ``rounds``, many rows of one text may be multiplied in bfloat16.
    """
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
        group = h.heads // h.kv_heads
        most = 6 if machine.registers < 32 else 12
        pieces, together = -(-group // most), max(1, most // group)

        def some(head: Expr, first: Expr, tokens: int) -> None:
            """Rows ``first .. first + tokens`` of one text."""
            sequence = k.let(k.load(sequences, [first]))
            length = k.let(k.load(positions, [first]) + 1)
            row = _Rows(
                k, op, machine, q, out, pool, tables, biases, sinks, first, tokens, head, sequence, length
            )
            for piece in range(pieces):
                begin = group * piece // pieces
                row.emit(begin, group * (piece + 1) // pieces - begin, longest)

        tiles = (
            PromptTiles(k, op, q, out, pool, tables, sinks) if rounds and takes_prompts(op, machine) else None
        )
        if tiles is None:
            each = k.named(tirx.Select(rows >= _ENOUGH_ROWS * together, int32(together), int32(1)))
        else:
            each = tiles.tokens_each(rows, machine.threads)
        blocks = k.let(tirx.truncdiv(rows + (each - 1), each))
        with k.imported(*(tiles.imports if tiles else ())), k.shared_out(blocks * h.kv_heads) as work:
            block, head = k.let(quotient(work, h.kv_heads)), k.let(remainder(work, h.kv_heads))
            pool.layer = k.let(k.load(layer, [0]))
            first = k.let(block * each)
            end = k.let(tirx.min(first + each, rows))

            def apart(first: Expr, count: Expr) -> None:
                with k.serial(count) as i:
                    some(head, k.let(first + i), 1)

            if tiles is not None:
                tiles.runs(first, end, head, sequences, positions, apart)
            elif together == 1:
                apart(first, end - first)
            else:
                texts, steps = (
                    k.let(k.load(of, [end - 1]) - k.load(of, [first])) for of in (sequences, positions)
                )
                follow = tirx.all(
                    tirx.EQ(end - first, together), tirx.EQ(texts, 0), tirx.EQ(steps, together - 1)
                )
                k.branch(follow, lambda: some(head, first, together), lambda: apart(first, end - first))
    return k.function


class _Rows:
    """Attention of rows that follow each other: some query heads that share a key head.

    A row of scores is that of a token and a head, those of a token beside each other.
    """

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
        tokens: int,
        head: Expr,
        sequence: Expr,
        length: Expr,
    ):
        self._k, self._op, self._machine = k, op, machine
        self._q, self._out, self._pool, self._tables = q, out, pool, tables
        self._biases, self._sinks = biases, sinks
        self._row, self._tokens, self._head, self._sequence = row, tokens, head, sequence
        self._lengths = [k.let(length + t) for t in range(tokens)]
        """Keys up to the token itself, by token."""
        self._length = self._lengths[-1]
        self._starts = [first_key(k, op, length) for length in self._lengths]
        """First visible key, by token."""
        self._first = k.let(quotient(self._starts[0], KEYS))
        self._panels = k.let(quotient(self._length + (KEYS - 1), KEYS) - self._first)
        self._per_page = op.heads.page // KEYS
        self._scales = [scale_of(k, op, length) for length in self._lengths]

    def emit(self, first: int, count: int, longest: Expr) -> None:
        """Query heads ``first .. first + count`` of the key head."""
        k = self._k
        every = self._tokens * count
        # A line more than a power of two: else all rows of a column are in one set of L1.
        scores, factor = k.scratch((every, longest + KEYS)), k.scratch((every,))
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
            every = self._tokens * count
            acc = k.scratch((every, KEYS))
            accumulate(
                k,
                acc,
                RegisterTile(every, KEYS // lanes),
                lanes,
                dim,
                _UNROLL,
                lambda r, d: k.load(
                    self._q, [self._row + quotient(r, count), base + remainder(r, count) * dim + d]
                ),
                lambda d, at: self._pool.key(page, self._head, inner, d, at.base, lanes),
                lambda step: self._pool.fetch_keys(later[0], self._head, later[1], step * _UNROLL, _UNROLL),
            )
            pieces = range(0, KEYS, lanes)
            scales = {c: self._pool.key_scales(page, self._head, inner, c, lanes) for c in pieces}
            scales = {c: None if s is None else k.let(s) for c, s in scales.items()}
            for r in range(every):
                token = r // count
                for c in pieces:
                    value = k.load(acc, [r, k.ramp(c, lanes)]) * k.splat(self._scales[token], lanes)
                    if scales[c] is not None:
                        value = value * scales[c]
                    if op.softcap:
                        capped = vector_math.tanh(value * k.splat(1.0 / op.softcap, lanes))
                        value = capped * k.splat(op.softcap, lanes)
                    if self._biases is not None:
                        # The last panel reads up to KEYS - 1 places behind the table's last distance.
                        place = (self._first + p) * KEYS + (op.relative + c) - self._lengths[token]
                        at = [self._head * group + (first + r % count), k.ramp(place, lanes)]
                        value = value + k.load(self._biases, at)
                    key = k.ramp((self._first + p) * KEYS + c, lanes)
                    visible = key < k.splat(self._lengths[token], lanes)
                    if op.window or op.chunk:
                        visible = tirx.And(visible, key >= k.splat(self._starts[token], lanes))
                    value = tirx.Select(visible, value, k.splat(_LOWEST, lanes))
                    k.store(scores, value, [r, k.ramp(p * KEYS + c, lanes)])

    def _softmax(self, scores: Buffer, factor: Buffer, count: int, head: Expr) -> None:
        """Weights of the values in place, times the values' scales where they have some, for query heads from
        ``head`` on."""
        k, integers = self._k, self._op.heads.cache == "int8"
        lanes = min(self._machine.lanes, KEYS)
        with k.serial(self._tokens * count) as r:
            peak = RowReduction(k, lanes, maximum, _LOWEST)
            with k.serial(self._panels) as p:
                for slot, c in enumerate(range(0, KEYS, lanes)):
                    peak.take(k.load(scores, [r, k.ramp(p * KEYS + c, lanes)]), lanes, slot % 4)
            highest, sink = peak.finish(), None
            if self._sinks is not None:
                sink = k.let(k.load(self._sinks, [head + remainder(r, count)]))
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
        every = self._tokens * count
        vectors = max(v for v in (1, 2, 4, 8) if dim // lanes % v == 0 and (v == 1 or every * v <= most))
        width = vectors * lanes
        whole = k.let(quotient(self._length, KEYS) - self._first)
        with k.serial(dim // width) as part:
            acc = k.scratch((every, width))
            for r in range(every):
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
                        for r in range(every):
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
            for r in range(every):
                scale = k.splat(k.load(factor, [r]), lanes)
                for v in range(vectors):
                    place = [
                        self._row + r // count,
                        k.ramp(base + r % count * dim + part * width + v * lanes, lanes),
                    ]
                    k.store(self._out, k.load(acc, [r, k.ramp(v * lanes, lanes)]) * scale, place)
