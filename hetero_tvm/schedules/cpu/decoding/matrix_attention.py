"""Attention of a prompt's rows over keys and values in pages, in tiles of bfloat16 (AMX).

Structure, for rows of one text that follow each other, and one key head::

    round Q times the scale, of all rows and query heads of the key head
    for each block of 512 keys:
        pack K of its pages as pairs along D, and V as pairs of keys           (once for all rows)
        for each tile of 32 (row, query head), where its last row sees a key of the block:
            scores[32][512] = Q K^T                                           by the matrix unit
            each row: maximum, exp, sum; weights[32][512] in bfloat16
            O = O * exp(old maximum - new) + weights V

The pool keeps 16 keys beside each other for each channel, which is how a right tile wants them: a pair of
channels is two vectors that are rounded and interleaved.  Scores and sums are float32.  A row in tiles is
within what bfloat16 makes of it of the row alone, whose attention is float32's.
"""

from __future__ import annotations

from collections.abc import Callable

from hetero_tvm.codegen import vector_math
from hetero_tvm.codegen.amx import BF16, END, TILE_ROWS, RowsProduct, begin
from hetero_tvm.codegen.bf16_vectors import bf16_bits, bf16_ir
from hetero_tvm.host.tvm import Buffer, Expr, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.decoding.contracts import KEYS, CachedAttention
from hetero_tvm.schedules.cpu.decoding.pool import Pool
from hetero_tvm.schedules.cpu.decoding.symbolic import SymbolicKernel, quotient, remainder
from hetero_tvm.schedules.cpu.decoding.visible import first_key, scale_of
from hetero_tvm.schedules.cpu.rows.row_reduction import RowReduction, add, maximum
from hetero_tvm.schedules.cpu.tile_products import COLUMNS, LANES, PAIR, multiply, pieces, words_of
from hetero_tvm.schedules.emit import Index, constant, int32

_LOWEST = -3.0e38
_BLOCK = 512
_ROWS = 2 * TILE_ROWS
_MOST_ROWS, _MOST_TOKENS = 256, 128
"""Rows (a token and a query head), and tokens, that share a block's packed keys: packing is a twentieth."""
_PAD = 16
"""Elements behind a row of scores or weights: rows a power of two apart would fall into few cache sets."""
_FEW_ROWS = 16
"""Rows below which vectors are as fast."""


def takes_prompts(op: CachedAttention, machine: CpuModel) -> bool:
    """Whether the machine has the unit, and nothing is added to scores."""
    return machine.has_tiles("amx_bf16") and not op.relative


