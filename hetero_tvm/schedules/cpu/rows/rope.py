"""Rotary embedding: one pass over the tensor, tables read once per position.

Loop structure::

    parallel chunks of the axes along which cos and sin vary (positions):
        for each of the other axes (heads, batch):
            for each vector of one row:      y = x * cos + rotated * sin
            the elements that are not rotated: copied

A position's row of cos and sin stays in L1 over all heads.  x is read where it lies, for example in
the packed result of the merged projections, so it is neither sliced nor transposed before.  Interleaved
pairs are exchanged by a shuffle in registers.
"""

from __future__ import annotations

import math
from typing import Any

from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.rope import Rope
from hetero_tvm.schedules.base import DesignSpace, Knob, Point
from hetero_tvm.schedules.cpu.rows.row_tiles import chunk_choices, default_chunks, each_row
from hetero_tvm.schedules.emit import Kernel, chunks, int32, tirx, vector_loop


class RopeSpace(DesignSpace):
    """Knob: into how many parallel chunks the positions are cut."""

    name = "cpu.rope"
    version = 1

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, Rope):
            return "not a rotary embedding"
        return "an extent is zero" if 0 in op.shape else None

    def knobs(self, op: Rope, machine: CpuModel) -> tuple[Knob, ...]:
        return (Knob("chunks", chunk_choices(_positions(op)[0], machine)),)

    def default(self, op: Rope, machine: CpuModel) -> Point:
        return {"chunks": default_chunks(_positions(op)[0], op.nbytes, machine)}

    def features(self, op: Rope, point: Point, machine: CpuModel) -> list[float]:
        positions, others = _positions(op)
        return [math.log2(positions), math.log2(others), op.shape[-1], op.rotary, point["chunks"]]

    def emit(self, op: Rope, point: Point, machine: CpuModel) -> Any:
        lead = op.shape[:-1]
        varying = [axis for axis, extent in enumerate(op.table[:-1]) if extent > 1]
        fixed = [axis for axis in range(len(lead)) if axis not in varying]
        positions, others = _positions(op)
        k = Kernel()
        with k:
            arguments = [k.argument(o.name, o.shape) for o in (*op.inputs, op.output)]
            x, cos, sin, y = (k.view(a, (math.prod(int(e) for e in a.shape),)) for a in arguments)

            def at_position(position: Any) -> None:
                with k.serial(others) as other:
                    index: list[Any] = [int32(0)] * len(lead)
                    for axes, rest in ((varying, position), (fixed, other)):
                        for axis in reversed(axes):
                            index[axis] = tirx.floormod(rest, int32(lead[axis]))
                            rest = tirx.floordiv(rest, int32(lead[axis]))
                    source, target = int32(op.place[0]), int32(0)
                    for i, stride, extent in zip(index, op.place[1:], lead, strict=True):
                        source = source + i * stride
                        target = target * extent + i
                    places = k.let(source), k.let(target * op.shape[-1]), k.let(position * op.table[-1])
                    rotate = _interleaved if op.interleaved else _halves
                    rotate(k, op, x, cos, sin, y, *places, machine.lanes)

            each_row(k, positions, point["chunks"], at_position)
        return k.function


def _positions(op: Rope) -> tuple[int, int]:
    """Rows of the tables, and rows of y per row of the tables."""
    positions = math.prod(op.table[:-1])
    return positions, math.prod(op.shape[:-1]) // positions


def _halves(
    k: Kernel, op: Rope, x: Any, cos: Any, sin: Any, y: Any, source: Any, target: Any, row: Any, lanes: int
) -> None:
    half = op.rotary // 2

    def pair(start: Any, width: int) -> None:
        first = k.let(k.load(x, [k.ramp(source + start, width)]))
        second = k.let(k.load(x, [k.ramp(source + half + start, width)]))
        low, high = row + start, row + start if op.per_pair else row + half + start
        cos_of, sin_of = (
            [k.load(table, [k.ramp(at, width)]) for at in (low, high)] for table in (cos, sin)
        )
        k.store(y, first * cos_of[0] - second * sin_of[0], [k.ramp(target + start, width)])
        k.store(y, second * cos_of[1] + first * sin_of[1], [k.ramp(target + half + start, width)])

    vector_loop(k, half, lanes, pair)
    _copied(k, op, x, y, source, target, lanes)


def _interleaved(
    k: Kernel, op: Rope, x: Any, cos: Any, sin: Any, y: Any, source: Any, target: Any, row: Any, lanes: int
) -> None:
    for start, width in chunks(op.rotary, lanes):
        value = k.let(k.load(x, [k.ramp(source + start, width)]))
        exchanged = tirx.Shuffle([value], [int32(lane ^ 1) for lane in range(width)])
        signs = tirx.Shuffle(
            [k.splat(-1.0, width), k.splat(1.0, width)],
            [int32(lane if lane % 2 == 0 else width + lane) for lane in range(width)],
        )

        def table(values: Any, start: int = start, width: int = width) -> Any:
            if not op.per_pair:
                return k.load(values, [k.ramp(row + start, width)])
            pairs = k.load(values, [k.ramp(row + start // 2, width // 2)])
            if width == 2:
                return k.splat(pairs, 2)
            return tirx.Shuffle([pairs, pairs], [int32(lane // 2) for lane in range(width)])

        k.store(
            y, value * table(cos) + exchanged * signs * table(sin), [k.ramp(target + start, width)]
        )
    _copied(k, op, x, y, source, target, lanes)


def _copied(k: Kernel, op: Rope, x: Any, y: Any, source: Any, target: Any, lanes: int) -> None:
    """The elements behind the rotated ones."""

    def copy(start: Any, width: int) -> None:
        at = op.rotary + start
        k.store(y, k.load(x, [k.ramp(source + at, width)]), [k.ramp(target + at, width)])

    vector_loop(k, op.shape[-1] - op.rotary, lanes, copy)
