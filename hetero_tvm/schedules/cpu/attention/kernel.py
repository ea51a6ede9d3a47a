"""The kernel of fused attention; ``space.py`` tells its loop structure and why it is fast."""

from __future__ import annotations

import math
from collections.abc import Callable

from hetero_tvm.codegen import transpose, vector_math
from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.ops.attention import Attention, Heads
from hetero_tvm.schedules.cpu import register_tile
from hetero_tvm.schedules.cpu.products import pack
from hetero_tvm.schedules.cpu.register_tile import RegisterTile
from hetero_tvm.schedules.cpu.rows.row_reduction import RowReduction, add, each_vector, maximum
from hetero_tvm.schedules.emit import LINE_FLOATS, Index, Kernel, constant, int32, share, vector_pieces

Exponents = tuple[Expr, Expr, Expr]
"""Largest score of a row; that, or zero where it is -inf; sum of the exponents of score minus largest."""


def value_tile(op: Attention, tile: RegisterTile, lanes: int) -> RegisterTile:
    """The register tile of the second product: no more vectors than a head's values fill."""
    return RegisterTile(tile.rows, min(tile.vectors, -(-op.values // lanes)))


class AttentionKernel:
    """Emits one attention.

    Parameters
    ----------
    tile : query rows and key vectors of the first product's register tile.
    pieces : parallel pieces of a head's query rows.
    unroll : steps of a reduction in one loop body.
    """

    sum_up = staticmethod(register_tile.accumulate)
    """Reduction over the keys."""
    whole_panels = False
    """Whether weights are read for whole panels of keys, those behind the last key zero."""
    in_memory = False
    """Whether the sums of a tile are in memory, and not in registers."""

    def __init__(self, op: Attention, tile: RegisterTile, pieces: int, unroll: int, lanes: int):
        self.op, self.tile, self.pieces, self.unroll, self.lanes = op, tile, pieces, unroll, lanes
        self.values = value_tile(op, tile, lanes)
        self.key_columns, self.value_columns = tile.columns(lanes), self.values.columns(lanes)
        self._take_keys(0, op.kv_len)
        self.value_panels = -(-op.values // self.value_columns)
        self.group = op.heads // op.kv_heads
        self.fetches = pieces == 1 and op.q_len == op.kv_len
        self.k = Kernel()

    def _take_keys(self, first: Index, count: int) -> None:
        """The keys that are gone through next: ``count`` from key ``first`` on."""
        self.first_key, self.keys = first, count
        self.key_panels = -(-count // self.key_columns)

    def emit(self) -> PrimFunc:
        """The PrimFunc: queries, keys, values (or one packed tensor), the mask if any, the result."""
        op, k, pieces = self.op, self.k, self.pieces
        with k:
            operands = [k.argument(o.name, o.shape) for o in op.inputs]
            self.out = k.argument("O", op.output.shape)
            self.mask = operands.pop() if op.mask else None
            flat = [k.view(x, (math.prod(shape),)) for x, shape in zip(operands, op.shapes, strict=True)]
            self.query_at, self.key_at, self.value_at = op.heads_at
            self.query, self.key, self.value = (flat[place.operand] for place in op.heads_at)
            work_items = op.batch * op.heads * pieces
            with k.imported(*self.imports), k.parallel(work_items, op.flops) as work:
                self._work_item(work, int32(work_items - 1))
        return k.function

    @property
    def imports(self) -> tuple[str, ...]:
        """LLVM IR that the kernel calls."""
        return (transpose.ir(self.lanes),)

    def _work_item(self, work: Expr, last_work: Expr) -> None:
        """Emit one piece of one head's query rows."""
        op, k, rows = self.op, self.k, self.tile.rows
        piece = self._find_head(work)
        self.packed_keys = k.scratch((self.key_panels, op.head_dim, self.key_columns))
        self.packed_values = k.scratch((self.value_panels, op.kv_len, self.value_columns))
        self.scores = k.scratch((rows, self.key_panels * self.key_columns))
        self.factors = k.scratch((rows,))
        self._pack()
        self._find_next_head(work, last_work)
        self._query_tiles(piece)

    def _find_head(self, work: Expr) -> Expr:
        """Find the operands of one work item's head; the piece of its query rows."""
        op, k, pieces = self.op, self.k, self.pieces
        piece = tirx.floormod(work, pieces) if pieces > 1 else int32(0)
        self.head = tirx.floormod(tirx.floordiv(work, pieces), op.heads)
        self.batch = tirx.floordiv(work, pieces * op.heads)
        kv_head = tirx.floordiv(self.head, self.group)
        self.query_base = k.let(_base(self.query_at, self.batch, self.head))
        self.key_base = k.let(_base(self.key_at, self.batch, kv_head))
        self.value_base = k.let(_base(self.value_at, self.batch, kv_head))
        return piece

    def _pack(self) -> None:
        """Pack the keys that are gone through next, and their values."""
        op, k = self.op, self.k
        first_key = self.key_base + self.first_key * self.key_at.row
        first_value = self.value_base + self.first_key * self.value_at.row
        keys = pack.Rows(self.key, first_key, self.key_at.row, self.keys, op.head_dim)
        values = pack.Rows(self.value, first_value, self.value_at.row, self.keys, op.values)
        pack.columns_from_rows(k, self.packed_keys, keys, self.key_columns, self.lanes)
        pack.rows_as_they_are(k, self.packed_values, values, self.value_columns, self.lanes)

    def _query_tiles(self, piece: Expr) -> None:
        """Emit the tiles of one piece of a head's query rows."""
        op, k, pieces, rows = self.op, self.k, self.pieces, self.tile.rows
        full, rest = divmod(op.q_len, rows)
        first, count = share(piece, full, pieces)
        if full:
            with k.serial(count) as t:
                self._query_tile((first + t) * rows, rows)
        if rest and pieces == 1:
            self._query_tile(int32(full * rows), rest)
        elif rest:
            with k.when(tirx.EQ(piece, int32(pieces - 1))):
                self._query_tile(int32(full * rows), rest)

    def _find_next_head(self, work: Expr, last_work: Expr) -> None:
        """Operands of the next head: (buffer, place, base, elements of a row).

        The rows of a head are short pieces far apart, half of them just written by another core: each
        tile of queries fetches as many rows of the next head.
        """
        op, k = self.op, self.k
        after = tirx.min(work + 1, last_work)
        batch, head = tirx.floordiv(after, op.heads), tirx.floormod(after, op.heads)
        kv_head = tirx.floordiv(head, self.group)
        self.next_head = [
            (buffer, place, k.let(_base(place, batch, number)), extent)
            for buffer, place, number, extent in (
                (self.query, self.query_at, head, op.head_dim),
                (self.key, self.key_at, kv_head, op.head_dim),
                (self.value, self.value_at, kv_head, op.values),
            )
            if self.fetches
        ]

    def _fetch_ahead(self, first_row: Expr, height: int) -> None:
        """Prefetch as many rows of the next head as this tile has."""
        k = self.k
        for buffer, place, base, extent in self.next_head:
            with k.serial(height) as r:
                for start in range(0, extent, LINE_FLOATS):
                    k.prefetch(buffer, [base + (first_row + r) * place.row + start])

    def _query_tile(self, first_row: Expr, height: int) -> None:
        """Emit scores, softmax and values of ``height`` query rows."""
        op, k, columns = self.op, self.k, self.key_columns
        self._fetch_ahead(first_row, height)
        self._take_queries(first_row, height)
        panels: Index = self.key_panels
        if op.causal:
            seen = first_row + height + (op.kv_len - op.q_len)
            panels = tirx.floordiv(seen + (columns - 1), int32(columns))
        skipped: Index = 0
        if op.window:
            oldest = first_row + (op.kv_len - op.q_len - op.window + 1)
            skipped = k.let(tirx.floordiv(tirx.max(oldest, int32(0)), int32(columns)))
        with k.serial(panels - skipped) as panel:
            self._score_panel(first_row, height, skipped + panel)
        start = skipped * columns
        length = panels * columns - start if op.causal or self.whole_panels else op.kv_len
        with k.serial(height) as r:
            self._softmax_row(r, start, length)
        self._zero_hidden_rows(first_row, height, start, length)
        depth = tirx.min(panels * columns, int32(op.kv_len)) if op.causal else op.kv_len
        with k.serial(self.value_panels) as panel:
            self._value_panel(first_row, height, panel, start, depth - start)

    def _take_queries(self, first_row: Expr, height: int) -> None:
        """Emit what a tile's queries need before they are multiplied: nothing where they lie."""

    def _score_panel(self, first_row: Expr, height: int, panel: Expr) -> None:
        """Emit the scores of ``height`` queries and one panel of keys: scaled, capped, masked."""
        op, k, lanes, columns = self.op, self.k, self.lanes, self.key_columns
        acc = self._products(first_row, height, panel)

        def put(r: Expr, column: Index, width: int, value: Expr) -> None:
            at = panel * columns + column
            value = self._scaled(value, width)
            if self.mask is not None:
                mask = self._mask_at(first_row + r, self.first_key + at, width)
                value = self._masked(value, mask, width)
            if op.causal:
                newest = first_row + r + (op.kv_len - op.q_len) - self.first_key
                visible = k.ramp(at, width) <= k.splat(newest, width)
                if op.window:
                    visible = visible & (k.ramp(at, width) > k.splat(newest - op.window, width))
                value = tirx.Select(visible, value, k.splat(-math.inf, width))
            k.store(self.scores, value, [r, k.ramp(at, width)])

        def write(count: int) -> None:
            register_tile.store(k, acc, height, count, lanes, put, self.in_memory)
            if (op.causal or self.whole_panels) and count < columns:  # whole panels are read below
                with k.serial(height) as r:
                    for start, width in vector_pieces(columns - count, lanes):
                        at = k.ramp(panel * columns + count + start, width)
                        k.store(self.scores, k.splat(-math.inf, width), [r, at])

        last = self.keys - (self.key_panels - 1) * columns
        by_key = self.mask is not None and op.mask[3] != 1
        own_tail = last != columns and (by_key or self.whole_panels)
        if own_tail and self.key_panels == 1:
            write(last)
        elif own_tail:
            k.branch(panel < self.key_panels - 1, lambda: write(columns), lambda: write(last))
        else:
            write(columns)

    def _products(self, first_row: Expr, height: int, panel: Expr) -> Buffer:
        """Emit the products of ``height`` queries and one panel of keys: [rows, columns of a panel]."""
        k, row_base = self.k, self.query_base
        acc = k.scratch((height, self.key_columns))
        register_tile.accumulate(
            k,
            acc,
            RegisterTile(height, self.tile.vectors),
            self.lanes,
            self.op.head_dim,
            self.unroll,
            a_at=lambda r, d: k.load(self.query, [row_base + (first_row + r) * self.query_at.row + d]),
            b_at=lambda d, at: k.load(self.packed_keys, [panel, d, at]),
        )
        return acc

    def _scaled(self, value: Expr, width: int) -> Expr:
        """Scores of ``width`` keys from their products."""
        op, k = self.op, self.k
        value = value * k.splat(op.scale / (op.softcap or 1.0), width)
        return vector_math.tanh(value) * k.splat(op.softcap, width) if op.softcap else value

    def _mask_at(self, query_row: Expr, column: Expr, width: int) -> Expr:
        """``width`` values of the mask from one query row and key on."""
        op, k, mask = self.op, self.k, self.mask
        batch = self.batch if op.mask[0] == op.batch else tirx.floormod(self.batch, op.mask[0])
        where = (batch, self.head, query_row)
        at = [int32(0) if extent == 1 else x for extent, x in zip(op.mask[:3], where, strict=True)]
        if op.mask[3] == 1:
            return k.splat(k.load(mask, [*at, int32(0)]), width)
        return k.load(mask, [*at, k.ramp(column, width)])

    def _masked(self, value: Expr, mask: Expr, width: int) -> Expr:
        """Scores of ``width`` keys with their mask."""
        if not self.op.replaced:
            return value + mask
        mask = self.k.let(mask)
        return tirx.Select(tirx.EQ(mask, self.k.splat(0.0, width)), value, mask)

    def _softmax_row(self, r: Expr, start: Index, length: Index) -> None:
        """exp(score - max) in place over ``length`` keys from ``start``; ``factors[r]`` = 1 / sum."""
        peak, _, total = self._exponents(r, start, length)
        of_blind = 0.0 if self.op.zero_masked else math.nan
        self._store_factor(r, total, tirx.EQ(peak, constant(-math.inf)), constant(of_blind))

    def _exponents(self, r: Expr, start: Index, length: Index, before: Expr | None = None) -> Exponents:
        """Emit exp(score - max) in place over ``length`` keys from ``start``; ``before`` was seen earlier.

        A run-time ``length`` must be a multiple of ``lanes``.
        """
        k, lanes = self.k, self.lanes

        def each(body: Callable[[Index, int, int], None]) -> None:
            if isinstance(length, int):
                each_vector(k, length, lanes, body)
            else:
                with k.serial(tirx.floordiv(length, int32(lanes))) as v:
                    body(v * lanes, lanes, 0)

        def score(c: Index, width: int) -> Expr:
            return self._score(r, start + c, width)

        largest = RowReduction(k, lanes, maximum, -math.inf)
        each(lambda c, width, slot: largest.take(score(c, width), width, slot))
        peak = largest.finish()
        peak = k.let(peak if before is None else tirx.max(before, peak))
        blind = tirx.EQ(peak, constant(-math.inf))  # every key is hidden
        finite_peak = k.let(tirx.Select(blind, constant(0.0), peak))
        total = RowReduction(k, lanes, add, 0.0)

        def exponent(c: Index, width: int, slot: int) -> None:
            value = k.let(self._exponent(r, start + c, width, k.splat(finite_peak, width)))
            self._put_weight(value, r, start + c, width)
            total.take(value, width, slot)

        each(exponent)
        return peak, finite_peak, total.finish()

    def _score(self, r: Expr, column: Index, width: int) -> Expr:
        """``width`` scores of row ``r`` of the tile."""
        return self.k.load(self.scores, [r, self.k.ramp(column, width)])

    def _exponent(self, r: Expr, column: Index, width: int, peak: Expr) -> Expr:
        """e**(score - peak) of ``width`` scores of row ``r``."""
        return vector_math.softmax_exp(self._score(r, column, width), peak)

    def _put_weight(self, value: Expr, r: Expr, column: Index, width: int) -> None:
        """Store weights of keys, before their sum divides them."""
        self.k.store(self.scores, value, [r, self.k.ramp(column, width)])

    def _store_factor(self, r: Expr, total: Expr, blind: Expr, of_blind: Expr) -> None:
        """Keep 1 / sum of a row, or that of a row whose keys are all hidden."""
        if self.op.zero_by_mask:  # NaN among the weights must show in it: the largest score may have lost it
            total = self.k.let(total)
            blind = tirx.EQ(total, constant(0.0))
        self.k.store(self.factors, tirx.Select(blind, of_blind, constant(1.0) / total), [r])

    def _zero_hidden_rows(self, first_row: Expr, height: int, start: Index, length: Index) -> None:
        """Make the weights of rows zero that have NaN and whose mask hides all keys."""
        if self.mask is None or not self.op.zero_by_mask:
            return
        k = self.k
        seen, hidden = k.scratch((1,), "int32"), constant(-math.inf)
        with k.serial(height) as r, k.when(tirx.isnan(k.load(self.factors, [r]))):
            k.store(seen, int32(0), [0])
            with k.serial(self._keys()) as j:
                visible = tirx.NE(self._mask_at(first_row + r, j, 1), hidden)
                k.store(seen, k.load(seen, [0]) + tirx.Select(visible, int32(1), int32(0)), [0])
            with k.when(tirx.EQ(k.load(seen, [0]), int32(0))):
                with k.serial(length) as j:
                    self._put_weight(constant(0.0), r, start + j, 1)
                k.store(self.factors, constant(0.0), [r])

    def _keys(self) -> Index:
        """Keys of a head."""
        return self.op.kv_len

    def _value_panel(self, first_row: Expr, height: int, panel: Expr, start: Index, depth: Index) -> None:
        """Emit one panel of the result: probabilities of ``depth`` keys from ``start`` times their values."""
        op, k, lanes, columns = self.op, self.k, self.lanes, self.value_columns
        acc = self._weighted(height, panel, start, depth)

        def put(r: Expr, column: Index, width: int, value: Expr) -> None:
            at = k.ramp(self.head * op.values + panel * columns + column, width)
            value = self._result(value, first_row + r, r, at, width)
            k.store(self.out, value, [self.batch, first_row + r, at])

        def write(count: int) -> None:
            register_tile.store(k, acc, height, count, lanes, put, self.in_memory)

        last = op.values - (self.value_panels - 1) * columns
        if last == columns or self.value_panels == 1:
            write(min(last, columns))
        else:
            k.branch(panel < self.value_panels - 1, lambda: write(columns), lambda: write(last))

    def _weighted(self, height: int, panel: Expr, start: Index, depth: Index) -> Buffer:
        """Emit the sums of the values of ``depth`` keys by their weights: [rows, columns of a panel]."""
        k = self.k
        acc = k.scratch((height, self.value_columns))
        self.sum_up(
            k,
            acc,
            RegisterTile(height, self.values.vectors),
            self.lanes,
            depth,
            self.unroll,
            a_at=lambda r, j: k.load(self.scores, [r, start + j]),
            b_at=lambda j, at: k.load(self.packed_values, [panel, start + j, at]),
        )
        return acc

    def _result(self, value: Expr, row: Expr, r: Expr, at: Expr, width: int) -> Expr:
        """Elements ``at`` of the result of query ``row``, row ``r`` of its tile, from their sums."""
        return value * self.k.splat(self.k.load(self.factors, [r]), width)


def _base(place: Heads, batch: Expr, head: Expr) -> Expr:
    """Position of the first element of one head."""
    return place.offset + batch * place.batch + head * place.head
