"""Fused attention in bfloat16 on the matrix unit of a CPU (AMX).

Loop structure::

    parallel over batch x heads x pieces of the query rows:
        for each block of keys:
            pack its K as pairs along D, [S / 32][D / 2][32], and V as pairs along S, [Dv / 32][S / 2][32]
            for each tile of 32 (16) query rows:
                round Q to pairs
                for each panel of 32 keys:   2 x 2 tiles of sums = Q KT -> scores[32][S]   (L2)
                for each row:                max, exp, sum; weights[32][S] in bfloat16
                for each panel of 32 values: 2 x 2 tiles of sums = weights V, times 1 / sum -> O

A product of tiles is 16 times a vector instruction of float32, and an operand is half as large.  What is left
is the softmax, in vectors of float32: where there is neither mask nor cap the matrix unit writes the scores
where they are read, and they are scaled there.
"""

from __future__ import annotations

import math

from hetero_tvm.codegen.amx import BF16, TILE_ROWS
from hetero_tvm.host.peaks import BFLOAT16
from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.attention import Attention
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.integers.bf16_attention import Bf16Attention
from hetero_tvm.schedules.base import DesignSpace, Knob, Point
from hetero_tvm.schedules.cpu.attention.space import AttentionSpace
from hetero_tvm.schedules.cpu.halves.attention_kernel import Bf16AttentionKernel, scales_in_place
from hetero_tvm.schedules.cpu.halves.attention_tiles import tile_of
from hetero_tvm.schedules.cpu.halves.run_time_attention import (
    BlockedRunTimeBf16AttentionKernel,
    RunTimeBf16AttentionKernel,
)
from hetero_tvm.schedules.cpu.integers.matrix_unit import has_matrix_unit, tile_cycles
from hetero_tvm.schedules.cpu.tile_products import COLUMNS, words_of
from hetero_tvm.schedules.symbolic import Witnesses

_SOFTMAX_CYCLES, _STORE_CYCLES, _PACK_CYCLES = 15.0, 5.0, 12.0
"""Cycles of a vector of scores in the softmax, of a vector of sums that is masked or stored, of a vector of
keys or values that is rounded and packed."""

_BEYOND_L1 = 0.1
"""Time that the softmax takes for each doubling of scores and weights beyond L1."""

_BLOCKS, _PER_BLOCK = 0.2, 70.0
"""Time by that of all keys at once that blocks take beside: of any size, and by their number of keys."""

_SCORE_BYTES = 6
"""Bytes of a score and of its weight."""

_LEAST_GAIN = 0.85
"""Share of the float32 kernel's time that rounding must promise to take."""


