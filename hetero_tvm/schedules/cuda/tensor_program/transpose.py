"""Transposes, alone or inside of an elementwise chain, on a GPU.

Loop structure, where the result is contiguous along j and one operand along i::

    blockIdx.x over tiles of 32 x 32 (i, j) and all other axes
      32 x 8 threads: the operand's tile to shared memory, lanes along i; rows are 33 words apart
      barrier
      the expression and its store, lanes along j; the operand comes from shared memory

Both the read and the write are full lines of neighbouring threads; the odd pitch keeps the 32 lanes that
read a column of the tile in 32 different banks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, T, TensorLoad, Var, tirx
from hetero_tvm.machines.gpu import GpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.schedules.base import DesignSpace, Knob, Point
from hetero_tvm.schedules.cuda.tensor_program.neighbours import Neighbours
from hetero_tvm.schedules.cuda.tensor_program.plain import PlainKernel, distinct
from hetero_tvm.schedules.cuda.threads import barrier
from hetero_tvm.schedules.nests.nest import (
    Nest,
    Nests,
    loads_of,
    offset,
    substitute,
)
from hetero_tvm.schedules.nests.program import program_nests

TILE = 32
DOWN = (8, 16, 4)
"""Numbers of threads of a tile's column."""
_LEAST = 8
"""Least extent of an axis that is turned: smaller ones leave most of a tile empty."""


class CudaTransposeSpace(DesignSpace):
    """Generic kernels that turn one operand.  Knob ``down``: threads of a tile's column."""

    name = "cuda.transpose"

    def refuses(self, op: FusedOp, machine: GpuModel) -> str | None:
        nests = program_nests(op)
        return nests if isinstance(nests, str) else refuses(nests)

    def knobs(self, op: FusedOp, machine: GpuModel) -> tuple[Knob, ...]:
        return (Knob("down", DOWN),)

    def default(self, op: FusedOp, machine: GpuModel) -> Point:
        return {"down": DOWN[0]}

    def emit(self, op: FusedOp, point: Point, machine: GpuModel) -> PrimFunc:
        return emit(program_nests(op), point["down"])

    def features(self, op: FusedOp, point: Point, machine: GpuModel) -> list[float]:
        return [math.log2(point["down"]), program_nests(op).nests[0].size / TILE**2 / machine.sms]


def refuses(nests: Nests) -> str | None:
    """Reason why these nests are no transpose; None when they are."""
    if nests.temporary or len(nests.nests) != 1 or nests.nests[0].reduced:
        return "it is not one expression of its operands"
    return None if _turned(nests.nests[0]) else "no operand is contiguous along another axis than the result"


def _step(nest: Nest, buffer: Buffer, indices: Sequence[Expr], axis: int) -> bool:
    """Whether a place moves by one along an axis."""
    near = Neighbours(1, 1, nest.index_dtype)
    values = {var: near.bind(var.name, extent) for var, extent in nest.axes}
    variable = nest.axes[axis][0]
    place = offset(buffer, indices)
    moved = substitute(place, {**values, variable: values[variable] + 1}) - substitute(place, values)
    return near.equals(moved, 1)


def _turned(nest: Nest) -> tuple[TensorLoad, int] | None:
    """The operand that is contiguous along another axis, and that axis."""
    if len(nest.axes) < 2 or nest.axes[-1][1] < _LEAST:
        return None
    last = len(nest.axes) - 1
    if not _step(nest, nest.buffer, nest.indices, last):
        return None
    found = []
    for load in distinct([load for load, guarded in loads_of(nest.value) if not guarded]):
        if math.prod(map(int, load.source.shape)) * 4 <= nest.size:
            continue
        axes = [a for a, (_, extent) in enumerate(nest.axes) if extent > 1]
        along = [a for a in axes if _step(nest, load.source, load.indices, a)]
        if along and last not in along and nest.axes[along[-1]][1] >= _LEAST:
            found.append((load, along[-1]))
    return found[0] if len(found) == 1 and str(found[0][0].source.dtype) != "bool" else None


def emit(nests: Nests, down: int) -> PrimFunc:
    """The function, with tiles of ``down`` threads a column."""
    (nest,) = nests.nests
    load, across = _turned(nest)
    kernel, last = PlainKernel(nests), len(nest.axes) - 1
    others = [a for a in range(last) if a != across]
    extents = [extent for _, extent in nest.axes]
    tiles_i, tiles_j = (-(-extents[a] // TILE) for a in (across, last))
    count = math.prod(extents[a] for a in others)
    with kernel.arguments():
        k, dtype, kind = kernel.k, nest.index_dtype, str(load.source.dtype)
        with kernel.launch(count * tiles_i * tiles_j, TILE * down, dtype) as (block, thread):
            tile = T.alloc_buffer((TILE * (TILE + 1),), kind, scope="shared")
            x, y = thread % TILE, thread // TILE
            first_j, rest = block % tiles_j * TILE, block // tiles_j
            first_i, rest = rest % tiles_i * TILE, rest // tiles_i
            values = {}
            for a in reversed(others):
                values[nest.axes[a][0]] = rest % extents[a]
                rest = rest // extents[a]

            def each(inner: int, outer: int, body: Callable[[Expr, dict[Var, Expr]], None]) -> None:
                """``body(place inside of the tile, values of the axes)``, lanes along the axis ``inner``."""
                origin = {across: first_i, last: first_j}
                for step in range(TILE // down):
                    at = {inner: x, outer: y + step * down}
                    here = {a: origin[a] + at[a] for a in (across, last)}
                    limits = [here[a] < extents[a] for a in (across, last) if extents[a] % TILE]
                    place = at[last] * (TILE + 1) + at[across]
                    known = {**values, **{nest.axes[a][0]: here[a] for a in (across, last)}}
                    if limits:
                        with k.when(tirx.all(*limits)):
                            body(place, known)
                    else:
                        body(place, known)

            def fetch(place: Expr, known: dict[Var, Expr]) -> None:
                k.store(tile, substitute(kernel.with_loads(load), known), [place])

            def write(place: Expr, known: dict[Var, Expr]) -> None:
                value = kernel.with_loads(nest.value, [(load, k.load(tile, [place]))])
                to = substitute(kernel.with_loads(offset(nest.buffer, nest.indices)), known)
                k.store(kernel.flat(nest.buffer), substitute(value, known), [to])

            each(across, last, fetch)
            barrier()
            each(last, across, write)
    return kernel.function
