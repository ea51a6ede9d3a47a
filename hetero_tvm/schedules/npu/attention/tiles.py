"""Tiles of attention: those that fit the scratchpads, and their estimated cycles."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.ops.attention import Attention
from hetero_tvm.schedules.npu.base import KnobTile
from hetero_tvm.schedules.npu.tiles import ISSUE, ceil_div, even, round_up

_PIECE = 6
"""Cycles by which a step is longer for every product that it is cut into."""
_CHAIN = 200
"""Cycles of issue and latency between a step's weights and their products."""
_WIDE = 2
"""Factor by which a vector instruction with an operand of 4 bytes takes longer."""


@dataclass(frozen=True)
class Tiles(KnobTile):
    """Tile sizes of attention.

    Parameters
    ----------
    tq : queries of a head per tile.
    heads : heads per tile; they share keys.
    block : keys per step.
    tn, tk : keys of a block per product of the scores, and per product with the values.
    resident : versions of a head's keys and values that L1 holds; 0: they pass through it block by block,
        again for every tile of queries.
    """

    tq: int
    heads: int
    block: int
    tn: int
    tk: int
    resident: int

    @property
    def rows(self) -> int:
        """Rows of the score matrix: queries of all heads of a tile."""
        return self.tq * self.heads


@functools.lru_cache(maxsize=256)
def ranked(op: Attention, spec: NPUSpec) -> tuple[Tiles, ...]:
    """Tiles that fit, the best by estimate first."""
    return tuple(sorted(dict.fromkeys(_candidates(op, spec)), key=lambda t: estimate(op, t, spec)))


