"""Products with packed integers, by the integer instructions of AVX2 and AVX-512.

Rows of x are rounded to integers, with a scale per row and group of weights: 8 bits beside weights of 4
(these have 16 levels), and 16 bits beside weights of 8, whose own rounding is 100 times as coarse; 8 where
they are asked for (VNNI).

=====  =====  ===================================  =======================================================
bits   x      per vector of words                  sums
=====  =====  ===================================  =======================================================
4      8      2 masks, a shift, 2 vpmaddubsw       in 16 bits for 32 neighbours (8 * 2 * 15 * 127 < 2**15)
4      8      2 masks, a shift, 2 vpdpbusd         in 32 bits for a whole group (VNNI)
8      16     a mask, a shift, 2 vpmaddwd          in 32 bits for a whole group (2 * 128 * 255 * 2**15 <
                                                   2**31)
8      8      vpdpbusd                             in 32 bits for a whole group (VNNI)
=====  =====  ===================================  =======================================================

That is 7 and 6 instructions where :mod:`.words` has 24 and 12: the memory is the bound again.  Several rows
make register tiles, which take a weight out of its word once for all of their rows: 2 to 4 times as fast as
float32.  Sums begin at what the zero of the weights takes off, and are exact: a row has the same bits alone
and among others.
"""

from __future__ import annotations

from collections.abc import Callable

from hetero_tvm.host.tvm import Buffer, Expr, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.cpu.decoding.layout import VECTORS
from hetero_tvm.schedules.cpu.decoding.parts import Parts
from hetero_tvm.schedules.cpu.decoding.symbolic import Block, Tile, each_row, each_tile
from hetero_tvm.schedules.cpu.decoding.words import WordProduct
from hetero_tvm.schedules.cpu.dots import Dot, dot_for
from hetero_tvm.schedules.emit import Index, constant, int32

_SAFE = 32
"""Neighbours whose products of 4 and 8 bits can be summed up in 16 bits."""
_INTRINSICS = {
    8: ("llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd"),
    16: ("llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512"),
}
"""Lanes -> vpmaddubsw and vpmaddwd."""


def rounds_to_bytes(machine: CpuModel) -> bool:
    """Whether a machine multiplies weights of 8 bits with rows of 8 bits, and sums are exact."""
    return has_integer_words(machine) and dot_for(machine).name == "dot4"


def has_integer_words(machine: CpuModel) -> bool:
    """Whether a machine has the instructions."""
    return (
        "avx512bw" if machine.lanes == 16 else "avx2"
    ) in machine.features and machine.lanes in _INTRINSICS


