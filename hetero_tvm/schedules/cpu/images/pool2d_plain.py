"""Pooling in plain NCHW, by rows: first down the window's rows, then across its columns.

::

    parallel over planes x blocks of output rows:
        for each row of the block:
            line[width + padding] = max or sum over the window's rows      vectors along the row
        for each row of the block:
            for each vector of output columns:
                max or sum over the window's columns of the line           loads at shifted places, from L1
                stored (a mean divided by the counts of its row and column)

A window of H x W costs H + W steps instead of H * W, and every access but the last column's is a whole
vector.  Rows are clipped to the image; columns outside are places of the line that hold -inf or 0.  A
stride between columns takes one wide load per ``stride`` taps, of which shuffles pick the columns.
Several rows go down before the first goes across, as a load waits for a store that it overlaps in part.

The largest value of a window with NaN is NaN, wherever in the window it stands.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.layout import Layout
from hetero_tvm.ops.pool2d import MAX, Pool2d
from hetero_tvm.schedules.base import DesignSpace, Knob, Point
from hetero_tvm.schedules.emit import (
    Index,
    Kernel,
    as_index,
    int32,
    largest,
    pieces_of,
    reduced,
    smallest,
    vector_loop,
)

_UNROLLED_ROWS = 8
"""More rows of a window than this are a loop, in the image's middle too."""
_UNROLLED_COLUMNS = 32
"""Likewise columns."""
_INTEGERS = ("int8", "uint8")
_WIDER = 2
"""Bytes of a vector by float32 values of one: shuffles of whole registers of bytes take several steps."""
_SHUFFLED_STRIDE = 4
"""Up to this stride columns are shuffled out of wide loads; further apart each is loaded alone."""


