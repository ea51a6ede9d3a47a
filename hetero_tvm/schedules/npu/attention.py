"""Scaled dot-product attention as one kernel: scores and weights never leave the chip.

Loops: one iteration takes a tile of queries of one head.  Its front computes the scores on the
matrix unit, the softmax's weights on the vector unit and hands them to L1; its back multiplies them
with the values and stores the result.  The back of an iteration is issued after the front of the
next one, so while the vector unit works on one softmax the matrix unit has the other's products::

    for it in heads x query tiles, plus one:
      front(it):    L1 <- Q, K, V;  L0C = Q K^T;  UB <- scale * L0C (+ mask);  exp(x - max);  L1 <- UB
      back(it - 1): L0C = P V;  UB <- L0C;  times 1 / sum;  DRAM <- UB

What lies in L1 already (projections whose kernel left them there) is not loaded, and the result may stay.
A mask that is the same for all queries costs nothing: the way out of the accumulators adds it as a bias.

Scores are kept in 2 bytes after the scale, sums in float32.  A masked score is -30000 at least: in
float16 that is still zero weight, and sums of mask and score cannot overflow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_tvm.ops.attention import Attention, Heads
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.schedules.base import Knob, Point
from hetero_tvm.schedules.npu.base import NpuSpace
from hetero_tvm.schedules.npu.emit import DRAM, L0A, L0B, L0C, L1, UB, At, Kernel
from hetero_tvm.schedules.npu.rows import weights
from hetero_tvm.schedules.npu.tiles import ceil_div, even, extent_at, round_up

MASKED = -30000.0


@dataclass(frozen=True)
class Tiles:
    """Queries per tile; keys per product of the scores; keys per product with the values.

    ``streams``: keys and values pass through L1 tile by tile, again for every tile of queries, because all
    of a head's do not fit.
    """

    tq: int
    tn: int
    tk: int
    streams: int = 0

    def point(self) -> tuple[int, ...]:
        return (self.tq, self.tn, self.tk, *([1] if self.streams else []))


class NpuAttentionSpace(NpuSpace):
    """``ops.Attention`` on the NPU."""

    name = "npu.attention"
    version = 1

    def refuses(self, op: FusedOp, machine: Any) -> str | None:
        if not isinstance(op, Attention):
            return f"is for attention, not {op.kind}"
        if not any(True for _ in candidates(op, machine.spec)):
            return f"scores of {op.kv_len} keys do not fit the scratchpads of {machine.spec.name}"
        return None

    def knobs(self, op: FusedOp, machine: Any) -> tuple[Knob, ...]:
        ranked = sorted(candidates(op, machine.spec), key=lambda t: estimate(op, t, machine.spec))
        return (Knob("tiles", tuple(t.point() for t in ranked)),)

    def default(self, op: FusedOp, machine: Any) -> Point:
        return {"tiles": self.knobs(op, machine)[0].choices[0]}

    def features(self, op: FusedOp, point: Point, machine: Any) -> list[float]:
        speed = 1e6 / estimate(op, Tiles(*point["tiles"]), machine.spec)
        return [*map(float, point["tiles"][:3]), speed]

    def tables(
        self, op: FusedOp, point: Point, machine: Any, held: frozenset[int] = frozenset()
    ) -> list[np.ndarray]:
        """Constants of the kernel's own, after its operands: the additive causal mask."""
        from hetero_tvm.targets.npu.numbers import numpy_dtype

        if not op.causal:
            return []
        i, j = np.arange(op.q_len)[:, None], np.arange(op.kv_len)
        last = i + op.kv_len - op.q_len
        hidden = (j > last) | (j <= last - op.window) if op.window else j > last
        return [np.where(hidden, MASKED, 0.0).astype(numpy_dtype(machine.short))]

    def on_chip(self, op: FusedOp) -> frozenset[int]:
        """All but the mask."""
        return frozenset({*range(len(op.shapes)), len(op.inputs)})

    def fitted(
        self, op: FusedOp, point: Point | None, machine: Any, held: frozenset[int], l1: int
    ) -> Point | None:
        spec = machine.spec
        if point is not None and _fits(op, Tiles(*point["tiles"]), spec, held, l1):
            return point
        fitting = (t for t in candidates(op, spec) if _fits(op, t, spec, held, l1))
        best = min(fitting, key=lambda t: estimate(op, t, spec), default=None)
        return None if best is None else {"tiles": best.point()}

    def emit(self, op: FusedOp, point: Point, machine: Any) -> Any:
        return self.emit_held(op, point, machine, frozenset())

    def emit_held(self, op: FusedOp, point: Point, machine: Any, held: frozenset[int]) -> Any:
        return _Emitter(op, Tiles(*point["tiles"]), machine, held).run()


