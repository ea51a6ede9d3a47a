"""The kernel, or the two kernels, of one point of the matmul space."""

from __future__ import annotations

from collections.abc import Callable

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, T, tirx
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.schedules.cuda import device
from hetero_tvm.schedules.cuda.buffers import flat_arguments, workspace
from hetero_tvm.schedules.cuda.products.epilogue import EpilogueSteps, Place, RowMajor
from hetero_tvm.schedules.cuda.products.fragments import Element
from hetero_tvm.schedules.cuda.products.packing import weight_rows
from hetero_tvm.schedules.cuda.products.product import Epilogue, blocks, emit_tile, packed_sources
from hetero_tvm.schedules.cuda.products.tiles import Tile
from hetero_tvm.schedules.cuda.values import vector_of, whole
from hetero_tvm.schedules.emit import Kernel, int32

_THREADS = 128


def matmul(op: Matmul, tile: Tile, element: Element, splits: int = 1) -> PrimFunc:
    """The PrimFunc: X [*lead, k], W packed [n, k], the epilogue's operands, Y [*lead, n]."""
    k = Kernel("matmul")
    with k:
        x, w, *extra, y = flat_arguments(k, op, (weight_rows(op.n, tile), whole(op.k, tile.depth)))
        steps = EpilogueSteps(op.epilogue, extra)
        result = RowMajor(Place(y, 0, op.n), op.dtype, op.m, op.n, steps)
        if splits == 1:
            _tiles(k, op, tile, element, x, w, 1, lambda part: result)
        else:
            area = op.m * op.n
            parts = workspace(splits * area)

            def partial(part: Expr) -> Epilogue:
                return RowMajor(Place(parts, part * area, op.n), "float32", op.m, op.n)

            _tiles(k, op, tile, element, x, w, splits, partial)
            _add_parts(k, op, parts, splits, result)
    return k.function


def _tiles(
    k: Kernel,
    op: Matmul,
    tile: Tile,
    element: Element,
    x: Buffer,
    w: Buffer,
    splits: int,
    epilogue: Callable[[Expr], Epilogue],
) -> None:
    """Emit the first kernel: blocks over tiles, and over parts of the reduction."""
    steps = whole(op.k, tile.depth) // tile.depth
    each = -(-steps // splits)
    with blocks(k, op.m, op.n, tile, splits) as block:
        first, count = (int32(0), steps) if splits == 1 else (k.let(block.product * each), each)
        if steps % splits:  # the last parts may be shorter, or empty
            count = k.let(tirx.max(tirx.min(int32(each), steps - first), int32(0)))
        sources = packed_sources(k, x, w, op.m, op.k, block, tile, element.size)
        result = epilogue(block.product)
        emit_tile(k, tile, element, sources, (first, count), result, block, rounded=True)


def _add_parts(k: Kernel, op: Matmul, parts: Buffer, splits: int, result: RowMajor) -> None:
    """Emit the second kernel: a vector of results a thread, sums in the order of the parts."""
    vector = vector_of("float32", result.vector)
    result.vector = vector
    count = op.m * op.n // vector
    with (
        T.launch_thread("blockIdx.x", -(-count // _THREADS)) as block,
        T.launch_thread("threadIdx.x", _THREADS) as thread,
    ):
        index = k.let(block * _THREADS + thread)
        with k.when(index < count):
            sums, more = k.scratch((vector,)), k.scratch((vector,))
            device.call(
                "htvm_load", device.pointer(parts, index * vector), device.pointer(sums), template=str(vector)
            )
            for part in range(1, splits):
                at = device.pointer(parts, index * vector + part * op.m * op.n)
                device.call("htvm_load", at, device.pointer(more), template=str(vector))
                with k.unroll(vector) as e:
                    k.store(sums, k.load(sums, [e]) + k.load(more, [e]), [e])
            at = k.let(index * vector)
            result.store(k, sums, k.let(at // op.n), k.let(at % op.n))