class PlainPool2dSpace(DesignSpace):
    """Knob: output rows that go down together before they go across."""

    name = "cpu.pool2d_plain"
    version = 1

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, Pool2d):
            return "not a pooling"
        if op.dtype != "float32" and not (op.mode == MAX and op.dtype in _INTEGERS):
            return f"it pools float32, and the largest of 8 bits, not {op.mode} of {op.dtype}"
        if {Layout.parse(op.x_layout), Layout.parse(op.y_layout)} != {Layout()}:
            return "the images are not plain NCHW without zeros around"
        if min(*op.image, *op.out_image, *op.kernel) < 1:
            return "an extent is zero"
        if op.out == (1, 1):
            return "one window per plane is a reduction over rows"
        return None

    def knobs(self, op: Pool2d, machine: CpuModel) -> tuple[Knob, ...]:
        return (Knob("rows", tuple(rows for rows in (4, 1, 2, 8, 16) if rows <= op.out[0])),)

    def default(self, op: Pool2d, machine: CpuModel) -> Point:
        points = [{"rows": rows} for rows in self.knobs(op, machine)[0].choices]
        return min(points, key=lambda point: self.estimate(op, point, machine))

    def estimate(self, op: Pool2d, point: Point, machine: CpuModel) -> float:
        vectors = -(-op.out[1] // machine.lanes)
        wanted = 8 if vectors <= 2 else 4
        return 1.0 + 0.05 * abs(math.log2(point["rows"] / wanted)) + 0.01 * (point["rows"] > wanted)

    def features(self, op: Pool2d, point: Point, machine: CpuModel) -> list[float]:
        return [math.log2(op.flops), sum(op.kernel), point["rows"], op.out[1] / machine.lanes]

    def emit(self, op: Pool2d, point: Point, machine: CpuModel) -> PrimFunc:
        return PlainPoolKernel(op, point["rows"], machine.lanes).emit()


@dataclass(frozen=True)
class PoolExtents:
    """Extents of images that are pooled: numbers, or expressions of a call's sizes."""

    planes: Index
    height: Index
    width: Index
    padding: tuple[Index, Index, Index, Index]
    out: tuple[Index, Index]

    @classmethod
    def of(cls, op: Pool2d) -> PoolExtents:
        """Extents of a contract's images."""
        return cls(op.batch * op.channels, op.height, op.width, op.padding, op.out)


class PlainPoolKernel:
    """Emits one pooling, ``rows`` output rows at a time."""

    def __init__(self, op: Pool2d, rows: int, lanes: int):
        self.op, self.rows, self.lanes = op, rows, lanes * (_WIDER if op.dtype in _INTEGERS else 1)
        self.k = Kernel()
        self.straight = op.kernel[1] == op.strides[1] == 1 and op.padding[1] == 0 and op.out[1] <= op.width
        """Whether a window is one column wide: what goes down is the result."""

    def emit(self) -> PrimFunc:
        """The PrimFunc: X, Y."""
        op, k = self.op, self.k
        with k:
            x = k.argument("X", op.inputs[0].shape, op.dtype)
            y = k.argument("Y", op.output.shape, op.dtype)
            self.measure(PoolExtents.of(op))
            self.loops(x, y)
        return k.function

    def measure(self, at: PoolExtents) -> None:
        """Take the extents, and how much of a line the windows see."""
        self.at = at
        (_, stride), (_, kernel) = self.op.strides, self.op.kernel
        self.reach = (at.out[1] - 1) * stride + kernel
        self.columns = largest(0, smallest(at.width, self.reach - at.padding[1]))
        # A wide load of the last columns passes the window's end.
        wide = (at.out[1] + (kernel - 1) // stride) * stride
        self.line_width = largest(self.reach, at.padding[1] + self.columns, wide)

    def loops(self, x: Buffer, y: Buffer) -> None:
        """Emit all loops over the images."""
        op, k, rows, at = self.op, self.k, self.rows, self.at
        blocks = pieces_of(at.out[0], rows)
        work = math.prod(op.out_image) * sum(op.kernel)
        self.x = k.view(x, (at.planes, at.height * at.width))
        self.y = k.view(y, (at.planes, at.out[0] * at.out[1]))
        with k.parallel(at.planes * blocks, work) as item:
            plane, first = tirx.floordiv(item, blocks), tirx.floormod(item, blocks) * rows
            even = isinstance(at.out[0], int) and at.out[0] % rows == 0
            here = rows if even else tirx.min(int32(rows), as_index(at.out[0]) - first)
            self.line = None if self.straight else k.scratch((rows, self.line_width), op.dtype)
            with k.serial(here) as r:
                self._down(plane, first + r, r)
            if not self.straight:
                with k.serial(here) as r:
                    self._across(plane, first + r, r)

    def vectors(self, extent: Index, body: Callable[[Index, int], None]) -> None:
        """``body(start, width)`` over ``extent`` elements, which may be written twice."""
        vector_loop(self.k, extent, self.lanes, body)

    # down ----------------------------------------------------------------------------------------
    def _down(self, plane: Expr, row: Expr, r: Expr) -> None:
        """Pool the rows of the window of output ``row``: to its line, or to Y where one column is all."""
        op, k, kernel, extents = self.op, self.k, self.op.kernel[0], self.at
        start = row * op.strides[0] - extents.padding[0]
        top = k.let(tirx.min(tirx.max(start, 0), as_index(extents.height)))
        height = k.let(tirx.max(tirx.min(start + kernel, as_index(extents.height)) - top, 0))
        left = extents.padding[1]

        def load(i: Index, at: Index, width: int) -> Expr:
            return k.load(self.x, [plane, k.ramp((top + i) * extents.width + at, width)])

        def put(at: Index, width: int, value: Expr) -> None:
            if self.straight:
                self._finish(plane, row, height, at, width, value)
            else:
                k.store(self.line, value, [r, k.ramp(at + left, width)])

        def unrolled(at: Index, width: int) -> None:
            value = load(0, at, width)
            for i in range(1, kernel):
                value = k.let(self._joined(value, load(i, at, width)))
            put(at, width, value)

        def looped(at: Index, width: int) -> None:
            acc = k.scratch((width,), op.dtype)
            lane = [k.ramp(0, width)]
            k.store(acc, k.splat(self._nothing, width), lane)
            with k.serial(height) as i:
                k.store(acc, self._joined(k.load(acc, lane), load(i, at, width)), lane)
            put(at, width, k.load(acc, lane))

        columns = extents.out[1] if self.straight else self.columns

        def whole(body: Callable[[Index, int], None]) -> None:
            self.vectors(columns, body)

        if kernel > _UNROLLED_ROWS:
            whole(looped)
        elif self._always_inside:
            whole(unrolled)
        else:
            k.branch(height == kernel, lambda: whole(unrolled), lambda: whole(looped))
        for begin, end in ((0, left), (left + self.columns, self.reach)) if not self.straight else ():
            self.vectors(largest(0, end - begin), self._clear(r, begin))

    @property
    def _always_inside(self) -> bool:
        """Whether no window passes the first or last row."""
        op, at = self.op, self.at
        last = (at.out[0] - 1) * op.strides[0] + op.kernel[0]
        known = isinstance(last, int) and isinstance(at.height, int)
        return known and at.padding[0] == 0 and last <= at.height

    def _clear(self, r: Expr, begin: Index) -> Callable[[Index, int], None]:
        """Writer of what counts in no window, from ``begin`` of a line."""

        def clear(at: Index, width: int) -> None:
            self.k.store(self.line, self.k.splat(self._nothing, width), [r, self.k.ramp(at + begin, width)])

        return clear

    # across --------------------------------------------------------------------------------------
    def _across(self, plane: Expr, row: Expr, r: Expr) -> None:
        """Pool the columns of a line, and store output ``row``."""
        op, k = self.op, self.k
        _, kernel = op.kernel
        extent = as_index(self.at.height)
        start = row * op.strides[0] - self.at.padding[0]
        top = tirx.min(tirx.max(start, 0), extent)
        height = k.let(tirx.max(tirx.min(start + op.kernel[0], extent) - top, 0))

        def unrolled(at: Index, width: int) -> None:
            value = self._column(r, at, 0, width)
            for j in range(1, kernel):
                value = k.let(self._joined(value, self._column(r, at, j, width)))
            self._finish(plane, row, height, at, width, value)

        def looped(at: Index, width: int) -> None:
            acc = k.scratch((width,), op.dtype)
            lane = [k.ramp(0, width)]
            k.store(acc, k.splat(self._nothing, width), lane)
            with k.serial(kernel) as j:
                value = self._apart(r, at, j, width)
                k.store(acc, self._joined(k.load(acc, lane), value), lane)
            self._finish(plane, row, height, at, width, k.load(acc, lane))

        self.vectors(self.at.out[1], unrolled if kernel <= _UNROLLED_COLUMNS else looped)

    def _column(self, r: Expr, at: Index, j: int, width: int) -> Expr:
        """Column ``j`` of the windows of ``width`` outputs from ``at``."""
        k, stride = self.k, self.op.strides[1]
        if width == 1 or not 1 < stride <= _SHUFFLED_STRIDE:
            return self._apart(r, at, j, width)
        near = k.load(self.line, [r, k.ramp(at * stride + j // stride * stride, width * stride)])
        return tirx.Shuffle([near], [int32(i * stride + j % stride) for i in range(width)])

    def _apart(self, r: Expr, at: Index, j: Index, width: int) -> Expr:
        """Vector of values that are loaded each from its own place."""
        stride = self.op.strides[1]
        first = as_index(at * stride + j)
        return self.k.load(self.line, [r, tirx.Ramp(first, int32(stride), width) if width > 1 else first])

    # values --------------------------------------------------------------------------------------
    @property
    def _nothing(self) -> Expr | float:
        """Value that changes no result."""
        if self.op.dtype in _INTEGERS:
            return tirx.min_value(self.op.dtype)
        return -math.inf if self.op.mode == MAX else 0.0

    def _joined(self, so_far: Expr, value: Expr) -> Expr:
        """Two values of a window as one."""
        return reduced("max" if self.op.mode == MAX else "add", so_far, value)

    def _finish(self, plane: Expr, row: Expr, height: Expr, at: Index, width: int, value: Expr) -> None:
        """Store ``width`` outputs of a row from column ``at``; divide means, of ``height`` rows each."""
        op, k = self.op, self.k
        if op.mode != MAX:
            value = value / self._count(row, height, at, width)
        k.store(self.y, value, [plane, k.ramp(row * self.at.out[1] + at, width)])

    def _count(self, row: Expr, height: Expr, at: Index, width: int) -> Expr:
        """Number of places that each of ``width`` means divides by."""
        op, k, extents = self.op, self.k, self.at

        def all_of(number: Index) -> Expr:
            return k.splat(as_index(number), width)

        def counted(first: Expr, axis: int, number: Callable[[Index], Expr]) -> Expr:
            extent = (extents.height, extents.width)[axis]
            if op.count_padding:
                last = number(extent + extents.padding[2 + axis])
                return tirx.min(first + number(op.kernel[axis]), last) - first
            end = tirx.min(first + number(op.kernel[axis]), number(extent))
            return tirx.max(end - tirx.max(first, number(0)), number(0))

        start = row * op.strides[0] - extents.padding[0]
        down = counted(start, 0, as_index) if op.count_padding else height
        stride = op.strides[1]
        first = as_index(at * stride - extents.padding[1])
        if width > 1:
            first = tirx.Ramp(first, int32(stride), width)
        count = tirx.max(counted(first, 1, all_of) * k.splat(down, width), all_of(1))
        return tirx.Cast("float32" if width == 1 else f"float32x{width}", count)
