"""Products of many rows with bfloat16 weights, by the matrix unit of a CPU (AMX), as exact as float32's.

::

    x, once: three bfloat16 whose sum it is     [tiles of rows, steps, parts, 2 tiles, 16 rows, 64 bytes]
    for block of rows, panel:                   shared among the threads
        for 32 rows:
            sums[2][2] tiles = 0
            for step along K:  two tiles of W;  for each part: two of x, four products
            sums -> memory on the stack, 4 KiB in L1

A bfloat16 is the upper half of a float32, with 8 of its 24 bits: cut off, and cut off again from what is
left, three of them are all of its bits.  Weights are what they are, products of two of them are exact, and
sums are float32: three products of tiles take the place of float32's, and do five times what vectors do.  The
order of the sums is that of the tiles, so that a row among many differs from it alone by what float32 rounds.

Where rows may be rounded, there is one part: the bfloat16 nearest to x.
"""

from __future__ import annotations

from hetero_tvm.codegen.amx import END, TILE_ROWS, TILE_WORDS, PartsProduct, begin
from hetero_tvm.codegen.bf16_vectors import bf16_bits, bf16_ir
from hetero_tvm.host.tvm import Expr, tirx
from hetero_tvm.schedules.cpu import next_panel
from hetero_tvm.schedules.cpu.decoding.parts import Parts
from hetero_tvm.schedules.cpu.decoding.symbolic import (
    BLOCK_ROWS,
    each_row,
    quotient,
    remainder,
    shared_blocks,
)
from hetero_tvm.schedules.emit import LINE_FLOATS, Index, int32

ENOUGH_FOR_TILES = 8
"""Rows from which tiles are faster than vectors, although they multiply rows that are not there."""
_EXACT = 3
"""Parts that are all bits of a float32."""
_ROWS = 2 * TILE_ROWS
_STEP = 2 * TILE_WORDS
"""Elements of a row in one tile."""
_TILE = TILE_ROWS * _STEP
_SHARE_OF_L2 = 0.25


def halves_product(p: Parts) -> MatrixHalfProduct | None:
    """Code of products with bfloat16 weights in tiles; None where there are no such weights or tiles."""
    return MatrixHalfProduct(p) if p.layout.pairs and p.machine.has_tiles("amx_bf16") else None


class MatrixHalfProduct:
    """Code of one kernel's products of many rows."""

    def __init__(self, p: Parts):
        self._op, self._layout, self._k, self._x, self._finish = p.op, p.layout, p.k, p.x, p.finish
        self._w, self._machine = p.weight[0], p.machine
        self._parts_of_x = 1 if p.x_bits else _EXACT
        self._steps = p.layout.pairs // TILE_WORDS
        self._tile = self._steps * self._parts_of_x * 2 * _TILE
        """Elements of 32 rows of x."""
        fitting = int(_SHARE_OF_L2 * p.machine.l2 / (2 * self._tile)) * _ROWS
        self._most_rows = min(BLOCK_ROWS, max(_ROWS, fitting))
        lines = p.layout.pairs * p.layout.width // LINE_FLOATS
        fetches = -(-lines // (self._steps * (self._most_rows // _ROWS)))
        self._products = {rows: PartsProduct(rows, self._parts_of_x, fetches) for rows in (1, 2)}
        self._share = fetches * self._steps

    @property
    def imports(self) -> tuple[str, ...]:
        """LLVM IR that the code calls."""
        products = tuple(product.ir for product in self._products.values())
        return products if self._parts_of_x > 1 else (bf16_ir(), *products)

    def emit(self, rows: Expr) -> None:
        """Any number of rows, known at run time."""
        k, panels = self._k, -(-self._op.n // self._layout.columns)
        tiles = k.let(quotient(rows + (_ROWS - 1), _ROWS))
        self._take(rows, tiles)
        with shared_blocks(k, rows, tiles, panels, self._machine, self._most_rows) as block:
            k.call(begin())
            with k.serial(block.end - block.first) as tile:
                self._tile_of_rows(rows, block.first + tile, tile, block.panel)
            k.call(END)

    def _take(self, rows: Expr, tiles: Expr) -> None:
        """Parts of x."""
        k, depth = self._k, self._op.k
        self._parts = k.scratch((tiles * self._tile,), "uint16")

        def one_row(r: Expr) -> None:
            line = k.let(
                quotient(r, _ROWS) * self._tile
                + quotient(remainder(r, _ROWS), TILE_ROWS) * _TILE
                + remainder(r, TILE_ROWS) * _STEP
            )

            def put(c: Index, inside: Index, value: Expr, width: int) -> None:
                """``width`` elements from ``c`` on, ``inside`` of their step."""
                place = line + quotient(c, _STEP) * (self._parts_of_x * 2 * _TILE) + inside
                kind = f"x{width}" if width > 1 else ""
                if self._parts_of_x == 1:
                    k.store(self._parts, bf16_bits(value, width), [k.ramp(place, width)])
                    return
                for part in range(self._parts_of_x):
                    bits = k.let(tirx.reinterpret(f"uint32{kind}", value))
                    upper = tirx.shift_right(bits, k.splat(tirx.const(16, "uint32"), width))
                    at = k.ramp(place + part * 2 * _TILE, width)
                    k.store(self._parts, tirx.Cast(f"uint16{kind}", upper), [at])
                    kept = tirx.bitwise_and(bits, k.splat(tirx.const(0xFFFF0000, "uint32"), width))
                    value = k.let(value - tirx.reinterpret(f"float32{kind}", kept))

            whole, width = depth // _STEP, self._machine.lanes
            with k.serial(whole) as step:
                for inside in range(0, _STEP, width):
                    c = step * _STEP + inside
                    put(step * _STEP, inside, k.let(k.load(self._x, [r, k.ramp(c, width)])), width)
            for c in range(whole * _STEP, self._steps * _STEP):
                value = k.load(self._x, [r, int32(c)]) if c < depth else tirx.const(0.0, "float32")
                put(int32(c), c % _STEP, k.let(value), 1)

        each_row(k, rows, self._machine, one_row)

    def _tile_of_rows(self, rows: Expr, tile: Expr, number: Expr, panel: Expr) -> None:
        """Up to 32 rows times a panel."""
        k, width = self._k, self._layout.width
        first = k.let(tile * _ROWS)
        count = k.let(tirx.min(rows - first, int32(_ROWS)))
        sums = k.scratch((_ROWS, width))
        lines = self._layout.pairs * width // LINE_FLOATS
        line = next_panel.first_line(number, self._share, lines) * LINE_FLOATS
        following = next_panel.following(panel, self._layout.panels)
        ahead = k.address(self._w, [following, quotient(line, width), remainder(line, width)])

        def product(tiles: int) -> None:
            k.call(
                self._products[tiles].name,
                k.address(sums, [0, 0]),
                tirx.const(width * 4, "int64"),
                k.address(self._parts, [tile * self._tile]),
                k.address(self._w, [panel, 0, 0]),
                tirx.const(self._steps, "int64"),
                ahead,
                k.address(sums, [extent - 1 for extent in sums.shape]),
                k.address(self._parts, [self._parts.shape[0] - 1]),
            )

        k.branch(count > TILE_ROWS, lambda: product(2), lambda: product(1))
        with k.serial(count) as r:
            self._finish(first + r, panel, lambda start, lanes: k.load(sums, [r, k.ramp(start, lanes)]))
