"""Products of many rows with packed integers, by the matrix unit of a CPU (AMX).

::

    x in few bits, once: [groups, tiles of rows, planes, steps, 16 rows, bytes of a step]
    for block of rows, panel:                   shared among the threads
        for group along K:
            4 bits: the group's integers less their zeros, as bytes
            for tile of rows:                   the group's weights stay in L1, x comes from L2
                sums of the group in tile registers -> memory on the stack, 4 KiB in L1
                totals += sums * scales of x * scales of the weights

====  ==================================  =================================================
bits  planes of x                         products
====  ==================================  =================================================
4     16 rows each, int8                  int8 by int8, two tiles of rows at once
8     upper and lower bytes of int16      int8 by uint8 and uint8 by uint8, one tile of rows
8     16 rows each, int8, if asked for    int8 by uint8, two tiles of rows at once
====  ==================================  =================================================

A product of tiles does 16 times what a vector instruction does; what is left is the way of its sums through
memory, once per group.  They are the integers of :mod:`.integer_words`, and scaled in the same order: a row
has the same bits alone and among others.
"""

from __future__ import annotations

from hetero_tvm.codegen.amx import END, S8S8, S8U8, TILE_ROWS, TILE_WORDS, U8U8, GroupProduct, begin
from hetero_tvm.host.tvm import Buffer, Expr, tirx
from hetero_tvm.schedules.cpu import next_panel
from hetero_tvm.schedules.cpu.decoding.integer_words import IntegerWordProduct
from hetero_tvm.schedules.cpu.decoding.layout import VECTORS
from hetero_tvm.schedules.cpu.decoding.parts import Parts
from hetero_tvm.schedules.cpu.decoding.symbolic import (
    BLOCK_ROWS,
    Block,
    each_row,
    quotient,
    remainder,
    shared_blocks,
)
from hetero_tvm.schedules.emit import LINE_FLOATS, Index, int32

_INSTRUCTIONS = {(4, 8): (S8S8, S8S8), (8, 16): (S8U8, U8U8), (8, 8): (S8U8, S8U8)}
"""Bits of weights and of x -> instruction of each plane of x that is multiplied at once."""
_ENOUGH = {(4, 8): 16, (8, 16): 6, (8, 8): 16}
"""Bits of both -> rows from which tiles are faster, although they multiply rows that are not there."""
_WORD = 4


def integer_product(p: Parts) -> IntegerWordProduct:
    """Code of products with packed integers, by the instructions that the machine has."""
    return MatrixWordProduct(p) if p.machine.has_tiles("amx_int8") else IntegerWordProduct(p)


