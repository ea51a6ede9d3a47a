"""The kernel of integer products: rows in 8 bits, packed panels of weights, register tiles over both.

``dynamic_matmul.py`` tells the loop structure.  What differs between products is how a block of rows comes to
its 8 bits, and what becomes of the sums.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hetero_tvm.codegen.amx import END, TILE_WORDS, U8S8, begin
from hetero_tvm.codegen.saturation import saturation_ir
from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import Operand
from hetero_tvm.ops.matmul import BIAS, TENSORS, joined, steps_with_operands
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.cpu import register_tile
from hetero_tvm.schedules.cpu.activation_code import ActivationCode
from hetero_tvm.schedules.cpu.dots import Dot, dot_for
from hetero_tvm.schedules.cpu.integers import integer_tile
from hetero_tvm.schedules.cpu.integers.matrix_unit import MatrixUnit, tile_for
from hetero_tvm.schedules.cpu.register_tile import RegisterTile
from hetero_tvm.schedules.emit import Index, Kernel, int32

if TYPE_CHECKING:
    from hetero_tvm.ops.integers.dynamic_matmul import DynamicGatedMatmul, DynamicMatmul
    from hetero_tvm.ops.integers.quantized import QuantMatmul
    from hetero_tvm.ops.integers.stored_matmul import StoredMatmul

    IntegerProduct = DynamicMatmul | DynamicGatedMatmul | QuantMatmul | StoredMatmul


VECTORS, MATRICES = "vectors", "matrices"
"""Units that multiply: dot products in vectors (``dots.py``), or tiles (``matrix_unit.py``)."""


@dataclass(frozen=True)
class IntegerDecisions:
    """A point of the space.

    Attributes
    ----------
    tile : register tile, its vectors of int32.
    row_blocks, column_blocks : pieces that rows and panels are cut into; each pair is one parallel piece.
    unroll : steps of K in one loop body.
    prefetch : whether the next weight panel is fetched ahead.
    unit : what multiplies, :data:`VECTORS` or :data:`MATRICES`, whose tile is its own.
    """

    tile: RegisterTile
    row_blocks: int
    column_blocks: int
    unroll: int
    prefetch: bool
    unit: str = VECTORS

    @classmethod
    def of(cls, point: Point) -> IntegerDecisions:
        """Decisions of a point."""
        (rows, columns), tile = point["grid"], RegisterTile.of(point["tile"])
        unit = point.get("unit", VECTORS)
        return cls(tile, rows, columns, point["unroll"], bool(point["prefetch"]), unit)


class IntegerProductKernel(ABC):
    """Emits one product of X [m, k] with W [k, parts * n]."""

    parts = 1
    """Products side by side in one register tile: a panel holds as many columns of each."""
    instruction = U8S8
    """Instruction that multiplies tiles."""
    panels_of = integer_tile.Panels
    activations: ActivationCode
    extra: Sequence[Buffer]
    m: Index

    def __init__(self, op: IntegerProduct, decisions: IntegerDecisions, machine: CpuModel):
        self.op, self.decisions, self.machine = op, decisions, machine
        self.lanes, self.tile = machine.lanes, decisions.tile
        self.dot = self.way(op, machine)
        in_tiles = decisions.unit == MATRICES
        if in_tiles:
            self.tile = tile_for(op.m, op.n, self.parts)
        self.columns = self.tile.columns(self.lanes) // self.parts
        count = -(-op.n // self.columns)
        wide = op.n if self.parts == 1 else count * self.columns * self.parts
        words = TILE_WORDS if in_tiles else 1
        self.panels = self.panels_of(op.k, wide, self.columns * self.parts, self.dot.group, words)
        self.full, self.rest = divmod(op.m, self.tile.rows)
        self.tiles = self.full + bool(self.rest)
        self.per_block = max(1, self.full // decisions.row_blocks)
        self.matrices = (
            MatrixUnit(self.instruction, self.tile, self.panels, self.per_block, decisions.prefetch)
            if in_tiles
            else None
        )
        self.k = Kernel()

    @classmethod
    def way(cls, op: IntegerProduct, machine: CpuModel) -> Dot:
        """Way in which vectors multiply."""
        return dot_for(machine, op.pairs_safe)

    @property
    def imports(self) -> tuple[str, ...]:
        """LLVM IR that the kernel imports."""
        if self.matrices is None:
            return (*self.dot.imports, saturation_ir())
        return (saturation_ir(), *self.matrices.imports(self.heights))

    @property
    def heights(self) -> list[int]:
        """Rows of the tiles that a matrix unit multiplies."""
        return [self.full and self.tile.rows, self.rest]

    @property
    def length(self) -> int:
        """Values of one row in 8 bits, those behind the reduction length included."""
        return self.panels.groups * self.dot.group

    @property
    def rows_at_once(self) -> int:
        """Rows that a piece needs memory for."""
        rows = min(-(-self.tiles // self.decisions.row_blocks) * self.tile.rows, self.op.m)
        return rows if self.matrices is None else self.matrices.padded_rows(rows)

    def pack(self, w: np.ndarray) -> np.ndarray:
        """W as the panels have it."""
        return self.panels.pack(w)

    @abstractmethod
    def bind(self, extra: list[Buffer]) -> None:
        """Take the operands behind X and W."""

    @abstractmethod
    def begin(self, rows: int) -> Buffer:
        """Allocate memory for a block of rows; the buffer [rows, :attr:`length`] of their 8 bits."""

    @abstractmethod
    def take(self, inside: Expr, row: Expr) -> None:
        """Emit what brings row ``row`` of X to its 8 bits, as row ``inside`` of the block."""

    @abstractmethod
    def result(self, totals: list[Expr], inside: Index, row: Index, place: Place, width: int) -> Expr:
        """The result at (row, ``width`` columns) from the int32 sums of each part."""

    def emit(self) -> PrimFunc:
        """The PrimFunc: X, packed W, the other operands, Y."""
        op, k, grid = self.op, self.k, self.decisions
        with k:
            self.declare([operand.shape for operand in (*op.inputs, op.output)])
            with k.imported(*self.imports):
                with k.parallel(grid.row_blocks * grid.column_blocks, op.flops) as piece:
                    with self.memory_for(self.rows_at_once):
                        self._piece(
                            tirx.floordiv(piece, grid.column_blocks),
                            tirx.floormod(piece, grid.column_blocks),
                        )
        return k.function

    def declare(self, shapes: Sequence[tuple[Index, ...]]) -> None:
        """Declare the operands, and the result, of these shapes; W is that of the panels."""
        op, k = self.op, self.k
        x = k.argument("X", shapes[0], op.inputs[0].dtype)
        self.w = k.argument("W", self.panels.shape, self.panels.dtype)
        behind = zip(op.inputs[2:], shapes[2:], strict=False)
        extra = [k.argument(o.name, shape, o.dtype) for o, shape in behind]
        y = k.argument("Y", shapes[-1], op.output.dtype)
        self.m = self.known_rows()
        self.x, self.y = k.view(x, (self.m, op.k)), k.view(y, (self.m, op.n))
        self.bind(extra)

    def known_rows(self) -> Index:
        """Rows of X, now that operands tell it."""
        return self.op.m

    @contextmanager
    def memory_for(self, rows: int) -> Iterator[None]:
        """Memory for at most ``rows`` rows in 8 bits, and the unit that multiplies, inside a piece."""
        self.values = self.begin(rows)
        if self.matrices is not None:
            self.k.call(begin())
        yield
        if self.matrices is not None:
            self.k.call(END)

    def _piece(self, row_block: Expr, column_block: Expr) -> None:
        """Take a block of rows, then multiply it with a block of panels."""
        k, op, grid, count = self.k, self.op, self.decisions, self.panels.count
        first_tile = tirx.floordiv(row_block * self.tiles, grid.row_blocks)
        end_tile = tirx.floordiv((row_block + 1) * self.tiles, grid.row_blocks)
        first_row = first_tile * self.tile.rows
        with k.serial(tirx.min(end_tile * self.tile.rows, int32(op.m)) - first_row) as r:
            self.take(r, first_row + r)
        first_panel = tirx.floordiv(column_block * count, grid.column_blocks)
        end_panel = tirx.floordiv((column_block + 1) * count, grid.column_blocks)
        per_block = self.per_block
        with k.serial(end_panel - first_panel) as p:
            panel = first_panel + p
            if self.full:
                with k.serial(tirx.min(end_tile, int32(self.full)) - first_tile) as t:
                    self.row_tile(first_row, t * self.tile.rows, self.tile.rows, panel, t, per_block)
            if self.rest:
                last = True if grid.row_blocks == 1 else tirx.EQ(row_block, int32(grid.row_blocks - 1))
                with k.when(last):
                    inside = self.full * self.tile.rows - first_row
                    self.row_tile(first_row, inside, self.rest, panel, int32(0), per_block)

    def row_tile(
        self,
        first_row: Expr,
        inside: Index,
        height: int,
        panel: Expr,
        tile_index: Index,
        tiles: int,
        stored: Index | None = None,
    ) -> None:
        """Emit ``height`` rows of one panel, from row ``inside`` of the block on; fewer may be ``stored``."""
        k, panels = self.k, self.panels
        if self.matrices is not None:
            acc = self.matrices.emit(k, self.values, inside, height, self.w, panel, tile_index)
        else:
            acc = k.scratch((height, panels.columns), self.dot.sums)
            integer_tile.accumulate(
                k,
                self.dot,
                acc,
                RegisterTile(height, self.tile.vectors),
                self.lanes,
                panels,
                self.decisions.unroll,
                x_at=lambda r, at: k.load(self.values, [inside + r, at]),
                w_at=lambda row, at: k.load(self.w, [panel, row, at]),
                on_step=panels.prefetch(k, self.w, panel, tile_index, tiles, self.decisions.unroll)
                if self.decisions.prefetch
                else None,
            )

        def put(r: Expr, c: Index, width: int, total: Expr) -> None:
            totals = [total]
            totals += [k.load(acc, [r, k.ramp(p * self.columns + c, width)]) for p in range(1, self.parts)]
            place = Place(panel, c, panel * self.columns + c)
            row = first_row + inside + r
            value = self.result(totals, inside + r, row, place, width)
            self.put(value, row, place.column, width)

        def write(count: int) -> None:
            in_memory = self.matrices is not None
            rows = height if stored is None else stored
            register_tile.store(k, acc, rows, count, self.lanes, put, in_memory)

        last = self.op.n - (panels.count - 1) * self.columns
        if last == self.columns:
            write(self.columns)
        elif panels.count == 1:
            write(last)
        else:
            k.branch(panel < panels.count - 1, lambda: write(self.columns), lambda: write(last))

    def take_epilogue(self, extra: Sequence[Buffer], operands: Sequence[Operand]) -> None:
        """Take the operands of the epilogue's steps."""
        self.extra = [
            self.k.view(buffer, (self.m, self.op.n)) if operand.name in TENSORS else buffer
            for buffer, operand in zip(extra, operands, strict=True)
        ]

    def finished(self, value: Expr, row: Index, column: Index, width: int) -> Expr:
        """``width`` float32 sums from ``column`` on after the steps of the epilogue."""
        at = self.k.ramp(column, width)
        for step, operand in steps_with_operands(self.op.epilogue, self.extra):
            if step == BIAS:
                value = value + self.k.load(operand, [at])
            elif step in TENSORS:
                value = joined(step, value, self.k.load(operand, [row, at]))
            else:
                value = self.activations.apply(step, value, width)
        return value

    def put(self, value: Expr, row: Index, column: Index, width: int) -> None:
        """Emit the store of ``width`` results."""
        self.k.store(self.y, value, [row, self.k.ramp(column, width)])

    def column_sums(self, part: int, place: Place, width: int) -> Expr:
        """Sums of ``width`` columns of W of one part, int32."""
        at = part * self.columns + place.inside
        return integer_tile.column_sums(self.k, self.w, self.panels, place.panel, at, width)


@dataclass(frozen=True)
class Place:
    """Columns of a result: their panel, the first one's position in it, and in the result."""

    panel: Expr
    inside: Index
    column: Index
