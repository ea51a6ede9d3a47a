"""Images of another size, of weighted neighbours along each axis.

Loop structure, where there are more rows after than before::

    parallel planes x blocks of rows:
        for each row before that the block needs: its pixels along the columns          (L1 or L2)
            in vectors of each phase, which a shuffle puts side by side, where all pixels grow alike
        for each row after, in vectors: the weighted sum of two of them

Where there are fewer, the two rows of each are summed first, in vectors, and the columns are found in the
sum.  An axis that stays has no pass: rows of X are summed into Y, or each row of X is read along its columns.
Neighbours and their weights are constants; a pixel that is alone counts twice by half its weight, so
that a neighbour of no weight is never read.

Where every pixel is repeated equally often, of any extents::

    parallel rows of X:
        for each vector of pixels: one load, one shuffle that repeats each pixel
            the result into every row of Y that repeats this one

Each value is read once then, and nothing that is written is read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.emit import Index, Kernel, for_graph, int32, largest, vector_loop

MODES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
"""Ways to place pixels."""
TAPS = 2
"""Neighbours along an axis."""
Axis = tuple[np.ndarray, np.ndarray]
"""Positions (int32) and weights (float32) of the neighbours along an axis, [2, after] each."""
Phases = Sequence[tuple[int, int, float, float]]
"""Pixels after that lie in each pixel before: two neighbours, counted from it, and their weights."""
_REACH = (-1, 0, 1)
"""Pixels before that a pixel after may be between, counted from the one it lies in."""
_ROUNDED = 1e-6
"""Difference of weights that is none."""
_MOST_COPIES = 16
"""Copies across beyond which a shuffle of a vector is too long."""
_MOST_VECTORS = 4
"""Vectors that one shuffle makes."""
_ALONE = 16384
"""Pixels of an image of copies that are not worth another thread."""


def neighbours(before: int, after: int, mode: str) -> Axis | None:
    """The two pixels before that each pixel after is between, in order, and their weights.

    Places are ratios of integers, so that whole ones are whole.

    Parameters
    ----------
    mode : how pixels are placed, in the names of ONNX; None is given for others than :data:`MODES`.
    """
    if mode not in MODES:
        return None
    at = np.arange(after)
    if mode == "align_corners":
        over, under = at * (before - 1), max(after - 1, 1)
    elif mode == "asymmetric":
        over, under = at * before, after
    else:
        over, under = (2 * at + 1) * before - after, 2 * after
        if mode == "pytorch_half_pixel" and after == 1:
            over = np.zeros_like(over)
    low, rest = np.divmod(over.clip(0, (before - 1) * under), under)
    part, alone = rest / under, rest == 0
    places = np.stack([low, low + ~alone]).astype(np.int32)
    weights = np.stack([np.where(alone, 0.5, 1 - part), np.where(alone, 0.5, part)])
    return places, weights.astype(np.float32)


def phases(columns: Axis, before: int) -> Phases:
    """Neighbours, counted from each pixel before, and weights of the pixels after that lie there, where they
    are the same at all pixels but the first and the last; none otherwise."""
    places, weights = columns
    copies, rest = divmod(places.shape[1], before)
    if rest or before < 4 or not 2 <= copies <= _MOST_COPIES:
        return []
    inner = slice(1, before - 1)
    from_pixel = places.reshape(TAPS, before, copies)[:, inner] - np.arange(before)[None, inner, None]
    shares = weights.reshape(TAPS, before, copies)[:, inner]
    alike = (from_pixel == from_pixel[:, :1]).all() and np.abs(from_pixel).max() <= 1
    if not alike or np.abs(shares - shares[:, :1]).max() > _ROUNDED:
        return []
    return [(*from_pixel[:, 0, n].tolist(), *shares[:, 0, n].tolist()) for n in range(copies)]


class Row(NamedTuple):
    """A row of an image: its buffer, its indices there, and its pixels, which the call may tell."""

    buffer: Buffer
    at: Sequence[Index]
    width: Index


def along_columns(
    k: Kernel,
    axis: tuple[Buffer, Buffer],
    several: Phases,
    lanes: int,
    source: Row,
    target: Row,
) -> None:
    """Emit one row of pixels after, from the one of pixels before that ``source`` is.

    Parameters
    ----------
    axis : positions and weights [2, after].
    several : of :func:`phases`: all but the pixels at both ends come in vectors; without, one by one.
    """
    places, weights = axis
    copies = len(several)

    def one_by_one(first: Index, count: Index) -> None:
        with k.serial(count) as n:
            left, right = (
                k.load(source.buffer, [*source.at, k.load(places, [int32(tap), first + n])])
                * k.load(weights, [int32(tap), first + n])
                for tap in range(TAPS)
            )
            k.store(target.buffer, left + right, [*target.at, first + n])

    def turn(at: Index, many: int) -> None:
        first = at + 1
        pixels = {d: k.let(k.load(source.buffer, [*source.at, k.ramp(first + d, many)])) for d in _REACH}
        parts = [
            pixels[low] * k.splat(of_low, many) + pixels[high] * k.splat(of_high, many)
            for low, high, of_low, of_high in several
        ]
        order = [int32(n % copies * many + n // copies) for n in range(copies * many)]
        there = [*target.at, k.ramp(first * copies, copies * many)]
        k.store(target.buffer, tirx.Shuffle(parts, order), there)

    if not several:
        one_by_one(0, target.width)
        return
    one_by_one(0, copies)
    inner = largest(source.width - 2, 0)  # of a single pixel there are none between both ends
    vector_loop(k, inner, max(2, lanes * _MOST_VECTORS // max(copies, _MOST_VECTORS)), turn)
    one_by_one(target.width - copies, copies)


def emit_resize(
    machine: CpuModel, image: tuple[int, int, int], rows: Axis | None, columns: Axis | None
) -> PrimFunc:
    """The kernel of X, positions and weights of the rows, those of the columns, and Y.

    Parameters
    ----------
    image : planes, height and width of X, which is float32.
    rows, columns : what :func:`neighbours` gives; None for an axis that stays, of which the kernel takes no
        arguments.  One of them changes.
    """
    return _ResizeKernel(machine, image, rows, columns).emit()


class _ResizeKernel:
    """Emits one kernel."""

    def __init__(
        self,
        machine: CpuModel,
        image: tuple[int, int, int],
        rows: Axis | None,
        columns: Axis | None,
    ):
        self.k, self.lanes = Kernel(), machine.lanes
        self.planes, height, width = image
        self.has_rows, self.has_columns = rows is not None, columns is not None
        places = np.stack([np.arange(height)] * TAPS) if rows is None else rows[0]
        self.phases = [] if columns is None else phases(columns, width)
        self.before = height, width
        self.after = places.shape[1], width if columns is None else columns[0].shape[1]
        wanted = max(1, -(-4 * machine.threads // self.planes))
        self.block = -(-self.after[0] // min(wanted, self.after[0]))
        # Scratch of a block in L2.
        line = self.after[1] * 8 if self.has_rows and self.has_columns else 0
        while self.block > 1 and self._rows_of_a_block(places) * line > machine.l2:
            self.block = -(-self.block // 2)
        self.rows = self._rows_of_a_block(places)
        self.blocks = -(-self.after[0] // self.block)
        self.columns_first = self.rows < self.block

    def _rows_of_a_block(self, rows: np.ndarray) -> int:
        """Most rows before that one block needs."""
        pieces = [rows[:, n : n + self.block] for n in range(0, rows.shape[1], self.block)]
        return max(int(piece[-1, -1] - piece[0, 0]) + 1 for piece in pieces)

    def emit(self) -> PrimFunc:
        """The PrimFunc: X, positions and weights of rows and of columns, Y."""
        k, (down, across) = self.k, self.after
        work = self.planes * down * across
        with k:
            x = k.argument("X", (self.planes, *self.before))
            if self.has_rows:
                self.row_at = k.argument("row_places", (TAPS, down), "int32")
                self.row_weight = k.argument("row_weights", (TAPS, down))
            if self.has_columns:
                self.at = k.argument("column_places", (TAPS, across), "int32")
                self.weight = k.argument("column_weights", (TAPS, across))
            y = k.argument("Y", (self.planes, down, across))
            with k.parallel(self.planes * self.blocks, 20 * work) as item:
                plane, block = tirx.floordiv(item, self.blocks), tirx.floormod(item, self.blocks)
                first = k.let(block * self.block)
                count = tirx.min(int32(self.block), down - first)
                if not self.has_rows:
                    with k.serial(count) as row:
                        where = [plane, first + row]
                        self._along_columns(x, where, y, where)
                elif not self.has_columns:
                    with k.serial(count) as row:
                        self._of_two_rows(x, [plane], first + row, int32(0), y, [plane, first + row], across)
                elif self.columns_first:
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
        rows = Row(source, where, self.before[1]), Row(target, there, self.after[1])
        along_columns(self.k, (self.at, self.weight), self.phases, self.lanes, *rows)

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


def emit_copies(
    machine: CpuModel, image: tuple[int, int, int, int], copies: tuple[int, int], dtype: str
) -> PrimFunc | None:
    """The kernel of X and Y, whose pixels are those of X, each equally often: the same loops at all extents;
    None for too many copies across.

    Parameters
    ----------
    image : [N, C, H, W] of X.
    copies : of each pixel along H and W.
    """
    down, across = copies
    if across > _MOST_COPIES:
        return None
    lanes = machine.lanes
    while lanes * across > _MOST_VECTORS * machine.lanes and lanes > 1:
        lanes //= 2
    batch, channels, height, width = image
    k = Kernel()
    with k:
        x = k.argument("X", image, dtype)
        y = k.argument("Y", (batch, channels, height * down, width * across), dtype)
        images, planes, rows, columns = k.counted(*image)
        lines = k.let(images * planes * rows)

        def line(item: Expr) -> None:
            plane = k.let(tirx.truncdiv(item, rows))
            row = k.let(item - plane * rows)
            number = k.let(tirx.truncdiv(plane, planes))
            where = [number, k.let(plane - number * planes)]

            def put(at: Index, many: int) -> None:
                value = k.load(x, [*where, row, k.ramp(at, many)])
                if across > 1:
                    order = [int32(n // across) for n in range(many * across)]
                    value = k.splat(value, across) if many == 1 else tirx.Shuffle([value] * across, order)
                value = k.let(value)
                for n in range(down):
                    k.store(y, value, [*where, row * down + n, k.ramp(at * across, many * across)])

            vector_loop(k, columns, lanes, put)

        k.shared_unless(lines * columns < _ALONE // (down * across), lines, line)
    return for_graph(k.function)
