"""The matrix unit of a CPU (AMX) in the place of a register tile: 16 rows by 16 columns of sums at once.

::

    sums[2][2] tiles = 0                                (tile registers)
    for step in K / 64 bytes:                           (serial, in LLVM IR: codegen/amx.py)
        two tiles of W from the panel, two of X from the block's rows in few bits
        four products of tiles; lines of the next panel asked for
    sums -> memory on the stack, 4 KiB in L1; from there vectors, as a register tile has them

A product of tiles takes 16 cycles and a tile 8 to load, so that two by two are bound by products.  Rows and
columns behind the last ones are multiplied too, and not stored: a block has memory for whole tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

from hetero_tvm.codegen.amx import BF16, TILE_ROWS, TILE_WORDS, U8S8, RowsProduct
from hetero_tvm.host.tvm import Buffer, Expr, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.cpu import next_panel
from hetero_tvm.schedules.cpu.integers.integer_tile import Panels
from hetero_tvm.schedules.cpu.register_tile import RegisterTile
from hetero_tvm.schedules.emit import LINE_BYTES, Kernel, int32

_NEEDED = {U8S8: ("amx_int8", "avx512_vnni"), BF16: ("amx_bf16", "avx512_bf16")}
"""Features by instruction, of tiles and of vectors, whose words are packed alike."""
_PRODUCT_CYCLES, _LOAD_CYCLES, _STORE_CYCLES = 16, 8, 16
"""Cycles of one product of tiles, and of a tile's way from L1 and into it."""


def has_matrix_unit(machine: CpuModel, instruction: str = U8S8) -> bool:
    """Whether the machine multiplies tiles by ``instruction``."""
    tiles, vectors = _NEEDED[instruction]
    return machine.has_tiles(tiles) and vectors in machine.features


def tile_for(m: int, n: int, parts: int = 1) -> RegisterTile:
    """Tiles of sums for ``m`` rows and ``n`` columns, as rows and vectors: two by two, or one by some."""
    columns = -(-n // TILE_ROWS) * parts
    if m > TILE_ROWS:
        return RegisterTile(2 * TILE_ROWS, min(2, columns) if parts == 1 else 2)
    return RegisterTile(TILE_ROWS, min(3, columns) if parts == 1 else 2)


def tile_cycles(tile: RegisterTile, steps: int) -> float:
    """Cycles of the sums of one tile, their way through memory included."""
    rows = tile.rows // TILE_ROWS
    step = max(_PRODUCT_CYCLES * rows * tile.vectors, _LOAD_CYCLES * (rows + tile.vectors))
    return steps * step + _STORE_CYCLES * rows * tile.vectors + 50


@dataclass(frozen=True)
class MatrixUnit:
    """Products of one kernel in tiles.

    Attributes
    ----------
    instruction : as :class:`hetero_tvm.codegen.amx.RowsProduct` has it.
    tile : rows and vectors of columns at once.
    panels : packed weights, words along K in multiples of a tile's.
    tiles : tiles of rows that go through one panel, which share out the fetching of the next one.
    prefetch : whether the next panel is fetched ahead.
    """

    instruction: str
    tile: RegisterTile
    panels: Panels
    tiles: int
    prefetch: bool

    @property
    def steps(self) -> int:
        """Steps of 64 bytes along K."""
        return self.panels.groups // TILE_WORDS

    @property
    def _fetches(self) -> int:
        """Cache lines of the next panel that each step asks for."""
        if not self.prefetch or self.panels.count == 1:
            return 0
        return -(-self.panels.groups * self.panels.columns * 4 // LINE_BYTES // (self.tiles * self.steps))

    def _product(self, height: int) -> RowsProduct:
        rows = -(-height // TILE_ROWS)
        return RowsProduct(self.instruction, rows, self.tile.vectors, self._fetches)

    def imports(self, heights: list[int]) -> tuple[str, ...]:
        """LLVM IR of the products for tiles of so many rows each."""
        return tuple(dict.fromkeys(self._product(height).ir for height in heights if height))

    def padded_rows(self, rows: int) -> int:
        """Rows that a block needs memory for."""
        return -(-rows // self.tile.rows) * self.tile.rows

    def emit(
        self,
        k: Kernel,
        values: Buffer,
        inside: Expr,
        height: int,
        w: Buffer,
        panel: Expr,
        tile_index: Expr,
    ) -> Buffer:
        """Emit the sums of ``height`` rows of ``values`` from ``inside`` on times one panel.

        ``values`` is [rows, length], its length a multiple of a step; returns the sums [rows, columns], int32
        or float32.
        """
        panels, product = self.panels, self._product(height)
        dtype = "float32" if self.instruction == BF16 else "int32"
        sums = k.scratch((product.rows * TILE_ROWS, panels.columns), dtype)
        lines = panels.groups * panels.columns * 4 // LINE_BYTES
        share = self._fetches * self.steps
        ahead = k.address(w, [panel, int32(0), int32(0)])
        if self._fetches:
            width = panels.columns * panels.group
            item = 4 // panels.group
            at = next_panel.first_line(tile_index, share, lines) * (LINE_BYTES // item)
            following = next_panel.following(panel, panels.count)
            ahead = k.address(w, [following, tirx.floordiv(at, width), tirx.floormod(at, width)])
        k.call(
            product.name,
            k.address(sums, [int32(0), int32(0)]),
            _int64(panels.columns * 4),
            k.address(values, [inside, int32(0)]),
            k.address(values, [inside + 1, int32(0)]),
            k.address(w, [panel, int32(0), int32(0)]),
            _int64(panels.columns * 4),
            _int64(self.steps),
            ahead,
            k.address(sums, [int32(extent - 1) for extent in sums.shape]),
            k.address(values, [values.shape[0] - 1, values.shape[1] - 1]),
        )
        return sums


def _int64(value: int) -> Expr:
    return tirx.const(value, "int64")
