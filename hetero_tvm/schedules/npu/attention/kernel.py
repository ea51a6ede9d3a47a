"""Scaled dot-product attention as one kernel: scores and weights never leave the chip.

Loops: a step takes a tile of queries of one head (or of several that share keys) and a block of keys.  The
matrix unit computes its scores, the vector unit the softmax's weights, which go to L1; then the matrix unit
multiplies them with the values.  Steps overlap: while the vector unit works on one softmax the matrix unit
has the products of the step before and the scores of the next one::

    for round in heads x query tiles, plus one:
      L0A <- L1 <- Q
      for block of keys that the queries see:
        score:                L1 <- K, V;  L0C = Q K^T
        weigh (step before):  L0 <- P, V;  L0C = P [V 1]
        softmax:              UB <- scale * L0C (+ mask);  P = exp(x - max);  L1 <- P
        leave (step before):  UB <- L0C;  behind the last block: / sum;  DRAM <- UB

Where one block has all keys, that is the softmax of whole rows.  Where it has fewer (Dao et al., 2022),
a row's maximum so far is kept, and what was summed up before is multiplied by exp(old - new maximum) in the
unified buffer.  Blocks of which no query of the tile sees a key are left out.

Numbers: scores leave the accumulators as float32, because in float16 they would end at 65504 and carry an
error of 2^-11 into the exponent; they are rounded once their row's maximum is subtracted, when what counts is
near zero.  The sum of the weights comes from the matrix unit, a product with a column of ones, which has
time; products with the values stay float32 until they are divided.

What lies in L1 already (projections whose kernel left them there) is not loaded, and the result may stay.
Masks are added on the way out of the accumulators: as a bias when they are the same for all queries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hetero_tvm.host.tvm import Buffer, PrimFunc
from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.ops.attention import Attention, Heads
from hetero_tvm.schedules.emit import Index
from hetero_tvm.schedules.npu.attention.masks import MASKED, Masks
from hetero_tvm.schedules.npu.attention.tiles import Tiles, sums_at
from hetero_tvm.schedules.npu.attention.walk import Step, Walk
from hetero_tvm.schedules.npu.emit import DRAM, L0A, L0B, L0C, L1, UB, At, Kernel
from hetero_tvm.schedules.npu.tiles import ceil_div, extent_at, round_up, tile_count

_NO_WEIGHT = 1e-30
"""A number below any sum of weights."""


@dataclass(frozen=True)
class _Place:
    """The operand that holds queries, keys or values, and where its heads lie in it."""

    buffer: Buffer
    at: Heads


class AttentionEmitter:
    """Writes the loops."""

    def __init__(self, op: Attention, tiles: Tiles, machine: NpuMachine, held: frozenset[int] = frozenset()):
        self.op, self.t, self.dtype, self.held = op, tiles, machine.dtype, held
        self.q_held, self.key_held, self.value_held = (at.operand in held for at in op.heads_at)
        self.walk = Walk(op, tiles)
        self.sums_at = sums_at(op, machine.spec)
        self.k = Kernel()

    def run(self) -> PrimFunc:
        """The finished kernel."""
        op, k, dtype, walk = self.op, self.k, self.dtype, self.walk
        with k:
            operands = [
                k.argument(f"held{n}", (math.prod(shape),), dtype, L1 if n in self.held else DRAM)
                for n, shape in enumerate(op.shapes)
            ]
            self.q, self.key, self.value = (_Place(operands[at.operand], at) for at in op.heads_at)
            mask = k.argument("mask", op.mask, dtype) if op.mask else None
            out_scope = L1 if len(op.inputs) in self.held else DRAM
            self.out = k.argument("O", (op.batch, op.q_len, op.heads * op.values), dtype, out_scope)
            self._buffers()
            self.masks = Masks(op, self.t, walk, k, dtype, mask)
            with k.loop(walk.rounds + 1, buffers=2) as it:
                with k.when(it < walk.rounds):
                    self._load_queries(walk.step(it, 0))
                with k.loop(walk.steps(it), buffers=2) as n:
                    self._own_keys()
                    before = walk.previous(it, n)
                    with k.when(it < walk.rounds):
                        self._score(it, n)
                    with k.when(it + n > 0):
                        self._weigh(*before)
                    with k.when(it < walk.rounds):
                        self._softmax(it, n)
                    with k.when(it + n > 0):
                        self._leave(*before)
        return k.function

    def _buffers(self) -> None:
        """Allocate what lives as long as the kernel.

        In the order of the loops one version of most is enough: whoever fills it again would be busy anyway
        until it is free.
        """
        op, t, k, dtype = self.op, self.t, self.k, self.dtype
        d, dv, rows, turns = op.head_dim, op.values, t.rows, self.walk.turns
        column = round_up(rows, 16)
        self.key_l1 = self.value_l1 = None
        if t.resident:
            if not self.key_held:
                self.key_l1 = k.alloc(L1, (t.resident, op.kv_len, d), dtype)
            if not self.value_held:
                self.value_l1 = k.alloc(L1, (t.resident, op.kv_len, dv), dtype)
        self.queries = k.alloc(L0A, (rows, d), dtype)
        self.weights_l1 = k.alloc(L1, (ceil_div(t.block, t.tk), rows, t.tk), dtype)
        self.scores_l0c = k.alloc(L0C, (rows, round_up(t.block, 8)), "float32")
        self.out_l0c = k.alloc(L0C, (rows, self.sums_at + 1), "float32")
        self.ones = k.alloc(L0B, (t.tk,), dtype)
        k.fill_operand((t.tk,), At(self.ones, lambda j: (j,)), 1.0, self.weights_l1)
        self.scores = k.alloc(UB, (rows, t.block), "float32")
        self.weights = k.alloc(UB, (rows, t.block), dtype)
        self.peak = k.alloc(UB, (column,), "float32")
        self.wide_out = k.alloc(UB, (rows, dv + 1), "float32")
        if self.walk.online:
            self.shrink = k.alloc(UB, (turns, column), "float32")

    def _own_keys(self) -> None:
        """Allocate places for a block of keys, which this step reads, and of values, which the next step
        fills and reads, where both pass through L1."""
        op, t, k = self.op, self.t, self.k
        if not t.resident:
            if not self.key_held:
                self.key_l1 = k.alloc(L1, (t.block, op.head_dim), self.dtype)
            if not self.value_held:
                self.value_l1 = k.alloc(L1, (t.block, op.values), self.dtype)

    def _rows(self, step: Step) -> Index:
        """Rows of the score matrix in this step."""
        return step.high if self.t.heads == 1 else self.t.rows

    def _load_queries(self, step: Step) -> None:
        op, t, k = self.op, self.t, self.k
        d = op.head_dim
        box = (t.heads, step.high, d)
        buffer, at = self.q.buffer, self.q.at
        first = at.offset + step.batch * at.batch + step.head * at.head + step.row * at.row
        source = At(buffer, lambda h, i, j: (first + h * at.head + i * at.row + j,))
        if not self.q_held:
            query = k.alloc(L1, (t.rows, d), self.dtype)
            own = At(query, lambda h, i, j: (h * t.tq + i, j))
            k.load(box, own, source)
            source = own
        k.move(box, At(self.queries, lambda h, i, j: (h * t.tq + i, j)), source)

    def _load(self, it: Index, n: Index, step: Step, place: _Place, own: Buffer, width: int) -> None:
        """Load a block of keys or values to L1."""
        k, t = self.k, self.t
        source = _head(place, step.batch, step.kv_head, step.first)
        if not t.resident:
            k.load((step.wide, width), At(own, lambda i, j: (i, j)), source)
            return
        whole = extent_at(self.op.kv_len, t.block, step.first // t.block)
        with k.when(self.walk.loads(it, n)):
            k.load((whole, width), At(own, lambda i, j: (step.kv_turn, step.first + i, j)), source)

    def _in_l1(self, step: Step, place: _Place, own: Buffer | None, row: Index) -> At:
        """Region in L1 of the keys or values of a block, from ``row`` on."""
        if own is None:
            return _head(place, step.batch, step.kv_head, step.first + row)
        if not self.t.resident:
            return At(own, lambda i, j: (row + i, j))
        return At(own, lambda i, j: (step.kv_turn, step.first + row + i, j))

    def _score(self, it: Index, n: Index) -> None:
        """Compute scores into the accumulators."""
        op, t, k = self.op, self.t, self.k
        d = op.head_dim
        step = self.walk.step(it, n)
        rows, wide = self._rows(step), step.wide
        if self.key_l1 is not None:
            self._load(it, n, step, self.key, self.key_l1, d)
        if t.resident and self.value_l1 is not None:
            self._load(it, n, step, self.value, self.value_l1, op.values)
        with k.loop(tile_count(wide, t.tn), buffers=2) as p:
            some = extent_at(wide, t.tn, p)
            b0 = k.alloc(L0B, (t.tn, d), self.dtype)
            keys = self._in_l1(step, self.key, self.key_l1, p * t.tn)
            k.move((some, d), At(b0, lambda i, j: (i, j)), keys)
            into = At(self.scores_l0c, lambda i, j, r: (i, p * t.tn + j))
            queries = At(self.queries, lambda i, j, r: (i, r))
            k.mmad((rows, some, d), into, queries, At(b0, lambda i, j, r: (j, r)), True)

    def _softmax(self, it: Index, n: Index) -> None:
        """Turn the scores in the accumulators into weights in L1, still to be divided by their sum."""
        op, t, k = self.op, self.t, self.k
        step = self.walk.step(it, n)
        box = rows, wide = self._rows(step), step.wide
        self.masks.load_bias(it, step)
        scores, weights = (At(buffer, lambda i, j: (i, j)) for buffer in (self.scores, self.weights))
        product = At(self.scores_l0c, lambda i, j: (i, j))
        self.masks.load_tile(step)
        if op.softcap:
            # Beyond the cap's range float16 ends at infinity, whose tanh is right.
            k.move_out(box, weights, product, scale=op.scale / op.softcap)
            k.unary("tanh", box, weights, weights)
            k.unary("copy", box, scores, weights, mul=op.softcap)
        else:
            bias, residual = self.masks.by_column, self.masks.by_element
            k.move_out(box, scores, product, scale=op.scale, bias=bias, residual=residual)
        self.masks.add(scores, step)
        peak = At(self.peak, lambda i, *_: (i,))
        if self.walk.online:
            shrink = At(self.shrink, lambda i: (step.turn, i))
            with k.when(n > 0):
                k.unary("copy", box[:1], shrink, peak)
        k.reduce("max", box, [1], peak, scores, first=n == 0 if self.walk.online else True)
        if op.zero_masked:
            # Weights of a row that is hidden altogether are zero, not one.
            k.binary("max", box[:1], peak, peak, MASKED / 2)
        if self.walk.online:
            with k.when(n > 0):
                k.binary("sub", box[:1], shrink, shrink, peak)
                k.unary("exp", box[:1], shrink, shrink)
        k.binary("sub", box, weights, scores, peak)
        k.unary("exp", box, weights, weights)
        with k.loop(tile_count(wide, t.tk)) as p:
            part = At(self.weights, lambda i, j: (i, p * t.tk + j))
            k.store((rows, extent_at(wide, t.tk, p)), At(self.weights_l1, lambda i, j: (p, i, j)), part)

    def _weigh(self, it: Index, n: Index) -> None:
        """Compute products with the values, and sums of the weights, into the accumulators."""
        t, k, dv, dtype = self.t, self.k, self.op.values, self.dtype
        step = self.walk.step(it, n)
        rows, wide = self._rows(step), step.wide
        if not t.resident and self.value_l1 is not None:
            self._load(it, n, step, self.value, self.value_l1, dv)
        with k.loop(tile_count(wide, t.tk), buffers=2) as p:
            depth = extent_at(wide, t.tk, p)
            a0 = k.alloc(L0A, (t.rows, t.tk), dtype)
            b0 = k.alloc(L0B, (t.tk, dv), dtype)
            part = At(self.weights_l1, lambda i, j: (p, i, j))
            k.move((rows, depth), At(a0, lambda i, j: (i, j)), part)
            values = self._in_l1(step, self.value, self.value_l1, p * t.tk)
            k.move((depth, dv), At(b0, lambda i, j: (i, j)), values)
            weights = At(a0, lambda i, j, q: (i, q))
            products = At(self.out_l0c, lambda i, j, q: (i, j))
            k.mmad((rows, dv, depth), products, weights, At(b0, lambda i, j, q: (q, j)), p == 0)
            sums = At(self.out_l0c, lambda i, j, q: (i, self.sums_at + j))
            k.mmad((rows, 1, depth), sums, weights, At(self.ones, lambda i, j, q: (q + j,)), p == 0)

    def _leave(self, it: Index, n: Index) -> None:
        """Take what :meth:`_weigh` computed out of the accumulators, onto the sums of the round so far."""
        k, dv = self.k, self.op.values
        step = self.walk.step(it, n)
        rows = self._rows(step)
        if self.walk.online:
            with k.when(n == 0):
                self._move_out(rows)
            with k.when(n > 0):
                out = At(self.wide_out, lambda i, j: (i, j))
                k.binary("mul", (rows, dv + 1), out, out, At(self.shrink, lambda i, j: (step.turn, i)))
                self._move_out(rows, onto=True)
        else:
            self._move_out(rows)
        with k.when(self.walk.is_last(it, n)):
            self._finish(step, rows)

    def _move_out(self, rows: Index, onto: bool = False) -> None:
        """Take out products with the values, and in the last column the sums, as float32; ``onto`` adds them
        to what is there."""
        k, dv = self.k, self.op.values
        parts = ((0, 0, dv + 1),) if self.sums_at == dv else ((0, 0, dv), (dv, self.sums_at, 1))
        for column, at, wide in parts:
            out = At(self.wide_out, lambda i, j, column=column: (i, column + j))
            product = At(self.out_l0c, lambda i, j, at=at: (i, at + j))
            k.move_out((rows, wide), out, product, residual=out if onto else None)

    def _finish(self, step: Step, rows: Index) -> None:
        """Divide and store the result of a round."""
        op, t, k, dv = self.op, self.t, self.k, self.op.values
        sums = At(self.wide_out, lambda i, *_: (i, dv))
        if op.zero_masked:
            k.binary("max", (rows,), sums, sums, _NO_WEIGHT)
        k.unary("reciprocal", (rows,), sums, sums)
        # Rounds of several steps are long enough for a single version to be stored meanwhile.
        with k.loop(1, buffers=1 if self.walk.online else 2):
            out = k.alloc(UB, (t.rows, dv), self.dtype)
            wide = At(self.wide_out, lambda i, j: (i, j))
            k.binary("mul", (rows, dv), At(out, lambda i, j: (i, j)), wide, sums)
            k.store(
                (t.heads, step.high, dv),
                At(self.out, lambda h, i, j: (step.batch, step.row + i, (step.head + h) * dv + j)),
                At(out, lambda h, i, j: (h * t.tq + i, j)),
            )


def _head(place: _Place, b: Index, h: Index, row: Index) -> At:
    """Rows of one head from ``row``, by (row, element), in the flat operand that holds them."""
    buffer, at = place.buffer, place.at
    base = at.offset + b * at.batch + h * at.head + row * at.row
    return At(buffer, lambda i, j: (base + i * at.row + j,))
