"""Layer and RMS normalisation over an axis that is not the last: channels of an image.

Loop structure::

    parallel chunks of blocks of neighbours along the trailing axes (4 vectors each):
        pass 1 over the axis: the sums of x - x[0]          (skipped for RMS)
        pass 2: sums of (x - mean)**2
        pass 3: (x - mean) * rstd * scale + shift, stored

Neighbours share the lanes of a vector, so no lane is ever folded and nothing is transposed; the sums of a
block stay in registers.  A block of 4 vectors is whole cache lines of each channel and stays in L1 or L2
over the passes.  The positions left over by whole blocks follow, in vectors of falling width.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.cpu.rows.row_chunks import RowSpace, each_row
from hetero_tvm.schedules.emit import Index, Kernel, vector_pieces

VECTORS = 4
"""Vectors of a block: independent sums that hide the latency of an addition."""


class NormalizeAxisSpace(RowSpace):
    """Design space of ``Normalization`` over an inner axis; its chunks are of blocks of neighbours."""

    name = "cpu.normalize_axis"
    version = 1

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, Normalization):
            return "not a normalisation"
        if not op.trail:
            return "the normalised axis is the last"
        if op.dtype != "float32":
            return f"the operands are {op.dtype}"
        return "an extent is zero" if 0 in (op.rows, op.n) else None

    def row_count(self, op: Normalization, machine: CpuModel) -> int:
        """Blocks of neighbours, which share no reduction."""
        return math.prod(op.lead) * max(1, math.prod(op.trail) // (VECTORS * machine.lanes))

    def emit(self, op: Normalization, point: Point, machine: CpuModel) -> PrimFunc:
        outer, inner, lanes = math.prod(op.lead), math.prod(op.trail), machine.lanes
        width = VECTORS * lanes
        whole, rest = divmod(inner, width)
        k = Kernel()
        with k:
            x, *vectors = (k.argument(o.name, o.shape) for o in op.inputs)
            y = k.argument("Y", op.output.shape)
            x, y = (k.view(buffer, (outer, op.n, inner)) for buffer in (x, y))

            def block(image: Expr, start: Index, pieces: list[tuple[int, int]]) -> None:
                normalize_block(k, op, x, y, vectors, image, start, pieces)

            if whole:
                pieces = vector_pieces(width, lanes)

                def one_block(i: Expr) -> None:
                    block(tirx.floordiv(i, whole), k.let(tirx.floormod(i, whole) * width), pieces)

                each_row(k, outer * whole, min(point["chunks"], outer * whole), one_block)
            if rest:
                left = vector_pieces(rest, lanes)
                each_row(k, outer, min(point["chunks"], outer), lambda i: block(i, whole * width, left))
        return k.function


def normalize_block(
    k: Kernel,
    op: Normalization,
    x: Buffer,
    y: Buffer,
    vectors: list[Buffer],
    image: Expr,
    start: Index,
    pieces: list[tuple[int, int]],
) -> None:
    """Emit the passes over the axis for the positions ``start + at .. start + at + width`` of each piece.

    x, y : [images, values of the axis, neighbours]; ``op`` tells the axis alone.
    """
    size = sum(width for _, width in pieces)
    mean, deviation = k.scratch((size,)), k.scratch((size,))

    def value(c: Expr, at: int, width: int) -> Expr:
        loaded = k.load(x, [image, c, k.ramp(start + at, width)])
        return loaded - k.load(mean, [k.ramp(at, width)]) if op.centered else loaded

    def total(into: Buffer, term: Callable[[Expr, int, int], Expr]) -> None:
        for at, width in pieces:
            k.store(into, k.splat(0.0, width), [k.ramp(at, width)])
        with k.serial(op.n) as c:
            for at, width in pieces:
                there = [k.ramp(at, width)]
                k.store(into, k.load(into, there) + term(c, at, width), there)

    def square(c: Expr, at: int, width: int) -> Expr:
        centred = k.let(value(c, at, width))
        return centred * centred

    if op.centered:  # sums of differences to the first value: sums of values far from 0 are coarse
        first = k.scratch((size,))
        for at, width in pieces:
            k.store(first, k.load(x, [image, 0, k.ramp(start + at, width)]), [k.ramp(at, width)])

        def difference(c: Expr, at: int, width: int) -> Expr:
            return k.load(x, [image, c, k.ramp(start + at, width)]) - k.load(first, [k.ramp(at, width)])

        total(mean, difference)
        for at, width in pieces:
            there = [k.ramp(at, width)]
            mean_of = k.load(first, there) + k.load(mean, there) * k.splat(1.0 / op.n, width)
            k.store(mean, mean_of, there)
    total(deviation, square)
    for at, width in pieces:
        there = [k.ramp(at, width)]
        variance = k.load(deviation, there) * k.splat(1.0 / op.n, width) + k.splat(op.eps, width)
        k.store(deviation, k.splat(1.0, width) / tirx.sqrt(variance), there)
    with k.serial(op.n) as c:
        scale, *shift = (k.let(k.load(vector, [c])) for vector in vectors)
        for at, width in pieces:
            result = value(c, at, width) * k.load(deviation, [k.ramp(at, width)]) * k.splat(scale, width)
            result = result + k.splat(shift[0], width) if op.shifted else result
            k.store(y, result, [image, c, k.ramp(start + at, width)])
