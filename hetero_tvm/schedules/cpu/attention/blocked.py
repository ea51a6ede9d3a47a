"""Fused attention over many keys, block by block (FlashAttention: Dao et al., 2022).

Loop structure::

    parallel over batch x heads x pieces of the query rows:
        O = 0, largest = -inf, sum = 0                        (per query row)
        for each block of keys:
            pack its K and V                                  (they stay in L2 while all queries pass)
            for each tile of MR query rows, unless none sees the block:
                scores of the block -> P[MR][block]           (L1)
                for each row: the largest score so far, exp, sum
                O = O * exp(largest before - largest now) + P V, times 1 / sum after the last block

Without blocks every tile of queries fetches the keys and values of the whole head again: 2,048 keys of 64
are 1 MB, more than what stays in L2.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from hetero_tvm.codegen import vector_math
from hetero_tvm.host.tvm import Expr, tirx
from hetero_tvm.ops.attention import Attention
from hetero_tvm.schedules.cpu import register_tile
from hetero_tvm.schedules.cpu.attention.kernel import AttentionKernel, Exponents
from hetero_tvm.schedules.cpu.register_tile import RegisterTile
from hetero_tvm.schedules.emit import Index, constant, int32, share, smallest, vector_loop


class RunningSoftmax(AttentionKernel):
    """An attention whose softmax takes the keys block by block.

    It keeps the largest score so far and the sum of the exponents of each query row; the result so far is
    where it will be.
    """

    def _declare(self, queries: int) -> None:
        """Scratch for so many query rows of a head."""
        k, rows = self.k, self.tile.rows
        self.decays, self.factors = k.scratch((rows,)), k.scratch((rows,))
        self.largest, self.sums = k.scratch((queries,)), k.scratch((queries,))

    def _begin(self, first: Expr, count: Expr) -> None:
        """Begin with no keys seen, for ``count`` query rows from ``first`` on."""
        op, k = self.op, self.k
        with k.serial(count) as r:
            row = first + r
            k.store(self.largest, constant(-math.inf), [row])
            k.store(self.sums, constant(0.0), [row])

            def zero(c: Index, width: int) -> None:
                at = k.ramp(self.head * op.values + c, width)
                k.store(self.out, k.splat(0.0, width), [self.batch, row, at])

            vector_loop(k, op.values, self.lanes, zero)

    def _take(self, row: Expr, r: Expr, exponents: Callable[[Expr], Exponents], last: Expr) -> None:
        """Take the scores of a block, whose ``exponents`` come with the largest score before: what the row's
        result is to be multiplied by before and, after the ``last`` block, at the end."""
        k = self.k
        before = k.let(k.load(self.largest, [row]))
        peak, finite_peak, total = exponents(before)
        decay = k.let(vector_math.softmax_exp(before, finite_peak))
        total = k.let(k.load(self.sums, [row]) * decay + total)
        k.store(self.largest, peak, [row])
        k.store(self.sums, total, [row])
        k.store(self.decays, decay, [r])
        of_blind = constant(0.0 if self.op.zero_masked else math.nan)
        blind = tirx.EQ(peak, constant(-math.inf))
        k.store(self.factors, constant(1.0), [r])
        with k.when(last):
            k.store(self.factors, tirx.Select(blind, of_blind, constant(1.0) / total), [r])

    def _result(self, value: Expr, row: Expr, r: Expr, at: Expr, width: int) -> Expr:
        k = self.k
        so_far = k.load(self.out, [self.batch, row, at]) * k.splat(k.load(self.decays, [r]), width)
        return (so_far + value) * k.splat(k.load(self.factors, [r]), width)


class BlockedAttentionKernel(RunningSoftmax):
    """Emits one attention whose keys pass in blocks.

    Parameters
    ----------
    block : keys of a block, a multiple of the key panel's columns.
    """

    def __init__(self, op: Attention, tile: RegisterTile, pieces: int, block: int, unroll: int, lanes: int):
        super().__init__(op, tile, pieces, unroll, lanes)
        self.block = block
        if op.causal:  # how many keys of a block a tile sees is known at run time
            self.sum_up = register_tile.accumulate_run_time

    def _work_item(self, work: Expr, last_work: Expr) -> None:
        op, k, rows = self.op, self.k, self.tile.rows
        piece = self._find_head(work)
        self._take_keys(0, self.block)
        self.packed_keys = k.scratch((self.key_panels, op.head_dim, self.key_columns))
        self.packed_values = k.scratch((self.value_panels, self.block, self.value_columns))
        self.scores = k.scratch((rows, self.block + self.lanes))  # no power of two apart
        self.next_head = []
        self._blocks(piece)

    def _blocks(self, piece: Expr) -> None:
        """Emit what all blocks of keys make of the query rows of a piece."""
        op, k = self.op, self.k
        self._declare(op.q_len)
        self._begin(*self._rows_of(piece))
        full, rest = divmod(op.kv_len, self.block)
        with k.serial(full) as number:
            self._block_of_keys(piece, number * self.block, self.block)
        if rest:
            self._block_of_keys(piece, int32(full * self.block), rest)

    def _rows_of(self, piece: Expr) -> tuple[Expr, Expr]:
        """First query row of a piece and how many there are."""
        op, pieces, rows = self.op, self.pieces, self.tile.rows
        first, count = share(piece, op.q_len // rows, pieces)
        rest = tirx.Select(tirx.EQ(piece, int32(pieces - 1)), int32(op.q_len % rows), int32(0))
        return self.k.let(first * rows), self.k.let(count * rows + rest)

    def _block_of_keys(self, piece: Expr, first: Expr, count: int) -> None:
        """Emit what a block of keys adds to all query rows of a piece."""
        self._take_keys(first, count)
        self._pack()
        self._query_tiles(piece)

    def _query_tile(self, first_row: Expr, height: int) -> None:
        """Emit what a block of keys adds to ``height`` query rows."""
        op, k, columns = self.op, self.k, self.key_columns
        panels: Index = self.key_panels
        skipped: Index = 0
        newest = first_row + (height - 1 + op.kv_len - op.q_len) - self.first_key
        if op.causal:
            panels = k.let(smallest(tirx.floordiv(newest, int32(columns)) + 1, self.key_panels))
        if op.window:
            oldest = first_row + (op.kv_len - op.q_len - op.window + 1) - self.first_key
            skipped = k.let(tirx.floordiv(tirx.max(oldest, int32(0)), int32(columns)))
        with k.when(panels > skipped if op.causal else True):
            self._take_queries(first_row, height)
            with k.serial(panels - skipped) as panel:
                self._score_panel(first_row, height, skipped + panel)
            start = skipped * columns
            length = panels * columns - start if op.causal or self.whole_panels else self.keys
            last = self.first_key + self.keys >= op.kv_len
            if op.causal:
                last = tirx.any(last, newest < self.keys)
            with k.serial(height) as r:
                exponents = functools.partial(self._exponents, r, start, length)
                self._take(first_row + r, r, exponents, last)
            depth = tirx.min(panels * columns, int32(self.keys)) - start if op.causal else self.keys
            with k.serial(self.value_panels) as panel:
                self._value_panel(first_row, height, panel, start, depth)
