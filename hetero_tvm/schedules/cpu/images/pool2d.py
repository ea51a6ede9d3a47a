"""Pooling on channel blocks (NCHW[x]c).

Loop structure::

    parallel over images x output rows (pieces of a single one) x planes (channel blocks):
        rows of the input that the window sees (at the border fewer)
        for each output column:
            acc = -inf or 0
            for each row, for each column of the window inside the image: acc = max or + one vector
            stored (a mean multiplied by the reciprocal of its count, which border rows and columns differ in)

A vector is the channels of one pixel: no shuffle anywhere.  The window is clipped, not padded, because
zeros around the image would win over negative values in a maximum.  Windows over the whole image have
several accumulators, as one would wait for its own latency.  Threads share out rows, as convolutions do: each
finds what it has written.
"""

from __future__ import annotations

import contextlib
import math

from hetero_tvm.host.tvm import Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.layout import Layout
from hetero_tvm.ops.pool2d import MAX, Pool2d
from hetero_tvm.schedules.base import DesignSpace, Knob, Point
from hetero_tvm.schedules.cpu.images.blocked import Plane
from hetero_tvm.schedules.emit import Kernel, as_index, int32, is_single, share, smallest

_PIECES = 8
"""Pieces of a single row that threads share."""

_LOWEST = -math.inf
_HIDDEN_CYCLES = 60
"""Cycles of one window's chain that the processor spends on the next windows."""


class Pool2dSpace(DesignSpace):
    """Knob: accumulators of one window."""

    name = "cpu.pool2d"
    version = 1

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, Pool2d):
            return "not a pooling"
        if op.dtype != "float32":
            return f"it pools float32, not {op.dtype}"
        if {Layout.parse(op.x_layout).block, Layout.parse(op.y_layout).block} != {machine.lanes}:
            return f"the images are not in blocks of {machine.lanes} channels"
        if min(*op.image, *op.out_image, *op.kernel) < 1:
            return "an extent is zero"
        return None

    def knobs(self, op: Pool2d, machine: CpuModel) -> tuple[Knob, ...]:
        return (Knob("accumulators", tuple(a for a in (1, 4, 8) if a <= op.kernel[1])),)

    def default(self, op: Pool2d, machine: CpuModel) -> Point:
        most = max(self.knobs(op, machine)[0].choices)
        return {"accumulators": most if math.prod(op.kernel) >= 16 else 1}

    def features(self, op: Pool2d, point: Point, machine: CpuModel) -> list[float]:
        return [math.log2(op.flops), math.prod(op.kernel), point["accumulators"]]

    def estimate(self, op: Pool2d, point: Point, machine: CpuModel) -> float:
        # Neighbouring windows overlap in the processor's queue, so that only long chains show their latency.
        taps, accumulators = math.prod(op.kernel), point["accumulators"]
        chain = taps * machine.fma_latency / accumulators - _HIDDEN_CYCLES
        return max(taps * machine.load_cycles, chain) + accumulators

    def emit(self, op: Pool2d, point: Point, machine: CpuModel) -> PrimFunc:
        return PoolKernel(op, point["accumulators"]).emit()


class PoolKernel:
    """Emits one pooling, to ``k``, where extents known at run time are expressions."""

    def __init__(self, op: Pool2d, accumulators: int, k: Kernel | None = None):
        self.op, self.accumulators = op, accumulators
        self.k = k or Kernel()
        self.input = Plane(self.k, Layout.parse(op.x_layout), op.height, op.width)
        self.output = Plane(self.k, Layout.parse(op.y_layout), *op.out)
        self.lanes = self.input.layout.block

    def emit(self) -> PrimFunc:
        """The PrimFunc: X, Y."""
        with self.k:
            self.write()
        return self.k.function

    def write(self) -> None:
        """Write arguments and loops to ``k``."""
        op, k = self.op, self.k
        x, y = k.argument("X", op.inputs[0].shape), k.argument("Y", op.output.shape)
        self.x, self.y = self.input.view(x), self.output.view(y)
        planes = self.input.layout.blocks(op.channels)
        one_row = is_single(op.out[0])
        pieces = k.named(smallest(_PIECES, op.out[1])) if one_row else op.out[0]
        with k.parallel(op.batch * planes * pieces, op.flops * 4) as item:
            number = k.let(tirx.floordiv(item, planes))
            piece = k.let(tirx.floormod(number, pieces))
            plane = k.let(tirx.floordiv(number, pieces) * planes + tirx.floormod(item, planes))
            row = int32(0) if one_row else piece
            top, bottom = self._window(0, row)
            first, count = share(piece, op.out[1], pieces) if one_row else (int32(0), op.out[1])
            with k.serial(count) as column:
                self._pixel(plane, row, first + column, top, bottom)
            with k.when(piece == 0) if one_row else contextlib.nullcontext():
                self.output.clear_halo(self.y, plane, row, 1, row == 0, row == op.out[0] - 1)

    def _window(self, axis: int, index: Expr) -> tuple[Expr, Expr]:
        """First row or column that output ``index`` sees, and how many."""
        op, k = self.op, self.k
        extent = (op.height, op.width)[axis]
        start = index * op.strides[axis] - op.padding[axis]
        low = k.let(tirx.min(tirx.max(start, 0), as_index(extent)))
        high = tirx.min(start + op.kernel[axis], as_index(extent))
        return low, k.let(tirx.max(high - low, 0))

    def _counted(self, axis: int, index: Expr, seen: Expr) -> Expr:
        """Rows or columns that a mean divides by: those inside the image, or inside its padding too."""
        op = self.op
        if not op.count_padding:
            return seen
        start = index * op.strides[axis] - op.padding[axis]
        extent = (op.height, op.width)[axis] + op.padding[2 + axis]
        return tirx.min(start + op.kernel[axis], as_index(extent)) - start

    def _pixel(self, plane: Expr, row: Expr, column: Expr, top: Expr, height: Expr) -> None:
        """Pool one pixel of one plane over ``height`` rows from ``top``."""
        op, k, lanes, several = self.op, self.k, self.lanes, self.accumulators
        left, width = self._window(1, column)
        acc = k.scratch((several, lanes))
        lane = k.ramp(0, lanes)
        for a in range(several):
            k.store(acc, k.splat(_LOWEST if op.mode == MAX else 0.0, lanes), [a, lane])

        def take(a: int, y: Expr, x: Expr) -> None:
            value = k.load(self.x, self.input.at(plane, y, x))
            so_far = k.load(acc, [a, lane])
            k.store(acc, tirx.max(so_far, value) if op.mode == MAX else so_far + value, [a, lane])

        with k.serial(height) as i:
            if several > 1:
                with k.serial(tirx.floordiv(width, several)) as step:
                    for a in range(several):
                        take(a, top + i, left + step * several + a)
                with k.serial(tirx.floormod(width, several)) as rest:
                    take(0, top + i, left + tirx.floordiv(width, several) * several + rest)
            else:
                with k.serial(width) as j:
                    take(0, top + i, left + j)
        value = k.load(acc, [0, lane])
        for a in range(1, several):
            other = k.load(acc, [a, lane])
            value = tirx.max(value, other) if op.mode == MAX else value + other
        if op.mode != MAX:
            count = tirx.max(self._counted(0, row, height) * self._counted(1, column, width), 1)
            value = value / k.splat(tirx.Cast("float32", count), lanes)
        k.store(self.y, value, self.output.at(plane, row, column))
