"""Recurrent layers whose steps and rows are counted when they come.

The loops are those of ``rows/recurrence.py``.  Groups of rows fill register tiles, and the rows that are left
come in heights of powers of two, so that a single row costs what it costs at a fixed size.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from hetero_tvm.host.tvm import Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.cpu.rows.recurrence import RecurrenceKernel
from hetero_tvm.schedules.cpu.symbolic.tails import narrowed
from hetero_tvm.schedules.emit import as_index, in_powers_of_two, int32
from hetero_tvm.schedules.symbolic import Witnesses, shape_variables


class RunTimeRecurrenceKernel(RecurrenceKernel):
    """Emits the kernel for any number of steps and of rows."""

    def __init__(self, witnesses: Witnesses, point: Point, machine: CpuModel):
        super().__init__(witnesses.largest, point, machine)
        self.witnesses = witnesses

    def emit(self) -> PrimFunc:
        k, op = self.k, self.op
        with k:
            variables = shape_variables(self.witnesses.symbols)
            shapes = self.witnesses.shapes(variables)
            shapes[1] = (self.panels, op.hidden, op.gates, self.columns)
            given = {}
            for operand, shape in zip((*op.inputs, *op.outputs), shapes, strict=True):
                given[operand.name] = k.argument(operand.name, shape, operand.dtype)
            small = narrowed(k, variables)
            extents = self.witnesses.value(
                lambda o: tuple(operand.shape for operand in (*o.inputs, *o.outputs)), small
            )
            sizes = {
                name: math.prod(shape, start=int32(1)) for name, shape in zip(given, extents, strict=True)
            }
            sizes["R"] = math.prod(shapes[1])
            self.lengths = given.pop("lengths", None)
            self.flat = {name: k.view(buffer, (sizes[name],)) for name, buffer in given.items()}
            steps, batch = self.witnesses.value(lambda o: (o.steps, o.batch), small)
            self.steps, self.batch = k.let(as_index(steps)), k.let(as_index(batch))
            self.all_steps()
        return k.function

    def groups(self, tile: Callable[[Expr, int], None]) -> None:
        k, rows = self.k, self.rows
        full = k.let(tirx.truncdiv(as_index(self.batch), int32(rows)))
        with k.serial(full) as group:
            tile(group * rows, rows)
        done = k.let(full * rows)
        in_powers_of_two(k, done, self.batch - done, rows, tile)