class MatrixWordProduct(IntegerWordProduct):
    """Code of one kernel's products with packed integers, many rows in tiles."""

    def __init__(self, p: Parts):
        super().__init__(p)
        self._forms = (self._bits, self._x_bits)
        self._planes = _INSTRUCTIONS[self._forms]
        self._step = min(self._group, TILE_WORDS * _WORD)
        """Bytes of a row of x in one tile."""
        self._plane = TILE_ROWS * self._group
        """Bytes of a plane of one group."""
        self._tile_rows = TILE_ROWS * (2 if self._x_bits == 8 else 1)
        words, steps = self._step // _WORD, self._group // self._step
        self._product = GroupProduct(self._planes, words, steps, self._plane)

    @property
    def imports(self) -> tuple[str, ...]:
        return (*super().imports, self._product.ir)

    def emit_rows(self, rows: Expr) -> None:
        few = super().emit_rows
        self._k.branch(rows < _ENOUGH[self._forms], lambda: few(rows), lambda: self._many(rows))

    def _many(self, rows: Expr) -> None:
        k, panels = self._k, -(-self._op.n // self._layout.columns)
        tiles = k.let(quotient(rows + (self._tile_rows - 1), self._tile_rows))
        self._take(rows, tiles)
        with shared_blocks(k, rows, tiles, panels, self._machine) as block:
            self._block(rows, tiles, block)

    # x -----------------------------------------------------------------------------------------
    def _take(self, rows: Expr, tiles: Expr) -> None:
        """Planes of x, its scales and what its sums take off."""
        k, groups, wide = self._k, self._layout.groups, self._vector
        planes, row_bytes = len(self._planes), self._step
        self._x_planes = k.scratch((groups * tiles * planes * self._plane,), "int8")
        self._steps = k.scratch((rows, groups))
        self._starts = k.scratch((rows, groups), "int32")

        def put(plane: Expr, r: Expr, g: Expr, c: int, values: Expr) -> None:
            inside = (c // row_bytes * TILE_ROWS + remainder(r, TILE_ROWS)) * row_bytes + c % row_bytes
            k.store(
                self._x_planes, values, [k.ramp((g * tiles * planes + plane) * self._plane + inside, wide)]
            )

        def keep(r: Expr, g: Expr, c: int, integers: Expr) -> None:
            tile = quotient(r, TILE_ROWS)
            if self._bits == 8:
                integers = self._byte_order(integers)
            if self._x_bits == 8:
                put(tile, r, g, c, tirx.Cast(f"int8x{wide}", integers))
                return
            upper = tirx.shift_right(integers, k.splat(int32(8), wide))
            put(tile * 2, r, g, c, tirx.Cast(f"int8x{wide}", upper))
            put(tile * 2 + 1, r, g, c, tirx.Cast(f"int8x{wide}", integers))  # the lower byte

        each_row(k, rows, self._machine, lambda r: self._round(r, keep))

    # products ----------------------------------------------------------------------------------
    def _block(self, rows: Expr, tiles: Expr, block: Block) -> None:
        """The tiles of rows of a block times its panel."""
        first, end, panel = block.first, block.end, block.panel
        k, lanes, width = self._k, self._lanes, self._layout.width
        columns = [k.ramp(v * lanes, lanes) for v in range(VECTORS)]
        first_row = k.let(first * self._tile_rows)
        block_rows = k.let(tirx.min(end * self._tile_rows, rows) - first_row)
        totals = k.scratch((BLOCK_ROWS, width))
        with k.serial(block_rows) as r:
            for column in columns:
                k.store(totals, k.splat(0.0, lanes), [r, column])
        k.call(begin(self._step // _WORD))
        with k.serial(self._layout.groups) as g:
            weights, place = self._weights(panel, g)
            scales = [k.let(self.scale(panel, g, v)) for v in range(VECTORS)]
            zeros: list[Expr] = []
            if self._bits == 8 and self._z is not None:
                zeros = [k.let(self._zero_integers(panel, g, v)) for v in range(VECTORS)]
            with k.serial(end - first) as tile:
                sums = self._sums(g * tiles + first + tile, weights, place)
                self._fetch_next(panel, tile, g)
                above = k.let(tile * self._tile_rows)
                with k.serial(tirx.min(block_rows - above, int32(self._tile_rows))) as r:
                    row = k.let(first_row + above + r)
                    scale = k.let(k.splat(k.load(self._steps, [row, g]), lanes))
                    for v, column in enumerate(columns):
                        value = self._integer(sums, r, row, g, column, zeros[v : v + 1])
                        value = tirx.Cast(f"float32x{lanes}", value) * scale * scales[v]
                        at = [above + r, column]
                        k.store(totals, k.load(totals, at) + value, at)
        k.call(END)
        with k.serial(block_rows) as r:
            self._finish(first_row + r, panel, lambda start, width: k.load(totals, [r, k.ramp(start, width)]))

    def _sums(self, x_tile: Expr, weights: Buffer, place: list[Index]) -> Buffer:
        """Sums of one group of a tile of rows, plane by plane."""
        k, planes, width = self._k, len(self._planes), self._layout.width
        sums = k.scratch((planes * TILE_ROWS, width), "int32")
        k.call(
            self._product.name,
            k.address(sums, [0, 0]),
            tirx.const(width * _WORD, "int64"),
            k.address(self._x_planes, [x_tile * (planes * self._plane)]),
            k.address(weights, [*place, 0]),
            k.address(sums, [extent - 1 for extent in sums.shape]),
            k.address(self._x_planes, [self._x_planes.shape[0] - 1]),
        )
        return sums

    def _integer(self, sums: Buffer, r: Expr, row: Expr, g: Expr, column: Expr, zero: list[Expr]) -> Expr:
        """Sums of row ``r`` of a tile, ``row`` of x, with what the zeros of weights add taken off."""
        k, lanes = self._k, self._lanes
        value = k.load(sums, [r, column])
        if self._bits == 4:
            return value
        start = k.splat(k.load(self._starts, [row, g]), lanes)
        if self._x_bits == 16:
            upper = tirx.shift_left(value, k.splat(int32(8), lanes))
            value = upper + k.load(sums, [TILE_ROWS + r, column])
        return value + (start * zero[0] if zero else start)

    # weights -----------------------------------------------------------------------------------
    def _weights(self, panel: Expr, g: Expr) -> tuple[Buffer, list[Index]]:
        """Words of four bytes of a group, and their first row in the buffer."""
        k, lanes, layout = self._k, self._lanes, self._layout
        words = self._group // self._per
        if self._bits == 8:
            return self._w, [panel, g * words]
        copy = k.scratch((2 * words, layout.width), "int32")
        mask = k.splat(int32(0x0F0F0F0F), lanes)
        zeros = [k.let(self._zero_bytes(panel, g, v)) for v in range(VECTORS)]
        with k.serial(words) as w:
            for v in range(VECTORS):
                columns = k.ramp(v * lanes, lanes)
                word = k.let(k.load(self._w, [panel, g * words + w, columns]))
                for half in range(2):
                    q = tirx.shift_right(word, k.splat(int32(4), lanes)) if half else word
                    q = tirx.reinterpret(f"int8x{4 * lanes}", tirx.bitwise_and(q, mask)) - zeros[v]
                    k.store(copy, tirx.reinterpret(f"int32x{lanes}", q), [w * 2 + half, columns])
        return copy, [int32(0)]

    def _zero_bytes(self, panel: Expr, g: Expr, vector: int) -> Expr:
        """The zero of a group of each column, in four bytes."""
        k, lanes = self._k, self._lanes
        if self._z is None:
            return k.splat(tirx.const(self._op.storage.middle, "int8"), 4 * lanes)
        word = self._zero_integers(panel, g, vector) * k.splat(int32(0x01010101), lanes)
        return tirx.reinterpret(f"int8x{4 * lanes}", word)

    def _fetch_next(self, panel: Expr, tile: Expr, g: Expr) -> None:
        """Ask for a tile's and group's share of the next panel."""
        k, groups, width = self._k, self._layout.groups, self._layout.width
        lines = int(self._w.shape[1]) * width // LINE_FLOATS
        tiles = BLOCK_ROWS // self._tile_rows
        share = -(-lines // (groups * tiles))
        following = next_panel.following(panel, self._layout.panels)
        start = k.let(next_panel.first_line(g * tiles + tile, share, lines))
        for line in range(share):
            at = (start + line) * LINE_FLOATS
            k.prefetch(self._w, [following, quotient(at, width), remainder(at, width)])
