"""Changes of an image's layout: between plain NCHW, blocks of channels and rows of channels (NHWC), or of the
zeros around planes.

Loop structure::

    parallel over blocks of channels, in pieces where these are few:
        for as many pixels of a row as the block has channels: a square, transposed in registers
        channels that fill no block: squares of which a part is copied to or from L1
        the pixels of a shorter row: one by one
        the halo of Y: zeros

Between blocks and rows vectors move as they are::

    parallel over rows of pixels, in pieces where these are few:
        for each block of channels, for each pixel: one vector

A square reads and writes whole vectors.  Planes that are a multiple of 4 KiB apart share one set of L1,
and channel by channel every pixel would miss it once for each.
"""

from __future__ import annotations

from hetero_tvm.codegen import transpose
from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.layout import Layout
from hetero_tvm.ops.pool2d import Relayout
from hetero_tvm.schedules.base import DesignSpace, Knob, Point
from hetero_tvm.schedules.cpu.images.blocked import Plane
from hetero_tvm.schedules.emit import Index, Kernel, as_index, int32, share

_EVEN = 1.05
"""Time of pieces that are shared out well enough, by that of the best choice."""


class RelayoutSpace(DesignSpace):
    """Space of changes of layout; no knobs, as it only moves data."""

    name = "cpu.relayout"
    version = 1

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, Relayout):
            return "not a change of layout"
        x, y = Layout.parse(op.x_layout), Layout.parse(op.y_layout)
        if op.from_rows or op.to_rows:
            rows, blocks = (y, x) if op.to_rows else (x, y)
            if blocks.block != machine.lanes or op.channels % machine.lanes or any(rows.halo):
                return (
                    f"{op.x_layout} to {op.y_layout} is not between rows and whole blocks of {machine.lanes}"
                )
            return "an extent is zero" if min(*op.image) < 1 else None
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
            relayout(op, machine, k)
        return k.function


def _between_rows(op: Relayout, machine: CpuModel, k: Kernel) -> None:
    """Write arguments and loops of one change between blocks and rows to ``k``."""
    lanes, height, width = machine.lanes, op.height, op.width
    forms = Layout.parse(op.x_layout), Layout.parse(op.y_layout)
    blocks = op.channels // lanes
    buffers = [k.argument("X", op.inputs[0].shape), k.argument("Y", op.output.shape)]
    planes = [Plane(k, form, height, width) for form in forms]
    x, y = (plane.view(buffer) for plane, buffer in zip(planes, buffers, strict=True))
    side = planes[0 if op.to_rows else 1]
    cuts = pieces_of_planes(op.batch * height, 1, blocks, machine.threads)
    with k.parallel(op.batch * height * cuts, 4 * op.batch * op.channels * height * width) as item:
        line = tirx.floordiv(item, int32(cuts))
        image, row = (
            k.let(tirx.floordiv(line, as_index(height))),
            k.let(tirx.floormod(line, as_index(height))),
        )
        first, count = share(tirx.floormod(item, int32(cuts)), blocks, cuts)
        with k.serial(count) as number:
            block = first + number
            plane = image * blocks + block
            with k.serial(width) as column:
                at = (row * width + column) * op.channels + block * lanes
                rows, blocked = [image, k.ramp(at, lanes)], side.at(plane, row, column)
                source, target = (blocked, rows) if op.to_rows else (rows, blocked)
                k.store(y, k.load(x, source), target)
            if op.from_rows:
                side.clear_halo(y, plane, row, int32(1), tirx.EQ(row, int32(0)), tirx.EQ(row, height - 1))


