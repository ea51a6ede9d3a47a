"""Tiles of bfloat16 in the place of an attention kernel's register tiles, whatever its loops are."""

from __future__ import annotations

from hetero_tvm.codegen import transpose, vector_math
from hetero_tvm.codegen.amx import BF16, TILE_ROWS, RowsProduct
from hetero_tvm.codegen.bf16_vectors import bf16_bits, bf16_ir
from hetero_tvm.host.tvm import Buffer, Expr, tirx
from hetero_tvm.schedules.cpu.attention.kernel import AttentionKernel
from hetero_tvm.schedules.cpu.register_tile import RegisterTile
from hetero_tvm.schedules.cpu.tile_products import COLUMNS, LANES, PAIR, multiply, pieces, words_of
from hetero_tvm.schedules.emit import Index, Kernel, as_index, int32

_PAD = 16
"""Words behind a row of scores or weights: rows a power of two apart would fall into few cache sets."""


def tile_of(rows: int) -> RegisterTile:
    """The tile of sums of ``rows`` queries."""
    return RegisterTile(rows, COLUMNS // LANES)


class TilesOfHalves(AttentionKernel):
    """An attention that rounds queries, keys, values and weights, and multiplies them on the matrix unit.

    It goes before the class that has the loops: what it emits is one panel's packing, one tile's products
    and what the softmax reads and writes.
    """

    in_memory = True
    in_place: bool
    """Whether scores stay as the matrix unit wrote them, to be scaled where they are read."""

    @property
    def imports(self) -> tuple[str, ...]:
        products = [self._product(rows).ir for rows in range(TILE_ROWS, self.tile.rows + 1, TILE_ROWS)]
        return (*super().imports, *products, bf16_ir())

    def _product(self, height: Index) -> RowsProduct:
        """The product for ``height`` queries, at run time for those of a whole tile."""
        rows = height if isinstance(height, int) else self.rest_rows
        return RowsProduct(BF16, -(-rows // TILE_ROWS), COLUMNS // TILE_ROWS)

    rest_rows: int = TILE_ROWS
    """Most queries of a tile whose height is known at run time."""

    def hold(self, keys: int) -> None:
        """Scratch for so many keys of a head."""
        k, rows, panels = self.k, self.tile.rows, -(-keys // COLUMNS)
        self.value_columns, self.value_panels = COLUMNS, -(-self.op.values // COLUMNS)
        columns, self.depth = panels * COLUMNS, words_of(self.op.head_dim)
        self.queries = k.scratch((rows, self.depth), "int32")
        self.rounded = k.scratch((COLUMNS, self.depth), "int32")
        self.packed_keys = k.scratch((panels, self.depth, COLUMNS), "int32")
        self.packed_values = k.scratch((self.value_panels, columns // PAIR, COLUMNS), "int32")
        self.scores = k.scratch((rows, columns + _PAD))
        self.weights = k.scratch((rows, columns + PAIR * _PAD), "uint16")

    def pack_keys(self, base: Expr, keys: Index) -> None:
        """Pack the ``keys`` from ``base`` on; those behind the last in its panel are any, and so are their
        scores."""
        k, row = self.k, self.key_at.row

        def panel_of(panel: Index, keys: Index) -> None:
            with k.serial(keys) as j:
                at = base + (panel * COLUMNS + j) * row
                _round_row(k, self.key, at, self.op.head_dim, self.rounded, j)
            for block in range(COLUMNS // LANES):
                with k.serial(self.depth // LANES) as d:
                    k.call(
                        transpose.name_of(LANES, 32),
                        k.address(self.packed_keys, [panel, d * LANES, block * LANES]),
                        int32(COLUMNS),
                        k.address(self.rounded, [block * LANES, d * LANES]),
                        as_index(self.depth),
                    )

        full, rest = _divided(k, keys, COLUMNS)
        with k.serial(full) as panel:
            panel_of(panel, COLUMNS)
        with k.when(as_index(rest) > 0):
            panel_of(full, rest)

    def pack_values(self, base: Expr, keys: Index) -> None:
        """Pack pairs of rows of the values; rows behind the last are zero, to the end of a panel of keys."""
        op, k, row_distance = self.op, self.k, self.value_at.row

        def bits(row: Index, start: int, width: int) -> Expr:
            value = k.load(self.value, [base + row * row_distance + k.ramp(start, width)])
            return bf16_bits(value, width).astype("uint32" if width == 1 else f"uint32x{width}")

        def put(pair: Index, start: int, width: int, value: Expr) -> None:
            value = value.astype("int32" if width == 1 else f"int32x{width}")
            at = [start // COLUMNS, pair, k.ramp(start % COLUMNS, width)]
            k.store(self.packed_values, value, at)

        def pair_of(pair: Index, both: bool) -> None:
            for start, width in pieces(op.values):
                value = bits(pair * PAIR, start, width)
                if both:
                    high = bits(pair * PAIR + 1, start, width)
                    value = value + tirx.shift_left(high, k.splat(tirx.const(16, "uint32"), width))
                put(pair, start, width, value)

        pairs, odd = _divided(k, keys, PAIR)
        with k.serial(pairs) as pair:
            pair_of(pair, True)
        with k.when(as_index(odd) > 0):
            pair_of(pairs, False)
        behind = pairs + odd
        panels, _ = _divided(k, keys + (COLUMNS - 1), COLUMNS)
        with k.serial(panels * (COLUMNS // PAIR) - behind) as pair:
            for start in range(0, self.value_panels * COLUMNS, LANES):
                put(behind + pair, start, LANES, k.splat(tirx.const(0, "uint32"), LANES))

    def round_queries(self, first_row: Expr, height: Index) -> None:
        """Round the queries of a tile."""
        with self.k.serial(height) as r:
            row = self.query_base + (first_row + r) * self.query_at.row
            _round_row(self.k, self.query, row, self.op.head_dim, self.queries, r)

    def score_in_place(self, height: Index, panel: Expr) -> None:
        """Emit the products of a tile and one panel of keys where the softmax reads them."""
        self._multiply(height, self.queries, 0, self.depth, self.packed_keys, [panel, 0], self.scores, panel)

    def _products(self, first_row: Expr, height: Index, panel: Expr) -> Buffer:
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

    def _weighted(self, height: Index, panel: Expr, start: Index, depth: Index) -> Buffer:
        acc = self.k.scratch((self._product(height).rows * TILE_ROWS, COLUMNS))
        steps, _ = _divided(self.k, depth + (COLUMNS - 1), COLUMNS)
        first = [panel, tirx.truncdiv(as_index(start), int32(PAIR))]
        words = steps * (COLUMNS // PAIR)

        def multiplied() -> None:
            self._multiply(height, self.weights, start, words, self.packed_values, first, acc, int32(0))

        if isinstance(steps, int):
            multiplied()
        else:  # the product takes a step before it counts
            self.k.branch(steps > 0, multiplied, lambda: self._clear(acc))
        return acc

    def _clear(self, acc: Buffer) -> None:
        """Make the sums of a tile zero, where no key is seen."""
        with self.k.serial(int(acc.shape[0])) as r:
            for start, width in pieces(COLUMNS):
                self.k.store(acc, self.k.splat(0.0, width), [r, self.k.ramp(start, width)])

    def _multiply(
        self,
        height: Index,
        x: Buffer,
        column: Index,
        words: Index,
        w: Buffer,
        place: list[Index],
        sums: Buffer,
        panel: Expr,
    ) -> None:
        """Emit ``sums[:, panel] = x[:, column:] @ w[place:]`` over so many words."""
        multiply(self.k, self._product(height), x, (0, column), words, w, place, sums, panel)


def _divided(k: Kernel, value: Index, by: int) -> tuple[Index, Index]:
    """Quotient and rest of what is not negative."""
    if isinstance(value, int):
        return divmod(value, by)
    quotient = k.let(tirx.truncdiv(value, int32(by)))
    return quotient, k.let(value - quotient * by)


def _round_row(k: Kernel, source: Buffer, base: Expr, length: int, target: Buffer, row: Expr) -> None:
    """Emit the rounding of ``length`` float32 from ``base`` on to pairs in a row of words, zeros behind."""
    full, half = length // LANES, LANES // PAIR
    for vector in range(full):
        bits = bf16_bits(k.load(source, [base + k.ramp(vector * LANES, LANES)]), LANES)
        k.store(target, tirx.reinterpret(f"int32x{half}", bits), [row, k.ramp(vector * half, half)])

    def element(at: int) -> Expr:
        return bf16_bits(k.load(source, [base + at]), 1).astype("int32")

    for at in range(full * LANES, length, PAIR):
        word = element(at)
        if at + 1 < length:
            word = word + tirx.shift_left(element(at + 1), int32(16))
        k.store(target, word, [row, at // PAIR])
    for at in range(-(-length // PAIR), int(target.shape[1])):
        k.store(target, int32(0), [row, at])
