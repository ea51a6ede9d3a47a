"""Attention of a single query over keys and values where they lie: what a decoder does at each step.

::

    for 16 keys at a time:                                (serial; the keys once, in order)
        partial[j] = sum of q[c] * key[j][c], by lanes     (registers)
        scores of the 16 keys = rows of partial added up   (one transpose in registers)
    softmax of the scores                                 (L1)
    for keys, four at a time:                             (the values once, in order)
        acc[v] += score * value[v]                        (registers)

Each key and each value is read once and nothing is packed, so that memory is the bound; tiles of queries
would write both to scratch first.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from hetero_tvm.codegen import transpose
from hetero_tvm.host.tvm import Buffer, Expr, tirx
from hetero_tvm.ops.attention import Attention
from hetero_tvm.schedules.cpu.attention.kernel import AttentionKernel
from hetero_tvm.schedules.cpu.register_tile import RegisterTile
from hetero_tvm.schedules.cpu.rows.row_reduction import each_vector
from hetero_tvm.schedules.emit import LINE_FLOATS, Index, as_index, constant, int32

_MOST_VECTORS = 8
"""Vectors of a value that are summed up at once."""
_UNROLL = 4
_AHEAD = 32
"""Keys and values between what is asked for and what is read."""


def reads_in_place(op: Attention, lanes: int) -> bool:
    """Whether keys and values are whole vectors."""
    return op.head_dim % lanes == 0 and op.values % lanes == 0


class OneQueryKernel(AttentionKernel):
    """An attention with code for a single query, whatever is known of its sizes."""

    kv_len: Index
    """Keys of the call."""
    panels: Expr
    """Panels that the keys fill or begin."""

    def one_query(self, key_base: Expr, value_base: Expr, softmax: Callable[[Expr, Expr], None]) -> None:
        """Emit the query of one head.

        Parameters
        ----------
        key_base, value_base : where the head's keys and values begin.
        softmax : emits the softmax of the scores, in place, from a key on and over so many panels.
        """
        op, k, columns = self.op, self.k, self.key_columns
        skipped: Expr = int32(0)
        if op.window:
            oldest = tirx.max(self.kv_len - op.window, int32(0))
            skipped = k.let(tirx.truncdiv(oldest, int32(columns)))
        start = k.let(skipped * columns)
        self._scores_of_one(key_base, start)
        softmax(start, self.panels - skipped)
        vectors = op.values // self.lanes
        for first in range(0, vectors, _MOST_VECTORS):
            self._values_of_one(value_base, start, first, min(_MOST_VECTORS, vectors - first))

    def _scores_of_one(self, key_base: Expr, start: Expr) -> None:
        """Emit the scaled scores of all keys from ``start`` on, a multiple of the lanes."""
        op, k, lanes = self.op, self.k, self.lanes
        lane = k.ramp(0, lanes)
        query = [
            k.let(k.load(self.query, [k.ramp(self.query_base + c, lanes)]))
            for c in range(0, op.head_dim, lanes)
        ]
        partial, turned = k.scratch((lanes, lanes)), k.scratch((lanes, lanes))

        def one_key(number: Expr, slot: Expr) -> None:
            base = key_base + number * self.key_at.row
            self._fetch(self.key, key_base, self.key_at.row, number, op.head_dim)
            total = None
            for c, part in enumerate(query):
                product = k.load(self.key, [k.ramp(base + c * lanes, lanes)]) * part
                total = product if total is None else total + product
            k.store(partial, total, [slot, lane])

        def add_up(first: Expr) -> None:
            target, source = k.address(turned, [0, 0]), k.address(partial, [0, 0])
            k.call(transpose.name_of(lanes), target, int32(lanes), source, int32(lanes))
            rows = [k.load(turned, [row, lane]) for row in range(lanes)]
            while len(rows) > 1:
                rows = [a + b for a, b in zip(rows[::2], rows[1::2], strict=True)]
            k.store(self.scores, self._scaled(rows[0], lanes), [0, k.ramp(first, lanes)])

        count = as_index(self.kv_len)
        full = k.let(tirx.truncdiv(count - start, int32(lanes)))
        with k.serial(full) as block:
            first = k.let(start + block * lanes)
            with k.unroll(lanes) as j:
                one_key(first + j, j)
            add_up(first)
        end = k.let(start + full * lanes)
        with k.when(end < count):
            with k.unroll(lanes) as j:
                k.store(partial, k.splat(0.0, lanes), [j, lane])
            with k.serial(count - end) as j:
                one_key(end + j, j)
            add_up(end)

    def _fetch(self, buffer: Buffer, base: Expr, row: Index, number: Expr, extent: int) -> None:
        """Ask for a row that is read soon: it may be far from the last one."""
        later = tirx.min(number + _AHEAD, as_index(self.kv_len) - 1)
        for start in range(0, extent, LINE_FLOATS):
            self.k.prefetch(buffer, [base + later * row + start])

    def _values_of_one(self, base: Expr, start: Expr, first: int, vectors: int) -> None:
        """Emit ``vectors`` vectors of the result from number ``first`` on."""
        op, k, lanes = self.op, self.k, self.lanes
        lane = k.ramp(0, lanes)
        acc = k.scratch((2, vectors, lanes))
        for chain in range(2):
            for v in range(vectors):
                k.store(acc, k.splat(0.0, lanes), [chain, v, lane])

        def one_key(number: Expr, chain: int) -> None:
            weight = k.splat(k.load(self.scores, [0, number]), lanes)
            self._fetch(self.value, base + first * lanes, self.value_at.row, number, vectors * lanes)
            for v in range(vectors):
                at = base + number * self.value_at.row + (first + v) * lanes
                place = [chain, v, lane]
                product = weight * k.load(self.value, [k.ramp(at, lanes)])
                k.store(acc, k.load(acc, place) + product, place)

        count = k.let(self.kv_len - start)
        full = k.let(tirx.truncdiv(count, int32(_UNROLL)))
        with k.serial(full) as step:
            for n in range(_UNROLL):
                one_key(start + step * _UNROLL + n, n % 2)
        with k.serial(count - full * _UNROLL) as rest:
            one_key(start + full * _UNROLL + rest, 0)
        factor = k.splat(k.load(self.factors, [0]), lanes)
        for v in range(vectors):
            value = (k.load(acc, [0, v, lane]) + k.load(acc, [1, v, lane])) * factor
            column = self.head * op.values + (first + v) * lanes
            k.store(self.out, value, [self.batch, 0, k.ramp(column, lanes)])


class LoneQueryKernel(OneQueryKernel):
    """Emits an attention of a single query whose sizes are known: a decoder's with keys of a fixed number."""

    def __init__(self, op: Attention, tile: RegisterTile, unroll: int, lanes: int):
        super().__init__(op, tile, 1, unroll, lanes)
        self.kv_len, self.panels = op.kv_len, int32(self.key_panels)

    def _work_item(self, work: Expr, last_work: Expr) -> None:
        """Emit one head."""
        op, k = self.op, self.k
        self._find_head(work)
        self.scores = k.scratch((1, self.key_panels * self.key_columns + self.lanes))
        self.factors = k.scratch((1,))
        oldest = max(op.kv_len - op.window, 0) if op.window else 0
        start = oldest // self.key_columns * self.key_columns

        def softmax(_start: Expr, _panels: Expr) -> None:
            if self.mask is not None:
                self._add_mask(start)
            with k.serial(oldest - start) as j:
                k.store(self.scores, constant(-math.inf), [0, start + j])
            self._softmax_row(int32(0), start, op.kv_len - start)
            self._zero_hidden_rows(int32(0), 1, start, op.kv_len - start)

        self.one_query(self.key_base, self.value_base, softmax)

    def _add_mask(self, start: int) -> None:
        """Emit the scores with their mask, from key ``start`` on."""
        k = self.k

        def piece(c: Index, width: int, _slot: int) -> None:
            at = [0, k.ramp(start + c, width)]
            mask = self._mask_at(int32(0), as_index(start + c), width)
            k.store(self.scores, self._masked(k.load(self.scores, at), mask, width), at)

        each_vector(k, self.op.kv_len - start, self.lanes, piece)
