"""Softmax over an axis that is not the last, and its logarithm: classes of the pixels of an image.

Loop structure::

    parallel chunks of blocks of neighbours along the trailing axes (4 vectors each, the last one fewer):
        pass 1 over the axis: max
        pass 2: exp(x - max) by a vector polynomial, stored, and its sum
        pass 3: times 1 / sum

Neighbours share the lanes of a vector, so no lane is ever folded and nothing is transposed; largest values
and sums of a block stay in registers, and its values in L1 or L2 over the passes.  For the logarithm pass 2
stores nothing, and pass 3 gives x - max - log(sum).
"""

from __future__ import annotations

import math

from hetero_tvm.codegen import vector_math
from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.cpu.rows.row_chunks import RowSpace, each_row
from hetero_tvm.schedules.emit import Index, Kernel, as_index, in_powers_of_two, int32, vector_pieces

_VECTORS = 4
"""Vectors of a block: independent chains that hide the latency of an exponential."""
_LEAST_NEIGHBOURS = 4
"""Positions along the trailing axes from which on vectors are worth it."""


class SoftmaxAxisSpace(RowSpace):
    """Design space of ``Softmax`` over an inner axis; its chunks are of blocks of neighbours."""

    name = "cpu.softmax_axis"
    version = 1

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, Softmax):
            return "not a softmax"
        if not op.trail:
            return "the axis is the last"
        if op.dtype != "float32":
            return f"the operand is {op.dtype}"
        if 0 in op.shape:
            return "an extent is zero"
        return "few neighbours" if math.prod(op.trail) < _LEAST_NEIGHBOURS else None

    def row_count(self, op: Softmax, machine: CpuModel) -> int:
        """Blocks of neighbours, which share no reduction."""
        return math.prod(op.lead) * -(-math.prod(op.trail) // (_VECTORS * machine.lanes))

    def traffic(self, op: Softmax) -> int:
        """Four times the bytes: exponentials take longer than the traffic."""
        return 4 * op.nbytes

    def emit(self, op: Softmax, point: Point, machine: CpuModel) -> PrimFunc:
        k = Kernel()
        with k:
            x, y = k.argument("X", op.shape), k.argument("Y", op.shape)
            extents = math.prod(op.lead), op.n, math.prod(op.trail)
            softmax_of_neighbours(k, x, y, extents, op.log, point["chunks"], machine.lanes)
        return k.function


def softmax_of_neighbours(
    k: Kernel, x: Buffer, y: Buffer, extents: tuple[Index, Index, Index], log: bool, chunks: int, lanes: int
) -> None:
    """Emit softmax over the middle one of three ``extents``, which may be expressions."""
    outer, n, inner = extents
    width = _VECTORS * lanes
    x, y = (k.view(buffer, extents) for buffer in (x, y))
    if isinstance(inner, int):
        whole, rest = divmod(inner, width)
        each = whole + (rest > 0)
    else:
        whole = k.named(tirx.truncdiv(inner, int32(width)))
        rest = k.named(inner - whole * width)
        each = k.named(whole + tirx.Cast("int32", rest > 0))

    def block(i: Expr) -> None:
        image = k.let(tirx.truncdiv(i, as_index(each)))
        number = k.let(i - image * each)
        start = k.let(number * width)

        def full() -> None:
            _block(k, x, y, log, n, image, start, vector_pieces(width, lanes))

        def part() -> None:
            if isinstance(rest, int):
                _block(k, x, y, log, n, image, start, vector_pieces(rest, lanes))
                return

            def some(first: Index, size: int) -> None:
                _block(k, x, y, log, n, image, k.let(start + first), vector_pieces(size, lanes))

            in_powers_of_two(k, int32(0), rest, width, some)

        if isinstance(rest, int) and not (whole and rest):
            (full if whole else part)()
        else:
            k.branch(number < whole, full, part)

    each_row(k, outer * each, chunks, block)


def _block(
    k: Kernel,
    x: Buffer,
    y: Buffer,
    log: bool,
    n: Index,
    image: Expr,
    start: Expr,
    pieces: list[tuple[int, int]],
) -> None:
    """Emit the passes over the axis for the positions ``start + at .. start + at + width`` of each piece."""
    size = sum(width for _, width in pieces)
    peak, total = k.scratch((size,)), k.scratch((size,))
    for at, width in pieces:
        k.store(peak, k.splat(-math.inf, width), [k.ramp(at, width)])
        k.store(total, k.splat(0.0, width), [k.ramp(at, width)])

    def place(c: Expr, at: int, width: int) -> list[Expr]:
        return [image, c, k.ramp(start + at, width)]

    with k.serial(n) as c:
        for at, width in pieces:
            there = [k.ramp(at, width)]
            k.store(peak, tirx.max(k.load(peak, there), k.load(x, place(c, at, width))), there)
    with k.serial(n) as c:
        for at, width in pieces:
            there = [k.ramp(at, width)]
            value = k.let(vector_math.softmax_exp(k.load(x, place(c, at, width)), k.load(peak, there)))
            if not log:
                k.store(y, value, place(c, at, width))
            k.store(total, k.load(total, there) + value, there)
    for at, width in pieces:
        there = [k.ramp(at, width)]
        sums = k.load(total, there)
        k.store(total, tirx.log(sums) if log else k.splat(1.0, width) / sums, there)
    with k.serial(n) as c:
        for at, width in pieces:
            there = [k.ramp(at, width)]
            if log:
                value = k.load(x, place(c, at, width)) - k.load(peak, there) - k.load(total, there)
            else:
                value = k.load(y, place(c, at, width)) * k.load(total, there)
            k.store(y, value, place(c, at, width))