def relayout(op: Relayout, machine: CpuModel, k: Kernel) -> None:
    """Write arguments and loops of one change of layout to ``k``, with expressions for what is known at run
    time."""
    if op.from_rows or op.to_rows:
        _between_rows(op, machine, k)
        return
    lanes = machine.lanes
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
    squares = width // lanes if isinstance(width, int) else tirx.truncdiv(width, int32(lanes))
    pieces = pieces_of_planes(
        op.batch * blocks, blocks, squares if flat and not both else height, machine.threads
    )

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

    def part_of_square(plane: Expr, row: Expr, column: Index, count: int, turned: Buffer) -> None:
        """Transpose ``count`` channels of as many pixels as a square has, by way of L1."""
        base, lane = side.at(plane, row, column)
        image, first = first_of(plane, row, column)
        square_at, step = k.address(turned, [0]), int32(lanes)
        plain = [[image, k.ramp(first + c * pixels, lanes)] for c in range(count)]
        if forms[0].blocked:
            k.call(transpose.name_of(lanes), square_at, step, k.address(x, [base, lane.base]), step)
            for c, at in enumerate(plain):
                k.store(y, k.load(turned, [k.ramp(c * lanes, lanes)]), at)
            return
        for c, at in enumerate(plain):
            k.store(turned, k.load(x, at), [k.ramp(c * lanes, lanes)])
        k.call(transpose.name_of(lanes), k.address(y, [base, lane.base]), step, square_at, step)

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

    def row_of(plane: Expr, row: Expr, count: int, piece: Expr, cuts: int) -> None:
        """Move ``count`` channels of one of ``cuts`` pieces of a row."""
        is_last = tirx.EQ(piece, int32(cuts - 1)) if cuts > 1 else True

        def singly() -> None:
            with k.when(is_last), k.serial(width) as column:
                pixel(plane, row, column, count)

        def in_squares() -> None:
            turned = k.scratch((lanes * lanes,)) if count < lanes else None
            for c in range(count, lanes if turned is not None and not forms[0].blocked else count):
                k.store(turned, k.splat(0.0, lanes), [k.ramp(c * lanes, lanes)])

            def one(column: Index) -> None:
                if turned is None:
                    square(plane, row, column)
                else:
                    part_of_square(plane, row, column, count, turned)

            first, number = share(piece, squares, cuts)
            with k.serial(number) as n:
                one((first + n) * lanes)
            if not isinstance(width, int) or width % lanes:  # over part of the last one
                with k.when(is_last), k.when(isinstance(width, int) or squares * lanes < width):
                    one(as_index(width - lanes))

        if both:
            with k.serial(width) as column:
                pixel(plane, row, column, count)
        elif isinstance(squares, int):
            in_squares() if squares else singly()
        else:
            k.branch(squares > 0, in_squares, singly)

    def move(plane: Expr, count: int, piece: Expr) -> None:
        """Move ``count`` channels of a piece of a plane."""
        if flat and not both:
            row_of(plane, int32(0), count, piece, pieces)
            return
        first, rows = share(piece, height, pieces)
        with k.serial(rows) as row:
            row_of(plane, first + row, count, int32(0), 1)

    moved = 4 * op.batch * op.channels * pixels
    with k.imported(transpose.ir(lanes)), k.parallel(op.batch * blocks * pieces, moved) as item:
        plane = k.let(tirx.floordiv(item, int32(pieces))) if pieces > 1 else item
        piece = k.let(tirx.floormod(item, int32(pieces))) if pieces > 1 else int32(0)
        if tail == 0:
            move(plane, lanes, piece)
        elif blocks == 1:
            move(plane, tail, piece)
        else:
            whole = tirx.floormod(plane, blocks) < blocks - 1
            k.branch(whole, lambda: move(plane, lanes, piece), lambda: move(plane, tail, piece))
        if forms[1].blocked:
            ends = [tirx.EQ(piece, int32(end)) for end in (0, pieces - 1)]
            planes[1].clear_halo(y, plane, *share(piece, height, pieces), *ends)


def pieces_of_planes(planes: Index, blocks: int, most: Index, threads: int) -> int:
    """Pieces of each plane, ``most`` at most, so that threads have equally much."""
    planes = planes if isinstance(planes, int) else blocks

    def idle(pieces: int) -> float:
        return -(-planes * pieces // threads) * threads / (planes * pieces)

    least = min(map(idle, range(1, 2 * threads + 1)))
    wanted = next(pieces for pieces in range(1, 2 * threads + 1) if idle(pieces) <= _EVEN * least)
    return max(1, min(wanted, most)) if isinstance(most, int) else wanted
