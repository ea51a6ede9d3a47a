"""Images of another size, of weighted neighbours along each axis.

Loop structure, where there are more rows after than before::

    parallel planes x blocks of rows:
        for each row before that the block needs: its pixels along the columns          (L1 or L2)
        for each row after, in vectors: the weighted sum of two of them

Where there are fewer, the two rows of each are summed first, in vectors, and the columns are found in the
sum.  Neighbours and their weights are constants; a pixel that is alone counts twice by half its weight, so
that a neighbour of no weight is never read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.emit import Index, Kernel, for_graph, int32, vector_loop

TAPS = 2
"""Neighbours along an axis."""


def neighbours(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Positions (int32) and weights (float32), each [2, after], of a matrix [after, before]; None where a
    pixel has more neighbours than two, or they do not rise with the pixels."""
    after = weights.shape[0]
    places, factors = np.zeros((TAPS, after), np.int32), np.zeros((TAPS, after), np.float32)
    for n, row in enumerate(weights):
        found = np.flatnonzero(row)
        if not 1 <= len(found) <= TAPS:
            return None
        places[:, n] = found[0], found[-1]
        factors[:, n] = row[found] if len(found) == TAPS else row[found[0]] / 2
    if (np.diff(places, axis=1) < 0).any():
        return None
    return places, factors


def emit_resize(
    machine: CpuModel, image: tuple[int, int, int], rows: np.ndarray, columns: np.ndarray
) -> PrimFunc:
    """The kernel of X, positions and weights of the rows, those of the columns, and Y.

    Parameters
    ----------
    image : planes, height and width of X, which is float32.
    rows, columns : positions [2, after] of :func:`neighbours`.
    """
    return _ResizeKernel(machine, image, rows, columns).emit()


class _ResizeKernel:
    """Emits one kernel."""

    def __init__(self, machine: CpuModel, image: tuple[int, int, int], rows: np.ndarray, columns: np.ndarray):
        planes, *before = image
        self.lanes, self.planes, self.before = machine.lanes, planes, before
        self.after = rows.shape[1], columns.shape[1]
        wanted = max(1, -(-4 * machine.threads // planes))
        self.block = -(-self.after[0] // min(wanted, self.after[0]))
        # Scratch of a block in L2.
        while self.block > 1 and self._rows_of_a_block(rows) * self.after[1] * 8 > machine.l2:
            self.block = -(-self.block // 2)
        self.rows = self._rows_of_a_block(rows)
        self.blocks = -(-self.after[0] // self.block)
        self.columns_first = self.rows < self.block
        self.k = Kernel()

    def _rows_of_a_block(self, rows: np.ndarray) -> int:
        """Most rows before that one block needs."""
        pieces = [rows[:, n : n + self.block] for n in range(0, rows.shape[1], self.block)]
        return max(int(piece[-1, -1] - piece[0, 0]) + 1 for piece in pieces)

    def emit(self) -> PrimFunc:
        """The PrimFunc: X, positions and weights of rows and of columns, Y."""
        k, (down, across) = self.k, self.after
        height, width = self.before
        work = self.planes * down * across
        with k:
            x = k.argument("X", (self.planes, height, width))
            self.row_at = k.argument("row_places", (TAPS, down), "int32")
            self.row_weight = k.argument("row_weights", (TAPS, down))
            self.at = k.argument("column_places", (TAPS, across), "int32")
            self.weight = k.argument("column_weights", (TAPS, across))
            y = k.argument("Y", (self.planes, down, across))
            with k.parallel(self.planes * self.blocks, 20 * work) as item:
                plane, block = tirx.floordiv(item, self.blocks), tirx.floormod(item, self.blocks)
                first = k.let(block * self.block)
                count = tirx.min(int32(self.block), down - first)
                if self.columns_first:
                    self._columns_first(x, y, plane, first, count)
                else:
                    self._rows_first(x, y, plane, first, count)
        return for_graph(k.function, 8 * work)

    def _columns_first(self, x: Buffer, y: Buffer, plane: Expr, first: Expr, count: Expr) -> None:
        k = self.k
        lines = k.scratch((self.rows, self.after[1]))
        lowest = k.let(k.load(self.row_at, [int32(0), first]))
        highest = k.load(self.row_at, [int32(1), first + count - 1])
        with k.serial(highest - lowest + 1) as line:
            self._along_columns(x, [plane, lowest + line], lines, [line])
        with k.serial(count) as row:
            self._of_two_rows(lines, [], first + row, lowest, y, [plane, first + row], self.after[1])

    def _rows_first(self, x: Buffer, y: Buffer, plane: Expr, first: Expr, count: Expr) -> None:
        k = self.k
        line = k.scratch((1, self.before[1]))
        with k.serial(count) as row:
            self._of_two_rows(x, [plane], first + row, int32(0), line, [int32(0)], self.before[1])
            self._along_columns(line, [int32(0)], y, [plane, first + row])

    def _along_columns(
        self, source: Buffer, where: Sequence[Index], target: Buffer, there: Sequence[Index]
    ) -> None:
        """One row of ``target`` from pixels of one row of ``source``."""
        k = self.k
        with k.serial(self.after[1]) as column:
            left, right = (
                k.load(source, [*where, k.load(self.at, [int32(tap), column])])
                * k.load(self.weight, [int32(tap), column])
                for tap in range(TAPS)
            )
            k.store(target, left + right, [*there, column])

    def _of_two_rows(
        self,
        source: Buffer,
        plane: Sequence[Index],
        row: Expr,
        lowest: Expr,
        target: Buffer,
        there: Sequence[Index],
        width: int,
    ) -> None:
        """One row of ``target``: the weighted sum of two rows of ``source``, which begins at ``lowest``."""
        k = self.k
        places = [k.let(k.load(self.row_at, [int32(tap), row]) - lowest) for tap in range(TAPS)]
        weights = [k.let(k.load(self.row_weight, [int32(tap), row])) for tap in range(TAPS)]

        def put(at: Index, many: int) -> None:
            upper, lower = (
                k.load(source, [*plane, place, k.ramp(at, many)]) * k.splat(weight, many)
                for place, weight in zip(places, weights, strict=True)
            )
            k.store(target, upper + lower, [*there, k.ramp(at, many)])

        vector_loop(k, width, self.lanes, put, unroll=2)
