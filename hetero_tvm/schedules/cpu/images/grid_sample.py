"""Images read at positions that come at run time.

Loop structure::

    parallel over images x blocks of positions:
        the pixels around each position and their weights                     (once for all channels)
    parallel over planes:
        the plane, and a zero behind it                                       (L2)
        for each position: the weighted sum of its pixels

A pixel beyond the image is the zero: its neighbours' NaN are not multiplied by 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.emit import Index, Kernel, constant, for_graph, int32, vector_loop

_BLOCK = 256
"""Positions of one iteration."""


@dataclass(frozen=True)
class Sampling:
    """Extents and attributes of a lookup by positions.

    Attributes
    ----------
    image : [N, C, H, W] of X.
    places : (h, w) of the positions, which are [N, 2, h, w]: columns, then rows, from -1 to 1.
    taps : pixels along an axis: 2 between pixels, 1 for the nearest.
    aligned : whether -1 and 1 are the middles of the pixels at the border, not their outer edges.
    border : whether pixels beyond the image are those at its border; else they are 0.
    """

    image: tuple[int, int, int, int]
    places: tuple[int, int]
    taps: int
    aligned: bool
    border: bool


def emit_grid_sample(machine: CpuModel, form: Sampling, ranges: bool = False) -> PrimFunc:
    """The kernel of X, the positions, and Y [N, C, h, w]; all are float32.

    ``ranges`` : whether extents may be known at run time only; the loops are the same at all of them then.
    """
    return _Emitter(machine, form, ranges).emit()


class _Emitter:
    """Emits one kernel."""

    def __init__(self, machine: CpuModel, form: Sampling, ranges: bool):
        self.form, self.lanes, self.ranges = form, machine.lanes, ranges
        self.count = form.places[0] * form.places[1]
        self.pixels = form.image[2] * form.image[3]
        self.around = form.taps**2
        self.k = Kernel()

    def emit(self) -> PrimFunc:
        k, form = self.k, self.form
        batch, channels = form.image[:2]
        work = batch * channels * self.count * 4 * self.around
        with k:
            x = k.argument("X", form.image)
            grid = k.argument("grid", (batch, 2, *form.places))
            y = k.argument("Y", (batch, channels, *form.places))
            x = k.view(x, (batch * channels, self.pixels))
            y = k.view(y, (batch * channels, self.count))
            self.grid = k.view(grid, (batch, 2, self.count))
            self.index = k.scratch((batch, self.around, self.count), "int32")
            self.weight = k.scratch((batch, self.around, self.count))
            if self.ranges:  # by rows of positions
                rows, columns = form.places
                with k.parallel(int32(batch * rows)) as item:
                    image, first = tirx.floordiv(item, rows), tirx.floormod(item, rows) * columns
                    with k.serial(columns) as p:
                        self._neighbours(image, first + p)
                with k.parallel(int32(batch * channels)) as plane:
                    self._plane(x, y, plane)
            else:
                blocks = -(-self.count // _BLOCK)
                with k.parallel(batch * blocks, work) as item:
                    image, first = tirx.floordiv(item, blocks), tirx.floormod(item, blocks) * _BLOCK
                    with k.serial(tirx.min(int32(_BLOCK), self.count - first)) as p:
                        self._neighbours(image, first + p)
                with k.parallel(batch * channels, work) as plane:
                    self._plane(x, y, plane)
        return for_graph(k.function, work)

    def _plane(self, x: Buffer, y: Buffer, plane: Expr) -> None:
        k, image = self.k, tirx.floordiv(plane, self.form.image[1])
        pixels = k.scratch((self.pixels + 1,))
        extent: Index = self.pixels
        if self.ranges:
            (extent,) = k.counted(self.pixels)
        vector_loop(
            k,
            extent,
            self.lanes,
            lambda at, w: k.store(pixels, k.load(x, [plane, k.ramp(at, w)]), [k.ramp(at, w)]),
            unroll=4,
        )
        k.store(pixels, constant(0.0), [self.pixels])
        with k.serial(self.count) as p:
            value = constant(0.0)
            for n in range(self.around):
                pixel = k.load(pixels, [k.load(self.index, [image, n, p])])
                value = value + pixel * k.load(self.weight, [image, n, p])
            k.store(y, value, [plane, p])

    def _neighbours(self, image: Expr, p: Expr) -> None:
        """Pixels around one position and their weights."""
        k, (height, width) = self.k, self.form.image[2:]
        rows, columns = self._along(image, p, 1, height), self._along(image, p, 0, width)
        for j, (row, above) in enumerate(rows):
            for i, (column, left) in enumerate(columns):
                inside = tirx.all(row >= 0.0, row <= height - 1.0, column >= 0.0, column <= width - 1.0)
                place = tirx.Cast("int32", row) * width + tirx.Cast("int32", column)
                at = [image, int32(j * self.form.taps + i), p]
                k.store(self.index, tirx.Select(inside, place, int32(self.pixels)), at)
                k.store(self.weight, above * left, at)

    def _along(self, image: Expr, p: Expr, axis: int, extent: int) -> list[tuple[Expr, Expr]]:
        """Pixels along an axis, as float32, and their weights."""
        k, value = self.k, self.k.load(self.grid, [image, axis, p])
        scale = (extent - 1) / 2 if self.form.aligned else extent / 2
        at = (value + constant(1.0)) * constant(scale)
        at = at if self.form.aligned else at - constant(0.5)
        if self.form.border:
            at = tirx.min(tirx.max(at, constant(0.0)), constant(extent - 1.0))
        at = k.let(at)
        if self.form.taps == 1:
            return [(k.let(tirx.nearbyint(at)), constant(1.0))]
        first = k.let(tirx.floor(at))
        part = k.let(at - first)
        return [(first, constant(1.0) - part), (k.let(first + constant(1.0)), part)]
