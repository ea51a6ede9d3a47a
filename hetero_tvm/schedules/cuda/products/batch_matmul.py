"""Products of pairs of computed matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hetero_tvm.host.tvm import Expr, PrimFunc
from hetero_tvm.machines.gpu import GpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.batch_matmul import BatchMatmul
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.cuda import device
from hetero_tvm.schedules.cuda.buffers import flat_arguments
from hetero_tvm.schedules.cuda.products.epilogue import Place, RowMajor
from hetero_tvm.schedules.cuda.products.fragments import Element, element_for, element_of
from hetero_tvm.schedules.cuda.products.operands import Columns, Matrix, Part, Reduction, Rows, Source
from hetero_tvm.schedules.cuda.products.product import blocks, emit_tile
from hetero_tvm.schedules.cuda.products.space import TiledProductSpace
from hetero_tvm.schedules.cuda.products.tiles import CHUNK, Problem, Tile
from hetero_tvm.schedules.cuda.values import oversized
from hetero_tvm.schedules.emit import Kernel, int32


class CudaBatchMatmulSpace(TiledProductSpace):
    """:class:`BatchMatmul` on tensor cores (float16, bfloat16, int8; tf32 where asked for), else with
    float32 multiply-adds (see :mod:`.product`).

    Knob ``tile``: see :class:`TiledProductSpace`.  Operands are read where they lie: B with its rows along
    the reduction or across it, in which case ``ldmatrix`` transposes on the way to registers.  Rows that do
    not start at multiples of 16 bytes are copied in smaller pieces.
    """

    name = "cuda.batch_matmul"

    def refuses(self, op: FusedOp, machine: GpuModel) -> str | None:
        if not isinstance(op, BatchMatmul):
            return f"it serves batch_matmul, not {op.kind}"
        if element_for(op.dtype, machine.features) is None:
            return f"it multiplies float16, bfloat16, float32 and int8, not {op.dtype}"
        if 0 in (op.batch, op.m, op.n, op.k):
            return "an extent is zero"
        if op.k > 1 and op.left_at[-1] != 1:
            return "the first matrix does not have its values along the reduction together"
        if not _along(op) and op.n > 1 and op.right_at[-1] != 1:
            return "the second matrix has neither its rows nor its columns together"
        if op.dtype == "int8" and not _along(op):
            return "int8 is multiplied along rows: the second matrix must be transposed"
        return oversized(op)

    def problem(self, op: BatchMatmul, machine: GpuModel) -> Problem:
        element = element_of(op.dtype, machine)
        cores, across = bool(element.mma), not _along(op)
        return Problem(op.m, op.n, op.k, element.size, cores, batch=op.batch, across=across)

    def emit(self, op: BatchMatmul, point: Point, machine: GpuModel) -> PrimFunc:
        return _kernel(op, Tile.of(point["tile"]), element_of(op.dtype, machine))


def _along(op: BatchMatmul) -> bool:
    """Whether B's values along the reduction lie together."""
    return op.k == 1 or op.right_at[-2] == 1


def _kernel(op: BatchMatmul, tile: Tile, element: Element) -> PrimFunc:
    """The PrimFunc: A, B and Y where they lie."""
    k, size = Kernel("batch_matmul"), element.size
    along, y_strides = _along(op), _result_strides(op)
    aligned = [math.gcd(CHUNK, *(size * step for step in place[:-2])) for place in (op.left_at, op.right_at)]
    with k:
        a, b, y = flat_arguments(k, op)
        with blocks(k, op.m, op.n, tile, op.batch) as block:
            index = _unflatten(block.product, op.lead) if op.lead else ()

            def first(place: Sequence[int]) -> Expr:
                """First element of this block's matrix."""
                steps = zip(index, place[1:], strict=False)
                return device.fixed(k, sum((n * step for n, step in steps), int32(place[0])))

            def sources() -> tuple[Source, Source]:
                kind, stride = (Rows, op.right_at[-1]) if along else (Columns, op.right_at[-2])
                left = Matrix(a, first(op.left_at), op.left_at[-2], aligned[0])
                right = Matrix(b, first(op.right_at), stride, aligned[1])
                down, across = Part(block.row, op.m, tile.rows), Part(block.column, op.n, tile.columns)
                reduction = Reduction(op.k, tile.depth)
                return Rows(k, left, down, reduction, size), kind(k, right, across, reduction, size)

            lead = y_strides[: len(op.lead)]
            place = Place(y, first((0, *lead)), y_strides[-2], lead)
            epilogue = RowMajor(place, op.output.dtype, op.m, op.n)
            steps = (int32(0), -(-op.k // tile.depth))
            emit_tile(k, tile, element, sources, steps, epilogue, block, across=not along)
    return k.function


def _result_strides(op: BatchMatmul) -> list[int]:
    """Elements of Y from one index to the next of [*lead, m, n]."""
    strides, step = [0] * len(op.order), 1
    for axis, extent in zip(reversed(op.order), reversed(op.output.shape), strict=True):
        strides[axis] = step
        step *= extent
    return strides


def _unflatten(product: Expr, lead: Sequence[int]) -> tuple[Expr, ...]:
    """Index into ``lead`` of the product of that number."""
    index = []
    for extent in reversed(lead[1:]):
        index.append(product % extent)
        product = product // extent
    return (product, *reversed(index))
