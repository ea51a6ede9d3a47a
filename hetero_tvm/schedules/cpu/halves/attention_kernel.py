"""The kernel of attention in tiles of bfloat16; ``attention.py`` tells its loop structure."""

from __future__ import annotations

import math

from hetero_tvm.codegen.amx import END, begin
from hetero_tvm.host.tvm import Expr, tirx
from hetero_tvm.ops.attention import Attention
from hetero_tvm.ops.integers.bf16_attention import Bf16Attention
from hetero_tvm.schedules.cpu.attention.blocked import BlockedAttentionKernel
from hetero_tvm.schedules.cpu.attention.kernel import AttentionKernel
from hetero_tvm.schedules.cpu.halves.attention_tiles import TilesOfHalves, tile_of
from hetero_tvm.schedules.cpu.tile_products import COLUMNS, LANES, pieces
from hetero_tvm.schedules.emit import int32


def scales_in_place(op: Attention) -> bool:
    """Whether scores are scaled where the softmax reads them: nothing else is done to them."""
    return not (op.mask or op.causal or op.softcap)


class Bf16AttentionKernel(TilesOfHalves, BlockedAttentionKernel):
    """Emits one attention.

    Parameters
    ----------
    rows : query rows of a tile, 16 or 32.
    pieces : parallel pieces of a head's query rows.
    block : keys of a block, whole panels; 0 for all keys at once.
    """

    op: Bf16Attention
    whole_panels = True

    def __init__(self, op: Bf16Attention, rows: int, pieces: int, block: int):
        super().__init__(op, tile_of(rows), pieces, block or op.kv_len, 0, LANES)
        self.in_place = scales_in_place(op)

    @property
    def _at_once(self) -> bool:
        return self.block >= self.op.kv_len

    def _work_item(self, work: Expr, last_work: Expr) -> None:
        op, k = self.op, self.k
        piece = self._find_head(work)
        self._take_keys(0, min(self.block, op.kv_len))
        self.hold(self.keys)
        self.next_head = []
        k.call(begin())
        if self._at_once:
            self.factors = k.scratch((self.tile.rows,))
            self._pack()
            self._query_tiles(piece)
        else:
            self._blocks(piece)
        k.call(END)

    def _pack(self) -> None:
        self.pack_keys(self.key_base + self.first_key * self.key_at.row, self.keys)
        self.pack_values(self.value_base + self.first_key * self.value_at.row, self.keys)

    def _take_queries(self, first_row: Expr, height: int) -> None:
        self.round_queries(first_row, height)

    def _query_tile(self, first_row: Expr, height: int) -> None:
        loops = AttentionKernel if self._at_once else BlockedAttentionKernel
        loops._query_tile(self, first_row, height)

    def _score_panel(self, first_row: Expr, height: int, panel: Expr) -> None:
        if not self.in_place:
            super()._score_panel(first_row, height, panel)
            return
        k = self.k
        self.score_in_place(height, panel)
        last = self.keys - (self.key_panels - 1) * COLUMNS
        if last == COLUMNS:
            return
        with k.when(tirx.EQ(panel, int32(self.key_panels - 1))), k.serial(height) as r:
            for start, width in pieces(COLUMNS - last, last):
                at = k.ramp(panel * COLUMNS + start, width)
                k.store(self.scores, k.splat(-math.inf, width), [r, at])

    def _result(self, value: Expr, row: Expr, r: Expr, at: Expr, width: int) -> Expr:
        loops = AttentionKernel if self._at_once else BlockedAttentionKernel
        return loops._result(self, value, row, r, at, width)
