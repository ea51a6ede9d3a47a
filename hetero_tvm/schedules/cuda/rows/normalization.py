"""Layer and RMS normalisation of rows on a GPU."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.gpu import GpuModel
from hetero_tvm.ops.add_norm import AddNorm
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.embedding_norm import EmbeddingNorm
from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.cuda.rows.row_tiles import RowKernel
from hetero_tvm.schedules.cuda.rows.space import RowSpace
from hetero_tvm.schedules.cuda.values import const, vector_of
from hetero_tvm.schedules.emit import Kernel, int32


class CudaNormalizationSpace(RowSpace):
    """Rows in registers (see :mod:`.row_tiles`): mean, then variance around it, then one write.

    The second pass over the registers keeps float32 accurate where the mean is large.
    """

    name = "cuda.normalize"

    def refuses(self, op: FusedOp, machine: GpuModel) -> str | None:
        if not isinstance(op, Normalization):
            return f"it serves normalize, not {op.kind}"
        if op.trail:
            return op.special
        return "an extent is zero" if 0 in (op.rows, op.n) else None

    def vector(self, op: Normalization) -> int:
        """Elements of one access: rows that lie at strides of their own must start at whole ones."""
        return vector_of(op.dtype, op.n, *op.place)

    def weights(self, op: Normalization) -> int:
        return len(op.inputs) - 1

    def emit(self, op: Normalization, point: Point, machine: GpuModel) -> PrimFunc:
        k = Kernel("normalize")
        shape = self.shape(op, point)
        with k:
            x, *vectors = (k.argument(o.name, o.shape, o.dtype) for o in op.inputs)
            y = k.argument("Y", op.output.shape, op.dtype)
            x, y = k.view(x, (math.prod(op.inputs[0].shape),)), k.view(y, (op.rows, op.n))
            kernel = RowKernel(k, shape, op.dtype)
            with kernel.threads(reductions=2):
                start = k.let(_start(op, kernel.row))
                kernel.load(lambda c, lanes: k.load(x, [k.ramp(start + c, lanes)]), 0.0)
                finish(k, kernel, op, vectors, y)
        return k.function


def _start(op: Normalization, row: Expr) -> Expr:
    """Offset in the operand at which row ``row`` of the result begins."""
    if not op.place:
        return row * op.n
    start, rest = int32(op.place[0]), row
    for extent, stride in zip(reversed(op.lead), reversed(op.place[1:]), strict=True):
        start = start + tirx.floormod(rest, extent) * stride
        rest = tirx.floordiv(rest, extent)
    return start


def finish(
    k: Kernel,
    kernel: RowKernel,
    op: Normalization | AddNorm | EmbeddingNorm,
    vectors: Sequence[Buffer],
    y: Buffer,
) -> None:
    """Normalise the loaded row and store it as row ``kernel.row`` of ``y``."""
    centered, factor = statistics(k, kernel, op.n, op.eps, op.centered)
    width = kernel.shape.vector
    weights = [k.scratch((width,)) for _ in vectors]

    def result(value: Expr, column: Expr, e: int) -> Expr:
        if e == 0:
            for weight, vector in zip(weights, vectors, strict=True):
                for at in range(0, width, 4):
                    part = min(4, width - at)
                    k.store(weight, k.load(vector, [k.ramp(column + at, part)]), [k.ramp(int32(at), part)])
        result = centered(value) * factor * k.load(weights[0], [int32(e)])
        return result + k.load(weights[1], [int32(e)]) if len(weights) > 1 else result

    kernel.store(result, lambda c, vector: k.store(y, vector, [kernel.row, k.ramp(c, width)]))


def statistics(
    k: Kernel, kernel: RowKernel, n: int, eps: float, centered: bool = True
) -> tuple[Callable[[Expr], Expr], Expr]:
    """``x - mean`` as a function of x (x itself where not ``centered``), and ``1 / sqrt(variance + eps)``."""
    mean = None
    if centered:
        total = kernel.reduce(lambda value: value, operator.add, 0.0, padded=False)
        mean = k.let(total * const(1.0 / n))

    def shifted(value: Expr) -> Expr:
        return value if mean is None else value - mean

    def square(value: Expr) -> Expr:
        value = k.let(shifted(value))
        return value * value

    squares = kernel.reduce(square, operator.add, 0.0, padded=mean is not None)
    return shifted, k.let(tirx.rsqrt(squares * const(1.0 / n) + const(eps)))
