"""Copies of what a block of pixels reads, which stay in L2 while all filters pass over them."""

from __future__ import annotations

import functools

from hetero_tvm.host.tvm import Buffer, Expr, tirx
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.schedules.cpu.images.planes.geometry import PixelBlocks
from hetero_tvm.schedules.emit import Index, Kernel, int32, vector_loop, vector_pieces


class BlockCopy:
    """Code that copies a block's input.

    Parameters
    ----------
    columns : pixels of a panel.
    x : planes of all images, [N x C, H x W].
    """

    def __init__(self, k: Kernel, op: Conv2d, blocks: PixelBlocks, columns: int, lanes: int, x: Buffer):
        self._k, self._op, self._blocks, self._columns, self._lanes, self._x = (
            k,
            op,
            blocks,
            columns,
            lanes,
            x,
        )
        self._geometry = blocks.geometry

    def emit(self, block: Expr, batch: Expr) -> Buffer:
        """Emit the copy.

        Returns
        -------
        For 1x1 filters panel after panel, in each its pixels of all channels, [1, panels x C, columns]; else
        the pixels of each phase and channel that filters reach from the block, [phases, C, pixels].
        """
        return self._panels(block, batch) if self._geometry.direct else self._windows(block, batch)

    def _panels(self, block: Expr, batch: Expr) -> Buffer:
        k, width, start, depth = self._k, self._columns, block * self._blocks.step, self._op.channels
        panels = self._blocks.pixels // width
        copied = k.scratch((1, panels * depth, width))

        def copy(channel: Expr, panel: Index, count: int) -> None:
            plane, target = batch * depth + channel, panel * depth + channel
            for at, vector in vector_pieces(count, self._lanes):
                value = k.load(self._x, [plane, k.ramp(start + panel * width + at, vector)])
                k.store(copied, value, [0, target, k.ramp(at, vector)])
            for at, vector in vector_pieces(width - count, self._lanes):
                k.store(copied, k.splat(0.0, vector), [0, target, k.ramp(count + at, vector)])

        def rows(whole: int, left: int) -> None:
            with k.serial(depth) as channel:
                with k.serial(whole) as panel:
                    copy(channel, panel, width)
                if left:
                    copy(channel, whole, left)

        last = self._geometry.pixels - (self._blocks.count - 1) * self._blocks.step
        if last == self._blocks.pixels:
            rows(panels, 0)
        else:
            behind = functools.partial(rows, last // width, last % width)
            k.branch(block < self._blocks.count - 1, lambda: rows(panels, 0), behind)
        return copied

    def _windows(self, block: Expr, batch: Expr) -> Buffer:
        op, k, geometry, blocks = self._op, self._k, self._geometry, self._blocks
        (sh, _), (top, left) = op.strides, op.padding[:2]
        along = geometry.out_rows == 1
        lines = blocks.rows + geometry.rows - geometry.out_rows
        pitch = blocks.pixels + geometry.reach if along else geometry.pitch
        size = max(blocks.pixels + geometry.reach, lines * pitch)
        copied = k.scratch((len(geometry.phases), op.channels, size))
        with k.serial(op.channels) as channel:
            plane = batch * op.channels + channel
            for index, phase in enumerate(geometry.phases):
                with k.serial(lines) as line:
                    first = int32(0) if along else block * blocks.rows
                    row = k.let((first + line) * sh + (phase[0] - top))
                    target = [index, channel, line * pitch]
                    if along:
                        copy = functools.partial(self._part_of_row, block * blocks.step, pitch)
                    else:
                        copy = self._row
                    k.branch(
                        tirx.all(row >= 0, row < op.height),
                        functools.partial(copy, copied, target, plane, row, phase[1] - left),
                        functools.partial(self._clear, copied, target, pitch),
                    )
                self._clear(copied, [index, channel, int32(lines * pitch)], size - lines * pitch)
        return copied

    def _clear(self, copied: Buffer, target: list[Index], count: int) -> None:
        """Clear pixels of a plane."""
        k, (*at, start) = self._k, target

        def piece(there: Index, width: int) -> None:
            k.store(copied, k.splat(0.0, width), [*at, k.ramp(start + there, width)])

        vector_loop(k, count, self._lanes, piece)

    def _put(
        self, copied: Buffer, target: list[Index], plane: Expr, source: Index, there: Index, width: int
    ) -> None:
        """Copy pixels of X from ``source`` on, as far apart as the stride says, to the ``there``-th place."""
        k, (*at, start) = self._k, target
        value = pixels_apart(k, self._x, plane, source, self._op.strides[1], width, self._lanes)
        k.store(copied, value, [*at, k.ramp(start + there, width)])

    def _row(self, copied: Buffer, target: list[Index], plane: Expr, row: Expr, column: int) -> None:
        """Copy a row of a phase, whose first pixel is at ``column`` of X or before it."""
        op, pitch, (*at, start) = self._op, self._geometry.pitch, target
        step = op.strides[1]
        first, last = valid_range(pitch, step, column, op.width)

        def piece(there: Index, width: int) -> None:
            source = row * op.width + (first + there) * step + column
            self._put(copied, target, plane, source, first + there, width)

        self._clear(copied, target, first)
        vector_loop(self._k, last - first, self._lanes, piece)
        self._clear(copied, [*at, start + last], pitch - last)

    def _part_of_row(
        self,
        begin: Expr,
        count: int,
        copied: Buffer,
        target: list[Index],
        plane: Expr,
        row: Expr,
        column: int,
    ) -> None:
        """Copy ``count`` pixels from the ``begin``-th on of the one row of a phase."""
        op, k, step = self._op, self._k, self._op.strides[1]
        first, last = valid_range(self._geometry.pitch, step, column, op.width)

        def piece(there: Index, width: int) -> None:
            def put() -> None:
                source = row * op.width + (begin + there) * step + column
                self._put(copied, target, plane, source, there, width)

            def apart() -> None:
                if width == 1:
                    k.store(copied, k.splat(0.0, 1), [*target[:-1], target[-1] + there])
                    return
                with k.serial(width) as each:
                    piece(there + each, 1)

            k.branch(tirx.all(begin + there >= first, begin + there + width <= last), put, apart)

        vector_loop(k, count, self._lanes, piece)


def pixels_apart(k: Kernel, x: Buffer, plane: Expr, at: Index, step: int, width: int, lanes: int) -> Expr:
    """``width`` pixels of a plane of X from ``at`` on, ``step`` apart; ``width`` is at most ``lanes``."""
    if step != 2 or width != lanes:
        return k.load(x, [plane, tirx.Ramp(at, int32(step), width) if width > 1 else at])
    # Two whole vectors and a shuffle, not a load for each pixel.  The second begins one pixel early:
    # nothing behind the last pixel is read.
    both = [k.load(x, [plane, k.ramp(at + n, width)]) for n in (0, width - 1)]
    order = [*range(0, width, 2), *range(width + 1, 2 * width, 2)]
    return tirx.Shuffle(both, [int32(n) for n in order])


def valid_range(extent: int, step: int, offset: int, limit: int) -> tuple[int, int]:
    """Range [first, last) of the a in [0, extent) with 0 <= a * step + offset < limit."""
    first = max(0, -(offset // step))
    return first, max(first, min(extent, (limit - 1 - offset) // step + 1))
