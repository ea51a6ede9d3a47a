"""Products of pairs of computed matrices."""

from __future__ import annotations

import math
from typing import Any

from hetero_tvm._bootstrap import import_tvm

tvm = import_tvm()

from tvm.tirx.script.builder import ir as T  # noqa: E402

from hetero_tvm.ops.base import FusedOp  # noqa: E402
from hetero_tvm.ops.batch_matmul import BatchMatmul  # noqa: E402
from hetero_tvm.schedules.base import DesignSpace, Knob, Point  # noqa: E402
from hetero_tvm.schedules.cpu.emit import Kernel, int32  # noqa: E402
from hetero_tvm.schedules.cuda.epilogue import RowMajor, Steps, flat  # noqa: E402
from hetero_tvm.schedules.cuda.fragments import Element, element_for  # noqa: E402
from hetero_tvm.schedules.cuda.matmul import INDEX_LIMIT, features_of  # noqa: E402
from hetero_tvm.schedules.cuda.operands import Columns, Rows, Source  # noqa: E402
from hetero_tvm.schedules.cuda.product import emit_tile, place_of, tiles_of  # noqa: E402
from hetero_tvm.schedules.cuda.tiles import Problem, Tile, choices, tiles  # noqa: E402
from hetero_tvm.targets.cuda.model import GpuModel  # noqa: E402

_GRID_Z = 65535


class CudaBatchMatmulSpace(DesignSpace):
    """:class:`BatchMatmul` on tensor cores (float16, bfloat16, int8; tf32 where asked for), else with
    float32 multiply-adds (see :mod:`.product`).

    Knob ``tile``: (rows, columns, depth, warps down, warps across, stages).  Operands stay as they are: a
    transposed W has its rows along the reduction, a plain one across it, and ``ldmatrix`` transposes on
    the way to registers.  Rows that do not start at multiples of 16 bytes are copied in smaller pieces.
    """

    name = "cuda.batch_matmul"

    def refuses(self, op: FusedOp, machine: GpuModel) -> str | None:
        if not isinstance(op, BatchMatmul):
            return f"it serves batch_matmul, not {op.kind}"
        if element_for(op.dtype, machine.features) is None:
            return f"it multiplies float16, bfloat16, float32 and int8, not {op.dtype}"
        if op.dtype == "int8" and not op.transposed:
            return "int8 is multiplied along rows: the second matrix must be transposed"
        if op.dtype == "int8" and op.scale != 1.0:
            return "sums of int8 have no scale"
        if op.batch > _GRID_Z:
            return f"{op.batch} matrices are more than a grid has"
        if max(math.prod(x.shape) for x in (*op.inputs, op.output)) >= INDEX_LIMIT:
            return "an operand has more than 2^31 values"
        return None

    def knobs(self, op: BatchMatmul, machine: GpuModel) -> tuple[Knob, ...]:
        return (Knob("tile", choices(tiles(_problem(op, machine), machine))),)

    def default(self, op: BatchMatmul, machine: GpuModel) -> Point:
        return {"tile": tiles(_problem(op, machine), machine)[0].choice}

    def emit(self, op: BatchMatmul, point: Point, machine: GpuModel) -> Any:
        element = element_for(op.dtype, machine.features)
        assert element is not None  # refused otherwise
        return _kernel(op, Tile.of(point["tile"]), element)

    def features(self, op: BatchMatmul, point: Point, machine: GpuModel) -> list[float]:
        return features_of(_problem(op, machine), Tile.of(point["tile"]), machine)


def _problem(op: BatchMatmul, machine: GpuModel) -> Problem:
    element = element_for(op.dtype, machine.features)
    assert element is not None
    return Problem(op.m, op.n, op.k, element.size, bool(element.mma), op.batch, not op.transposed)


def _kernel(op: BatchMatmul, tile: Tile, element: Element) -> Any:
    k, size = Kernel("batch_matmul"), element.size
    with k:
        arguments = [k.argument(o.name, o.shape, o.dtype) for o in (*op.inputs, op.output)]
        x, w, y = (flat(k, argument) for argument in arguments)
        down, across = tiles_of(op.m, op.n, tile)
        with (
            T.launch_thread("blockIdx.z", op.batch) as b,
            T.launch_thread("blockIdx.x", down * across) as block,
            T.launch_thread("threadIdx.y", tile.threads // 32) as warp,
            T.launch_thread("threadIdx.x", 32) as lane,
        ):
            i, j = place_of(k, block, down, across)
            row, column = k.let(i * tile.rows), k.let(j * tile.columns)
            matrix = int32(0) if op.shared else b * (op.k * op.n)

            def sources() -> tuple[Source, Source]:
                left = Rows(k, x, b * (op.m * op.k), op.k, row, op.m, tile.rows, op.k, tile.depth, size)
                if op.transposed:
                    right = Rows(k, w, matrix, op.k, column, op.n, tile.columns, op.k, tile.depth, size)
                    return left, right
                return left, Columns(k, w, matrix, op.n, column, op.n, tile.columns, op.k, tile.depth, size)

            epilogue = RowMajor(
                y, op.output.dtype, op.m, op.n, Steps((), ()), b * (op.m * op.n), scale=op.scale
            )
            steps = (int32(0), -(-op.k // tile.depth))
            emit_tile(
                k, tile, element, sources, steps, epilogue, (row, column), warp, lane,
                across=not op.transposed,
            )  # fmt: skip
    return k.function
