"""Boxes of an image pooled to a grid of equal bins (RoIAlign, He et al. 2017).

The samples of a bin are a grid of their own, so what it reads is rows x columns of the image, with a weight
for each row and one for each column.  Samples that share a pixel become one weight.

Loop structure::

    parallel over boxes x groups of channels:
        for each bin along an axis: the pixels that it touches and their weights   (once for all channels)
        for each channel, for each row of bins:
            for each vector of columns that any bin touches:
                the weighted sum of rows, in a register
            for each bin: the weighted sum of its columns

A box of 30 x 30 pixels with samples a pixel apart costs a ninth of four pixels for every sample.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.emit import Kernel, constant, for_graph, int32

_UNTOUCHED = -1.0
"""Stands for a pixel that a bin does not read; weights are not negative."""
_WORK = 16
"""Operations for a result, roughly: what decides whether threads are worth waking."""


@dataclass(frozen=True)
class Bins:
    """Extents and attributes.

    Attributes
    ----------
    image : [N, C, H, W] of X.
    boxes : number of rows (image, left, top, right, bottom).
    size : bins along the rows and the columns of a box.
    scale : what corners are multiplied with.
    samples : samples of a bin along an axis; 0 for about one for every pixel.
    aligned : whether a box may be smaller than a pixel.
    """

    image: tuple[int, int, int, int]
    boxes: int
    size: tuple[int, int]
    scale: float
    samples: int
    aligned: bool


def emit_roi_align(machine: CpuModel, form: Bins, ranges: bool = False) -> PrimFunc:
    """The kernel of X, boxes [R, 5], and the mean of samples Y [R, C, h, w]; all are float32.

    ``ranges`` : whether the image's width may be known at run time only, and less than a vector then.
    """
    return _Emitter(machine, form, ranges).emit()


class _Emitter:
    """Emits one kernel."""

    def __init__(self, machine: CpuModel, form: Bins, ranges: bool):
        self.form, self.k, self.ranges = form, Kernel(), ranges
        self.height, self.width = form.image[2:]
        self.lanes = machine.lanes if ranges else min(machine.lanes, 1 << (self.width.bit_length() - 1))
        channels, wanted = form.image[1], -(-4 * machine.threads // form.boxes)
        self.groups = next(n for n in range(min(wanted, channels), 0, -1) if channels % n == 0)

    def emit(self) -> PrimFunc:
        k, form = self.k, self.form
        (batch, channels), (rows, columns) = form.image[:2], form.size
        work = form.boxes * channels * rows * columns * _WORK
        group = channels // self.groups
        with k:
            x, boxes = k.argument("X", form.image), k.argument("boxes", (form.boxes, 5))
            y = k.argument("Y", (form.boxes, channels, rows, columns))
            x = k.view(x, (batch * channels, self.height * self.width))
            with k.parallel(form.boxes * self.groups, work) as item:
                box = k.let(tirx.floordiv(item, self.groups))
                first = k.let(tirx.floormod(item, self.groups) * group)
                image = tirx.Cast("int32", k.load(boxes, [box, int32(0)]))
                image = tirx.min(tirx.max(image, int32(0)), int32(batch - 1))
                plane = k.let(image * channels + first)
                down = _Axis(k, self.height, rows)
                across = _Axis(k, self.width, columns)
                samples = [
                    self._place(boxes, box, axis, extent, bins)
                    for axis, extent, bins in ((1, self.height, rows), (0, self.width, columns))
                ]
                count = k.let(tirx.max(samples[0][0] * samples[1][0], int32(1)))
                mean = k.let(constant(1.0) / tirx.Cast("float32", count))
                down.weigh(*samples[0], mean)
                across.weigh(*samples[1], constant(1.0))

                def channels_by(lanes: int) -> None:
                    with k.serial(group) as c:
                        channel = first + c

                        def put(i: Expr, j: Expr, mean: Expr) -> None:
                            k.store(y, mean, [box, channel, i, j])

                        self._channel(x, plane + c, down, across, put, lanes)

                if self.ranges and self.lanes > 1:
                    (width,) = k.counted(self.width)
                    wide = width >= self.lanes
                    k.branch(wide, lambda: channels_by(self.lanes), lambda: channels_by(1))
                else:
                    channels_by(self.lanes)
        return for_graph(k.function, work)

    def _place(
        self, boxes: Buffer, box: Expr, axis: int, extent: int, bins: int
    ) -> tuple[Expr, Callable[[Expr, Expr], Expr]]:
        """Samples of a bin along an axis, and where each is, in pixels."""
        k, form = self.k, self.form
        start, end = (
            k.let(k.load(boxes, [box, int32(1 + axis + corner)]) * constant(form.scale)) for corner in (0, 2)
        )
        size = end - start if form.aligned else tirx.max(end - start, constant(1.0))
        side = k.let(size / constant(float(bins)))
        count = int32(form.samples) if form.samples > 0 else k.let(tirx.Cast("int32", tirx.ceil(side)))

        def place(bin: Expr, sample: Expr) -> Expr:
            middle = (tirx.Cast("float32", sample) + constant(0.5)) * side / tirx.Cast("float32", count)
            return start + tirx.Cast("float32", bin) * side + middle

        return count, place

    def _channel(
        self,
        x: Buffer,
        plane: Expr,
        down: _Axis,
        across: _Axis,
        put: Callable[[Expr, Expr, Expr], None],
        lanes: int,
    ) -> None:
        """Emit the bins of one plane; ``put`` stores that of a row and a column."""
        k = self.k
        sums = k.scratch((self.width,))
        total, mixed = k.scratch((lanes,)), k.scratch((1,))
        begin, end = (k.let(k.load(across.reach, [int32(n)])) for n in (0, 1))
        vectors = tirx.truncdiv(tirx.max(end - begin, int32(0)) + (lanes - 1), int32(lanes))
        with k.serial(self.form.size[0]) as i:
            rows = k.let(k.load(down.number, [i]))
            with k.serial(vectors) as v:
                # The last vector moves back into the row: what it does twice it does alike.
                at = k.let(tirx.min(begin + v * lanes, int32(self.width - lanes)))
                k.store(total, k.splat(0.0, lanes), [k.ramp(0, lanes)])
                with k.serial(rows) as n:
                    row = k.load(down.pixels, [i, n]) * self.width
                    weight = k.splat(k.load(down.weights, [i, n]), lanes)
                    value = k.load(x, [plane, k.ramp(row + at, lanes)])
                    k.store(total, k.load(total, [k.ramp(0, lanes)]) + value * weight, [k.ramp(0, lanes)])
                k.store(sums, k.load(total, [k.ramp(0, lanes)]), [k.ramp(at, lanes)])
            with k.serial(self.form.size[1]) as j:
                k.store(mixed, constant(0.0), [0])
                with k.serial(k.load(across.number, [j])) as n:
                    value = k.load(sums, [k.load(across.pixels, [j, n])])
                    k.store(mixed, k.load(mixed, [0]) + value * k.load(across.weights, [j, n]), [0])
                put(i, j, k.load(mixed, [0]))


class _Axis:
    """Pixels that each bin of an axis reads, with their weights, and the reach of all of them.

    Attributes
    ----------
    number : pixels of each bin.
    pixels, weights : which, in order, and how much they count, [bins, extent].
    reach : first pixel of any bin, and the one behind the last.
    """

    def __init__(self, k: Kernel, extent: int, bins: int):
        self.k, self.extent, self.bins = k, extent, bins
        self.number, self.reach = k.scratch((bins,), "int32"), k.scratch((2,), "int32")
        self.pixels, self.weights = k.scratch((bins, extent), "int32"), k.scratch((bins, extent))
        self.dense, self.span = k.scratch((extent,)), k.scratch((2,), "int32")

    def weigh(self, samples: Expr, place: Callable[[Expr, Expr], Expr], factor: Expr) -> None:
        """Find them; each sample counts ``factor``, and none that is more than a pixel off the image."""
        k, extent = self.k, self.extent
        first, last = [int32(0)], [int32(1)]
        k.store(self.reach, int32(extent), first)
        k.store(self.reach, int32(0), last)
        with k.serial(extent) as n:
            k.store(self.dense, constant(_UNTOUCHED), [n])
        with k.serial(self.bins) as bin:
            k.store(self.span, int32(extent), first)
            k.store(self.span, int32(0), last)
            with k.serial(samples) as n:
                at = k.let(place(bin, n))
                k.branch(tirx.all(at >= -1.0, at <= float(extent)), lambda at=at: self._count(at, factor))
            k.store(self.number, int32(0), [bin])
            begin, end = (k.let(k.load(self.span, [int32(n)])) for n in (0, 1))
            k.store(self.reach, tirx.min(k.load(self.reach, first), begin), first)
            k.store(self.reach, tirx.max(k.load(self.reach, last), end), last)
            with k.serial(tirx.max(end - begin, int32(0))) as n:
                pixel = k.let(begin + n)
                k.branch(
                    k.load(self.dense, [pixel]) >= 0.0, lambda bin=bin, pixel=pixel: self._keep(bin, pixel)
                )

    def _count(self, at: Expr, factor: Expr) -> None:
        """A sample's two pixels."""
        k, extent = self.k, self.extent
        near = k.let(tirx.min(tirx.max(at, constant(0.0)), constant(extent - 1.0)))
        low = k.let(tirx.Cast("int32", near))
        high = k.let(tirx.min(low + 1, int32(extent - 1)))
        part = k.let(near - tirx.Cast("float32", low))
        for pixel, weight in ((low, constant(1.0) - part), (high, part)):
            before = tirx.max(k.load(self.dense, [pixel]), constant(0.0))
            k.store(self.dense, before + weight * factor, [pixel])
        k.store(self.span, tirx.min(k.load(self.span, [int32(0)]), low), [int32(0)])
        k.store(self.span, tirx.max(k.load(self.span, [int32(1)]), high + 1), [int32(1)])

    def _keep(self, bin: Expr, pixel: Expr) -> None:
        """Add a pixel to a bin's, and forget its weight."""
        k = self.k
        end = k.let(k.load(self.number, [bin]))
        k.store(self.pixels, pixel, [bin, end])
        k.store(self.weights, k.load(self.dense, [pixel]), [bin, end])
        k.store(self.dense, constant(_UNTOUCHED), [pixel])
        k.store(self.number, end + 1, [bin])
