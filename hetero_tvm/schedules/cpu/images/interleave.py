"""Phases of a transposed convolution put side by side: shuffles between vectors of their rows.

::

    parallel over planes x rows of the result:
        the row of each of the ``sw`` phases that this row is made of
        for each vector of phase pixels:
            ``sw`` loads, one shuffle, one store of ``sw`` vectors
        pixels before the first whole group and after the last one, which the cut leaves: one by one

Every value is read and written once, and all but the few at the ends in whole vectors.
"""

from __future__ import annotations

from typing import NamedTuple

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.interleave import Interleave
from hetero_tvm.schedules.base import DesignSpace, Knob, Point
from hetero_tvm.schedules.emit import Index, Kernel, as_index, int32, vector_loop

_MOST_PHASES = 16
"""More phases across than this are shuffled by no kernel."""


class InterleaveSpace(DesignSpace):
    """Knob: pixels of each phase that one shuffle takes."""

    name = "cpu.interleave"
    version = 1

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, Interleave):
            return "not an interleaving of phases"
        if op.dtype not in ("float32", "int8", "uint8"):
            return f"it moves float32 and bytes, not {op.dtype}"
        if min(*op.inputs[0].shape, *op.output.shape) < 1:
            return "an extent is zero"
        if op.strides[1] > _MOST_PHASES:
            return f"{op.strides[1]} phases across, at most {_MOST_PHASES}"
        return None

    def knobs(self, op: Interleave, machine: CpuModel) -> tuple[Knob, ...]:
        return (Knob("pixels", tuple(n for n in (machine.lanes, 2, 4, 8) if n <= machine.lanes)),)

    def default(self, op: Interleave, machine: CpuModel) -> Point:
        # Shuffles of more than four vectors take longer than the loads that they save.
        few = max(2, 4 * machine.lanes // op.strides[1])
        choices = self.knobs(op, machine)[0].choices
        return {"pixels": max(n for n in choices if n <= few)}

    def estimate(self, op: Interleave, point: Point, machine: CpuModel) -> float:
        vectors = op.strides[1] * point["pixels"] / machine.lanes
        return 1.0 / point["pixels"] + (1.0 if point["pixels"] > 2 and vectors > 4 else 0.0)

    def emit(self, op: Interleave, point: Point, machine: CpuModel) -> PrimFunc:
        k = Kernel()
        with k:
            x, y = (k.argument(o.name, o.shape, o.dtype) for o in (*op.inputs, op.output))
            put_side_by_side(k, op, x, y, Extents(op.batch, op.rows, op.columns, *op.out), point["pixels"])
        return k.function


class Extents(NamedTuple):
    """Images, rows and columns of a phase, and those of the result."""

    batch: Index
    rows: Index
    columns: Index
    height: Index
    width: Index


def put_side_by_side(k: Kernel, op: Interleave, x: Buffer, y: Buffer, at: Extents, pixels: int) -> None:
    """Emit the loops; extents may be known at the call only."""
    (sh, sw), (top, left) = op.strides, op.cut
    first = -(-left // sw)
    before = first * sw - left
    groups = tirx.floordiv(as_index(at.width) + left, int32(sw)) - first
    whole = max(0, (left + at.width) // sw - first) if isinstance(at.width, int) else tirx.max(groups, 0)
    if not isinstance(whole, int):
        whole = k.named(whole)
    x = k.view(x, (at.batch * op.groups * sh * sw * op.channels, at.rows * at.columns))
    y = k.view(y, (at.batch * op.groups * op.channels * at.height, at.width))
    lines = at.batch * op.groups * op.channels * at.height
    with k.parallel(lines, op.output.nbytes) as line:
        plane = k.let(tirx.floordiv(line, as_index(at.height)))
        row = k.let(line - plane * at.height + top)
        group, channel = tirx.floordiv(plane, op.channels), tirx.floormod(plane, op.channels)
        down = tirx.floormod(row, sh)
        base = k.let((group * sh + down) * (sw * op.channels) + channel)
        source = k.let(tirx.floordiv(row, sh) * at.columns)

        def load(phase: Index, place: Index, count: int) -> Expr:
            return k.load(x, [base + phase * op.channels, k.ramp(source + place, count)])

        def single(column: Index) -> None:
            if isinstance(column, int):
                p, s = divmod(column + left, sw)
            else:
                p, s = tirx.floordiv(column + left, int32(sw)), tirx.floormod(column + left, int32(sw))
            k.store(y, load(s, p, 1), [line, column])

        def turn(place: Index, count: int) -> None:
            parts = [load(s, place + first, count) for s in range(sw)]
            order = [int32(i % sw * count + i // sw) for i in range(sw * count)]
            value = parts[0] if sw * count == 1 or sw == 1 else tirx.Shuffle(parts, order)
            k.store(y, value, [line, k.ramp(place * sw + before, sw * count)])

        if isinstance(whole, int):
            for column in range(min(before, at.width)):
                single(column)
            vector_loop(k, whole, pixels, turn)
            for column in range(max(before + whole * sw, min(before, at.width)), at.width):
                single(column)
            return
        with k.serial(tirx.min(int32(before), at.width)) as column:
            single(column)
        vector_loop(k, whole, pixels, turn)
        behind = k.let(whole * sw + before)
        with k.serial(tirx.max(at.width - behind, 0)) as column:
            single(behind + column)
