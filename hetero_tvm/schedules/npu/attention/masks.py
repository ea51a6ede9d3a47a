"""Masks of attention scores: given ones, by keys or whole, and the causal one with its window.

A hidden score is -1e30: far below any product of 2-byte operands, and sums of several masks stay finite.  So
where all keys of a query are hidden its weights are equal, not NaN, unless the contract asks for zero.
"""

from __future__ import annotations

from collections.abc import Callable

from hetero_tvm.host.tvm import Buffer, Expr
from hetero_tvm.ops.attention import Attention
from hetero_tvm.schedules.emit import Index
from hetero_tvm.schedules.npu.attention.tiles import Tiles
from hetero_tvm.schedules.npu.attention.walk import Step, Walk
from hetero_tvm.schedules.npu.emit import UB, At, Kernel
from hetero_tvm.schedules.npu.tiles import greatest, least

MASKED = -1e30
"""Score of a key that a mask hides."""


class Masks:
    """Adds an operator's masks to tiles of float32 scores.

    ``by_column``, ``by_element``: regions that the way out of the accumulators adds, if any.
    """

    def __init__(self, op: Attention, tiles: Tiles, walk: Walk, k: Kernel, dtype: str, mask: Buffer | None):
        self.op, self.t, self.walk, self.k, self.dtype, self.mask = op, tiles, walk, k, dtype, mask
        self.bias = self.by_column = self.tile = self.by_element = None
        if op.mask and op.mask[2] == 1 and not op.softcap:
            self.bias = k.alloc(UB, (tiles.block,), "float32")
            self.by_column = At(self.bias, lambda i, j: (j,))
        elif op.mask:
            full, wide = op.mask[2] > 1, op.mask[3] > 1
            self.tile = k.alloc(UB, (tiles.tq if full else 1, tiles.block if wide else 1), dtype)
            if wide and full and not op.softcap:
                self.by_element = At(self.tile, lambda i, j: (i, j))
        self.edge = None
        if walk.causal:
            # Element tq - 1 + x says whether a key x places behind the last visible one is hidden.  Tiles
            # read it with a step of -1 per query.
            self.edge = k.alloc(UB, (edge_length(tiles),), "float32")
            k.fill((tiles.tq,), At(self.edge, lambda j: (j,)), 0.0)
            k.fill((edge_length(tiles) - tiles.tq,), At(self.edge, lambda j: (tiles.tq + j,)), MASKED)

    def load_bias(self, it: Index, step: Step) -> None:
        """Load what the way out of the accumulators adds by column; once per sequence where that is the
        same."""
        if self.bias is None:
            return
        op, k = self.op, self.k
        per = 1
        if not self.walk.online:
            per = self.walk.q_tiles * (1 if op.mask[1] > 1 else op.heads // self.t.heads)
        wide = op.mask[3] > 1
        count = op.kv_len if not self.walk.online else step.wide
        batch, head = self._sequence(step)
        with k.when(it % per == 0 if per > 1 else True), k.loop(1, buffers=2):
            row = k.alloc(UB, (self.t.block if wide else 1,), self.dtype)
            source = At(self.mask, lambda j: (batch, head, 0, step.first + j if wide else 0))
            k.load((count if wide else 1,), At(row, lambda j: (j,)), source)
            short = At(row, lambda j: (j if wide else 0,))
            k.binary("max", (count,), At(self.bias, lambda j: (j,)), short, MASKED)

    def load_tile(self, step: Step) -> None:
        """Load a mask that differs by queries to where it is added from."""
        op = self.op
        if self.tile is None:
            return
        batch, head = self._sequence(step)
        full, wide = op.mask[2] > 1, op.mask[3] > 1
        row, first = step.row if full else 0, step.first if wide else 0
        source = At(self.mask, lambda i, j: (batch, head, row + i, first + j))
        extents = (step.high if full else 1, step.wide if wide else 1)
        self.k.load(extents, At(self.tile, lambda i, j: (i, j)), source)

    def add(self, scores: At, step: Step) -> None:
        """Add what is left to ``scores`` by (query, key), of which heads that share keys lie one after the
        other."""
        op, k = self.op, self.k
        box = (step.high if self.t.heads == 1 else self.t.rows, step.wide)
        if self.tile is not None:
            if self.by_element is None:
                full, wide = op.mask[2] > 1, op.mask[3] > 1
                mask = At(self.tile, lambda i, j: (i if full else 0, j if wide else 0))
                k.binary("add", box, scores, scores, mask)
            if not op.zero_masked:
                # Behind the sum, because float16 has no number as low as what hides a key.
                k.binary("max", box, scores, scores, MASKED)
        if self.edge is not None:
            self._add_causal(scores, step)

    def _sequence(self, step: Step) -> tuple[Index, Index]:
        """Indices of the mask's batch and head."""
        mask = self.op.mask
        return step.batch % mask[0] if mask[0] > 1 else 0, step.head if mask[1] > 1 else 0

    def _add_causal(self, tile: At, step: Step) -> None:
        """Add the causal mask where the edge of what is visible passes through the tile."""
        k, t = self.k, self.t
        # Key j of the block is base + j - i places behind the last one that query i sees.
        base = step.first - step.row - self.walk.before

        def add(first: Index, count: Index, entry: Callable[..., tuple[Expr]]) -> None:
            part = At(tile.buffer, lambda h, i, j: tile.index(h * t.tq + i, first + j))
            with k.when(count > 0):
                k.binary("add", (t.heads, step.high, count), part, part, At(self.edge, entry))

        seen = greatest(0, 1 - base)
        add(seen, step.wide - seen, lambda h, i, j: (greatest(base, 1) + j - i + t.tq - 1,))
        if self.op.window:
            too_old = least(step.wide, step.high - self.op.window - base)
            add(0, too_old, lambda h, i, j: (t.tq - self.op.window - base - j + i,))


def edge_length(t: Tiles) -> int:
    """Elements of the row from which tiles read the causal mask."""
    return 2 * t.tq + max(t.block, t.tq)
