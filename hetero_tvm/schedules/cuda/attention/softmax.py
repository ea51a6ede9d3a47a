"""The online softmax of a tile: visible keys of a row, masks, running maximum and sum."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from hetero_tvm.host.tvm import Buffer, Expr, tirx
from hetero_tvm.schedules.cuda import device
from hetero_tvm.schedules.cuda.attention.tile import AttentionTile
from hetero_tvm.schedules.cuda.threads import Combine, shuffle_xor
from hetero_tvm.schedules.cuda.values import const
from hetero_tvm.schedules.emit import int32


def exp2(value: Expr) -> Expr:
    """2 to the power of a float32 value."""
    return device.value("htvm_exp2", value, dtype="float32")


LOWEST = -1e30
"""Score below every one that is not masked (in powers of two), and finite: differences stay defined."""


class OnlineSoftmax(AttentionTile):
    """Softmax of scores to weights, block of keys by block of keys."""

    @property
    def _shift(self) -> int:
        """Position of the first query among the keys."""
        return self.op.kv_len - self.op.q_len

    def _query_range(self) -> tuple[Expr, Expr]:
        """First and last query of the block's rows."""
        if self.grouped:
            return int32(0), int32(self.op.q_len - 1)
        return self.first_row, tirx.min(self.first_row + (self.rows - 1), int32(self.op.q_len - 1))

    def key_blocks(self) -> tuple[Expr, Expr]:
        """First and one past the last block of keys that this split sees."""
        op, k, keys = self.op, self.k, self.keys
        first, end = int32(0), int32(-(-op.kv_len // keys))
        if op.causal:
            low, high = self._query_range()
            end = tirx.min(end, tirx.max(high + (self._shift + keys), int32(0)) // keys)
            if op.window:
                first = tirx.max(low + (self._shift - op.window + 1), int32(0)) // keys
        if self.splits > 1:
            each = k.let((tirx.max(end - first, int32(0)) + (self.splits - 1)) // self.splits)
            first, end = first + self.split * each, tirx.min(end, first + (self.split + 1) * each)
        return k.let(first), k.let(tirx.max(end, first))

    def _visible(self, row: Expr, key: Expr) -> Expr:
        op, seen = self.op, key < self.op.kv_len
        if op.causal:
            last = self.query_of(row) + self._shift
            seen = tirx.all(seen, key <= last)
            if op.window:
                seen = tirx.all(seen, key > last - op.window)
        return seen

    def hide(self, first: Expr) -> None:
        """Set scores of keys that a row does not see to -inf, in blocks where there are such keys."""
        op, k = self.op, self.k
        partial = []
        if op.kv_len % self.keys:
            partial.append(first + self.keys > op.kv_len)
        if op.causal:
            low, high = self._query_range()
            partial.append(first + (self.keys - 1) > low + self._shift)
            if op.window:
                partial.append(first <= high + (self._shift - op.window))
        if not partial:
            return

        def conceal(r: int, at: Expr, key: Expr) -> None:
            seen = self._visible(self.first_row + self.row_at(r), first + key)
            hidden = tirx.const(-math.inf, "float32")
            k.store(self.s_reg, tirx.Select(seen, k.load(self.s_reg, [at]), hidden), [at])

        with k.when(tirx.any(*partial)):
            self.cells(conceal)

    def scale_scores(self, first: Expr) -> None:
        """Apply scale, soft cap and additive mask, where the scores cannot stay as they are."""
        op, k = self.op, self.k
        if self.plain:
            return
        binary = math.log2(math.e)

        def change(r: int, at: Expr, key: Expr) -> None:
            value = k.load(self.s_reg, [at]) * const(op.scale if op.softcap else op.scale * binary)
            if op.softcap:
                value = tirx.tanh(value * const(1 / op.softcap)) * const(op.softcap * binary)
            if self.mask is not None:
                row = tirx.min(self.first_row + self.row_at(r), int32(self.all_rows - 1))
                batch = self.b if op.mask[0] in (1, op.batch) else self.b % op.mask[0]
                place = (batch, self.head_of(row), self.query_of(row), tirx.min(first + key, op.kv_len - 1))
                index = [0 if extent == 1 else i for extent, i in zip(op.mask, place, strict=True)]
                mask = k.let(k.load(self.mask, index))
                # The least number hides a key, but from a row of nothing else: then it is a plain mean.
                value = tirx.max(const(LOWEST), value + mask * const(binary))
                hidden = tirx.const(-math.inf, "float32")
                value = tirx.Select(tirx.EQ(mask, hidden), hidden, value)
            k.store(self.s_reg, value, [at])

        self.cells(change)

    def over_row(self, buffer: Buffer, r: int, combine: Combine) -> None:
        """Combine a value of a row over the threads that share it."""
        k, at = self.k, [int32(r)]
        for lanes in self.lanes:
            other = shuffle_xor(k.load(buffer, at), lanes)
            k.store(buffer, combine(k.load(buffer, at), other), at)

    def update(self) -> None:
        """Turn scores into weights, and correct maxima, sums and results for the new maxima."""
        k = self.k
        for r in range(self.held_rows):
            k.store(self.fresh, k.load(self.peak, [int32(r)]), [int32(r)])

        def highest(r: int, at: Expr, key: Expr) -> None:
            k.store(
                self.fresh, tirx.max(k.load(self.fresh, [int32(r)]), k.load(self.s_reg, [at])), [int32(r)]
            )

        def weigh(r: int, at: Expr, key: Expr) -> None:
            here = [int32(r)]
            # peak * factor is the same for all cells of a row: the compiler makes this one multiply-add.
            exponent = k.load(self.s_reg, [at]) * const(self.factor) - k.load(self.fresh, here)
            k.store(self.s_reg, exp2(exponent), [at])
            weight = k.load(self.s_reg, [at])
            k.store(self.total, k.load(self.total, here) + weight, here)
            self.put_weight(at, r, key, weight)

        self.cells(highest)
        for r in range(self.held_rows):
            at = [int32(r)]
            self.over_row(self.fresh, r, tirx.max)
            change = (k.load(self.peak, at) - k.load(self.fresh, at)) * const(self.factor)
            k.store(self.scale, exp2(change), at)
            k.store(self.peak, k.load(self.fresh, at), at)
            k.store(self.fresh, k.load(self.fresh, at) * const(self.factor), at)
            k.store(self.total, k.load(self.total, at) * k.load(self.scale, at), at)
        self.cells(weigh)
        with self.when_scaled():
            for r in range(self.held_rows):

                def correct(at: Expr, r: int = r) -> None:
                    k.store(self.o_reg, k.load(self.o_reg, at) * k.load(self.scale, [int32(r)]), at)

                self.outputs(r, lambda at, column, width, f=correct: self.each(at, width, f))

    def when_scaled(self) -> AbstractContextManager[None]:
        """Context of the correction of the results: a subclass may skip it where all factors are one."""
        return nullcontext()

    def each(self, at: Expr, width: int, body: Callable[[Expr], None]) -> None:
        """Call ``body([place])`` for ``width`` places from ``at`` on."""
        for e in range(width):
            body([at + e])
