"""Products of rows in few bits with packed weights, the rows counted at run time.

Loop structure::

    parallel over blocks of rows x blocks of panels:                         (their number: a run-time value)
        the block's rows to their few bits, in L2
        for each panel, for each register tile of MR rows in the block:  as in integers/dynamic_matmul.py
        in the last block: the rows that are left, by a nest of every height below MR, or by whole tiles of a
        matrix unit of which only those rows are stored

A block has memory for a fixed number of rows.  Few rows wait for their weights, so threads share the panels
out and each brings all rows to few bits itself; of many rows each takes blocks of its own.
"""

from __future__ import annotations

import numpy as np

from hetero_tvm.codegen.amx import TILE_ROWS
from hetero_tvm.host.tvm import Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.cpu.integers.matrix_unit import MatrixUnit
from hetero_tvm.schedules.cpu.integers.product_kernel import IntegerDecisions, IntegerProductKernel
from hetero_tvm.schedules.cpu.symbolic.tails import last_rows, narrowed
from hetero_tvm.schedules.emit import LAUNCH_FLOPS, Index, int32, pieces_of
from hetero_tvm.schedules.symbolic import Witnesses, shape_variables

_MANY_ROWS = 96
"""Rows from which on threads take rows instead of panels."""
_BLOCK_ROWS = 128
"""Rows of a block at most."""
_OF_L2 = 0.25
"""Share of L2 that the rows of a block take at most."""


class _RunTimeRows(IntegerProductKernel):
    """A product whose number of rows is an expression."""

    def __init__(self, witnesses: Witnesses, decisions: IntegerDecisions, machine: CpuModel):
        super().__init__(witnesses.largest, decisions, machine)
        self.witnesses = witnesses
        most = int(_OF_L2 * machine.l2) // (self.length * np.dtype(self.dot.x_dtype).itemsize)
        self.per_block = max(1, min(_BLOCK_ROWS, most) // self.tile.rows)
        if self.matrices is not None:
            unit = self.matrices
            self.matrices = MatrixUnit(
                unit.instruction, unit.tile, unit.panels, self.per_block, unit.prefetch
            )

    @property
    def heights(self) -> list[int]:
        return list(dict.fromkeys((TILE_ROWS, self.tile.rows)))

    def emit(self) -> PrimFunc:
        """The PrimFunc: X, packed W, the other operands, Y."""
        op, k, rows, threads = self.op, self.k, self.tile.rows, self.machine.threads
        with k:
            self.variables = shape_variables(self.witnesses.symbols)
            self.declare(self.witnesses.shapes(self.variables))
            self.full_tiles = k.let(tirx.truncdiv(self.m, int32(rows)))
            self.left = k.let(self.m - self.full_tiles * rows)
            self.all_tiles = k.let(self.full_tiles + tirx.Cast("int32", self.left > 0))
            most = self.per_block * rows
            many = pieces_of(self.m, most * threads) * threads
            # One block of no rows as well: tiles are divided by this count.
            few = tirx.max(pieces_of(self.m, most), int32(1))
            self.blocks = k.named(tirx.Select(self.m >= _MANY_ROWS, many, few))
            shared_out = min(threads, self.panels.count)
            self.column_blocks = k.named(tirx.Select(self.m >= _MANY_ROWS, int32(1), int32(shared_out)))

            def work(piece: Expr) -> None:
                # A block has its share of the tiles, rounded up: one more than fit into ``most`` rows.
                with self.memory_for(most + 2 * rows):
                    row_block = k.let(tirx.truncdiv(piece, self.column_blocks))
                    self._run_time_piece(row_block, k.let(piece - row_block * self.column_blocks))

            fewest = LAUNCH_FLOPS // (op.flops // op.m) if threads > 1 else 0
            with k.imported(*self.imports):
                few_rows = self.m <= fewest if fewest else False
                k.shared_unless(few_rows, self.blocks * self.column_blocks, work)
        return k.function

    def known_rows(self) -> Index:
        k = self.k
        return k.let(self.witnesses.value(lambda op: op.m, narrowed(k, self.variables)))

    def _run_time_piece(self, row_block: Expr, column_block: Expr) -> None:
        k, rows, count = self.k, self.tile.rows, self.panels.count
        first_tile = k.let(tirx.truncdiv(row_block * self.all_tiles, self.blocks))
        end_tile = k.let(tirx.truncdiv((row_block + 1) * self.all_tiles, self.blocks))
        first_row = k.let(first_tile * rows)
        with k.serial(tirx.min(end_tile * rows, self.m) - first_row) as r:
            self.take(r, first_row + r)
        first_panel = k.let(tirx.truncdiv(column_block * count, self.column_blocks))
        end_panel = k.let(tirx.truncdiv((column_block + 1) * count, self.column_blocks))
        inside = k.let(self.full_tiles * rows - first_row)

        def last(panel: Expr, height: int) -> None:
            stored = self.left if self.matrices is not None else None
            self.row_tile(first_row, inside, height, panel, int32(0), self.per_block, stored)

        with k.serial(end_panel - first_panel) as p:
            panel = k.let(first_panel + p)
            with k.serial(tirx.min(end_tile, self.full_tiles) - first_tile) as t:
                self.row_tile(first_row, t * rows, rows, panel, t, self.per_block)
            with k.when(tirx.EQ(row_block, self.blocks - 1)):
                if self.matrices is None:
                    last_rows(k, self.left, rows, lambda height: last(panel, height))
                else:
                    low = 0
                    for height in self.heights:
                        fits = tirx.And(self.left > int32(low), self.left <= int32(height))
                        with k.when(fits):
                            last(panel, height)
                        low = height


def run_time_rows(
    kernel: type[IntegerProductKernel],
    witnesses: Witnesses,
    decisions: IntegerDecisions,
    machine: CpuModel,
) -> PrimFunc:
    """The kernel of a product for all numbers of its rows."""
    return type(f"RunTime{kernel.__name__}", (_RunTimeRows, kernel), {})(witnesses, decisions, machine).emit()
