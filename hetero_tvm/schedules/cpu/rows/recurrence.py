"""Recurrent layers: a loop over time, columns of the state shared among threads in every step.

Loop structure::

    for each time step:
        parallel panels of columns:
            for each group of rows:
                for k in H:                 acc[gate][row] += h[row, k] * R[k, gate]
                gates, new cell and state of these columns

The weights lie in panels [panel, k, gate, column], which a core reads in one stream, in every step its own
panels from its own cache.  Threads meet at the end of a step, where all columns of the state are there.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from hetero_tvm.codegen import vector_math
from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.loops.recurrence import Functions, Recurrence, next_state
from hetero_tvm.schedules.base import DesignSpace, Knob, Packer, Point
from hetero_tvm.schedules.emit import Index, Kernel, int32, vector_pieces

_TILES = ((1, 1), (1, 2), (2, 1), (4, 1), (1, 3), (2, 2), (4, 2))
"""Rows and vectors per gate of a register tile."""
_LAUNCH_CYCLES = 4000.0
"""Cycles until threads have started a step, and met at its end."""
_SPARE = 3
"""Registers beside the accumulators: weights on their way, a broadcast, an address."""


class RecurrenceSpace(DesignSpace):
    """Design space of ``Recurrence``."""

    name = "cpu.recurrence"
    version = 1

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, Recurrence):
            return "not a recurrent layer"
        return "an extent is zero" if 0 in op.output.shape else None

    def knobs(self, op: Recurrence, machine: CpuModel) -> tuple[Knob, ...]:
        fitting = tuple(tile for tile in _TILES if op.gates * tile[0] * tile[1] + _SPARE <= machine.registers)
        rows = tuple(tile for tile in fitting if tile[0] == 1 or op.batch > 1)
        return (Knob("tile", rows), Knob("threads", (False, True) if machine.threads > 1 else (False,)))

    def default(self, op: Recurrence, machine: CpuModel) -> Point:
        tiles, threads = self.knobs(op, machine)
        points = [{"tile": t, "threads": many} for t in tiles.choices for many in threads.choices]
        return min(points, key=lambda point: self.estimate(op, point, machine))

    def estimate(self, op: Recurrence, point: Point, machine: CpuModel) -> float:
        """Cycles of one step."""
        rows, vectors = point["tile"]
        panels = -(-op.hidden // (vectors * machine.lanes))
        groups = -(-op.batch // rows)
        weights = op.gates * vectors
        per_k = max(
            rows * weights / machine.fma_units,
            machine.broadcast_cycles * rows + machine.load_cycles * weights,
            machine.fma_latency,
        )
        if 4 * op.gates * op.hidden**2 > machine.l2:  # weights come from further away, once per group
            per_k = max(per_k, weights * machine.lanes / 4)
        gates = 40 * rows * weights
        tile = op.hidden * per_k + gates
        if not point["threads"]:
            return groups * panels * tile
        return groups * -(-panels // machine.threads) * tile + _LAUNCH_CYCLES

    def features(self, op: Recurrence, point: Point, machine: CpuModel) -> list[float]:
        return [op.gates, op.batch, op.hidden, *point["tile"], float(point["threads"])]

    def pack(self, op: Recurrence, point: Point, machine: CpuModel) -> dict[int, Packer]:
        columns = point["tile"][1] * machine.lanes

        def packed(r: np.ndarray) -> np.ndarray:
            panels = -(-op.hidden // columns)
            wide = np.zeros((op.hidden, op.gates, panels * columns), r.dtype)
            wide[:, :, : op.hidden] = r.reshape(op.hidden, op.gates, op.hidden)
            by_panel = wide.reshape(op.hidden, op.gates, panels, columns)
            return np.ascontiguousarray(by_panel.transpose(2, 0, 1, 3))

        return {1: packed}

    def emit(self, op: Recurrence, point: Point, machine: CpuModel) -> PrimFunc:
        return RecurrenceKernel(op, point, machine).emit()


class RecurrenceKernel:
    """Emits one kernel.

    Attributes
    ----------
    steps, batch : extents, which may be known at the call only.
    """

    steps: Index
    batch: Index

    def __init__(self, op: Recurrence, point: Point, machine: CpuModel):
        self.op, self.lanes = op, machine.lanes
        self.steps, self.batch = op.steps, op.batch
        self.rows, self.vectors = point["tile"]
        self.threads = point["threads"]
        self.columns = self.vectors * self.lanes
        self.panels = -(-op.hidden // self.columns)
        self.k = Kernel()
        self.flat: dict[str, Buffer] = {}
        """Operands and results by name, but for the lengths."""
        self.lengths: Buffer | None = None
        self.time: Expr = int32(0)
        """The time step that is written."""

    def emit(self) -> PrimFunc:
        """The PrimFunc."""
        k, op = self.k, self.op
        with k:
            packed = (self.panels, op.hidden, op.gates, self.columns)
            operands = {o.name: o for o in (*op.inputs, *op.outputs)}
            shapes = {name: packed if name == "R" else o.shape for name, o in operands.items()}
            given = {name: k.argument(name, shape, operands[name].dtype) for name, shape in shapes.items()}
            self.lengths = given.pop("lengths", None)
            self.flat = {name: k.view(given[name], (math.prod(shapes[name]),)) for name in given}
            self.all_steps()
        return k.function

    def all_steps(self) -> None:
        """Emit the first step, and the others in a loop."""
        self._step(int32(0), "h" if self.op.initial else None)
        if not isinstance(self.steps, int) or self.steps > 1:
            with self.k.serial(self.steps - 1) as step:
                self._step(step + 1, "Y")

    def groups(self, tile: Callable[[Expr, int], None]) -> None:
        """Emit ``tile(first, height)`` for all rows of the batch."""
        full, rest = divmod(self.batch, self.rows)
        if full:
            with self.k.serial(full) as group:
                tile(group * self.rows, self.rows)
        if rest:
            tile(int32(full * self.rows), rest)

    def _step(self, step: Expr, state: str | None) -> None:
        """One time step; ``state`` names the buffer of the states before, None for zeros."""
        k, op = self.k, self.op
        size = self.batch * op.hidden
        t = self.steps - 1 - step if op.reverse else step
        self.time = t
        now = k.let(t * size)
        before: Expr = int32(0)
        if state == "Y":
            before = k.let(now + size if op.reverse else now - size)
        full = op.hidden // self.columns
        rest = op.hidden - full * self.columns

        def panel_of(panel: Expr, width: int) -> None:
            time = k.let(t * self.batch)
            self.groups(
                lambda first, height: self._tile(panel, first, height, width, time, state, before, now)
            )

        with k.parallel(self.panels) if self.threads else k.serial(self.panels) as panel:
            if not rest:
                panel_of(panel, self.columns)
            elif not full:
                panel_of(panel, rest)
            else:
                k.branch(panel < full, lambda: panel_of(panel, self.columns), lambda: panel_of(panel, rest))

    def _tile(
        self,
        panel: Expr,
        first: Expr,
        height: int,
        width: int,
        time: Expr,
        state: str | None,
        before: Expr,
        now: Expr,
    ) -> None:
        """The new states of up to ``width`` columns and ``height`` rows."""
        k, op = self.k, self.op
        acc = k.scratch((op.gates, height, self.columns))
        vectors = -(-width // self.lanes)

        def each(body: Callable[[Expr, Expr, Expr], None]) -> None:
            with k.unroll(op.gates) as g, k.unroll(height) as r, k.unroll(vectors) as v:
                body(g, r, k.ramp(v * self.lanes, self.lanes))

        each(lambda g, r, at: k.store(acc, k.splat(0.0, self.lanes), [g, r, at]))
        if state is not None:
            with k.serial(op.hidden) as depth:
                base = (panel * op.hidden + depth) * (op.gates * self.columns)

                def fma(g: Expr, r: Expr, at: Expr) -> None:
                    h = k.load(self.flat[state], [before + (first + r) * op.hidden + depth])
                    weight = k.load(self.flat["R"], [k.ramp(base + g * self.columns + at.base, self.lanes)])
                    product = k.splat(h, self.lanes) * weight
                    k.store(acc, k.load(acc, [g, r, at]) + product, [g, r, at])

                each(fma)
        for r in range(height):
            for start, lanes in vector_pieces(width, self.lanes):
                self._gates(acc, r, panel, first + r, start, lanes, time, state, before, now)

    def _gates(
        self,
        acc: Buffer,
        r: int,
        panel: Expr,
        row: Expr,
        start: int,
        lanes: int,
        time: Expr,
        state: str | None,
        before: Expr,
        now: Expr,
    ) -> None:
        """Gates and states of ``lanes`` columns of a row."""
        k, op = self.k, self.op
        column = k.let(panel * self.columns + start)
        place = k.let(row * op.hidden + column)
        base = k.let((time + row) * (op.gates * op.hidden) + column)

        def at(name: str, index: Index) -> Expr:
            return k.let(k.load(self.flat[name], [k.ramp(index, lanes)]))

        x = [at("X", base + g * op.hidden) for g in range(op.gates)]
        a = [k.let(k.load(acc, [g, r, k.ramp(start, lanes)])) for g in range(op.gates)]
        zero = k.splat(0.0, lanes)
        sums = [own + of_state for own, of_state in zip(x, a, strict=True)]
        h = c = new = None
        if op.cell == "gru":
            new = (x[-1], a[-1] + at("bias", column))
            h = zero if state is None else at(state, before + place)
        if op.cell == "lstm":
            c = zero if state is None else at("C" if state == "Y" else "c", place)
        vectors = Functions(vector_math.sigmoid, vector_math.tanh, lambda v: tirx.max(v, zero), k.let)
        old = c
        h, c = next_state(op.cell, sums, new, h, c, vectors)
        if self.lengths is not None:
            runs = k.splat(self.time < self.lengths[row], lanes)
            h = tirx.Select(runs, h, zero)
            c = None if c is None else tirx.Select(runs, c, old)
        if c is not None:
            k.store(self.flat["C"], c, [k.ramp(place, lanes)])
        k.store(self.flat["Y"], h, [k.ramp(now + place, lanes)])
