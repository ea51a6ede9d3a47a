"""The kernel of one point of the matmul space."""

from __future__ import annotations

from typing import Any

from hetero_tvm._bootstrap import import_tvm

tvm = import_tvm()

from tvm.tirx.script.builder import ir as T  # noqa: E402

from hetero_tvm.ops.matmul import Matmul  # noqa: E402
from hetero_tvm.schedules.cpu.emit import Kernel, int32  # noqa: E402
from hetero_tvm.schedules.cuda.epilogue import RowMajor, Steps, flat  # noqa: E402
from hetero_tvm.schedules.cuda.fragments import Element  # noqa: E402
from hetero_tvm.schedules.cuda.matmul import whole  # noqa: E402
from hetero_tvm.schedules.cuda.operands import Rows  # noqa: E402
from hetero_tvm.schedules.cuda.product import emit_tile, place_of, tiles_of  # noqa: E402
from hetero_tvm.schedules.cuda.tiles import Tile  # noqa: E402


def matmul(op: Matmul, tile: Tile, element: Element) -> Any:
    """The PrimFunc: X [*lead, k], W packed [n, k], the epilogue's operands, Y [*lead, n]."""
    k = Kernel("matmul")
    depth = whole(op.k, tile.depth)
    with k:
        shapes = [(whole(op.n, tile.columns), depth) if x.name == "W" else x.shape for x in op.inputs]
        operands = [k.argument(x.name, s, x.dtype) for x, s in zip(op.inputs, shapes, strict=True)]
        y = k.argument("Y", op.output.shape, op.dtype)
        x, w, *extra = (flat(k, operand) for operand in operands)
        epilogue = RowMajor(flat(k, y), op.dtype, op.m, op.n, Steps(op.epilogue, extra))
        down, across = tiles_of(op.m, op.n, tile)
        with (
            T.launch_thread("blockIdx.x", down * across) as block,
            T.launch_thread("threadIdx.y", tile.threads // 32) as warp,
            T.launch_thread("threadIdx.x", 32) as lane,
        ):
            i, j = place_of(k, block, down, across)
            row, column = k.let(i * tile.rows), k.let(j * tile.columns)

            def sources() -> tuple[Rows, Rows]:
                return (
                    Rows(k, x, 0, op.k, row, op.m, tile.rows, op.k, tile.depth, element.size),
                    Rows(k, w, 0, depth, column, None, tile.columns, depth, tile.depth, element.size),
                )

            steps = (int32(0), depth // tile.depth)
            emit_tile(k, tile, element, sources, steps, epilogue, (row, column), warp, lane, rounded=True)
    return k.function