def _candidates(op: Attention, spec: NPUSpec) -> Iterator[Tiles]:
    step = max(8, spec.alignment // 4)  # products lie side by side in the accumulators
    sizes = (2048, 1024, 512, 256, 128, 64, 32, 16, 8)
    blocks = {op.kv_len, *(even(op.kv_len, most, step) for most in sizes[:-1] if most < op.kv_len)}
    for most in (256, 192, 128, 96, 64, 48, 32, 24, 16, 8, 4, 2, 1):
        tq = even(op.q_len, most, min(most, spec.matrix_block[0])) if op.q_len > most else op.q_len
        for heads in _shared_heads(op) if tq == op.q_len else (1,):
            for block in sorted(blocks, reverse=True):
                for part in sizes:
                    tn = block if block <= part else even(block, part, step)
                    tk = tn
                    while tk > step and 2 * tq * heads * (op.head_dim + 2 * tk) > spec.scratchpad("l0a"):
                        tk = even(block, tk // 2, step)
                    # What holds a head's keys and values is better than what loads them again.
                    again = ceil_div(op.q_len, tq) * (op.heads // op.kv_heads) // heads > 1
                    versions = (2, 1, 0) if again else (0,)
                    options = (
                        Tiles(tq=tq, heads=heads, block=block, tn=tn, tk=tk, resident=resident)
                        for resident in versions
                    )
                    found = next((t for t in options if fits(op, t, spec)), None)
                    if found is not None:
                        yield found
                        streamed = replace(found, resident=0)
                        if found.resident and fits(op, streamed, spec):
                            yield streamed


def _shared_heads(op: Attention) -> list[int]:
    """Numbers of heads that a tile can take: those that share keys, when their masks are the same."""
    group = op.heads // op.kv_heads
    if op.mask and max(op.mask[1:3]) > 1:
        return [1]
    return [n for n in range(1, group + 1) if group % n == 0 and (n == 1 or n * op.q_len <= 256)]


def sums_at(op: Attention, spec: NPUSpec) -> int:
    """Column of the accumulators where sums of weights begin, behind products with the values."""
    return round_up(op.values, spec.alignment // 4)


def fits(
    op: Attention, t: Tiles, spec: NPUSpec, held: frozenset[int] = frozenset(), l1: int | None = None
) -> bool:
    """Whether the tiles fit every scratchpad, and ``l1`` bytes of L1 beside the operands ``held`` there."""
    d, dv, s, rows = op.head_dim, op.values, op.kv_len, t.rows
    online = t.block < s
    masks = bool(op.mask)
    full = masks and op.mask[2] > 1
    ub = (4 + 2) * rows * t.block  # scores, weights
    ub += (4 + 2 if online else 4 + 4) * rows * (dv + 1) + 20 * round_up(rows, 16) + 16 * spec.alignment
    ub += masks * t.block * (4 * t.tq if full else 8) + op.causal * 4 * (2 * t.tq + max(t.block, t.tq))
    keys, values = ((t.resident * s if t.resident else 2 * t.block) * 2 * n for n in (d, dv))
    own = (4 * rows * d, keys, values)
    loaded = sum(size for size, at in zip(own, op.heads_at, strict=True) if at.operand not in held)
    weights = 2 * ceil_div(t.block, t.tk) * rows * t.tk
    accumulators = round_up(t.block, 8) + sums_at(op, spec) + 1
    return (
        loaded + weights + 8 * spec.alignment <= (spec.scratchpad("l1") if l1 is None else l1)
        and 2 * rows * (d + 2 * t.tk) + 4 * spec.alignment <= spec.scratchpad("l0a")
        # Where both products' operands do not fit side by side, they take turns.
        and 4 * max(t.tn * d, t.tk * dv) + 2 * t.tk + 4 * spec.alignment <= spec.scratchpad("l0b")
        and 4 * rows * accumulators + 2 * spec.alignment <= spec.scratchpad("l0c")
        and ub <= spec.scratchpad("ub") * 15 // 16
    )


def _areas(op: Attention, t: Tiles) -> tuple[float, float]:
    """Steps of all tiles of one head (or of those that share a tile), and their scores."""
    tiles = ceil_div(op.q_len, t.tq)
    blocks = ceil_div(op.kv_len, t.block)
    if not op.causal:
        return float(tiles * blocks), float(op.q_len * op.kv_len * t.heads)
    row = np.arange(tiles) * t.tq
    high = np.minimum(t.tq, op.q_len - row)
    last = np.clip(row + high + op.kv_len - op.q_len, 1, op.kv_len)
    first = np.zeros_like(row)
    if op.window and blocks > 1:
        first = np.maximum(0, row + op.kv_len - op.q_len - op.window + 1) // t.block
    steps = -(-last // t.block) - first
    return float(steps.sum()), float((high * (last - first * t.block)).sum() * t.heads)


def estimate(op: Attention, t: Tiles, spec: NPUSpec, held: frozenset[int] = frozenset()) -> float:
    """Cycles: the vector unit's passes, the matrix unit, moves and DMA, whichever is most."""
    d, dv, s, rows, lanes = op.head_dim, op.values, op.kv_len, t.rows, spec.vector_lanes
    rounds, online = ceil_div(op.q_len, t.tq), t.block < s
    steps, scores = _areas(op, t)
    slow = spec.transcendental_divisor
    leave = 4.0 / spec.l0c_to_ub
    passes = 2.0 * _WIDE + slow + (1 + slow + _WIDE) * bool(op.softcap)
    passes += _WIDE * (bool(op.mask) and op.mask[2] > 1 and not op.zero_masked)
    vector = scores * (passes / lanes + leave)
    vector += steps * (rows * dv * (leave + _WIDE * online / lanes) + (6 + 6 * online) * ISSUE)
    vector += steps * online * rows * _WIDE * (4 + slow) / lanes
    vector += rounds * (rows * dv * _WIDE / lanes + 4 * ISSUE)
    if op.causal:
        vector += rounds * rows * min(t.block, t.tq) * _WIDE / lanes
    wide = scores / (steps * rows)
    tn, tk = min(t.tn, wide), min(t.tk, wide)
    bm, bn, bk = spec.matrix_block
    high = ceil_div(rows, bm)
    matrix = high * (-(-tn // bn) * ceil_div(d, bk)) * (wide / tn) + ISSUE * (wide / tn)
    matrix += (high * (ceil_div(dv, bn) + 1) * -(-tk // bk) + 2 * ISSUE) * (wide / tk)
    matrix *= steps
    move = scores * 2.0 / spec.l1_to_l0a + steps * wide * 2.0 * (d + dv) / spec.l1_to_l0b
    move += steps * ISSUE * (wide / tn + 2 * wide / tk)
    if 4 * (t.tn * d + t.tk * dv) + 2 * t.tk > spec.scratchpad("l0b"):
        move += 0.5 * matrix  # the operands of one product wait for those of the other one
    keys = wide * steps if not t.resident else s * t.heads * op.kv_heads / op.heads
    queries = op.q_len * t.heads
    q_at, k_at, v_at = (at.operand not in held for at in op.heads_at)
    loaded = keys * (d * k_at + dv * v_at) + queries * (d * q_at + dv * (len(op.inputs) not in held))
    dma = 2.0 * loaded / spec.dram_bytes_per_cycle
    store = scores * 2.0 / spec.l0c_to_ub
    # From a step's weights to its products there is no other vector work than the next step's softmax.
    chain = steps * _CHAIN + store + 0.5 * (move + matrix) + steps * rows * dv * leave
    each = max(vector, matrix, move, dma, store, chain) + 0.1 * (vector + matrix + move + dma)
    each += _PIECE * steps * (wide / tn + 2 * wide / tk)
    # The first scores and the last result overlap with nothing.
    ends = (matrix + vector + store) / max(1.0, steps)
    return op.batch * op.heads / t.heads * each + ends
