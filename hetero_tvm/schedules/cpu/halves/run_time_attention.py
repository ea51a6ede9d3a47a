"""Attention in tiles of bfloat16 whose lengths are known at run time.

The loops are those of ``symbolic/attention.py`` and ``symbolic/blocked_attention.py``.  Queries that fill no
tile are one of their own, whose height is known at the call: rows behind them are multiplied, and not read.
"""

from __future__ import annotations

from hetero_tvm.codegen.amx import END, TILE_ROWS, begin
from hetero_tvm.host.tvm import Expr, tirx
from hetero_tvm.schedules.cpu.halves.attention_tiles import TilesOfHalves, tile_of
from hetero_tvm.schedules.cpu.symbolic.attention import RunTimeAttentionKernel
from hetero_tvm.schedules.cpu.symbolic.blocked_attention import BlockedRunTimeAttentionKernel
from hetero_tvm.schedules.cpu.tile_products import LANES
from hetero_tvm.schedules.emit import Index
from hetero_tvm.schedules.symbolic import Witnesses


class _RunTimeTiles(TilesOfHalves, RunTimeAttentionKernel):
    """Scratch, packing and tiles of queries, which both forms share."""

    lone_query = False

    def _work_item(self, work: Expr, last_work: Expr) -> None:
        self.in_place = not (self.witnesses.largest.mask or self.witnesses.largest.softcap)
        self.k.call(begin())
        super()._work_item(work, last_work)
        self.k.call(END)

    def _pack_keys(self, base: Expr) -> None:
        self.pack_keys(base, self.keys)

    def _pack_values(self, base: Expr) -> None:
        self.pack_values(base, self.keys)

    def _queries_behind(self, first: Expr, rest: Expr) -> None:
        for most in range(TILE_ROWS, self.tile.rows + 1, TILE_ROWS):
            self.rest_rows = most
            with self.k.when(tirx.all(rest > most - TILE_ROWS, rest <= most)):
                self._query_tile(first, rest)

    def _query_tile(self, first_row: Expr, height: Index) -> None:
        self.round_queries(first_row, height)
        super()._query_tile(first_row, height)

    def _score_panel(self, first_row: Expr, height: Index, panel: Expr) -> None:
        if self.in_place:
            self.score_in_place(height, panel)
        else:
            super()._score_panel(first_row, height, panel)


class RunTimeBf16AttentionKernel(_RunTimeTiles):
    """Emits one attention for all lengths of its witnesses' range.

    Parameters
    ----------
    rows : query rows of a tile, 16 or 32.
    pieces : parallel pieces of a head's query rows.
    """

    def __init__(self, witnesses: Witnesses, rows: int, pieces: int):
        super().__init__(witnesses, tile_of(rows), pieces, 0, LANES)

    def _tiles(self, work: Expr, last_work: Expr, piece: Expr, key_base: Expr, value_base: Expr) -> None:
        self.hold(self.witnesses.largest.kv_len)
        self._pack_keys(key_base)
        self._pack_values(value_base)
        self.next_head = []
        self._query_tiles(piece)


class BlockedRunTimeBf16AttentionKernel(_RunTimeTiles, BlockedRunTimeAttentionKernel):
    """Emits one attention for all lengths, whose keys pass in blocks of ``block``."""

    def __init__(self, witnesses: Witnesses, rows: int, pieces: int, block: int):
        BlockedRunTimeAttentionKernel.__init__(self, witnesses, tile_of(rows), pieces, block, 0, LANES)

    def _hold_block(self) -> None:
        self.hold(self.block)
