"""The kernel of attention in tiles of bfloat16; ``attention.py`` tells its loop structure."""

from __future__ import annotations

import functools
import math

from hetero_tvm.codegen.amx import END, begin
from hetero_tvm.host.tvm import Expr, tirx
from hetero_tvm.ops.integers.bf16_attention import Bf16Attention
from hetero_tvm.schedules.cpu.attention.blocked import BlockedAttentionKernel
from hetero_tvm.schedules.cpu.attention.kernel import AttentionKernel
from hetero_tvm.schedules.cpu.halves.attention_tiles import COLUMNS, LANES, TilesOfHalves, pieces, tile_of
from hetero_tvm.schedules.emit import Index, int32, smallest


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
        self.in_place = not (op.mask or op.causal or op.softcap)

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

    def _query_tile(self, first_row: Expr, height: int) -> None:
        op, k = self.op, self.k
        panels: Index = self.key_panels
        skipped: Index = 0
        newest = first_row + (height - 1 + op.kv_len - op.q_len) - self.first_key
        if op.causal:
            panels = k.let(smallest(tirx.floordiv(newest, int32(COLUMNS)) + 1, self.key_panels))
        if op.window:
            oldest = first_row + (op.kv_len - op.q_len - op.window + 1) - self.first_key
            skipped = k.let(tirx.floordiv(tirx.max(oldest, int32(0)), int32(COLUMNS)))
        with k.when(True if self._at_once or not op.causal else panels > skipped):
            self.round_queries(first_row, height)
            with k.serial(panels - skipped) as panel:
                self._score_panel(first_row, height, skipped + panel)
            start = skipped * COLUMNS
            length = (panels - skipped) * COLUMNS
            with k.serial(height) as r:
                if self._at_once:
                    self._softmax_row(r, start, length)
                else:
                    last = self.first_key + self.keys >= op.kv_len
                    if op.causal:
                        last = tirx.any(last, newest < self.keys)
                    exponents = functools.partial(self._exponents, r, start, length)
                    self._take(first_row + r, r, exponents, last)
            if self._at_once:
                self._zero_hidden_rows(first_row, height, start, length)
            with k.serial(self.value_panels) as panel:
                self._value_panel(first_row, height, panel, start, length)

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
        if self._at_once:
            return AttentionKernel._result(self, value, row, r, at, width)
        return super()._result(value, row, r, at, width)
