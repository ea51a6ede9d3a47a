"""Changes of an image's layout: between plain NCHW and blocks of channels, or of the zeros around planes.

Loop structure::

    parallel over blocks of channels:
        for as many pixels of a row as the block has channels: a square, transposed in registers
        the pixels of a shorter row, and channels that fill no block: one by one
        the halo of Y: zeros

A square reads and writes whole vectors.  Planes that are a multiple of 4 KiB apart share one set of L1,
and channel by channel every pixel would miss it once for each.
"""

from __future__ import annotations

from hetero_tvm.codegen import transpose
from hetero_tvm.host.tvm import Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.layout import Layout
from hetero_tvm.ops.pool2d import Relayout
from hetero_tvm.schedules.base import DesignSpace, Knob, Point
from hetero_tvm.schedules.cpu.images.blocked import Plane
from hetero_tvm.schedules.emit import Index, Kernel, as_index, int32


class RelayoutSpace(DesignSpace):
    """Space of changes of layout; no knobs, as it only moves data."""

    name = "cpu.relayout"
    version = 1

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, Relayout):
            return "not a change of layout"
        x, y = Layout.parse(op.x_layout), Layout.parse(op.y_layout)
        if max(x.block, y.block) != machine.lanes or min(x.block, y.block) not in (1, machine.lanes):
            return f"{op.x_layout} to {op.y_layout} is not between plain and blocks of {machine.lanes}"
        if any(any(form.halo) and not form.blocked for form in (x, y)):
            return "a plain image has a halo"
        if min(*op.image) < 1:
            return "an extent is zero"
        return None

    def knobs(self, op: Relayout, machine: CpuModel) -> tuple[Knob, ...]:
        return ()

    def default(self, op: Relayout, machine: CpuModel) -> Point:
        return {}

    def emit(self, op: Relayout, point: Point, machine: CpuModel) -> PrimFunc:
        k = Kernel()
        with k:
            relayout(op, machine.lanes, k)
        return k.function


def relayout(op: Relayout, lanes: int, k: Kernel) -> None:
    """Write arguments and loops of one change of layout to ``k``, with expressions for what is known at run
    time."""
    forms = Layout.parse(op.x_layout), Layout.parse(op.y_layout)
    pixels, blocks, tail = op.height * op.width, -(-op.channels // lanes), op.channels % lanes
    both = all(form.blocked for form in forms)
    flat = not any(map(any, (form.halo for form in forms)))
    height, width = (1, pixels) if flat else (op.height, op.width)
    buffers = [k.argument("X", op.inputs[0].shape), k.argument("Y", op.output.shape)]
    planes = [Plane(k, form, height, width) for form in forms]
    x, y = (
        plane.view(buffer) if plane.layout.blocked else k.view(buffer, (op.batch, op.channels * pixels))
        for plane, buffer in zip(planes, buffers, strict=True)
    )
    side = planes[0] if planes[0].layout.blocked else planes[1]

    def first_of(plane: Expr, row: Expr, column: Index) -> list[Expr]:
        """Place of a pixel's first channel in the plain image."""
        channel = tirx.floormod(plane, blocks) * lanes
        return [tirx.floordiv(plane, blocks), channel * pixels + row * width + column]

    def square(plane: Expr, row: Expr, column: Index) -> None:
        """Transpose all channels of as many pixels."""
        base, lane = side.at(plane, row, column)
        ends = [([base, lane.base], lanes), (first_of(plane, row, column), pixels)]
        (x_at, x_stride), (y_at, y_stride) = ends if forms[0].blocked else reversed(ends)
        target, source = k.address(y, y_at), k.address(x, x_at)
        k.call(transpose.name_of(lanes), target, as_index(y_stride), source, as_index(x_stride))

    def pixel(plane: Expr, row: Expr, column: Expr, count: int) -> None:
        """Move ``count`` channels of one pixel."""
        if both:
            k.store(y, k.load(x, planes[0].at(plane, row, column)), planes[1].at(plane, row, column))
            return
        image, first = first_of(plane, row, column)
        plain = [image, tirx.Ramp(first, as_index(pixels), count) if count > 1 else first]
        base, lane = side.at(plane, row, column)
        short = [base, tirx.Ramp(lane.base, int32(1), count) if count > 1 else lane.base]
        if forms[0].blocked:
            k.store(y, k.load(x, short), plain)
            return
        if count < lanes:
            k.store(y, k.splat(0.0, lanes), [base, lane])
        k.store(y, k.load(x, plain), short)

    def row_of(plane: Expr, row: Expr, count: int) -> None:
        """Move ``count`` channels of a row."""

        def singly() -> None:
            with k.serial(width) as column:
                pixel(plane, row, column, count)

        def in_squares() -> None:
            with k.serial(squares) as piece:
                square(plane, row, piece * lanes)
            if not isinstance(width, int) or width % lanes:  # over part of the last one
                with k.when(isinstance(width, int) or squares * lanes < width):
                    square(plane, row, as_index(width - lanes))

        if count < lanes or both:
            singly()
            return
        squares = width // lanes if isinstance(width, int) else tirx.truncdiv(width, int32(lanes))
        if isinstance(squares, int):
            in_squares() if squares else singly()
        else:
            k.branch(squares > 0, in_squares, singly)

    def move(plane: Expr, count: int) -> None:
        """Move ``count`` channels of a plane."""
        with k.serial(height) as row:
            row_of(plane, row, count)

    moved = 4 * op.batch * op.channels * pixels
    with k.imported(transpose.ir(lanes)), k.parallel(op.batch * blocks, moved) as plane:
        if tail == 0:
            move(plane, lanes)
        elif blocks == 1:
            move(plane, tail)
        else:
            whole = tirx.floormod(plane, blocks) < blocks - 1
            k.branch(whole, lambda: move(plane, lanes), lambda: move(plane, tail))
        if forms[1].blocked:
            planes[1].clear_halo(y, plane, 0, height, tirx.const(True), tirx.const(True))
