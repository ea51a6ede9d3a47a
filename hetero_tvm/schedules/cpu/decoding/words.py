"""Products of few rows with integers of 8 or 4 bits, made floats in registers.

A 32-bit word holds ``32 / bits`` neighbours along K of one column.  A mask leaves one of them where it is,
worth ``q * 2**bit``, which converts to float32 exactly; x is divided by the same power beforehand.  So a
vector of weights costs a mask, a conversion and a multiply-add, on any vector unit.  The zero of a group is
taken off at its end: ``sum x (q - z) = sum x q - z sum x``.
"""

from __future__ import annotations

from collections.abc import Callable

from hetero_tvm.host.tvm import Buffer, Expr, tirx
from hetero_tvm.schedules.cpu.decoding.layout import VECTORS
from hetero_tvm.schedules.cpu.decoding.parts import Parts
from hetero_tvm.schedules.cpu.decoding.symbolic import fetch_ahead
from hetero_tvm.schedules.emit import LINE_FLOATS, Index, int32

FEW = 8
"""Rows from which a panel is made floats once, in L2."""
_SPLITS = 2
"""Accumulators of a column: neighbours in a word go to them in turn."""


class WordProduct:
    """Code of one kernel's products with packed integers."""

    def __init__(self, p: Parts):
        self._op, self._layout, self._k, self._x, self._finish = p.op, p.layout, p.k, p.x, p.finish
        self._w, self._s, *rest = p.weight
        self._z = rest[0] if rest else None
        self._bits, self._per, self._group = p.op.storage.bits, p.layout.per_word, p.op.storage.group
        self._lanes = p.lanes
        self._vector = max(p.lanes, self._per)
        """Values of x in one vector of the preparation."""

    def emit_few(self, rows: int) -> None:
        """``rows`` rows, fewer than :data:`FEW`."""
        self._prepare(int32(rows))
        if rows == 1:
            self._one()
        else:
            self._some(int32(rows))

    def emit(self, rows: Expr, many: Callable[[], None]) -> None:
        """Few rows here, many rows by ``many``."""
        k = self._k

        def few() -> None:
            self._prepare(rows)
            k.branch(tirx.EQ(rows, 1), self._one, lambda: self._some(rows))

        k.branch(rows < FEW, few, many)

    def dequantize(self, panel: Expr, copy: Buffer) -> None:
        """The panel as float32 in ``copy`` [k, width]."""
        k, group, lanes = self._k, self._group, self._lanes
        words = group // self._per
        with k.serial(self._layout.groups) as g:
            scales = [k.let(self.scale(panel, g, v)) for v in range(VECTORS)]
            zeros = [k.let(self._zero(panel, g, v)) for v in range(VECTORS)]
            with k.serial(words) as w:
                for v in range(VECTORS):
                    word = k.let(k.load(self._w, [panel, g * words + w, k.ramp(v * lanes, lanes)]))
                    for j in range(self._per):
                        q = self._value(word, j) * k.splat(2.0 ** -self._kept_bit(j), lanes)
                        at = [g * group + w * self._per + j, k.ramp(v * lanes, lanes)]
                        k.store(copy, (q - zeros[v]) * scales[v], at)

    def each_value(self, panel: Expr, g: Expr, body: Callable[[Expr, int, int, Expr], None]) -> None:
        """``body(place along K, number in its word, vector, q - zero)`` over a group of a panel."""
        k, lanes, words = self._k, self._lanes, self._group // self._per
        zeros = [k.let(self._zero(panel, g, v)) for v in range(VECTORS)]
        with k.serial(words) as w:
            word = [self._word(panel, g * words + w, v, 1) for v in range(VECTORS)]
            for j in range(self._per):
                for v in range(VECTORS):
                    q = self._value(word[v], j) * k.splat(2.0 ** -self._kept_bit(j), lanes)
                    body((g * words + w) * self._per + j, j, v, q - zeros[v])

    # x -----------------------------------------------------------------------------------------
    def _prepare(self, rows: Expr) -> None:
        """x over the powers of two of its places in a word [rows, K]; sums of x by group [rows, groups]."""
        k, groups, wide = self._k, self._layout.groups, self._vector
        self._scaled = k.scratch((FEW, groups * self._group))
        self._sums = k.scratch((FEW, groups))
        place = tirx.bitwise_and(k.ramp(0, wide), k.splat(int32(self._per - 1), wide))
        half = k.splat(int32(self._per // 2), wide)
        upper = tirx.Cast(f"int32x{wide}", place >= half)
        bit = ((place - upper * half) * k.splat(int32(2), wide) + upper) * k.splat(int32(self._bits), wide)
        last = tirx.EQ(place, k.splat(int32(self._per - 1), wide))
        bit = tirx.Select(last, k.splat(int32(0), wide), bit)
        exponent = tirx.shift_left(k.splat(int32(127), wide) - bit, k.splat(int32(23), wide))
        factor = k.let(tirx.reinterpret(f"float32x{wide}", exponent))

        def one_group(r: Expr, g: Expr, source: Callable[[int], Expr]) -> None:
            total = k.splat(0.0, wide)
            for c in range(0, self._group, wide):
                value = k.let(source(c))
                k.store(self._scaled, value * factor, [r, k.ramp(g * self._group + c, wide)])
                total = total + value
            k.store(self._sums, self._folded(total, lambda a, b: a + b), [r, g])

        with k.serial(rows) as r:
            self._row_groups(r, one_group)

    def _row_groups(self, r: Expr, body: Callable[[Expr, Expr, Callable[[int], Expr]], None]) -> None:
        """``body(r, group, source)``; ``source(c)`` is a vector of row r of x, zeros behind the end of K."""
        k, depth, group, wide = self._k, self._op.k, self._group, self._vector
        whole = depth // group
        with k.serial(whole) as g:
            body(r, g, lambda c: k.load(self._x, [r, k.ramp(g * group + c, wide)]))
        if whole * group < depth:
            part = k.scratch((group,))
            for c in range(0, group, wide):
                k.store(part, k.splat(0.0, wide), [k.ramp(c, wide)])
            with k.serial(depth - whole * group) as j:
                k.store(part, k.load(self._x, [r, whole * group + j]), [j])
            body(r, int32(whole), lambda c: k.load(part, [k.ramp(c, wide)]))

    def _folded(self, vector: Expr, combine: Callable[[Expr, Expr], Expr]) -> Expr:
        """A vector of x reduced to one number."""
        k, width = self._k, self._vector
        lanes = k.scratch((width,))
        k.store(lanes, vector, [k.ramp(0, width)])
        while width > 1:
            width //= 2
            low, high = k.load(lanes, [k.ramp(0, width)]), k.load(lanes, [k.ramp(width, width)])
            k.store(lanes, combine(low, high), [k.ramp(0, width)])
        return k.load(lanes, [0])

    # products ----------------------------------------------------------------------------------
    def _one(self) -> None:
        layout, k = self._layout, self._k
        with k.shared_out(layout.panels // layout.together) as group:
            self._tile([int32(0)], group * layout.together, layout.together)

    def _some(self, rows: Expr) -> None:
        """Rows in pairs, so that a weight is taken out of its word once for two of them."""
        k = self._k
        pairs = k.let(tirx.truncdiv(rows, int32(2)))
        with k.shared_out(-(-self._op.n // self._layout.columns)) as panel:
            with k.serial(pairs) as pair:
                self._tile([pair * 2, pair * 2 + 1], panel, 1)
            with k.when(pairs * 2 < rows):
                self._tile([rows - 1], panel, 1)

    def _tile(self, rows: list[Expr], first: Expr, panels: int) -> None:
        """Some rows times some panels; every vector of sums is a slot, row by row."""
        k, lanes = self._k, self._lanes
        vectors = [(i, v) for i in range(panels) for v in range(VECTORS)]
        slots = [(row, i, v) for row in rows for i, v in vectors]
        total = k.scratch((len(slots), lanes))
        lane = k.ramp(0, lanes)
        for slot in range(len(slots)):
            k.store(total, k.splat(0.0, lanes), [slot, lane])
        with k.serial(self._layout.groups) as g:
            sums = self._group_sums(rows, first, vectors, g)
            for slot, (row, i, v) in enumerate(slots):
                moved = self._zero(first + i, g, v) * k.splat(k.load(self._sums, [row, g]), lanes)
                part = (sums(slot, row) - moved) * self.scale(first + i, g, v)
                k.store(total, k.load(total, [slot, lane]) + part, [slot, lane])
        self._finish_tile(rows, first, vectors, total)

    def _finish_tile(
        self, rows: list[Expr], first: Expr, vectors: list[tuple[int, int]], total: Buffer
    ) -> None:
        """Hand over the results of a tile."""
        k, lanes = self._k, self._lanes
        for r, row in enumerate(rows):
            for i in range(len(vectors) // VECTORS):

                def value_at(start: Index, width: int, r: int = r, i: int = i) -> Expr:
                    slot = r * len(vectors) + i * VECTORS + int(start) // lanes
                    return k.load(total, [slot, k.ramp(int(start) % lanes, width)])

                self._finish(row, first + i, value_at)

    def _group_sums(
        self, rows: list[Expr], first: Expr, vectors: list[tuple[int, int]], g: Expr
    ) -> Callable[[int, Expr], Expr]:
        """Products of one group; gives (slot, row) -> the sums of ``x q``."""
        k, lanes, per = self._k, self._lanes, self._per
        words, lane, count = self._group // per, k.ramp(0, lanes), len(vectors)
        acc = k.scratch((_SPLITS, len(rows) * count, lanes))
        for split in range(_SPLITS):
            for slot in range(len(rows) * count):
                k.store(acc, k.splat(0.0, lanes), [split, slot, lane])
        with k.serial(words) as w:
            word = [self._word(first + i, g * words + w, v, count // VECTORS) for i, v in vectors]
            for j in range(per):
                at = (g * words + w) * per + j
                xs = [k.let(k.splat(k.load(self._scaled, [row, at]), lanes)) for row in rows]
                for number in range(count):
                    weight = self._value(word[number], j)
                    weight = k.let(weight) if len(rows) > 1 else weight
                    for r in range(len(rows)):
                        place = [j % _SPLITS, r * count + number, lane]
                        k.store(acc, k.load(acc, place) + xs[r] * weight, place)

        def sums(slot: int, _row: Expr) -> Expr:
            value = k.load(acc, [0, slot, lane])
            for split in range(1, _SPLITS):
                value = value + k.load(acc, [split, slot, lane])
            return value

        return sums

    # weights -----------------------------------------------------------------------------------
    def _word(self, panel: Expr, at: Expr, vector: int, abreast: int) -> Expr:
        """Words of a vector; ``abreast`` panels are read at once."""
        ahead = self._layout.ahead
        if ahead and vector * self._lanes % LINE_FLOATS == 0:
            fetch_ahead(self._k, self._w, panel, at, ahead, abreast, vector * self._lanes)
        place = [panel, at, self._k.ramp(vector * self._lanes, self._lanes)]
        return self._k.let(self._k.load(self._w, place))

    def _kept_bit(self, j: int) -> int:
        """Bit at which neighbour ``j`` is converted; the highest one is moved down, off the sign."""
        return 0 if j == self._per - 1 else self._layout.bit_of(j)

    def _value(self, word: Expr, j: int) -> Expr:
        """Neighbour ``j`` of a word, times ``2**_kept_bit(j)``, as float32."""
        lanes, k = self._lanes, self._k
        if j == self._per - 1:
            bits = tirx.reinterpret(f"uint32x{lanes}", word)
            down = tirx.const(32 - self._bits, "uint32")
            moved = tirx.shift_right(bits, k.splat(down, lanes))
            return tirx.Cast(f"float32x{lanes}", tirx.reinterpret(f"int32x{lanes}", moved))
        mask = ((1 << self._bits) - 1) << self._layout.bit_of(j)
        return tirx.Cast(f"float32x{lanes}", tirx.bitwise_and(word, k.splat(int32(mask), lanes)))

    def scale(self, panel: Expr, group: Expr, vector: int) -> Expr:
        """Scales of a group in a vector of columns."""
        lanes = self._lanes
        at = [panel, group, self._k.ramp(vector * lanes, lanes)]
        return tirx.Cast(f"float32x{lanes}", self._k.load(self._s, at))

    def _zero(self, panel: Expr, group: Expr, vector: int) -> Expr:
        lanes = self._lanes
        if self._z is None:
            return self._k.splat(float(self._op.storage.middle), lanes)
        value = self._k.load(self._z, [panel, group, self._k.ramp(vector * lanes, lanes)])
        return tirx.Cast(f"float32x{lanes}", tirx.Cast(f"int32x{lanes}", value))