def candidates(op: Attention, spec: Any) -> Iterator[Tiles]:
    seen = set()
    step = max(16, spec.alignment // 4)  # products lie side by side in the accumulators
    for most in (256, 128, 64, 32, 16, 8, 4, 2, 1):
        tq = even(op.q_len, most, min(most, spec.matrix_block[0])) if op.q_len > most else op.q_len
        for keys in (1024, 512, 256, 128, 64, 32, 16):
            tn = even(op.kv_len, keys, step) if op.kv_len > keys else op.kv_len
            tk = tn
            while tk > step and 4 * tq * (op.head_dim + tk) > spec.scratchpad("l0a"):
                tk = even(op.kv_len, tk // 2, step)
            # What holds a head's keys and values is better than what loads them again, where it fits.
            for tiles in (Tiles(tq, tn, tk), Tiles(tq, tn, tk, 1)):
                if tiles in seen or _fits(op, tiles, spec):
                    if tiles not in seen:
                        yield tiles
                    seen.add(tiles)
                    break


def _fits(
    op: Attention, t: Tiles, spec: Any, held: frozenset[int] = frozenset(), l1: int | None = None
) -> bool:
    """Whether the tiles fit every scratchpad, and ``l1`` bytes of L1 beside the operands ``held`` there."""
    d, s = max(op.head_dim, op.values), op.kv_len
    slices = ceil_div(s, t.tk)
    masks = bool(op.mask) + op.causal
    full = (bool(op.mask) and op.mask[2] > 1) + op.causal
    ub = 2 * (2 * t.tq * s + 2 * t.tq * d + 32 * t.tq + 64) + masks * 6 * s + full * 4 * t.tq * s
    scores, l0a, l0b = s, t.tq * (d + t.tk) + 32, d * (t.tn + t.tk) + 32
    own = [4 * t.tq * d, 4 * s * round_up(d, 16), 4 * s * round_up(d, 16)]
    if t.streams:
        own[1:] = (4 * part * round_up(d, 16) + 64 for part in (t.tn, t.tk))
        scores = t.tn
        # Where both products' operands do not fit side by side, they take turns.
        l0a, l0b = t.tq * max(round_up(d, 16), t.tk), round_up(d, 16) * max(t.tn, t.tk)
    loaded = sum(size for size, at in zip(own, op.heads_at, strict=True) if at.operand not in held)
    return (
        loaded + 4 * slices * t.tq * t.tk + 128 <= (spec.scratchpad("l1") if l1 is None else l1)
        and 4 * l0a <= spec.scratchpad("l0a")
        and 4 * l0b <= spec.scratchpad("l0b")
        and 8 * t.tq * (round_up(scores, 8) + d) + 128 <= spec.scratchpad("l0c")
        and ub <= spec.scratchpad("ub")
    )


def estimate(op: Attention, t: Tiles, spec: Any) -> float:
    """Cycles: the vector unit's passes, the matrix unit, moves and DMA, whichever is most."""
    d, s = op.head_dim, op.kv_len
    q_tiles, rounds = ceil_div(op.q_len, t.tq), op.batch * op.heads * ceil_div(op.q_len, t.tq)
    passes = 2.0 + spec.transcendental_divisor + 2.0 + (bool(op.mask) and op.mask[2] > 1) + op.causal
    vector = t.tq * s * (passes / spec.vector_lanes + 4.0 / spec.l0c_to_ub) + 12 * 12
    vector += t.tq * d * (4.0 / spec.l0c_to_ub + 2.0 / spec.vector_lanes)
    matrix = spec.matrix_cycles(t.tq, t.tn, d) * ceil_div(s, t.tn) + 12 * ceil_div(s, t.tn)
    matrix += (spec.matrix_cycles(t.tq, d, t.tk) + 12) * ceil_div(s, t.tk)
    move = 2.0 * (t.tq * d + t.tq * s) / spec.l1_to_l0a + 4.0 * s * d / spec.l1_to_l0b
    loads = 1 if t.streams else q_tiles
    dma = 2.0 * (2 * s * d / loads + 2 * t.tq * d) / spec.dram_bytes_per_cycle
    return rounds * (max(vector, matrix, move, dma) + 0.1 * (vector + matrix + move + dma))


class _Emitter:
    def __init__(self, op: Attention, tiles: Tiles, machine: Any, held: frozenset[int] = frozenset()):
        self.op, self.t, self.dtype, self.held = op, tiles, machine.dtype, held
        self.q_held, self.key_held, self.value_held = (at.operand in held for at in op.heads_at)
        self.k = Kernel()

    def run(self) -> Any:
        op, t, k, dtype = self.op, self.t, self.k, self.dtype
        d, s = op.head_dim, op.kv_len
        self.q_tiles = ceil_div(op.q_len, t.tq)
        rounds = op.batch * op.heads * self.q_tiles
        self.slices = ceil_div(s, t.tk)
        with k:
            operands = [
                k.argument(f"held{n}", (math.prod(shape),), dtype, L1 if n in self.held else DRAM)
                for n, shape in enumerate(op.shapes)
            ]
            self.q, self.key, self.value = ((operands[at.operand], at) for at in op.heads_at)
            self.mask = k.argument("mask", op.mask, dtype) if op.mask else None
            self.causal = k.argument("causal", (op.q_len, s), dtype) if op.causal else None
            out_scope = L1 if len(op.inputs) in self.held else DRAM
            self.out = k.argument("O", (op.batch, op.q_len, op.heads * op.values), dtype, out_scope)
            # Two of each: the back of an iteration runs beside the front of the next one.
            if not t.streams:
                self.key_l1 = None if self.key_held else k.alloc(L1, (2, s, d), dtype)
                self.value_l1 = None if self.value_held else k.alloc(L1, (2, s, op.values), dtype)
            self.weights_l1 = k.alloc(L1, (2, self.slices, t.tq, t.tk), dtype)
            self.inverse = k.alloc(UB, (2, round_up(t.tq, 16)), dtype)
            self.bias = k.alloc(UB, (s,), "float32") if self._mask_is_bias() else None
            with k.loop(rounds + 1) as it:
                with k.when(it < rounds):
                    self._front(it)
                with k.when(it > 0):
                    self._back(it - 1)
        return k.function

    def _place(self, it: Any) -> tuple[Any, Any, Any]:
        """Batch, head and first query of an iteration."""
        head = it // self.q_tiles
        return head // self.op.heads, head % self.op.heads, it % self.q_tiles * self.t.tq

    def _front(self, it: Any) -> None:
        op, t, k, dtype = self.op, self.t, self.k, self.dtype
        d, s, group = op.head_dim, op.kv_len, op.heads // op.kv_heads
        b, h, row = self._place(it)
        turn = it // self.q_tiles % 2
        high = extent_at(op.q_len, t.tq, it % self.q_tiles)
        if not t.streams:
            pairs = ((self.key, self.key_l1, d), (self.value, self.value_l1, op.values))
            for place, own, width in pairs:
                if own is not None:
                    with k.when(it % self.q_tiles == 0):
                        k.load((s, width), _of_turn(own, turn), _head(place, b, h // group, 0))
        if self.bias is not None:
            self._load_bias(it, b, h)
        with k.loop(1, buffers=2):
            a0 = k.alloc(L0A, (t.tq, d), dtype)
            c = None if t.streams else k.alloc(L0C, (t.tq, round_up(s, 8)), "float32")
            scores = k.alloc(UB, (t.tq, s), dtype)
            tile = At(scores, lambda i, j: (i, j))
            peak = k.alloc(UB, (round_up(t.tq, 16),), dtype)
            source = _head(self.q, b, h, row)
            if not self.q_held:
                query = At(k.alloc(L1, (t.tq, d), dtype), lambda i, j: (i, j))
                k.load((high, d), query, source)
                source = query
            k.move((high, d), At(a0, lambda i, j: (i, j)), source)
            with k.loop(ceil_div(s, t.tn), buffers=2) as n:
                wide = extent_at(s, t.tn, n)
                b0 = k.alloc(L0B, (t.tn, d), dtype)
                if t.streams:
                    source = _head(self.key, b, h // group, n * t.tn)
                    if not self.key_held:
                        keys = At(k.alloc(L1, (t.tn, d), dtype), lambda i, j: (i, j))
                        k.load((wide, d), keys, source)
                        source = keys
                    k.move((wide, d), At(b0, lambda i, j: (i, j)), source)
                    part = k.alloc(L0C, (t.tq, round_up(t.tn, 8)), "float32")
                    into = At(part, lambda i, j, r: (i, j))
                else:
                    source = _head(self.key, b, h // group, n * t.tn)
                    if not self.key_held:
                        source = At(self.key_l1, lambda i, j: (turn, n * t.tn + i, j))
                    k.move((wide, d), At(b0, lambda i, j: (i, j)), source)
                    into = At(c, lambda i, j, r: (i, n * t.tn + j))
                k.mmad(
                    (high, wide, d), into, At(a0, lambda i, j, r: (i, r)), At(b0, lambda i, j, r: (j, r)),
                    True,
                )  # fmt: skip
                if t.streams:
                    columns = At(scores, lambda i, j: (i, n * t.tn + j))
                    bias = None if self.bias is None else At(self.bias, lambda i, j: (n * t.tn + j,))
                    k.move_out(
                        (high, wide), columns, At(part, lambda i, j: (i, j)), scale=op.scale, bias=bias
                    )
            if not t.streams:
                bias = None if self.bias is None else At(self.bias, lambda i, j: (j,))
                k.move_out((high, s), tile, At(c, lambda i, j: (i, j)), scale=op.scale, bias=bias)
            if op.softcap:
                k.unary("tanh", (high, s), tile, tile, mul=1.0 / op.softcap)
                k.unary("copy", (high, s), tile, tile, mul=op.softcap)
            self._add_masks(tile, high, b, h, row)
            total = self.inverse
            even_turn = it % 2
            row_peak, row_total = At(peak, lambda i, *_: (i,)), At(total, lambda i, *_: (even_turn, i))
            weights(k, (high, s), tile, row_peak, row_total)
            if op.zero_masked:
                seen = At(peak, lambda i: (i,))
                k.binary("gt", (high,), seen, seen, MASKED / 2)
                inverse = At(total, lambda i: (even_turn, i))
                k.binary("mul", (high,), inverse, inverse, seen)
            with k.loop(self.slices) as r:
                depth = extent_at(s, t.tk, r)
                k.store(
                    (high, depth), At(self.weights_l1, lambda i, j: (even_turn, r, i, j)),
                    At(scores, lambda i, j: (i, r * t.tk + j)),
                )  # fmt: skip

    def _mask_is_bias(self) -> bool:
        """Whether the mask differs by keys only, and is added to the scores themselves."""
        return bool(self.op.mask) and self.op.mask[2] == 1 and not self.op.softcap

    def _load_bias(self, it: Any, b: Any, h: Any) -> None:
        """The mask's row of a head: once per sequence when heads share it."""
        op, k, s = self.op, self.k, self.op.kv_len
        per = 1 if op.mask[1] > 1 else op.heads * self.q_tiles
        at = (b % op.mask[0] if op.mask[0] > 1 else 0, h if op.mask[1] > 1 else 0, 0)
        wide = op.mask[3] > 1
        with k.when(it % per == 0 if per > 1 else True), k.loop(1):
            row = k.alloc(UB, (s if wide else 1,), self.dtype)
            k.load((s if wide else 1,), At(row, lambda j: (j,)), At(self.mask, lambda j: (*at, j)))
            source = At(row, lambda j: (j if wide else 0,))
            k.binary("max", (s,), At(self.bias, lambda j: (j,)), source, MASKED)

    def _add_masks(self, tile: At, high: Any, b: Any, h: Any, row: Any) -> None:
        op, t, k, dtype = self.op, self.t, self.k, self.dtype
        s = op.kv_len
        if self.mask is not None and self.bias is None:
            full = op.mask[2] > 1
            held = k.alloc(UB, (t.tq if full else 1, s), dtype)
            extents = (high if full else 1, s if op.mask[3] > 1 else 1)
            at = [b % op.mask[0] if op.mask[0] > 1 else 0, h if op.mask[1] > 1 else 0]
            k.load(
                extents, At(held, lambda i, j: (i, j)),
                At(self.mask, lambda i, j: (*at, (row if full else 0) + i, j)),
            )  # fmt: skip
            region = At(held, lambda i, j: (i, j))
            k.binary("max", extents, region, region, MASKED)
            row_of = (lambda i: i) if full else (lambda i: 0)
            column_of = (lambda j: j) if op.mask[3] > 1 else (lambda j: 0)
            k.binary("add", (high, s), tile, tile, At(held, lambda i, j: (row_of(i), column_of(j))))
        if self.causal is not None:
            held = k.alloc(UB, (t.tq, s), dtype)
            region = At(held, lambda i, j: (i, j))
            k.load((high, s), region, At(self.causal, lambda i, j: (row + i, j)))
            k.binary("add", (high, s), tile, tile, region)

    def _back(self, it: Any) -> None:
        op, t, k, dtype = self.op, self.t, self.k, self.dtype
        d, s = op.values, op.kv_len
        b, h, row = self._place(it)
        turn, even_turn = it // self.q_tiles % 2, it % 2
        high = extent_at(op.q_len, t.tq, it % self.q_tiles)
        with k.loop(1, buffers=2):
            c = k.alloc(L0C, (t.tq, round_up(d, 8)), "float32")
            out = k.alloc(UB, (t.tq, d), dtype)
            with k.loop(self.slices, buffers=2) as r:
                depth = extent_at(s, t.tk, r)
                a0 = k.alloc(L0A, (t.tq, t.tk), dtype)
                b0 = k.alloc(L0B, (t.tk, d), dtype)
                k.move(
                    (high, depth), At(a0, lambda i, j: (i, j)),
                    At(self.weights_l1, lambda i, j: (even_turn, r, i, j)),
                )  # fmt: skip
                source = _head(self.value, b, h // (op.heads // op.kv_heads), r * t.tk)
                if t.streams and not self.value_held:
                    values = At(k.alloc(L1, (t.tk, d), dtype), lambda i, j: (i, j))
                    k.load((depth, d), values, source)
                    source = values
                elif not self.value_held:
                    source = At(self.value_l1, lambda i, j: (turn, r * t.tk + i, j))
                k.move((depth, d), At(b0, lambda i, j: (i, j)), source)
                k.mmad(
                    (high, d, depth), At(c, lambda i, j, q: (i, j)), At(a0, lambda i, j, q: (i, q)),
                    At(b0, lambda i, j, q: (q, j)), r == 0,
                )  # fmt: skip
            tile = At(out, lambda i, j: (i, j))
            k.move_out((high, d), tile, At(c, lambda i, j: (i, j)))
            k.binary("mul", (high, d), tile, tile, At(self.inverse, lambda i, j: (even_turn, i)))
            k.store((high, d), At(self.out, lambda i, j: (b, row + i, h * d + j)), tile)


def _head(place: tuple[Any, Heads], b: Any, h: Any, row: Any) -> At:
    """Rows of one head from ``row``, by (row, element), in the flat operand that holds them."""
    buffer, at = place
    base = at.offset + b * at.batch + h * at.head + row * at.row
    return At(buffer, lambda i, j: (base + i * at.row + j,))


def _of_turn(buffer: Any, turn: Any) -> At:
    return At(buffer, lambda i, j: (turn, i, j))
