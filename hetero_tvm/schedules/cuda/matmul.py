"""Products with a constant matrix on tensor cores, with the epilogue in the same kernel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.matmul import BIAS, RESIDUAL, Matmul
from hetero_tvm.schedules.base import DesignSpace, Knob, Packer, Point
from hetero_tvm.schedules.cuda.activation import ACTIVATIONS
from hetero_tvm.schedules.cuda.tensor_core import Tile
from hetero_tvm.targets.cuda.model import GpuModel

_TILES = (
    (128, 128, (2, 2)), (128, 256, (2, 4)), (256, 128, (4, 2)), (128, 64, (2, 2)), (64, 128, (2, 2)),
    (64, 64, (2, 2)), (64, 32, (2, 2)), (32, 64, (2, 2)), (32, 128, (1, 4)), (16, 128, (1, 4)),
    (16, 64, (1, 4)),
)  # fmt: skip
_DEPTHS = (32, 64)
_STAGES = (3, 4, 2)


class CudaMatmulSpace(DesignSpace):
    """float16 products of :class:`Matmul` with float32 accumulation (see :mod:`.tensor_core`).

    Knob ``tile``: (rows, columns, depth, warps down, warps across, stages).  W is packed as its
    transpose [n, k], with rows of zeros up to whole tiles.  Rows of X beyond m read as zeros; results
    beyond m or n are not stored.
    """

    name = "cuda.matmul"

    def refuses(self, op: FusedOp, machine: GpuModel) -> str | None:
        if not isinstance(op, Matmul):
            return f"it serves matmul, not {op.kind}"
        if op.dtype != "float16":
            return f"tensor cores take float16 here, not {op.dtype}"
        if op.k % 32:
            return f"the reduction length {op.k} is no multiple of 32"
        if not tiles(op, machine):
            return f"no tile fits into {machine.shared_per_block} bytes of shared memory"
        return None

    def knobs(self, op: Matmul, machine: GpuModel) -> tuple[Knob, ...]:
        return (Knob("tile", tuple(map(_as_choice, tiles(op, machine)))),)

    def default(self, op: Matmul, machine: GpuModel) -> Point:
        return {"tile": _as_choice(tiles(op, machine)[0])}

    def emit(self, op: Matmul, point: Point, machine: GpuModel) -> Any:
        from hetero_tvm.schedules.cuda.tensor_core import schedule

        tile = _as_tile(point["tile"])
        function, inline = _workload(op, tile)
        return schedule(function, tile, inline)

    def pack(self, op: Matmul, point: Point, machine: GpuModel) -> dict[int, Packer]:
        columns = -(-op.n // point["tile"][1]) * point["tile"][1]

        def transposed(w: np.ndarray) -> np.ndarray:
            packed = np.zeros((columns, op.k), w.dtype)
            packed[: op.n] = w.T
            return packed

        return {1: transposed}

    def features(self, op: Matmul, point: Point, machine: GpuModel) -> list[float]:
        tile = _as_tile(point["tile"])
        blocks = _blocks(op, tile)
        return [
            math.log2(tile.rows), math.log2(tile.columns), math.log2(tile.depth), float(tile.stages),
            math.log2(tile.threads), blocks / machine.sms, math.log2(max(1, op.k // tile.depth)),
            tile.shared / machine.shared_per_sm, estimate(op, tile, machine),
        ]  # fmt: skip


def tiles(op: Matmul, machine: GpuModel) -> list[Tile]:
    """The tiles that fit, the most promising first."""
    found = [
        Tile(rows, columns, depth, warps, stages)
        for rows, columns, warps in _TILES
        for depth in _DEPTHS
        for stages in _STAGES
        if op.k % depth == 0 and op.k // depth >= stages
    ] or [
        Tile(rows, columns, 32, warps, 2 if op.k >= 64 else 1)
        for rows, columns, warps in _TILES
    ]  # fmt: skip
    found = [tile for tile in found if tile.valid and tile.shared <= machine.shared_per_block]
    return sorted(found, key=lambda tile: (estimate(op, tile, machine), -tile.stages * (tile.stages < 4)))


def estimate(op: Matmul, tile: Tile, machine: GpuModel) -> float:
    """Relative time of a product: whole waves of blocks, each bound by arithmetic or by its copies.

    A multiprocessor does about 1024 multiply-adds of float16 a cycle and takes about 48 bytes a cycle
    from L2; with fewer than 8 warps resident part of that is lost.
    """
    resident = max(1, min(machine.shared_per_sm // (tile.shared + 1024), 2048 // (tile.threads * 4)))
    blocks = _blocks(op, tile)
    resident = min(resident, -(-blocks // machine.sms))
    waves = -(-blocks // (machine.sms * resident))
    busy = min(1.0, resident * tile.threads / 256)
    arithmetic = resident * tile.rows * tile.columns * tile.depth / (1024 * busy)
    copies = resident * (tile.rows + tile.columns) * tile.depth * 2 / (48 * min(1.0, busy * tile.stages / 3))
    return waves * (
        op.k / tile.depth * max(arithmetic, copies) + 600 + resident * tile.rows * tile.columns / 64
    )


def _blocks(op: Matmul, tile: Tile) -> int:
    return -(-op.m // tile.rows) * -(-op.n // tile.columns)


def _as_choice(tile: Tile) -> tuple[int, ...]:
    return (tile.rows, tile.columns, tile.depth, *tile.warps, tile.stages)


def _as_tile(choice: tuple[int, ...]) -> Tile:
    rows, columns, depth, down, across, stages = choice
    return Tile(rows, columns, depth, (down, across), stages)


def _workload(op: Matmul, tile: Tile) -> tuple[Any, tuple[str, ...]]:
    """The product over whole tiles; the blocks to inline."""
    from tvm import te, tirx

    rows, columns = (-(-extent // part) * part for extent, part in ((op.m, tile.rows), (op.n, tile.columns)))
    packed = [(columns, op.k) if x.name == "W" else x.shape for x in op.inputs]
    operands = [te.placeholder(s, x.dtype, name=x.name) for s, x in zip(packed, op.inputs, strict=True)]
    x, w, *extra = operands

    def source(i: Any, k: Any) -> Any:
        value = x[(*_unflatten(i, op.lead), k)]
        return tirx.if_then_else(i < op.m, value, tirx.const(0, op.dtype)) if rows != op.m else value

    plain = len(op.lead) == 1 and rows == op.m
    flat = x if plain else te.compute((rows, op.k), source, name="rows")
    axis = te.reduce_axis((0, op.k), name="k")
    product = te.compute(
        (rows, columns),
        lambda i, j: te.sum(flat[i, axis].astype("float32") * w[j, axis].astype("float32"), axis=axis),
        name="product",
    )

    def epilogue(*index: Any) -> Any:
        row, j = 0, index[-1]
        for extent, i in zip(op.lead, index[:-1], strict=True):
            row = row * extent + i
        value, rest = product[row, j], iter(extra)
        for step in op.epilogue:
            if step == BIAS:
                value = value + next(rest)[j].astype("float32")
            elif step == RESIDUAL:
                value = value + next(rest)(*index).astype("float32")
            else:
                value = ACTIVATIONS[step](value)
        return value.astype(op.dtype)

    y = te.compute(op.output.shape, epilogue, name="Y")
    function = te.create_prim_func([*operands, y]).without_attr("global_symbol")
    return _one_row_axis(function.with_attr("tirx.noalias", True), op), () if plain else ("rows",)


def _unflatten(row: Any, lead: tuple[int, ...]) -> tuple[Any, ...]:
    index = []
    for extent in reversed(lead[1:]):
        index.append(row % extent if extent > 1 else 0)
        row = row // extent if extent > 1 else row
    return (row, *reversed(index)) if lead and (lead[0] > 1 or not lead[1:]) else (0, *reversed(index))


def _one_row_axis(function: Any, op: Matmul) -> Any:
    """The epilogue's block over (row, column), whatever the leading dimensions are."""
    if len(op.lead) == 1:
        return function
    import tvm
    from tvm import s_tir

    plan = s_tir.Schedule(tvm.IRModule({"main": function.with_attr("global_symbol", "main")}))

    def flat(*index: Any) -> list[Any]:
        row = 0
        for extent, i in zip(op.lead, index[:-1], strict=True):
            row = row * extent + i
        return [row, index[-1]]

    if len(op.lead) == 2:
        plan.transform_block_layout(plan.get_sblock("Y"), lambda a, b, j: flat(a, b, j))
    else:
        plan.transform_block_layout(plan.get_sblock("Y"), lambda a, b, c, j: flat(a, b, c, j))
    return plan.mod["main"].without_attr("global_symbol")
