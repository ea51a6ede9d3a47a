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
from dataclasses import dataclass

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.rope import Rope
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.cpu.rows.row_chunks import RowSpace, each_row
from hetero_tvm.schedules.emit import Index, Kernel, int32, vector_loop, vector_pieces


class RopeSpace(RowSpace):
    """Design space of ``Rope``; its chunks are of positions."""

    name = "cpu.rope"
    version = 1

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, Rope):
            return "not a rotary embedding"
        return "an extent is zero" if 0 in op.shape else None

    def row_count(self, op: Rope, machine: CpuModel) -> int:
        """Rows of the tables."""
        return math.prod(op.table[:-1])

    def features(self, op: Rope, point: Point, machine: CpuModel) -> list[float]:
        positions = self.row_count(op, machine)
        others = math.prod(op.shape[:-1]) // positions
        return [math.log2(positions), math.log2(others), op.shape[-1], op.rotary, point["chunks"]]

    def emit(self, op: Rope, point: Point, machine: CpuModel) -> PrimFunc:
        lead, positions = op.shape[:-1], self.row_count(op, machine)
        varying = [axis for axis, extent in enumerate(op.table[:-1]) if extent > 1]
        fixed = [axis for axis in range(len(lead)) if axis not in varying]
        k = Kernel()
        with k:
            arguments = [k.argument(o.name, o.shape) for o in (*op.inputs, op.output)]
            flat = (k.view(a, (math.prod(int(e) for e in a.shape),)) for a in arguments)
            rotation = _Rotation(k, op, machine.lanes, *flat)

            def at_position(position: Expr) -> None:
                with k.serial(math.prod(lead) // positions) as other:
                    index: list[Expr] = [int32(0)] * len(lead)
                    for axes, rest in ((varying, position), (fixed, other)):
                        for axis in reversed(axes):
                            index[axis] = tirx.floormod(rest, int32(lead[axis]))
                            rest = tirx.floordiv(rest, int32(lead[axis]))
                    source, target = int32(op.place[0]), int32(0)
                    for i, stride, extent in zip(index, op.place[1:], lead, strict=True):
                        source = source + i * stride
                        target = target * extent + i
                    rotation.row(k.let(source), k.let(target * op.shape[-1]), k.let(position * op.table[-1]))

            each_row(k, positions, point["chunks"], at_position)
        return k.function


@dataclass(frozen=True)
class _Rotation:
    """Emits the rotation of one row; all buffers are flat."""

    k: Kernel
    op: Rope
    lanes: int
    x: Buffer
    cos: Buffer
    sin: Buffer
    y: Buffer

    def row(self, source: Expr, target: Expr, table: Expr) -> None:
        """Rotate the row at ``source`` of X by the row at ``table`` of cos and sin, to ``target`` of Y."""
        (self._interleaved if self.op.interleaved else self._halves)(source, target, table)
        rotary = self.op.rotary

        def copy(start: Index, width: int) -> None:
            at = rotary + start
            value = self.k.load(self.x, [self.k.ramp(source + at, width)])
            self.k.store(self.y, value, [self.k.ramp(target + at, width)])

        vector_loop(self.k, self.op.shape[-1] - rotary, self.lanes, copy)

    def _halves(self, source: Expr, target: Expr, table: Expr) -> None:
        """Pairs are elements of the first and the second half."""
        k, op, half = self.k, self.op, self.op.rotary // 2

        def pair(start: Index, width: int) -> None:
            first = k.let(k.load(self.x, [k.ramp(source + start, width)]))
            second = k.let(k.load(self.x, [k.ramp(source + half + start, width)]))
            low, high = table + start, table + start if op.per_pair else table + half + start
            cos_of, sin_of = (
                [k.load(values, [k.ramp(at, width)]) for at in (low, high)] for values in (self.cos, self.sin)
            )
            k.store(self.y, first * cos_of[0] - second * sin_of[0], [k.ramp(target + start, width)])
            k.store(self.y, second * cos_of[1] + first * sin_of[1], [k.ramp(target + half + start, width)])

        vector_loop(k, half, self.lanes, pair)

    def _interleaved(self, source: Expr, target: Expr, table: Expr) -> None:
        """Pairs are neighbours."""
        k = self.k
        for start, width in vector_pieces(self.op.rotary, self.lanes):
            value = k.let(k.load(self.x, [k.ramp(source + start, width)]))
            exchanged = tirx.Shuffle([value], [int32(lane ^ 1) for lane in range(width)])
            signs = tirx.Shuffle(
                [k.splat(-1.0, width), k.splat(1.0, width)],
                [int32(lane if lane % 2 == 0 else width + lane) for lane in range(width)],
            )
            cos, sin = (self._of_lanes(values, table, start, width) for values in (self.cos, self.sin))
            k.store(self.y, value * cos + exchanged * signs * sin, [k.ramp(target + start, width)])

    def _of_lanes(self, values: Buffer, table: Expr, start: int, width: int) -> Expr:
        """Factor of each lane: read as it is, or each pair's value twice."""
        k = self.k
        if not self.op.per_pair:
            return k.load(values, [k.ramp(table + start, width)])
        pairs = k.load(values, [k.ramp(table + start // 2, width // 2)])
        if width == 2:
            return k.splat(pairs, 2)
        return tirx.Shuffle([pairs, pairs], [int32(lane // 2) for lane in range(width)])
