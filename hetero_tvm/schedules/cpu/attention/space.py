"""Fused attention: scores never leave the core's caches.

Loop structure::

    parallel over batch x heads x pieces of the query rows:
        pack K of this head as KT[S / NK][D][NK] and V as [D / NV][S][NV]        (L1 or L2)
        for each tile of MR query rows:
            for each panel of NK keys:  acc[MR][NK] = Q KT, times scale, plus mask -> P[MR][S]   (L1)
            for each row of P:          max, exp, sum                     (schedules/cpu/rows/softmax.py)
            for each panel of NV values: acc[MR][NV] = P V, times 1 / sum -> O
        the last Sq % MR query rows: one more nest of that height

Both products run in the register tile of ``schedules/cpu/register_tile.py`` on operands that sit in L1/L2;
the scratch of a thread is MR x S scores plus one head's packed K and V.  K must be packed because lanes
run over keys; V because rows of a wide QKV tensor would fall into few cache sets.  A causal mask
skips the panels of keys that no row of the tile can see, before a sliding window too.  Queries, keys
and values are read where they lie (any strides between heads and rows), so nothing is transposed,
sliced or repeated around the kernel.  A single query, which a decoder has at each step, packs nothing
(``one_query.py``).
"""

from __future__ import annotations

import math

from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.attention import Attention
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.schedules.base import DesignSpace, Knob, Point
from hetero_tvm.schedules.cpu.attention.blocked import BlockedAttentionKernel
from hetero_tvm.schedules.cpu.attention.kernel import AttentionKernel, value_tile
from hetero_tvm.schedules.cpu.attention.one_query import LoneQueryKernel, reads_in_place
from hetero_tvm.schedules.cpu.register_tile import RegisterTile

_SCORE_CYCLES = 9.0
"""Cycles that the softmax takes for a vector of scores."""

_FETCHING = 3.0
"""Time that fetching for a tile of one row takes for each doubling of keys and values beyond what stays in
L2, by that of the arithmetic (measured on a Xeon)."""

_BLOCK_ROUNDS = 8.0
"""Keys whose time the bookkeeping of a block takes."""

_SCORES_LIMIT = 256 << 10
"""Bytes of scores per tile that still make sense in L2; longer rows are refused."""


class AttentionSpace(DesignSpace):
    """Knobs: query rows per tile, vectors per key panel, unrolling, pieces of a head's queries, keys of a
    block (0 for all at once)."""

    name = "cpu.attention"
    version = 1

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if type(op) is not Attention:
            return "not an attention"
        if op.dtype != "float32":
            return f"the operands are {op.dtype}"
        if 0 in (op.batch, op.heads, op.q_len, op.kv_len, op.head_dim, op.values):
            return "an extent is zero"
        if op.kv_len * 4 * 2 > _SCORES_LIMIT:
            return f"{op.kv_len} keys: the scores of two rows do not fit the {_SCORES_LIMIT >> 10} KiB tile"
        if op.causal and op.q_len > op.kv_len:
            return f"{op.q_len} queries and {op.kv_len} keys: the first query of a causal mask sees no key"
        return None

    def knobs(self, op: Attention, machine: CpuModel) -> tuple[Knob, ...]:
        tiles = []
        for vectors in (2, 1, 4, 3):
            for rows in (12, 8, 6, 4, 3, 2, 1):
                tile = RegisterTile(rows, vectors)
                fits = tile.fits(machine) and value_tile(op, tile, machine.lanes).fits(machine)
                if fits and rows <= op.q_len and rows * op.kv_len * 4 <= _SCORES_LIMIT:
                    tiles.append((rows, vectors))
        pieces = tuple(p for p in (1, 2, 4) if p <= op.q_len)
        blocks = () if op.zero_by_mask else tuple(b for b in (512, 1024, 256, 128) if 2 * b <= op.kv_len)
        return (
            Knob("tile", tuple(tiles)),
            Knob("pieces", pieces),
            Knob("unroll", (4, 8, 2)),
            Knob("block", (0, *blocks), absent=0),
        )

    def default(self, op: Attention, machine: CpuModel) -> Point:
        tiles, pieces, _, blocks = (knob.choices for knob in self.knobs(op, machine))
        points = [
            {"tile": tile, "pieces": count, "unroll": 4, "block": block}
            for tile in tiles
            for count in pieces
            for block in blocks
        ]
        return min(points, key=lambda point: self.estimate(op, point, machine))

    def estimate(self, op: Attention, point: Point, machine: CpuModel) -> float:
        tile, pieces = RegisterTile.of(point["tile"]), point["pieces"]
        values = value_tile(op, tile, machine.lanes)
        rows_per_piece = -(-op.q_len // pieces)
        waste = -(-rows_per_piece // tile.rows) * tile.rows / rows_per_piece
        work = op.batch * op.heads * pieces
        balance = -(-work // machine.threads) * machine.threads / work
        packing = 1 + 0.12 * (pieces - 1)
        steps = op.head_dim * -(-op.kv_len // tile.columns(machine.lanes))
        value_steps = op.kv_len * -(-op.values // values.columns(machine.lanes))
        products = steps * tile.step_cycles(machine, load_cycles=1.0)
        products += value_steps * values.step_cycles(machine, load_cycles=1.0)
        cycles = products / tile.rows + _SCORE_CYCLES * op.kv_len / machine.lanes
        return cycles * (0.7 + 0.3 * waste) * balance * packing * self._passes(op, point, machine)

    def _passes(self, op: Attention, point: Point, machine: CpuModel) -> float:
        """Time with what fetching keys and values anew for each tile costs, or passing them in blocks."""
        block, rows = point.get("block", 0), point["tile"][0]
        if op.q_len <= rows:
            return 1.0 + bool(block)
        keys = block or op.kv_len
        kept = 4 * keys * (op.head_dim + op.values)
        fetching = _FETCHING / rows * math.log2(max(kept / machine.kept_l2, 1.0))
        return 1 + fetching + (_BLOCK_ROUNDS / block if block else 0.0)

    def features(self, op: Attention, point: Point, machine: CpuModel) -> list[float]:
        tile = RegisterTile.of(point["tile"])
        columns = tile.columns(machine.lanes)
        work = op.batch * op.heads * point["pieces"]
        accumulators = tile.rows * tile.vectors
        issued = accumulators / machine.fma_units / tile.step_cycles(machine, load_cycles=1.0)
        sizes = [math.log2(op.q_len), math.log2(op.kv_len), op.head_dim, op.heads, op.batch]
        decisions = [tile.rows, tile.vectors, accumulators, point["pieces"], point["unroll"]]
        decisions.append((point.get("block", 0) or op.kv_len) * (op.head_dim + op.values) * 4 / machine.l2)
        rests = [op.q_len % tile.rows / tile.rows, op.kv_len % columns / columns, work % machine.threads]
        return [*sizes, *decisions, *rests, issued]

    def emit(self, op: Attention, point: Point, machine: CpuModel) -> PrimFunc:
        tile = RegisterTile.of(point["tile"])
        pieces, unroll, lanes = point["pieces"], point["unroll"], machine.lanes
        if op.q_len == 1 and reads_in_place(op, lanes):
            return LoneQueryKernel(op, tile, unroll, lanes).emit()
        if not point.get("block", 0):
            return AttentionKernel(op, tile, pieces, unroll, lanes).emit()
        columns = tile.columns(lanes)
        block = point.get("block", 0) // columns * columns
        return BlockedAttentionKernel(op, tile, pieces, block, unroll, lanes).emit()