class IntegerWordProduct(WordProduct):
    """Code of one kernel's products with packed integers, x rounded to integers as well."""

    def __init__(self, p: Parts):
        super().__init__(p)
        self._machine = p.machine
        self._x_bits = (p.x_bits or 16) if self._bits == 8 else 8
        """Bits of x's integers."""
        fits = self._x_bits == 8 and rounds_to_bytes(p.machine)
        self._dot: Dot | None = dot_for(p.machine) if fits else None
        """Sums of products of bytes in 32 bits, where the machine has them."""
        self._height = 4 if p.machine.registers >= 32 else 3
        """Rows of a register tile."""

    @property
    def imports(self) -> tuple[str, ...]:
        """LLVM IR that the code calls (:meth:`Kernel.imported`)."""
        return () if self._dot is None else self._dot.imports

    def emit_rows(self, rows: Expr) -> None:
        """Any number of rows, known at run time."""

        def one() -> None:
            self._prepare(int32(1), 1)
            self._one()

        def several() -> None:
            self._prepare(rows, rows)

            def panel_code(block: Block) -> Tile:
                return lambda first, height, _: self._tile([first + r for r in range(height)], block.panel, 1)

            panels = -(-self._op.n // self._layout.columns)
            each_tile(self._k, rows, self._height, panels, self._machine, panel_code, halve=True)

        self._k.branch(tirx.EQ(rows, 1), one, several)

    def emit_few(self, rows: int) -> None:
        self._prepare(int32(rows), rows)
        if rows == 1:
            self._one()
            return
        with self._k.shared_out(-(-self._op.n // self._layout.columns)) as panel:
            for first in range(0, rows, self._height):
                some = range(first, min(first + self._height, rows))
                self._tile([int32(row) for row in some], panel, 1)

    # x -----------------------------------------------------------------------------------------
    def _prepare(self, rows: Expr, room: Index) -> None:
        """Integers of x [room, K], their scales, and minus their sums [room, groups]; times the zero of
        weights that all have the same."""
        k, groups, wide = self._k, self._layout.groups, self._vector
        dtype = f"int{self._x_bits}"
        self._integers = k.scratch((room, groups * self._group), dtype)
        self._steps = k.scratch((room, groups))
        self._starts = k.scratch((room, groups), "int32")

        def keep(r: Expr, g: Expr, c: int, integers: Expr) -> None:
            at = [r, k.ramp(g * self._group + c, wide)]
            if self._bits == self._x_bits:
                integers = self._byte_order(integers)
            k.store(self._integers, tirx.Cast(f"{dtype}x{wide}", integers), at)

        each_row(k, rows, self._machine, lambda r: self._round(r, keep))

    def _byte_order(self, integers: Expr) -> Expr:
        """Neighbours of x as words of 8 bits have them: the first two of four in the even bytes."""
        order = [int32(at - at % 4 + (0, 2, 1, 3)[at % 4]) for at in range(self._vector)]
        return self._k.let(tirx.Shuffle([integers], order))

    def _round(self, r: Expr, keep: Callable[[Expr, Expr, int, Expr], None]) -> None:
        """Integers of a row of x, ``keep(row, group, place, vector of int32)``; its scales and sums."""
        k, wide = self._k, self._vector
        limit = float((1 << (self._x_bits - 1)) - 1)
        zero_point = 1 if self._z is not None else self._op.storage.middle

        def one_group(r: Expr, g: Expr, source: Callable[[int], Expr]) -> None:
            zero = k.splat(0.0, wide)
            peak = zero
            for c in range(0, self._group, wide):
                value = source(c)
                peak = tirx.max(peak, tirx.max(value, zero - value))
            most = k.let(self._folded(peak, tirx.max))
            # A group of zeros has no scale; what is not finite gives sums that are not.
            inverse = k.let(tirx.Select(most > 0.0, constant(limit) / most, constant(0.0)))
            total = zero
            for c in range(0, self._group, wide):
                rounded = k.let(tirx.floor(source(c) * k.splat(inverse, wide) + k.splat(0.5, wide)))
                keep(r, g, c, tirx.Cast(f"int32x{wide}", rounded))
                total = total + rounded
            summed = k.let(self._folded(total, lambda a, b: a + b))
            k.store(self._starts, tirx.Cast("int32", summed * constant(-float(zero_point))), [r, g])
            step = tirx.Select(tirx.isnan(summed), summed, most * constant(1.0 / limit))
            k.store(self._steps, step, [r, g])

        self._row_groups(r, one_group)

    # products ----------------------------------------------------------------------------------
    def _tile(self, rows: list[Expr], first: Expr, panels: int) -> None:
        k, lanes = self._k, self._lanes
        vectors = [(i, v) for i in range(panels) for v in range(VECTORS)]
        slots = [(row, i, v) for row in rows for i, v in vectors]
        total = k.scratch((len(slots), lanes))
        lane = k.ramp(0, lanes)
        for slot in range(len(slots)):
            k.store(total, k.splat(0.0, lanes), [slot, lane])
        with k.serial(self._layout.groups) as g:
            acc = k.scratch((len(slots), lanes), "int32")
            for slot, (row, i, v) in enumerate(slots):
                start = k.splat(k.load(self._starts, [row, g]), lanes)
                if self._z is not None:
                    start = start * self._zero_integers(first + i, g, v)
                k.store(acc, start, [slot, lane])
            if self._bits == 8 and self._dot is not None:
                self._bytes_at_once(rows, first, vectors, g, acc)
            elif self._bits == 8:
                self._bytes(rows, first, vectors, g, acc)
            elif self._dot is not None:
                self._nibbles_at_once(rows, first, vectors, g, acc)
            else:
                for part in range(self._group // _SAFE):
                    self._nibbles(rows, first, vectors, g, part, acc)
            for slot, (row, i, v) in enumerate(slots):
                value = tirx.Cast(f"float32x{lanes}", k.load(acc, [slot, lane]))
                value = value * k.splat(k.load(self._steps, [row, g]), lanes) * self.scale(first + i, g, v)
                k.store(total, k.load(total, [slot, lane]) + value, [slot, lane])
        self._finish_tile(rows, first, vectors, total)

    def _zero_integers(self, panel: Expr, group: Expr, vector: int) -> Expr:
        at = [panel, group, self._k.ramp(vector * self._lanes, self._lanes)]
        return tirx.Cast(f"int32x{self._lanes}", self._k.load(self._z, at))

    def _nibbles_at_once(self, rows: list[Expr], first: Expr, vectors: list, g: Expr, acc: Buffer) -> None:
        """A group of 4-bit neighbours, summed up in 32 bits."""
        k, lanes, count, per = self._k, self._lanes, len(vectors), self._per
        lane = k.ramp(0, lanes)
        mask = k.splat(int32(0x0F0F0F0F), lanes)
        for w in range(self._group // per):
            word = [
                self._word(first + i, g * (self._group // per) + w, v, count // VECTORS) for i, v in vectors
            ]
            for half in range(2):
                xs = [
                    k.splat(self._x_word(row, g * self._group + w * per + half * 4, 4), lanes) for row in rows
                ]
                for number in range(count):
                    q = tirx.shift_right(word[number], k.splat(int32(4), lanes)) if half else word[number]
                    q = k.let(tirx.bitwise_and(q, mask))
                    for r in range(len(rows)):
                        place = [r * count + number, lane]
                        k.store(acc, self._dot.add(k.load(acc, place), lanes, q, xs[r]), place)

    def _nibbles(self, rows: list[Expr], first: Expr, vectors: list, g: Expr, part: int, acc: Buffer) -> None:
        """32 neighbours of 4 bits: summed up in 16 bits, then added to ``acc``."""
        k, lanes, count = self._k, self._lanes, len(vectors)
        lane, wide = k.ramp(0, lanes), k.ramp(0, 2 * lanes)
        short = k.scratch((len(rows) * count, 2 * lanes), "int16")
        zero = k.splat(tirx.const(0, "int16"), 2 * lanes)
        for slot in range(len(rows) * count):
            k.store(short, zero, [slot, wide])
        mask = k.splat(int32(0x0F0F0F0F), lanes)
        for w in range(_SAFE // self._per):
            number_of_word = g * (self._group // self._per) + part * _SAFE // self._per + w
            word = [self._word(first + i, number_of_word, v, count // VECTORS) for i, v in vectors]
            at = g * self._group + part * _SAFE + w * self._per
            for half in range(2):
                xs = [self._x_words(row, at + half * 4, 4) for row in rows]
                for number in range(count):
                    q = word[number]
                    if half:
                        q = tirx.shift_right(q, k.splat(int32(4), lanes))
                    q = tirx.reinterpret(f"uint8x{4 * lanes}", tirx.bitwise_and(q, mask))
                    q = k.let(q) if len(rows) > 1 else q
                    for r in range(len(rows)):
                        place = [r * count + number, wide]
                        k.store(short, k.load(short, place) + self._multiply_bytes(q, xs[r]), place)
        ones = k.splat(tirx.const(1, "int16"), 2 * lanes)
        for slot in range(len(rows) * count):
            pairs = self._multiply_shorts(k.load(short, [slot, wide]), ones)
            k.store(acc, k.load(acc, [slot, lane]) + pairs, [slot, lane])

    def _bytes(self, rows: list[Expr], first: Expr, vectors: list, g: Expr, acc: Buffer) -> None:
        """A group of 8-bit neighbours."""
        k, lanes, count, per = self._k, self._lanes, len(vectors), self._per
        lane, words = k.ramp(0, lanes), self._group // per
        with k.serial(words // 4) as outer, k.unroll(4) as inner:
            at = g * words + outer * 4 + inner
            word = [self._word(first + i, at, v, count // VECTORS) for i, v in vectors]
            for half in range(2):
                xs = [self._x_words(row, at * per + half * 2, 2) for row in rows]
                for number in range(count):
                    q = self._shorts(word[number], half)
                    q = k.let(q) if len(rows) > 1 else q
                    for r in range(len(rows)):
                        place = [r * count + number, lane]
                        k.store(acc, k.load(acc, place) + self._multiply_shorts(q, xs[r]), place)

    def _bytes_at_once(self, rows: list[Expr], first: Expr, vectors: list, g: Expr, acc: Buffer) -> None:
        """A group of 8-bit neighbours beside bytes of x."""
        k, lanes, count, words = self._k, self._lanes, len(vectors), self._group // self._per
        lane = k.ramp(0, lanes)
        with k.serial(words // 4) as outer, k.unroll(4) as inner:
            at = g * words + outer * 4 + inner
            word = [self._word(first + i, at, v, count // VECTORS) for i, v in vectors]
            xs = [k.let(k.splat(self._x_word(row, at * self._per, 4), lanes)) for row in rows]
            for number in range(count):
                for r in range(len(rows)):
                    place = [r * count + number, lane]
                    k.store(acc, self._dot.add(k.load(acc, place), lanes, word[number], xs[r]), place)

    def _shorts(self, word: Expr, half: int) -> Expr:
        """The lower or upper bytes of 16-bit halves, as 16 bits."""
        k, lanes = self._k, self._lanes
        if not half:
            low = tirx.bitwise_and(word, k.splat(int32(0x00FF00FF), lanes))
            return tirx.reinterpret(f"int16x{2 * lanes}", low)
        high = tirx.reinterpret(f"uint16x{2 * lanes}", word)
        high = tirx.shift_right(high, k.splat(tirx.const(8, "uint16"), 2 * lanes))
        return tirx.reinterpret(f"int16x{2 * lanes}", high)

    def _x_word(self, row: Expr, at: Expr, count: int) -> Expr:
        """Neighbouring integers of x, which make one word."""
        return tirx.reinterpret("int32", self._k.load(self._integers, [row, self._k.ramp(at, count)]))

    def _x_words(self, row: Expr, at: Expr, count: int) -> Expr:
        """The word of neighbouring integers of x in every lane."""
        k, lanes = self._k, self._lanes
        word = self._x_word(row, at, count)
        dtype = f"int8x{4 * lanes}" if count == 4 else f"int16x{2 * lanes}"
        return k.let(tirx.reinterpret(dtype, k.splat(word, lanes)))

    def _multiply_bytes(self, unsigned: Expr, signed: Expr) -> Expr:
        name = _INTRINSICS[self._lanes][0]
        return tirx.call_llvm_pure_intrin(f"int16x{2 * self._lanes}", name, unsigned, signed)

    def _multiply_shorts(self, a: Expr, b: Expr) -> Expr:
        return tirx.call_llvm_pure_intrin(f"int32x{self._lanes}", _INTRINSICS[self._lanes][1], a, b)
