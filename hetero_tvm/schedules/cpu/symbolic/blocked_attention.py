"""Attention over many keys whose lengths are known at run time: keys and values pass in blocks.

The algorithm is that of ``attention/blocked.py``, over the tiles of ``attention.py``; the last block has as
many keys as the call leaves for it.
"""

from __future__ import annotations

import functools

from hetero_tvm.host.tvm import Expr, tirx
from hetero_tvm.schedules.cpu.attention.blocked import RunningSoftmax
from hetero_tvm.schedules.cpu.register_tile import RegisterTile
from hetero_tvm.schedules.cpu.symbolic.attention import RunTimeAttentionKernel
from hetero_tvm.schedules.emit import Index, int32, pieces_of
from hetero_tvm.schedules.symbolic import Witnesses


class BlockedRunTimeAttentionKernel(RunningSoftmax, RunTimeAttentionKernel):
    """Emits one attention for all lengths of its witnesses' range, whose keys pass in blocks.

    Parameters
    ----------
    block : keys of a block, a multiple of the key panel's columns.
    """

    whole_rows = False

    def __init__(
        self, witnesses: Witnesses, tile: RegisterTile, pieces: int, block: int, unroll: int, lanes: int
    ):
        super().__init__(witnesses, tile, pieces, unroll, lanes)
        self.block = block

    def _tiles(self, work: Expr, last_work: Expr, piece: Expr, key_base: Expr, value_base: Expr) -> None:
        k = self.k
        self._hold_block()
        self.next_head = []
        self._declare(self.witnesses.largest.q_len)
        self._begin(*self._rows_of(piece))
        with k.serial(pieces_of(self.kv_len, self.block)) as number:
            first = k.let(number * self.block)
            self.first_key, self.keys = first, k.let(tirx.min(self.kv_len - first, int32(self.block)))
            self.panels = k.let(pieces_of(self.keys, self.key_columns))
            self._pack_keys(key_base + first * self.key_at.row)
            self._pack_values(value_base + first * self.value_at.row)
            self._query_tiles(piece)

    def _hold_block(self) -> None:
        """Scratch for the keys and values of a block, and for a tile's scores."""
        k, rows = self.k, self.tile.rows
        self.packed_keys = k.scratch((self.block // self.key_columns, self.op.head_dim, self.key_columns))
        self.packed_values = k.scratch((self.value_panels, self.block, self.value_columns))
        self.scores = k.scratch((rows, self.block + self.lanes))

    def _rows_of(self, piece: Expr) -> tuple[Expr, Expr]:
        """First query row of a piece and how many there are."""
        k, pieces, rows = self.k, self.pieces, self.tile.rows
        full = k.let(tirx.truncdiv(self.q_len, int32(rows)))
        first = k.let(tirx.truncdiv(piece * full, int32(pieces)) * rows)
        behind = tirx.truncdiv((piece + 1) * full, int32(pieces)) * rows
        behind = tirx.Select(tirx.EQ(piece, int32(pieces - 1)), self.q_len, behind)
        return first, behind - first

    def _query_tile(self, first_row: Expr, height: int) -> None:
        op, k, columns = self.op, self.k, self.key_columns
        panels: Index = self.panels
        skipped: Index = int32(0)
        newest = k.let(first_row + (height - 1) + self.past - self.first_key)
        if op.causal:
            seen = tirx.truncdiv(tirx.max(newest + columns, int32(0)), int32(columns))
            panels = k.let(tirx.min(seen, self.panels))
        if op.window:
            oldest = first_row + (self.past - (op.window - 1)) - self.first_key
            skipped = k.let(tirx.truncdiv(tirx.max(oldest, int32(0)), int32(columns)))
        with k.when(panels > skipped if op.causal else True):
            with k.serial(panels - skipped) as panel:
                self._score_panel(first_row, height, skipped + panel)
            start = k.let(skipped * columns)
            last = self.first_key + self.keys >= self.kv_len
            if op.causal:
                last = tirx.any(last, newest < self.keys)
            with k.serial(height) as r:
                row = first_row + r
                exponents = functools.partial(self._exponents_of, row, r, start, panels - skipped)
                self._take(row, r, exponents, last)
            depth = tirx.min(panels * columns, self.keys) - start
            with k.serial(self.value_panels) as panel:
                self._value_panel(first_row, height, panel, start, depth)

    def _seen(self, query_row: Expr, start: Index) -> tuple[Expr, Expr]:
        if not self.op.causal:
            return self.keys, self.keys
        seen = self.k.let(query_row + (self.past + 1) - self.first_key)
        return seen, self.k.let(tirx.max(tirx.min(seen, self.keys), start))
