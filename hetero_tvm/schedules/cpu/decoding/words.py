"""Products of few rows with integers of 8 or 4 bits, made floats in registers.

A 32-bit word holds ``32 / bits`` neighbours along K of one column.  A mask leaves one of them where it is,
worth ``q * 2**(bits * j)``, which converts to float32 exactly; x is divided by the same power of two
beforehand, exactly as well.  So a vector of weights costs a mask, a conversion and a multiply-add, on any
vector unit.  The zero of a group is taken off at its end: ``sum x (q - z) = sum x q - z sum x``.
"""

from __future__ import annotations

from collections.abc import Callable

from hetero_tvm.host.tvm import Buffer, Expr, tirx
from hetero_tvm.ops.decoding.contracts import Linear
from hetero_tvm.schedules.cpu.decoding.layout import VECTORS, PanelLayout
from hetero_tvm.schedules.cpu.decoding.symbolic import SymbolicKernel
from hetero_tvm.schedules.emit import Index, int32

FEW = 8
"""Rows from which a panel is made floats once, in L2."""
_SPLITS = 2
"""Accumulators of a column: neighbours in a word go to them in turn."""

Finish = Callable[[Expr, Expr, Callable[[Index, int], Expr]], None]


class WordProduct:
    """Code of one kernel's products with packed integers."""

    def __init__(
        self,
        op: Linear,
        layout: PanelLayout,
        k: SymbolicKernel,
        x: Buffer,
        weight: list[Buffer],
        finish: Finish,
    ):
        self._op, self._layout, self._k, self._x, self._finish = op, layout, k, x, finish
        self._w, self._s, *rest = weight
        self._z = rest[0] if rest else None
        self._bits, self._per, self._group = op.storage.bits, layout.per_word, op.storage.group
        self._lanes = layout.lanes

    def emit(self, rows: Expr, many: Callable[[], None]) -> None:
        """Few rows here, many rows by ``many``."""
        k = self._k

        def few() -> None:
            scaled, sums = self._prepared(rows)
            k.branch(
                tirx.EQ(rows, 1),
                lambda: self._one(scaled, sums),
                lambda: self._some(rows, scaled, sums),
            )

        k.branch(rows < FEW, few, many)

    def dequantize(self, panel: Expr, copy: Buffer, lanes: int) -> None:
        """The panel as float32 in ``copy`` [k, width]."""
        k, group = self._k, self._group
        words = group // self._per
        with k.serial(self._layout.groups) as g:
            scales = [k.let(self._scale(panel, g, v)) for v in range(VECTORS)]
            zeros = [k.let(self._zero(panel, g, v)) for v in range(VECTORS)]
            with k.serial(words) as w:
                for v in range(VECTORS):
                    word = k.let(k.load(self._w, [panel, g * words + w, k.ramp(v * lanes, lanes)]))
                    for j in range(self._per):
                        q = self._value(word, j) * k.splat(2.0 ** -(self._bits * self._shift(j)), lanes)
                        at = [g * group + w * self._per + j, k.ramp(v * lanes, lanes)]
                        k.store(copy, (q - zeros[v]) * scales[v], at)

    def _prepared(self, rows: Expr) -> tuple[Buffer, Buffer]:
        """x over the powers of two of its place in a word [rows, K]; sums of x by group [rows, groups]."""
        k, depth, group = self._k, self._op.k, self._group
        groups = self._layout.groups
        wide = max(self._lanes, self._per)
        scaled, sums = k.scratch((FEW, groups * group)), k.scratch((FEW, groups))
        place = tirx.bitwise_and(k.ramp(0, wide), k.splat(int32(self._per - 1), wide))
        last = tirx.EQ(place, k.splat(int32(self._per - 1), wide))
        place = tirx.Select(last, k.splat(int32(0), wide), place)
        power = tirx.shift_left(
            k.splat(int32(127), wide) - place * k.splat(int32(self._bits), wide), k.splat(int32(23), wide)
        )
        factor = k.let(tirx.reinterpret(f"float32x{wide}", power))
        whole = depth // group * group
        with k.serial(rows) as r:
            with k.serial(depth // group) as g:
                total = k.splat(0.0, wide)
                for c in range(0, group, wide):
                    at = k.ramp(g * group + c, wide)
                    value = k.let(k.load(self._x, [r, at]))
                    k.store(scaled, value * factor, [r, at])
                    total = total + value
                k.store(sums, self._folded(total, wide), [r, g])
            if whole < depth:
                part = k.scratch((group,))
                for c in range(0, group, wide):
                    k.store(part, k.splat(0.0, wide), [k.ramp(c, wide)])
                with k.serial(depth - whole) as j:
                    k.store(part, k.load(self._x, [r, whole + j]), [j])
                total = k.splat(0.0, wide)
                for c in range(0, group, wide):
                    value = k.let(k.load(part, [k.ramp(c, wide)]))
                    k.store(scaled, value * factor, [r, k.ramp(whole + c, wide)])
                    total = total + value
                k.store(sums, self._folded(total, wide), [r, groups - 1])
        return scaled, sums

    def _folded(self, vector: Expr, width: int) -> Expr:
        """Sum of the lanes of a vector."""
        k = self._k
        lanes = k.scratch((width,))
        k.store(lanes, vector, [k.ramp(0, width)])
        while width > 1:
            width //= 2
            low, high = k.load(lanes, [k.ramp(0, width)]), k.load(lanes, [k.ramp(width, width)])
            k.store(lanes, low + high, [k.ramp(0, width)])
        return k.load(lanes, [0])

    def _one(self, scaled: Buffer, sums: Buffer) -> None:
        layout, k = self._layout, self._k
        with k.shared_out(layout.panels // layout.together) as group:
            self._tile([int32(0)], group * layout.together, layout.together, scaled, sums)

    def _some(self, rows: Expr, scaled: Buffer, sums: Buffer) -> None:
        """Rows in pairs, so that a weight becomes a float once for two of them."""
        k = self._k
        pairs = k.let(tirx.truncdiv(rows, int32(2)))
        with k.shared_out(-(-self._op.n // self._layout.columns)) as panel:
            with k.serial(pairs) as pair:
                self._tile([pair * 2, pair * 2 + 1], panel, 1, scaled, sums)
            with k.when(pairs * 2 < rows):
                self._tile([rows - 1], panel, 1, scaled, sums)

    def _tile(self, rows: list[Expr], first: Expr, panels: int, scaled: Buffer, sums: Buffer) -> None:
        k, lanes, per, group = self._k, self._lanes, self._per, self._group
        words = group // per
        vectors = [(i, v) for i in range(panels) for v in range(VECTORS)]
        slots = [(r, i, v) for r in range(len(rows)) for i, v in vectors]
        total = k.scratch((len(slots), lanes))
        lane = k.ramp(0, lanes)
        for slot in range(len(slots)):
            k.store(total, k.splat(0.0, lanes), [slot, lane])
        with k.serial(self._layout.groups) as g:
            acc = k.scratch((_SPLITS, len(slots), lanes))
            for split in range(_SPLITS):
                for slot in range(len(slots)):
                    k.store(acc, k.splat(0.0, lanes), [split, slot, lane])
            with k.serial(words) as w:
                at = g * words + w
                word = [k.let(k.load(self._w, [first + i, at, k.ramp(v * lanes, lanes)])) for i, v in vectors]
                for j in range(per):
                    xs = [k.let(k.splat(k.load(scaled, [row, at * per + j]), lanes)) for row in rows]
                    for number in range(len(vectors)):
                        value = k.let(self._value(word[number], j)) if len(rows) > 1 else None
                        for r in range(len(rows)):
                            weight = self._value(word[number], j) if value is None else value
                            place = [j % _SPLITS, r * len(vectors) + number, lane]
                            k.store(acc, k.load(acc, place) + xs[r] * weight, place)
            for slot, (r, i, v) in enumerate(slots):
                summed = k.load(acc, [0, slot, lane])
                for split in range(1, _SPLITS):
                    summed = summed + k.load(acc, [split, slot, lane])
                moved = self._zero(first + i, g, v) * k.splat(k.load(sums, [rows[r], g]), lanes)
                part = (summed - moved) * self._scale(first + i, g, v)
                k.store(total, k.load(total, [slot, lane]) + part, [slot, lane])
        for r, row in enumerate(rows):
            for i in range(panels):

                def value_at(start: Index, width: int, r: int = r, i: int = i) -> Expr:
                    slot = r * len(vectors) + i * VECTORS + int(start) // lanes
                    return k.load(total, [slot, k.ramp(int(start) % lanes, width)])

                self._finish(row, first + i, value_at)

    def _shift(self, j: int) -> int:
        """Place in the word at which integer ``j`` is converted; the last is moved down, off the sign."""
        return 0 if j == self._per - 1 else j

    def _value(self, word: Expr, j: int) -> Expr:
        """Integer ``j`` of a word, times ``2**(bits * _shift(j))``, as float32."""
        lanes, k = self._lanes, self._k
        if j == self._per - 1:
            bits = tirx.reinterpret(f"uint32x{lanes}", word)
            down = tirx.const(32 - self._bits, "uint32")
            moved = tirx.shift_right(bits, k.splat(down, lanes))
            return tirx.Cast(f"float32x{lanes}", tirx.reinterpret(f"int32x{lanes}", moved))
        mask = ((1 << self._bits) - 1) << (self._bits * j)
        return tirx.Cast(f"float32x{lanes}", tirx.bitwise_and(word, k.splat(int32(mask), lanes)))

    def _scale(self, panel: Expr, group: Expr, vector: int) -> Expr:
        lanes = self._lanes
        at = [panel, group, self._k.ramp(vector * lanes, lanes)]
        return tirx.Cast(f"float32x{lanes}", self._k.load(self._s, at))

    def _zero(self, panel: Expr, group: Expr, vector: int) -> Expr:
        lanes = self._lanes
        if self._z is None:
            return self._k.splat(float(self._op.storage.middle), lanes)
        value = self._k.load(self._z, [panel, group, self._k.ramp(vector * lanes, lanes)])
        return tirx.Cast(f"float32x{lanes}", tirx.Cast(f"int32x{lanes}", value))
