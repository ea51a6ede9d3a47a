"""Attention whose lengths are known at run time.

The algorithm is that of ``attention/kernel.py``: packed keys and values of a head, scores of a tile of
queries, softmax, values.  What the lengths decide there when the kernel is emitted, they decide at the call:

- Scores are computed for whole panels.  Row by row the mask is added, and what the row does not see (keys
  behind the last, or after the query of a causal mask) becomes -inf: the softmax goes through whole vectors.
- Queries that fill no tile get a nest of their own, of every height below the tile's.
- The sum over keys is unrolled, and what is left of it is a loop.
- A single query, which a decoder has at each step, reads keys and values where they lie (``one_query.py``).

Scratch has the size of the longest keys; what a call does not need of it is never touched.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import cast

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.ops.attention import Attention
from hetero_tvm.schedules.cpu import register_tile
from hetero_tvm.schedules.cpu.attention.kernel import Exponents
from hetero_tvm.schedules.cpu.attention.one_query import OneQueryKernel, reads_in_place
from hetero_tvm.schedules.cpu.products import pack
from hetero_tvm.schedules.cpu.register_tile import RegisterTile
from hetero_tvm.schedules.cpu.rows.row_reduction import UNROLL, RowReduction, add, maximum
from hetero_tvm.schedules.cpu.symbolic.tails import declared, narrowed
from hetero_tvm.schedules.emit import Index, Kernel, as_index, constant, in_powers_of_two, int32, pieces_of
from hetero_tvm.schedules.symbolic import RunTimeOp, Witnesses, shape_variables


class RunTimeAttentionKernel(OneQueryKernel):
    """Emits one attention for all lengths of its witnesses' range."""

    sum_up = staticmethod(register_tile.accumulate_run_time)
    whole_rows = True
    """Whether the scores of all keys of a tile are held at once."""
    lone_query = True
    """Whether a single query has code of its own; without it all scratch is that of the tiles."""

    def __init__(self, witnesses: Witnesses, tile: RegisterTile, pieces: int, unroll: int, lanes: int):
        super().__init__(witnesses.largest, tile, pieces, unroll, lanes)
        self.witnesses = witnesses

    def emit(self) -> PrimFunc:
        """The PrimFunc: queries, keys, values (or one packed tensor), the mask if any, what only tells sizes,
        the result."""
        k, largest = self.k, self.witnesses.largest
        with k:
            variables = shape_variables(self.witnesses.symbols)
            operands, shape = declared(k, self.witnesses, variables)
            self.out = self.result(shape)
            mask = operands.pop() if largest.mask else None
            small = narrowed(k, variables)
            self.op = op = cast(Attention, RunTimeOp(self.witnesses, small))
            self.mask = mask
            if mask is not None:
                self.mask = k.view(mask, (math.prod(op.mask, start=int32(1)),))
                self.strides = self._mask_strides()
            sizes = self.witnesses.value(lambda o: tuple(map(math.prod, o.shapes)), small)
            flat = [k.view(buffer, (size,)) for buffer, size in zip(operands, sizes, strict=True)]
            self.query_at, self.key_at, self.value_at = places = op.heads_at
            self.query, self.key, self.value = (flat[place.operand] for place in places)
            self.kv_len, self.q_len = _bound(k, op.kv_len), _bound(k, op.q_len)
            self.past = _bound(k, self.witnesses.value(lambda o: o.kv_len - o.q_len, small))
            self.first_key, self.keys = 0, self.kv_len
            self.panels = k.let(pieces_of(self.kv_len, self.key_columns))
            items = k.let(int32(self.pieces) * op.batch * op.heads)
            with k.imported(*self.imports), k.parallel(items) as work:
                self._work_item(work, items - 1)
        return k.function

    def result(self, shape: tuple[Index, ...]) -> Buffer:
        """The result as [batch, queries, heads * values]."""
        return self.k.argument("O", shape)

    def _work_item(self, work: Expr, last_work: Expr) -> None:
        op, k, pieces, rows = self.op, self.k, self.pieces, self.tile.rows
        piece = k.let(tirx.truncmod(work, int32(pieces))) if pieces > 1 else int32(0)
        item = k.let(tirx.truncdiv(work, int32(pieces)))
        self.head = k.let(tirx.truncmod(item, as_index(op.heads)))
        self.batch = k.let(tirx.truncdiv(item, as_index(op.heads)))
        kv_head = tirx.truncdiv(self.head, int32(self.group))
        longest = self.key_panels * self.key_columns
        held = rows if self.whole_rows else 1
        if self.lone_query:
            self.scores = k.scratch((held, longest + self.lanes))  # no power of two apart
        self.factors = k.scratch((rows,))
        self.query_base, key_base, value_base = (
            k.let(place.offset + self.batch * place.batch + head * place.head)
            for place, head in ((self.query_at, self.head), (self.key_at, kv_head), (self.value_at, kv_head))
        )
        several = functools.partial(self._tiles, work, last_work, piece, key_base, value_base)

        def softmax_of_one(start: Expr, panels: Expr) -> None:
            self._softmax_row(int32(0), int32(0), start, panels)
            self._zero_hidden_rows(int32(0), 1, start, panels * self.key_columns)

        def one() -> None:
            with k.when(tirx.EQ(piece, int32(0)) if pieces > 1 else True):
                self.one_query(key_base, value_base, softmax_of_one)

        in_place = self.lone_query and reads_in_place(self.witnesses.largest, self.lanes)
        if in_place and not isinstance(self.q_len, int):
            k.branch(tirx.EQ(self.q_len, int32(1)), one, several)
        elif in_place and self.q_len == 1:
            one()
        else:
            several()

    def _tiles(self, work: Expr, last_work: Expr, piece: Expr, key_base: Expr, value_base: Expr) -> None:
        """Emit the tiles of one piece of a head's queries, over packed keys and values."""
        op, k = self.op, self.k
        longest = self.key_panels * self.key_columns
        self.packed_keys = k.scratch((self.key_panels, op.head_dim, self.key_columns))
        self.packed_values = k.scratch((self.value_panels, longest, self.value_columns))
        self._pack_keys(key_base)
        self._pack_values(value_base)
        self._find_next_head(work, last_work)
        self._query_tiles(piece)

    def _pack_values(self, base: Expr) -> None:
        """Values of the keys that are gone through next, in panels of columns."""
        values = pack.Rows(self.value, base, self.value_at.row, self.keys, self.op.values)
        pack.rows_as_they_are(self.k, self.packed_values, values, self.value_columns, self.lanes)

    def _query_tiles(self, piece: Expr) -> None:
        k, pieces, rows = self.k, self.pieces, self.tile.rows
        full = k.let(tirx.truncdiv(self.q_len, int32(rows)))
        rest = k.let(self.q_len - full * rows)
        first = k.let(tirx.truncdiv(piece * full, int32(pieces)))
        count = tirx.truncdiv((piece + 1) * full, int32(pieces)) - first
        with k.serial(count) as t:
            self._query_tile((first + t) * rows, rows)
        with k.when(tirx.EQ(piece, int32(pieces - 1)) if pieces > 1 else True):
            self._queries_behind(full * rows, rest)

    def _queries_behind(self, first: Expr, rest: Expr) -> None:
        """Emit the ``rest`` of the queries, which fill no tile."""
        in_powers_of_two(self.k, first, rest, self.tile.rows, self._query_tile)

    def _pack_keys(self, base: Expr) -> None:
        """Keys transposed to [panel][d][column]; columns behind the last key are zero."""
        k, lanes, columns, dim = self.k, self.lanes, self.key_columns, self.op.head_dim
        full = k.let(tirx.truncdiv(self.keys, int32(columns)))
        source = pack.Rows(self.key, base, self.key_at.row, self.keys, dim)
        by_blocks = columns // lanes if dim >= lanes else 0

        def column(panel: Expr, j: Expr) -> None:
            pack.column_from_row(k, self.packed_keys, source, panel, j, columns)

        with k.serial(full) as panel:
            for block in range(by_blocks):
                pack.block_from_rows(k, self.packed_keys, source, panel, block, columns, lanes)
            with k.serial(columns - by_blocks * lanes) as j:
                column(panel, by_blocks * lanes + j)
        with k.when(full < self.panels):
            rest = k.let(self.keys - full * columns)
            with k.serial(dim) as d:
                pack.clear(k, self.packed_keys, [full, d], 0, columns, lanes)
            for block in range(by_blocks):
                with k.when(rest >= (block + 1) * lanes):
                    pack.block_from_rows(k, self.packed_keys, source, full, block, columns, lanes)
            done = k.let(tirx.truncdiv(rest, int32(lanes)) * lanes) if by_blocks else int32(0)
            with k.serial(rest - done) as j:
                column(full, done + j)

    def _query_tile(self, first_row: Expr, height: int) -> None:
        """Emit scores, softmax and values of ``height`` query rows."""
        op, k, columns = self.op, self.k, self.key_columns
        self._fetch_ahead(first_row, height)
        panels, skipped = self.panels, cast(Index, int32(0))
        if op.causal:
            seen = first_row + height + self.past
            panels = k.let(pieces_of(seen, columns))
        if op.window:
            oldest = first_row + (self.past - (op.window - 1))
            skipped = k.let(tirx.truncdiv(tirx.max(oldest, int32(0)), int32(columns)))
        with k.serial(panels - skipped) as panel:
            self._score_panel(first_row, height, skipped + panel)
        start = k.let(skipped * columns)
        with k.serial(height) as r:
            self._softmax_row(first_row + r, r, start, panels - skipped)
        self._zero_hidden_rows(first_row, height, start, (panels - skipped) * columns)
        depth = tirx.min(panels * columns, self.kv_len) - start
        with k.serial(self.value_panels) as panel:
            self._value_panel(first_row, height, panel, start, depth)

    def _score_panel(self, first_row: Expr, height: int, panel: Expr) -> None:
        """Emit the scores of ``height`` queries and one whole panel of keys: scaled and capped."""
        k, lanes, columns = self.k, self.lanes, self.key_columns
        acc = self._products(first_row, height, panel)

        def put(r: Expr, column: Index, width: int, value: Expr) -> None:
            at = panel * columns + column
            k.store(self.scores, self._scaled(value, width), [r, k.ramp(at, width)])

        register_tile.store(k, acc, height, columns, lanes, put, self.in_memory)

    def _mask_strides(self) -> list[Index]:
        """Distances in the mask of consecutive batches, heads and queries; 0 where it has one for all."""
        k, largest, extents = self.k, self.witnesses.largest.mask, self.op.mask
        strides: list[Index] = []
        for axis in range(3):
            below = math.prod(extents[axis + 1 :], start=int32(1))
            strides.append(0 if largest[axis] == 1 else k.let(below))
        return strides

    def _mask_at(self, query_row: Expr, column: Expr, width: int) -> Expr:
        k, extents, largest = self.k, self.op.mask, self.witnesses.largest
        batch = self.batch
        if largest.mask[0] not in (1, largest.batch):
            batch = tirx.truncmod(batch, as_index(extents[0]))
        at = int32(0)
        for stride, x in zip(self.strides, (batch, self.head, query_row), strict=True):
            at = at if isinstance(stride, int) else at + x * stride
        if largest.mask[3] == 1:
            return k.splat(k.load(self.mask, [at]), width)
        return k.load(self.mask, [k.ramp(at + column, width)])

    def _add_mask(self, query_row: Expr, r: Expr, start: Index, end: Expr) -> None:
        """Add the mask to a row of scores, from key ``start`` to ``end``."""
        k, lanes = self.k, self.lanes

        def piece(at: Expr, width: int) -> None:
            where = [r, k.ramp(at, width)]
            mask = self._mask_at(query_row, self.first_key + at, width)
            k.store(self.scores, self._masked(k.load(self.scores, where), mask, width), where)

        full = k.let(tirx.truncdiv(end - start, int32(lanes)))
        with k.serial(full) as v:
            piece(start + v * lanes, lanes)
        with k.serial(end - start - full * lanes) as j:
            piece(start + full * lanes + j, 1)

    def _softmax_row(self, query_row: Expr, r: Expr, start: Index, panels: Index) -> None:
        """exp(score - max) in place over ``panels`` of keys from ``start``; ``factors[r]`` = 1 / sum."""
        peak, _, total = self._exponents_of(query_row, r, start, panels)
        of_blind = constant(0.0 if self.op.zero_masked else math.nan)
        if not isinstance(self.kv_len, int):  # a sum over no keys at all is 0
            of_blind = tirx.Select(self.kv_len > 0, of_blind, constant(0.0))
        self._store_factor(r, total, tirx.EQ(peak, constant(-math.inf)), of_blind)

    def _seen(self, query_row: Expr, start: Index) -> tuple[Expr, Expr]:
        """Keys that end before the first that a query does not see; where those among the scores end."""
        end = self.k.let(query_row + (self.past + 1) if self.op.causal else self.kv_len)
        return end, end

    def _exponents_of(
        self, query_row: Expr, r: Expr, start: Index, panels: Index, before: Expr | None = None
    ) -> Exponents:
        """Emit exp(score - max) in place over ``panels`` of keys from ``start``; ``before`` is a score seen
        earlier."""
        k, lanes, scores = self.k, self.lanes, self.scores
        behind = k.let(start + panels * self.key_columns)
        seen, end = self._seen(query_row, start)
        if self.mask is not None:
            self._add_mask(query_row, r, start, end)
        with k.serial(behind - end) as j:
            k.store(scores, constant(-math.inf), [r, end + j])
        if self.op.window:
            with k.serial(tirx.max(tirx.min(seen - self.op.window, behind) - start, int32(0))) as j:
                k.store(scores, constant(-math.inf), [r, start + j])

        def each(body: Callable[[Expr, int], None]) -> None:
            with k.serial(panels) as panel:
                for v in range(self.tile.vectors):
                    body(start + panel * self.key_columns + v * lanes, v % UNROLL)

        largest = RowReduction(k, lanes, maximum, -math.inf)
        each(lambda c, slot: largest.take(self._score(r, c, lanes), lanes, slot))
        peak = largest.finish()
        peak = k.let(peak if before is None else tirx.max(before, peak))
        blind = tirx.EQ(peak, constant(-math.inf))  # every key is hidden
        finite_peak = k.let(tirx.Select(blind, constant(0.0), peak))
        total = RowReduction(k, lanes, add, 0.0)

        def exponent(c: Expr, slot: int) -> None:
            value = k.let(self._exponent(r, c, lanes, k.splat(finite_peak, lanes)))
            self._put_weight(value, r, c, lanes)
            total.take(value, lanes, slot)

        each(exponent)
        return peak, finite_peak, total.finish()

    def _keys(self) -> Index:
        return self.kv_len


def _bound(k: Kernel, value: Index) -> Index:
    """The value, computed once."""
    return value if isinstance(value, int) else k.let(value)