class Bf16AttentionSpace(DesignSpace):
    """Knobs: query rows per tile, pieces of a head's queries, keys of a block (0 for all at once)."""

    name = "cpu.bf16_attention"
    version = 1

    def arithmetic(self, op: FusedOp, machine: CpuModel) -> str:
        return BFLOAT16

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, Bf16Attention):
            return "not an attention of bfloat16"
        if not has_matrix_unit(machine, BF16):
            return "the machine has no matrix unit for bfloat16"
        if reason := AttentionSpace().refuses(op.plain_form, machine):
            return reason
        if op.zero_by_mask and self._bytes(op, 32, op.kv_len) > machine.l2:
            return "rows that the mask hides need all their scores at once"
        return None

    def knobs(self, op: Bf16Attention, machine: CpuModel) -> tuple[Knob, ...]:
        rows = (32, 16) if op.q_len > 16 else (16,)
        pieces = tuple(p for p in (1, 2, 4) if p == 1 or 16 * p <= op.q_len)
        blocks = () if op.zero_by_mask else tuple(b for b in (512, 1024, 256, 2048) if 2 * b <= op.kv_len)
        return Knob("rows", rows), Knob("pieces", pieces), Knob("block", (0, *blocks))

    def default(self, op: Bf16Attention, machine: CpuModel) -> Point:
        rows, pieces, blocks = (knob.choices for knob in self.knobs(op, machine))
        points = [
            {"rows": r, "pieces": count, "block": block} for r in rows for count in pieces for block in blocks
        ]
        return min(points, key=lambda point: self.estimate(op, point, machine))

    def estimate(self, op: Bf16Attention, point: Point, machine: CpuModel) -> float:
        rows, pieces = point["rows"], point["pieces"]
        work = op.batch * op.heads * pieces
        balance = -(-work // machine.threads) * machine.threads / work
        per_piece = -(-op.q_len // pieces)
        waste = -(-per_piece // rows) * rows / per_piece
        tile = tile_of(rows)
        panels, values = -(-op.kv_len // COLUMNS), -(-op.values // COLUMNS)
        scores = panels * tile_cycles(tile, words_of(op.head_dim) // 16)
        sums = values * tile_cycles(tile, words_of(op.kv_len) // 16)
        products = (scores + sums) / rows * waste
        vectors = op.kv_len / machine.lanes
        softmax = vectors * (_SOFTMAX_CYCLES + (0 if scales_in_place(op) else _STORE_CYCLES)) + op.values / 4
        scored = _SCORE_BYTES * rows * (point["block"] or op.kv_len)
        softmax *= 1 + _BEYOND_L1 * math.log2(max(scored / machine.l1, 1.0))
        packed = op.kv_len * (op.head_dim + op.values) / machine.lanes * _PACK_CYCLES / per_piece
        return (products + softmax + packed) * balance * self._passes(op, point, machine)

    def _passes(self, op: Bf16Attention, point: Point, machine: CpuModel) -> float:
        """Time with what fetching keys and values anew for each tile costs, or passing them in blocks."""
        rows, block = point["rows"], point["block"]
        fetching = math.log2(max(self._bytes(op, rows, block or op.kv_len) / machine.kept_l2, 1.0))
        return 1 + 0.2 * fetching + (_BLOCKS + _PER_BLOCK / block if block else 0.0)

    @staticmethod
    def _bytes(op: Bf16Attention, rows: int, keys: int) -> int:
        """Bytes of packed keys and values, scores and weights."""
        return keys * (2 * (2 * words_of(op.head_dim) + op.values) + _SCORE_BYTES * rows)

    def features(self, op: Bf16Attention, point: Point, machine: CpuModel) -> list[float]:
        rows, pieces, block = point["rows"], point["pieces"], point["block"] or op.kv_len
        sizes = [math.log2(op.q_len), math.log2(op.kv_len), op.head_dim, op.heads, op.batch]
        rests = [op.q_len % rows / rows, op.kv_len % COLUMNS / COLUMNS]
        shares = [op.batch * op.heads * pieces % machine.threads, self._bytes(op, rows, block) / machine.l2]
        return [*sizes, rows, pieces, math.log2(block), *rests, *shares]

    def emit(self, op: Bf16Attention, point: Point, machine: CpuModel) -> PrimFunc:
        return Bf16AttentionKernel(op, point["rows"], point["pieces"], point["block"]).emit()

    def run_time_kernel(self, witnesses: Witnesses, point: Point, machine: CpuModel) -> PrimFunc:
        rows, pieces, block = point["rows"], point["pieces"], point["block"]
        if not block:
            return RunTimeBf16AttentionKernel(witnesses, rows, pieces).emit()
        return BlockedRunTimeBf16AttentionKernel(witnesses, rows, pieces, block).emit()


def rounding_pays(op: Attention, machine: CpuModel, any_rows: bool = False) -> bool:
    """Whether attention in bfloat16 is faster than in float32; with ``any_rows``, whether many queries are,
    as the sizes are those of one call."""
    halved, plain = Bf16Attention.of(op), AttentionSpace()
    space = Bf16AttentionSpace()
    if space.refuses(halved, machine):
        return False
    if any_rows:
        return op.q_len > 1 and op.head_dim >= TILE_ROWS <= op.values and not op.zero_by_mask
    if op.q_len < 2 or plain.refuses(op, machine):
        return op.q_len >= 2
    rounded = space.estimate(halved, space.default(halved, machine), machine)
    return rounded < _LEAST_GAIN * plain.estimate(op, plain.default(op, machine), machine)
