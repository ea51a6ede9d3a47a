"""The order in which tiles of queries meet blocks of keys.

A *round* is a tile of queries of one head (or of several heads that share keys); a *step* is a round's
block of keys.  Expressions of loops and plain numbers are treated alike: what does not change from tile
to tile stays a number.
"""

from __future__ import annotations

from dataclasses import dataclass

from hetero_tvm.host.tvm import Expr, tirx
from hetero_tvm.ops.attention import Attention
from hetero_tvm.schedules.emit import Index
from hetero_tvm.schedules.npu.attention.tiles import Tiles
from hetero_tvm.schedules.npu.tiles import ceil_div, extent_at, tile_count


@dataclass(frozen=True)
class Step:
    """A tile of queries and a block of keys.

    Parameters
    ----------
    batch, head, kv_head : the sequence, its first head, and the head of its keys.
    row, high : the first query, and the number of queries of each head.
    first, wide : the first key, and the number of keys that any of the queries sees.
    turn : version of the buffers that one step leaves to the next.
    kv_turn : version of a head's keys and values.
    """

    batch: Index
    head: Index
    kv_head: Index
    row: Index
    high: Index
    first: Index
    wide: Index
    turn: Index
    kv_turn: Index


class Walk:
    """The steps of an operator."""

    def __init__(self, op: Attention, tiles: Tiles):
        self.op, self.t = op, tiles
        self.q_tiles = ceil_div(op.q_len, tiles.tq)
        self.rounds = op.batch * op.heads // tiles.heads * self.q_tiles
        self.blocks = ceil_div(op.kv_len, tiles.block)
        self.online = self.blocks > 1
        self.causal = op.causal and (op.q_len > 1 or op.window > 0)
        self.before = op.kv_len - op.q_len
        """Keys that a causal query sees beyond its own number."""
        self.varies = self.online and self.causal
        """Whether rounds have different numbers of steps."""
        self.turns = 4 if self.varies else 2
        self.per_kv = self.q_tiles * (op.heads // op.kv_heads) // tiles.heads
        """Rounds that share keys and values."""

    def steps(self, it: Index) -> Index:
        """Number of steps of a round; one behind the last round, where only its end is left."""
        if not self.online:
            return 1
        count = self.blocks
        if self.causal:
            tile = it % self.q_tiles
            count = self._end(tile) - self._start(tile)
        return tirx.Select(it < self.rounds, count, 1)

    def step(self, it: Index, n: Index) -> Step:
        """Step ``n`` of round ``it``."""
        op, t = self.op, self.t
        group, tile = it // self.q_tiles, it % self.q_tiles
        per_batch = op.heads // t.heads
        head = group % per_batch * t.heads
        row = tile * t.tq
        block = n + self._start(tile) if self.causal else n
        if not self.online:
            block = 0
        first = block * t.block
        wide = extent_at(op.kv_len, t.block, block)
        if self.causal:
            visible = self._visible(tile)
            wide = tirx.min(t.block, visible - first) if self.online else visible
        if self.varies:
            turn = it % 2 * 2 + block % 2
        else:
            turn = (it * self.blocks + n) % 2 if self.online else it % 2
        return Step(
            batch=group // per_batch,
            head=head,
            kv_head=head // (op.heads // op.kv_heads),
            row=row,
            high=t.tq if t.heads > 1 else extent_at(op.q_len, t.tq, tile),
            first=first,
            wide=wide,
            turn=turn,
            kv_turn=it // self.per_kv % t.resident if t.resident else 0,
        )

    def previous(self, it: Index, n: Index) -> tuple[Index, Index]:
        """The step before, across rounds."""
        if not self.online:
            return it - 1, 0
        fresh = 1 - tirx.min(n, 1)
        before = it - fresh
        return before, n - 1 + fresh * self.steps(before)

    def loads(self, it: Index, n: Index) -> Expr | bool:
        """Whether a step is the first one that sees its block of keys, of all those that share them."""
        if self.per_kv == 1:
            return True
        inside = it % self.per_kv
        if not self.varies:
            return inside == 0
        tile = it % self.q_tiles
        fresh = n + self._start(tile) >= self._end(tile - 1)
        return tirx.all(inside < self.q_tiles, tirx.any(tile == 0, fresh))

    def is_last(self, it: Index, n: Index) -> Expr | bool:
        """Whether a step is the last one of its round."""
        return n == self.steps(it) - 1 if self.online else True

    def _visible(self, tile: Index) -> Index:
        """Number of keys, from the first on, that some query of a tile sees; at least one."""
        op, t = self.op, self.t
        last = tile * t.tq + extent_at(op.q_len, t.tq, tile) + self.before
        return tirx.max(1, tirx.min(op.kv_len, last))

    def _start(self, tile: Index) -> Index:
        """The first block of which some query sees a key."""
        if not (self.varies and self.op.window):
            return 0
        return tirx.max(0, tile * self.t.tq + self.before - self.op.window + 1) // self.t.block

    def _end(self, tile: Index) -> Index:
        """The block behind the last of which some query sees a key."""
        return tile_count(self._visible(tile), self.t.block)