class PromptTiles:
    """Code of attention for rows of one text.

    Parameters
    ----------
    q, out : queries and results of all rows and heads.
    tables : pages of each text.
    sinks : a score per head; None where there are none.
    """

    def __init__(
        self,
        k: SymbolicKernel,
        op: CachedAttention,
        q: Buffer,
        out: Buffer,
        pool: Pool,
        tables: Buffer,
        sinks: Buffer | None,
    ):
        self._k, self._op, self._heads = k, op, op.heads
        self._q, self._out, self._pool, self._tables, self._sinks = q, out, pool, tables, sinks
        self._group = op.heads.heads // op.heads.kv_heads
        self._depth = words_of(op.heads.dim)
        self._value_panels = -(-op.heads.value_dim // COLUMNS)
        self.tokens = max(1, min(_MOST_TOKENS, _MOST_ROWS // self._group))
        """Most tokens at once."""

    @property
    def imports(self) -> tuple[str, ...]:
        """LLVM IR that the code calls."""
        return (*(self._product(tiles).ir for tiles in (1, 2)), bf16_ir())

    @staticmethod
    def _product(tiles: int) -> RowsProduct:
        return RowsProduct(BF16, tiles, COLUMNS // TILE_ROWS)

    def tokens_each(self, rows: Expr, threads: int) -> Expr:
        """Rows of a piece of work: so many that all threads have some, and one where rows are few."""
        many = rows * self._heads.kv_heads >= 4 * threads * self.tokens
        fewer = tirx.Select(rows >= _FEW_ROWS, int32(max(1, self.tokens // 4)), int32(1))
        return self._k.named(tirx.Select(many, int32(self.tokens), fewer))

    def runs(
        self,
        first: Expr,
        end: Expr,
        head: Expr,
        sequences: Buffer,
        positions: Buffer,
        apart: Callable[[Expr, Expr], None],
    ) -> None:
        """Attention of rows ``first .. end``, of any texts; ``apart(row, count)`` is that of few that follow
        each other."""
        k = self._k
        count = k.scratch((1,), "int32")

        def follows(row: Expr) -> Expr:
            before = tirx.max(row - 1, int32(0))
            text, step = (k.load(of, [row]) - k.load(of, [before]) for of in (sequences, positions))
            return tirx.all(tirx.EQ(text, 0), tirx.EQ(step, 1))

        with k.serial(end - first) as i:
            row = k.let(first + i)
            with k.when(tirx.any(tirx.EQ(i, 0), tirx.Not(follows(row)))):
                k.store(count, int32(1), [0])
                with k.serial(end - row - 1) as j:
                    with k.when(tirx.all(tirx.EQ(k.load(count, [0]), j + 1), follows(row + j + 1))):
                        k.store(count, j + 2, [0])
                tokens = k.let(k.load(count, [0]))
                sequence, length = k.let(k.load(sequences, [row])), k.let(k.load(positions, [row]) + 1)
                k.branch(
                    tokens * self._group >= _FEW_ROWS,
                    lambda: self.emit(row, tokens, head, sequence, length),
                    lambda: apart(row, tokens),
                )

    def emit(self, first: Expr, tokens: Expr, head: Expr, sequence: Expr, length: Expr) -> None:
        """Attention of tokens from ``first`` on, the first of which sees ``length`` keys, its own too."""
        k, h, most = self._k, self._heads, self.tokens * self._group
        self._first, self._head, self._sequence, self._length = first, head, sequence, length
        whole = -(-most // _ROWS) * _ROWS
        self._rows = k.let(tokens * self._group)
        self._queries = k.scratch((whole, self._depth), "int32")
        self._keys = k.scratch((_BLOCK // COLUMNS, self._depth, COLUMNS), "int32")
        self._values = k.scratch((self._value_panels, _BLOCK // PAIR, COLUMNS), "int32")
        self._scores = k.scratch((_ROWS, _BLOCK + _PAD))
        self._weights = k.scratch((_ROWS, _BLOCK + PAIR * _PAD), "uint16")
        self._sums = k.scratch((whole, self._value_panels * COLUMNS))
        self._peaks, self._totals = k.scratch((whole,)), k.scratch((whole,))
        self._factors = k.scratch((_ROWS,))
        self._clear()
        self._round_queries()
        self._last = k.let(length + tokens - 1)
        """Keys that the last token sees."""
        start = k.let(quotient(self._start(length), KEYS))
        panels = k.let(quotient(self._last + (KEYS - 1), KEYS) - start)
        each = _BLOCK // KEYS
        k.call(begin())
        with k.serial(quotient(panels + (each - 1), each)) as block:
            begun = k.let(start + block * each)
            count = k.let(tirx.min(panels - block * each, int32(each)))
            self._pack(begun, count)
            with k.serial(quotient(self._rows + (_ROWS - 1), _ROWS)) as tile:
                self._tile(tile, begun, count)
        k.call(END)
        with k.serial(self._rows) as r:
            token, channel = self._place_of(r, h.value_dim)
            scale = k.let(constant(1.0) / k.load(self._totals, [r]))
            for at, width in pieces(h.value_dim):
                value = k.load(self._sums, [r, k.ramp(at, width)]) * k.splat(scale, width)
                k.store(self._out, value, [token, k.ramp(channel + at, width)])

    def _place_of(self, r: Expr, dim: int) -> tuple[Expr, Expr]:
        """Token of a row, and its first channel of ``dim`` in each head."""
        k = self._k
        head = self._head * self._group + remainder(r, self._group)
        return k.let(self._first + quotient(r, self._group)), k.let(head * dim)

    def _start(self, length: Expr) -> Expr:
        return first_key(self._k, self._op, length)

    def _clear(self) -> None:
        """Begin sums, and fill what pads depth and columns."""
        k, dim = self._k, self._heads.dim
        with k.serial(self._rows) as r:
            for at, width in pieces(self._value_panels * COLUMNS):
                k.store(self._sums, k.splat(0.0, width), [r, k.ramp(at, width)])
            if self._sinks is None:
                peak, total = constant(_LOWEST), constant(0.0)
            else:
                head = self._head * self._group + remainder(r, self._group)
                peak, total = k.load(self._sinks, [head]), constant(1.0)
            k.store(self._peaks, peak, [r])
            k.store(self._totals, total, [r])
        none = k.splat(int32(0), LANES)
        with k.serial(_BLOCK // COLUMNS) as panel:
            for word in range(-(-dim // PAIR), self._depth):
                for at in (0, LANES):
                    k.store(self._keys, none, [panel, word, k.ramp(at, LANES)])

    def _round_queries(self) -> None:
        k, dim = self._k, self._heads.dim
        half = LANES // PAIR
        with k.serial(self._rows) as r:
            token, channel = self._place_of(r, dim)
            scale = scale_of(k, self._op, self._length + quotient(r, self._group))

            def bits(at: int, width: int) -> Expr:
                value = k.load(self._q, [token, k.ramp(channel + at, width)]) * k.splat(scale, width)
                return bf16_bits(value, width)

            full = dim // LANES
            for vector in range(full):
                words = tirx.reinterpret(f"int32x{half}", bits(vector * LANES, LANES))
                k.store(self._queries, words, [r, k.ramp(vector * half, half)])
            for at in range(full * LANES, dim, PAIR):
                word = bits(at, 1).astype("int32")
                if at + 1 < dim:
                    word = word + tirx.shift_left(bits(at + 1, 1).astype("int32"), int32(16))
                k.store(self._queries, word, [r, at // PAIR])
            for at in range(-(-dim // PAIR), self._depth):
                k.store(self._queries, int32(0), [r, at])

    def _pack(self, begun: Expr, count: Expr) -> None:
        """Round and interleave ``count`` panels of 16 keys and values from panel ``begun`` of the text on."""
        k, per_page = self._k, self._heads.page // KEYS
        with k.serial(count) as p:
            panel = k.let(begun + p)
            page = k.let(k.load(self._tables, [self._sequence, quotient(panel, per_page)]))
            inner = k.let(remainder(panel, per_page))
            self._pack_keys(p, page, inner)
            self._pack_values(p, page, inner, self._last - panel * KEYS)
        with k.when(tirx.EQ(remainder(count, PAIR), 1)):
            self._no_values(count)

    def _pack_keys(self, p: Expr, page: Expr, inner: Expr) -> None:
        k, dim = self._k, self._heads.dim
        scales = self._pool.key_scales(page, self._head, inner, 0, LANES)
        scales = None if scales is None else k.let(scales)

        def bits(channel: Index) -> Expr:
            value = self._pool.key(page, self._head, inner, channel, 0, LANES)
            return bf16_bits(value if scales is None else value * scales, LANES).astype(f"uint32x{LANES}")

        def put(word: Index, value: Expr) -> None:
            at = k.ramp(remainder(p, PAIR) * LANES, LANES)
            k.store(self._keys, value.astype(f"int32x{LANES}"), [quotient(p, PAIR), word, at])

        with k.serial(dim // PAIR) as word:
            put(word, bits(word * PAIR) + self._upper(bits(word * PAIR + 1), LANES))
        if dim % PAIR:
            put(dim // PAIR, bits(dim - 1))

    def _upper(self, bits: Expr, width: int) -> Expr:
        """Bits of the second of a pair in its word."""
        return tirx.shift_left(bits, self._k.splat(tirx.const(16, "uint32"), width))

    def _pack_values(self, p: Expr, page: Expr, inner: Expr, there: Expr) -> None:
        """Pack a panel, of which only the first ``there`` keys have been written."""
        k, dim = self._k, self._heads.value_dim

        def pair_of(pair: Index, both: bool) -> None:
            rows = [
                k.let(pair * PAIR + i) if not isinstance(pair, int) else pair * PAIR + i for i in range(2)
            ]
            scales = [self._pool.value_scales(page, self._head, inner, row, 1) for row in rows]
            scales = [None if s is None else k.let(s) for s in scales]

            def bits(i: int, at: int, width: int) -> Expr:
                value = self._pool.value(page, self._head, inner, rows[i], at, width)
                value = value if scales[i] is None else value * k.splat(scales[i], width)
                return bf16_bits(value, width).astype(f"uint32x{width}" if width > 1 else "uint32")

            for at, width in pieces(dim):
                value = bits(0, at, width)
                if both:
                    value = value + self._upper(bits(1, at, width), width)
                value = value.astype(f"int32x{width}" if width > 1 else "int32")
                place = [at // COLUMNS, p * (KEYS // PAIR) + pair, k.ramp(at % COLUMNS, width)]
                k.store(self._values, value, place)

        def whole() -> None:
            with k.serial(KEYS // PAIR) as pair:
                pair_of(pair, True)

        def some() -> None:
            self._no_values(p)
            pairs = k.let(quotient(there, PAIR))
            with k.serial(pairs) as pair:
                pair_of(pair, True)
            with k.when(tirx.EQ(remainder(there, PAIR), 1)):
                pair_of(pairs, False)

        k.branch(there >= KEYS, whole, some)

    def _no_values(self, p: Expr) -> None:
        """Make the values of a panel zero."""
        k = self._k
        with k.serial(KEYS // PAIR) as pair:
            for panel in range(self._value_panels):
                for at in (0, LANES):
                    none = k.splat(int32(0), LANES)
                    k.store(self._values, none, [panel, p * (KEYS // PAIR) + pair, k.ramp(at, LANES)])

    def _tile(self, tile: Expr, begun: Expr, count: Expr) -> None:
        """Products, weights and sums of up to 32 rows and the keys of a block that they see."""
        k = self._k
        row = k.let(tile * _ROWS)
        height = k.let(tirx.min(self._rows - row, int32(_ROWS)))
        key = k.let(begun * KEYS)
        least, most = (k.let(self._length + quotient(r, self._group)) for r in (row, row + height - 1))
        seen = k.let(tirx.min(most - key, count * KEYS))
        visible = seen > 0
        if self._op.window or self._op.chunk:
            visible = tirx.all(visible, key + count * KEYS > self._start(least))
        with k.when(visible):
            panels = k.let(quotient(seen + (COLUMNS - 1), COLUMNS))
            hidden = key + panels * COLUMNS > least
            if self._op.window or self._op.chunk:
                hidden = tirx.any(hidden, key < self._start(most))
            for tiles in (1, 2):
                low, high = (tiles - 1) * TILE_ROWS, tiles * TILE_ROWS
                with k.when(tirx.all(height > low, height <= high)):
                    with k.serial(panels) as panel:
                        at, place = (row, 0), [panel, 0]
                        product = self._product(tiles)
                        multiply(
                            k, product, self._queries, at, self._depth, self._keys, place, self._scores, panel
                        )
            k.branch(
                hidden,
                lambda: self._softmax(row, height, key, panels, True),
                lambda: self._softmax(row, height, key, panels, False),
            )
            for tiles in (1, 2):
                low, high = (tiles - 1) * TILE_ROWS, tiles * TILE_ROWS
                with k.when(tirx.all(height > low, height <= high)):
                    self._add_values(tiles, row, height, panels)

    def _softmax(self, row: Expr, height: Expr, key: Expr, panels: Expr, hides: bool) -> None:
        """Weights of a tile's rows, and the factors of their sums up to here."""
        k, op = self._k, self._op
        with k.serial(height) as r:
            length = k.let(self._length + quotient(row + r, self._group))
            start = self._start(length)
            peak = RowReduction(k, LANES, maximum, _LOWEST)
            with k.serial(panels) as panel:
                for slot in range(COLUMNS // LANES):
                    column = panel * COLUMNS + slot * LANES
                    at = [r, k.ramp(column, LANES)]
                    value = k.load(self._scores, at)
                    if op.softcap:
                        capped = vector_math.tanh(value * k.splat(1.0 / op.softcap, LANES))
                        value = capped * k.splat(op.softcap, LANES)
                    if hides:
                        keys = k.ramp(key + column, LANES)
                        visible = keys < k.splat(length, LANES)
                        if op.window or op.chunk:
                            visible = tirx.And(visible, keys >= k.splat(start, LANES))
                        value = tirx.Select(visible, value, k.splat(_LOWEST, LANES))
                    if op.softcap or hides:
                        value = k.let(value)
                        k.store(self._scores, value, at)
                    peak.take(value, LANES, slot)
            old = k.let(k.load(self._peaks, [row + r]))
            top = k.let(tirx.max(peak.finish(), old))
            total = RowReduction(k, LANES, add, 0.0)
            with k.serial(panels) as panel:
                for slot in range(COLUMNS // LANES):
                    at = [r, k.ramp(panel * COLUMNS + slot * LANES, LANES)]
                    score = k.load(self._scores, at)
                    value = k.let(vector_math.softmax_exp_of_halves(score, k.splat(top, LANES)))
                    k.store(self._weights, bf16_bits(value, LANES), at)
                    total.take(value, LANES, slot)
            factor = k.let(vector_math.softmax_exp(old, top))
            whole = k.load(self._totals, [row + r]) * factor + total.finish()
            k.store(self._totals, whole, [row + r])
            k.store(self._peaks, top, [row + r])
            k.store(self._factors, factor, [r])

    def _add_values(self, tiles: int, row: Expr, height: Expr, panels: Expr) -> None:
        """Add a tile's weighted values to its sums, which grow smaller where the maximum grew."""
        k, words = self._k, panels * (COLUMNS // PAIR)
        with k.serial(self._value_panels) as panel:
            acc = k.scratch((tiles * TILE_ROWS, COLUMNS))
            product, place = self._product(tiles), [panel, 0]
            multiply(k, product, self._weights, (0, 0), words, self._values, place, acc, int32(0))
            with k.serial(height) as r:
                for slot in (0, LANES):
                    at = [row + r, k.ramp(panel * COLUMNS + slot, LANES)]
                    factor = k.splat(k.load(self._factors, [r]), LANES)
                    value = k.load(self._sums, at) * factor + k.load(acc, [r, k.ramp(slot, LANES)])
                    k.store(self._sums, value, at)
