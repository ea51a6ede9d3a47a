"""Products with a constant matrix, with the epilogue in the same kernel."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero_tvm.machines.gpu import GpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.schedules.base import DesignSpace, Knob, Packer, Point
from hetero_tvm.schedules.cuda.products.fragments import Element, element_for
from hetero_tvm.schedules.cuda.products.tiles import Problem, Tile, choices, estimate, tiles

INDEX_LIMIT = 2**31
"""Elements of a tensor that 32-bit offsets reach."""


_WIDEST = 256
"""Columns of the widest tile, which the others divide."""


class CudaMatmulSpace(DesignSpace):
    """Products of :class:`Matmul` on tensor cores (float16, bfloat16; float32 as tf32 when that precision
    was asked for), else with float32 multiply-adds (see :mod:`.product`).

    Knob ``tile``: (rows, columns, depth, warps down, warps across, stages).  Knob ``splits``: parts of the
    reduction that different blocks sum up; a second kernel adds the parts, in order, and applies the
    epilogue.  W is packed as its transpose [n, k], with zeros up to whole tiles, rounded to tf32 where that
    multiplies.
    """

    name = "cuda.matmul"
    version = 2

    def refuses(self, op: FusedOp, machine: GpuModel) -> str | None:
        if not isinstance(op, Matmul):
            return f"it serves matmul, not {op.kind}"
        if element_for(op.dtype, machine.features) is None or op.dtype == "int8":
            return f"it multiplies float16, bfloat16 and float32, not {op.dtype}"
        if max(math.prod(x.shape) for x in (*op.inputs, op.output)) >= INDEX_LIMIT:
            return "an operand has more than 2^31 values"
        return None

    def knobs(self, op: Matmul, machine: GpuModel) -> tuple[Knob, ...]:
        problem = problem_of(op, machine)
        return (Knob("tile", choices(tiles(problem, machine))), Knob("splits", _splits(problem, machine)))

    def default(self, op: Matmul, machine: GpuModel) -> Point:
        problem = problem_of(op, machine)
        found = [
            (split_estimate(problem, tile, splits, machine), order, tile, splits)
            for order, tile in enumerate(tiles(problem, machine))
            for splits in _splits(problem, machine)
            if not tile.group  # no one has timed these
        ]
        _, _, tile, splits = min(found, key=lambda entry: entry[:2])
        return {"tile": tile.choice, "splits": splits}

    def emit(self, op: Matmul, point: Point, machine: GpuModel) -> Any:
        from hetero_tvm.schedules.cuda.products.matmul_kernel import matmul

        return matmul(op, Tile.of(point["tile"]), _element(op, machine), point["splits"])

    def pack(self, op: Matmul, point: Point, machine: GpuModel) -> dict[int, Packer]:
        tile, element = Tile.of(point["tile"]), _element(op, machine)
        return {1: lambda w: packed(w, tile, element)}

    def features(self, op: Matmul, point: Point, machine: GpuModel) -> list[float]:
        problem, tile, splits = problem_of(op, machine), Tile.of(point["tile"]), point["splits"]
        plain = features_of(problem, tile, machine)
        return [*plain, float(splits), split_estimate(problem, tile, splits, machine)]


def _splits(problem: Problem, machine: GpuModel) -> tuple[int, ...]:
    """Worth a second kernel only where few tiles have a long way to go."""
    smallest = -(-problem.m // 64) * -(-problem.n // 64)
    if smallest >= machine.sms or problem.k * problem.size < 2048:
        return (1,)
    return tuple(n for n in (1, 2, 4, 8) if problem.k * problem.size >= 1024 * n)


def split_estimate(problem: Problem, tile: Tile, splits: int, machine: GpuModel) -> float:
    """:func:`estimate` of a reduction in parts: shorter, more blocks, and the parts to add up."""
    if splits == 1:
        return estimate(problem, tile, machine)
    part = dataclasses.replace(problem, k=-(-problem.k // splits), batch=splits)
    launch = 4000.0  # cycles
    moved = 8 * splits * problem.m * problem.n / (48 * machine.sms)
    return estimate(part, tile, machine) + launch + moved


def problem_of(op: Any, machine: GpuModel) -> Problem:
    element = _element(op, machine)
    return Problem(op.m, op.n, op.k, element.size, bool(element.mma))


def _element(op: Any, machine: GpuModel) -> Element:
    element = element_for(op.dtype, machine.features)
    assert element is not None  # refused otherwise
    return element


def features_of(problem: Problem, tile: Tile, machine: GpuModel) -> list[float]:
    """Numbers of a tile that the cost model sees."""
    blocks = problem.batch * -(-problem.m // tile.rows) * -(-problem.n // tile.columns)
    return [
        math.log2(tile.rows), math.log2(tile.columns), math.log2(tile.depth), float(tile.stages),
        math.log2(tile.threads), blocks / machine.sms, math.log2(max(1, problem.k // tile.depth)),
        tile.shared(problem.size) / machine.shared_per_sm, estimate(problem, tile, machine),
    ]  # fmt: skip


def packed(w: np.ndarray, tile: Tile, element: Element) -> np.ndarray:
    """W [k, n] as [n, k] with zeros up to whole tiles; rounded to tf32 where that multiplies it."""
    k, n = w.shape
    result = np.zeros((weight_rows(n, tile), whole(k, tile.depth)), w.dtype)
    result[:n, :k] = w.T
    return tf32(result) if element.rounds else result


def weight_rows(n: int, tile: Tile) -> int:
    """Rows of a packed W: where there are many, the same for every tile, so that architectures with other
    tiles share the constant."""
    return whole(n, _WIDEST if n > _WIDEST else tile.columns)


def tf32(array: np.ndarray) -> np.ndarray:
    """float32 values to the nearest with 10 bits after the point (ties away from zero)."""
    bits = np.ascontiguousarray(array, "float32").view("uint32")
    finite = (bits & 0x7F800000) != 0x7F800000
    return np.where(finite, (bits + 0x1000) & 0xFFFFE000, bits).astype("uint32").view("float32")


def whole(extent: int, part: int) -> int:
    return -(-extent // part) * part


def unflatten(row: Any, lead: Sequence[int]) -> tuple[Any, ...]:
    """The index into ``lead`` of a row of the flat product."""
    index = []
    for extent in reversed(lead[1:]):
        index.append(row % extent)
        row = row // extent
    return (row, *reversed(index))
