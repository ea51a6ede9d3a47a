"""The kernel of attention in tiles of bfloat16; ``attention.py`` tells its loop structure."""

from __future__ import annotations

import functools

from hetero_tvm.codegen import transpose, vector_math
from hetero_tvm.codegen.amx import BF16, END, TILE_ROWS, TILE_WORDS, RowsProduct, begin
from hetero_tvm.codegen.bf16_vectors import bf16_bits, bf16_ir
from hetero_tvm.host.tvm import Buffer, Expr, tirx
from hetero_tvm.ops.integers.bf16_attention import Bf16Attention
from hetero_tvm.schedules.cpu.attention.blocked import BlockedAttentionKernel
from hetero_tvm.schedules.cpu.attention.kernel import AttentionKernel
from hetero_tvm.schedules.cpu.register_tile import RegisterTile
from hetero_tvm.schedules.emit import Index, Kernel, as_index, int32, smallest

COLUMNS = 2 * TILE_ROWS
"""Keys, and elements of values, of a panel: two right tiles."""
_PAIR, _WORD, _LANES = 2, 4, 16
_PAD = 16
"""Words behind a row of scores or weights: rows a power of two apart would fall into few cache sets."""


def words_of(elements: int) -> int:
    """Words of pairs that ``elements`` take, in whole steps of the matrix unit."""
    return -(-elements // (_PAIR * TILE_WORDS)) * TILE_WORDS


class Bf16AttentionKernel(BlockedAttentionKernel):
    """Emits one attention.

    Parameters
    ----------
    rows : query rows of a tile, 16 or 32.
    pieces : parallel pieces of a head's query rows.
    block : keys of a block, whole panels; 0 for all keys at once.
    """

    op: Bf16Attention
    whole_panels = True
    in_memory = True

    def __init__(self, op: Bf16Attention, rows: int, pieces: int, block: int):
        tile = RegisterTile(rows, COLUMNS // _LANES)
        super().__init__(op, tile, pieces, block or op.kv_len, 0, _LANES)
        self.value_columns, self.value_panels = COLUMNS, -(-op.values // COLUMNS)
        self.in_place = not (op.mask or op.causal or op.softcap)
        """Whether scores stay as the matrix unit wrote them, to be scaled where they are read."""

    @property
    def imports(self) -> tuple[str, ...]:
        heights = {min(self.tile.rows, self.op.q_len), self.op.q_len % self.tile.rows} - {0}
        products = dict.fromkeys(self._product(height).ir for height in sorted(heights))
        return (*super().imports, *products, bf16_ir())

    def _product(self, height: int) -> RowsProduct:
        return RowsProduct(BF16, -(-height // TILE_ROWS), COLUMNS // TILE_ROWS)

    def _work_item(self, work: Expr, last_work: Expr) -> None:
        op, k, rows, block = self.op, self.k, self.tile.rows, self.block
        piece = self._find_head(work)
        self._take_keys(0, min(block, op.kv_len))
        columns = self.key_panels * COLUMNS
        self.depth = words_of(op.head_dim)
        self.queries = k.scratch((rows, self.depth), "int32")
        self.rounded = k.scratch((COLUMNS, self.depth), "int32")
        self.packed_keys = k.scratch((self.key_panels, self.depth, COLUMNS), "int32")
        self.packed_values = k.scratch((self.value_panels, columns // _PAIR, COLUMNS), "int32")
        self.scores = k.scratch((rows, columns + _PAD))
        self.weights = k.scratch((rows, columns + _PAIR * _PAD), "uint16")
        self.next_head = []
        k.call(begin())
        if block >= op.kv_len:
            self.factors = k.scratch((rows,))
            self._pack()
            self._query_tiles(piece)
        else:
            self._blocks(piece)
        k.call(END)

    def _pack(self) -> None:
        op, k = self.op, self.k
        first = self.key_base + self.first_key * self.key_at.row
        full, rest = divmod(self.keys, COLUMNS)

        def panel_of(panel: Index, keys: int) -> None:
            with k.serial(keys) as j:
                at = first + (panel * COLUMNS + j) * self.key_at.row
                _round_row(k, self.key, at, op.head_dim, self.rounded, j)
            for block in range(COLUMNS // _LANES):
                with k.serial(self.depth // _LANES) as d:
                    k.call(
                        transpose.name_of(_LANES, 32),
                        k.address(self.packed_keys, [panel, d * _LANES, block * _LANES]),
                        int32(COLUMNS),
                        k.address(self.rounded, [block * _LANES, d * _LANES]),
                        as_index(self.depth),
                    )

        with k.serial(full) as panel:
            panel_of(panel, COLUMNS)
        if rest:  # keys behind the last are any: their scores are not read
            panel_of(int32(full), rest)
        self._pack_values()

    def _pack_values(self) -> None:
        """Pack pairs of rows of the values; rows behind the last are zero."""
        op, k = self.op, self.k
        first = self.value_base + self.first_key * self.value_at.row

        def bits(row: Expr, start: int, width: int) -> Expr:
            value = k.load(self.value, [first + row * self.value_at.row + k.ramp(start, width)])
            return bf16_bits(value, width).astype("uint32" if width == 1 else f"uint32x{width}")

        def put(pair: Index, panel: int, inside: int, width: int, value: Expr) -> None:
            value = value.astype("int32" if width == 1 else f"int32x{width}")
            k.store(self.packed_values, value, [panel, pair, k.ramp(inside, width)])

        def pair_of(pair: Expr, both: bool) -> None:
            for start, width in _pieces(op.values):
                value = bits(pair * _PAIR, start, width)
                if both:
                    high = bits(pair * _PAIR + 1, start, width)
                    value = value + tirx.shift_left(high, k.splat(tirx.const(16, "uint32"), width))
                put(pair, start // COLUMNS, start % COLUMNS, width, value)

        pairs, odd = divmod(self.keys, _PAIR)
        with k.serial(pairs) as pair:
            pair_of(pair, True)
        if odd:
            pair_of(int32(pairs), False)
        behind = pairs + odd
        with k.serial(self.key_panels * (COLUMNS // _PAIR) - behind) as pair:
            for panel in range(self.value_panels):
                for vector in range(COLUMNS // _LANES):
                    nothing = k.splat(tirx.const(0, "uint32"), _LANES)
                    put(behind + pair, panel, vector * _LANES, _LANES, nothing)

    def _query_tile(self, first_row: Expr, height: int) -> None:
        op, k = self.op, self.k
        panels: Index = self.key_panels
        skipped: Index = 0
        newest = first_row + (height - 1 + op.kv_len - op.q_len) - self.first_key
        if op.causal:
            panels = k.let(smallest(tirx.floordiv(newest, int32(COLUMNS)) + 1, self.key_panels))
        if op.window:
            oldest = first_row + (op.kv_len - op.q_len - op.window + 1) - self.first_key
            skipped = k.let(tirx.floordiv(tirx.max(oldest, int32(0)), int32(COLUMNS)))
        whole = self.block >= op.kv_len
        with k.when(True if whole or not op.causal else panels > skipped):
            with k.serial(height) as r:
                row = self.query_base + (first_row + r) * self.query_at.row
                _round_row(k, self.query, row, op.head_dim, self.queries, r)
            with k.serial(panels - skipped) as panel:
                self._score_panel(first_row, height, skipped + panel)
            start = skipped * COLUMNS
            length = (panels - skipped) * COLUMNS
            with k.serial(height) as r:
                if whole:
                    self._softmax_row(r, start, length)
                else:
                    last = self.first_key + self.keys >= op.kv_len
                    if op.causal:
                        last = tirx.any(last, newest < self.keys)
                    exponents = functools.partial(self._exponents, r, start, length)
                    self._take(first_row + r, r, exponents, last)
            if whole:
                self._zero_hidden_rows(first_row, height, start, length)
            with k.serial(self.value_panels) as panel:
                self._value_panel(first_row, height, panel, start, length)

    def _score_panel(self, first_row: Expr, height: int, panel: Expr) -> None:
        if not self.in_place:
            super()._score_panel(first_row, height, panel)
            return
        k = self.k
        self._multiply(height, self.queries, 0, self.depth, self.packed_keys, [panel, 0], self.scores, panel)
        last = self.keys - (self.key_panels - 1) * COLUMNS
        if last == COLUMNS:
            return
        with k.when(tirx.EQ(panel, int32(self.key_panels - 1))), k.serial(height) as r:
            for start, width in _pieces(COLUMNS - last, last):
                at = k.ramp(panel * COLUMNS + start, width)
                k.store(self.scores, k.splat(-float("inf"), width), [r, at])

    def _products(self, first_row: Expr, height: int, panel: Expr) -> Buffer:
        acc = self.k.scratch((self._product(height).rows * TILE_ROWS, COLUMNS))
        self._multiply(height, self.queries, 0, self.depth, self.packed_keys, [panel, 0], acc, int32(0))
        return acc

    def _score(self, r: Expr, column: Index, width: int) -> Expr:
        score = super()._score(r, column, width)
        return self._scaled(score, width) if self.in_place else score

    def _exponent(self, r: Expr, column: Index, width: int, peak: Expr) -> Expr:
        score = super()._score(r, column, width)
        return vector_math.softmax_exp_of_halves(score, peak, self.op.scale if self.in_place else 1.0)

    def _put_weight(self, value: Expr, r: Expr, column: Index, width: int) -> None:
        self.k.store(self.weights, bf16_bits(value, width), [r, self.k.ramp(column, width)])

    def _weighted(self, height: int, panel: Expr, start: Index, depth: Index) -> Buffer:
        acc = self.k.scratch((self._product(height).rows * TILE_ROWS, COLUMNS))
        pairs = tirx.floordiv(as_index(depth), _PAIR)
        first = [panel, tirx.floordiv(as_index(start), _PAIR)]
        self._multiply(height, self.weights, start, pairs, self.packed_values, first, acc, int32(0))
        return acc

    def _result(self, value: Expr, row: Expr, r: Expr, at: Expr, width: int) -> Expr:
        if self.block >= self.op.kv_len:
            return AttentionKernel._result(self, value, row, r, at, width)
        return super()._result(value, row, r, at, width)

    def _multiply(
        self,
        height: int,
        x: Buffer,
        column: Index,
        words: Index,
        w: Buffer,
        place: list[Index],
        sums: Buffer,
        panel: Expr,
    ) -> None:
        """Emit ``sums[:, panel] = x[:, column:] @ w[place:]`` over so many words."""
        k, product = self.k, self._product(height)
        row_bytes = tirx.const(int(sums.shape[1]) * _WORD, "int64")
        k.call(
            product.name,
            k.address(sums, [int32(0), panel * COLUMNS]),
            row_bytes,
            k.address(x, [int32(0), as_index(column)]),
            k.address(x, [int32(1), as_index(column)]),
            k.address(w, [*place, int32(0)]),
            tirx.const(COLUMNS * _WORD, "int64"),
            tirx.floordiv(as_index(words), TILE_WORDS).astype("int64"),
            k.address(w, [*place, int32(0)]),
            k.address(sums, [int32(extent - 1) for extent in sums.shape]),
            k.address(x, [int32(extent - 1) for extent in x.shape]),
        )


def _pieces(count: int, first: int = 0) -> list[tuple[int, int]]:
    """(start, width) of vectors of 16 from ``first`` on, and of the single elements behind them."""
    full = count // _LANES
    vectors = [(first + vector * _LANES, _LANES) for vector in range(full)]
    return vectors + [(first + rest, 1) for rest in range(full * _LANES, count)]


def _round_row(k: Kernel, source: Buffer, base: Expr, length: int, target: Buffer, row: Expr) -> None:
    """Emit the rounding of ``length`` float32 from ``base`` on to pairs in a row of words, zeros behind."""
    full, rest = divmod(length, _LANES)
    half = _LANES // _PAIR
    for vector in range(full):
        bits = bf16_bits(k.load(source, [base + k.ramp(vector * _LANES, _LANES)]), _LANES)
        k.store(target, tirx.reinterpret(f"int32x{half}", bits), [row, k.ramp(vector * half, half)])
    first = full * half

    def element(at: int) -> Expr:
        return bf16_bits(k.load(source, [base + at]), 1).astype("int32")

    for at in range(full * _LANES, full * _LANES + rest, _PAIR):
        word = element(at)
        if at + 1 < length:
            word = word + tirx.shift_left(element(at + 1), int32(16))
        k.store(target, word, [row, at // _PAIR])
        first = at // _PAIR + 1
    for at in range(first, int(target.shape[1])):
        k.store(target, int32(0), [row, at])
