"""Recurrent layers: a loop over time, columns of the state shared among threads in every step.

Loop structure::

    for each time step:
        parallel panels of columns:
            for each group of rows:
                for k in H:                 acc[gate][row] += h[row, k] * R[k, gate]
                gates, new cell and state of these columns

A GRU that resets its state before the product has two such loops in a step: its two gates first, and with the
reset state, which has to be whole, the new state.

The weights lie in panels [panel, k, gate, column], which a core reads in one stream, in every step its own
panels from its own cache.  Threads meet at the end of a step, where all columns of the state are there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hetero_tvm.codegen import vector_math
from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.loops.recurrence import Functions, Recurrence, gated_state, next_state, reset_state
from hetero_tvm.schedules.base import DesignSpace, Knob, Packer, Point
from hetero_tvm.schedules.emit import Index, Kernel, int32, vector_pieces

_TILES = ((1, 1), (1, 2), (2, 1), (4, 1), (1, 3), (2, 2), (4, 2))
"""Rows and vectors per gate of a register tile."""
_LAUNCH_CYCLES = 4000.0
"""Cycles until threads have started a step, and met at its end."""
_PHASES = {"gru_before": ((0, 2), (2, 3))}
"""First and last gate of each product of a step, of cells that have several."""
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
        return groups * -(-panels // machine.threads) * tile + len(_phases(op)) * _LAUNCH_CYCLES

    def features(self, op: Recurrence, point: Point, machine: CpuModel) -> list[float]:
        return [op.gates, op.batch, op.hidden, *point["tile"], float(point["threads"])]

    def pack(self, op: Recurrence, point: Point, machine: CpuModel) -> dict[int, Packer]:
        columns = point["tile"][1] * machine.lanes

        def packed(r: np.ndarray) -> np.ndarray:
            panels = -(-op.hidden // columns)
            wide = np.zeros((op.hidden, op.gates, panels * columns), r.dtype)
            wide[:, :, : op.hidden] = r.reshape(op.hidden, op.gates, op.hidden)
            by_panel = wide.reshape(op.hidden, op.gates, panels, columns).transpose(2, 0, 1, 3)
            parts = [by_panel[:, :, first:last].ravel() for first, last in _phases(op)]
            return np.concatenate(parts).reshape(by_panel.shape)

        return {1: packed}

    def emit(self, op: Recurrence, point: Point, machine: CpuModel) -> PrimFunc:
        return RecurrenceKernel(op, point, machine).emit()


def _phases(op: Recurrence) -> tuple[tuple[int, int], ...]:
    """First and last gate of each product of a step."""
    return _PHASES.get(op.cell, ((0, op.gates),))


class _Tile(NamedTuple):
    """Rows and columns whose gates are made together.

    Attributes
    ----------
    panel : of columns; ``width`` of them count.
    first, height : rows.
    time : row of X that belongs to the step's first one.
    state : name of the states before; None for zeros.
    before, now : places of the states before and after in their buffers.
    """

    panel: Expr
    first: Expr
    height: int
    width: int
    time: Expr
    state: str | None
    before: Expr
    now: Expr


class _Piece(NamedTuple):
    """Columns of one row.

    Attributes
    ----------
    column, lanes : the first, and how many.
    place : of the first in a matrix of states.
    sums : by gate, the input's and the state's share of its sum.
    h : states before.
    """

    column: Expr
    lanes: int
    place: Expr
    sums: list[tuple[Expr, Expr]]
    h: Expr


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
        for gates in _phases(op):

            def panel_of(panel: Expr, width: int, gates: tuple[int, int] = gates) -> None:
                time = k.let(t * self.batch)
                self.groups(
                    lambda first, height: self._tile(
                        _Tile(panel, first, height, width, time, state, before, now), *gates
                    )
                )

            with k.parallel(self.panels) if self.threads else k.serial(self.panels) as panel:
                if not rest:
                    panel_of(panel, self.columns)
                elif not full:
                    panel_of(panel, rest)
                else:
                    k.branch(
                        panel < full, lambda: panel_of(panel, self.columns), lambda: panel_of(panel, rest)
                    )

    def _tile(self, tile: _Tile, begin: int, end: int) -> None:
        """The gates from ``begin`` to ``end`` of a tile, and what follows of them."""
        k, op = self.k, self.op
        gates = end - begin
        acc = k.scratch((gates, tile.height, self.columns))
        vectors = -(-tile.width // self.lanes)
        packed = begin * self.panels * op.hidden * self.columns
        factor, place = (tile.state, tile.before) if begin == 0 else ("S", int32(0))

        def each(body: Callable[[Expr, Expr, Expr], None]) -> None:
            with k.unroll(gates) as g, k.unroll(tile.height) as r, k.unroll(vectors) as v:
                body(g, r, k.ramp(v * self.lanes, self.lanes))

        each(lambda g, r, at: k.store(acc, k.splat(0.0, self.lanes), [g, r, at]))
        if tile.state is not None:
            with k.serial(op.hidden) as depth:
                base = packed + (tile.panel * op.hidden + depth) * (gates * self.columns)

                def fma(g: Expr, r: Expr, at: Expr) -> None:
                    h = k.load(self.flat[factor], [place + (tile.first + r) * op.hidden + depth])
                    weight = k.load(self.flat["R"], [k.ramp(base + g * self.columns + at.base, self.lanes)])
                    product = k.splat(h, self.lanes) * weight
                    k.store(acc, k.load(acc, [g, r, at]) + product, [g, r, at])

                each(fma)
        for r in range(tile.height):
            for start, lanes in vector_pieces(tile.width, self.lanes):
                column = k.let(tile.panel * self.columns + start)
                row = tile.first + r
                place_of = k.let(row * op.hidden + column)
                base = k.let((tile.time + row) * (op.gates * op.hidden) + column)
                x = [self._at("X", base + g * op.hidden, lanes) for g in range(begin, end)]
                a = [k.let(k.load(acc, [g, r, k.ramp(start, lanes)])) for g in range(gates)]
                h = k.splat(0.0, lanes)
                if tile.state is not None and op.cell in ("gru", "gru_before"):
                    h = self._at(tile.state, tile.before + place_of, lanes)
                piece = _Piece(column, lanes, place_of, list(zip(x, a, strict=True)), h)
                if op.cell != "gru_before":
                    self._state(piece, tile, row)
                elif begin == 0:
                    self._reset(piece)
                else:
                    self._renewed(piece, tile, row)

    def _at(self, name: str, index: Index, lanes: int) -> Expr:
        k = self.k
        return k.let(k.load(self.flat[name], [k.ramp(index, lanes)]))

    def _state(self, piece: _Piece, tile: _Tile, row: Expr) -> None:
        """States of one row's columns, of a cell that has one product."""
        k, op = self.k, self.op
        lanes = piece.lanes
        sums = [own + of_state for own, of_state in piece.sums]
        c = new = None
        if op.cell == "gru":
            own, of_state = piece.sums[-1]
            new = (own, of_state + self._at("bias", piece.column, lanes))
        if op.cell == "lstm":
            zero = k.splat(0.0, lanes)
            c = (
                zero
                if tile.state is None
                else self._at("C" if tile.state == "Y" else "c", piece.place, lanes)
            )
        old = c
        h, c = next_state(op.cell, sums, new, piece.h, c, self._functions(lanes))
        if c is not None:
            k.store(self.flat["C"], self._running(c, old, row, lanes), [k.ramp(piece.place, lanes)])
        self._store(h, piece, tile, row)

    def _reset(self, piece: _Piece) -> None:
        """Gate and reset state of one row's columns."""
        k = self.k
        sums = [own + of_state for own, of_state in piece.sums]
        z, s = reset_state(sums, piece.h, self._functions(piece.lanes))
        k.store(self.flat["Z"], z, [k.ramp(piece.place, piece.lanes)])
        k.store(self.flat["S"], s, [k.ramp(piece.place, piece.lanes)])

    def _renewed(self, piece: _Piece, tile: _Tile, row: Expr) -> None:
        """States of one row's columns, from the gate and the product of the reset state."""
        f = self._functions(piece.lanes)
        ((own, of_state),) = piece.sums
        z = self._at("Z", piece.place, piece.lanes)
        self._store(gated_state(z, f.tanh(own + of_state), piece.h, f), piece, tile, row)

    def _store(self, h: Expr, piece: _Piece, tile: _Tile, row: Expr) -> None:
        k, lanes = self.k, piece.lanes
        h = self._running(h, k.splat(0.0, lanes), row, lanes)
        k.store(self.flat["Y"], h, [k.ramp(tile.now + piece.place, lanes)])

    def _running(self, new: Expr, ended: Expr, row: Expr, lanes: int) -> Expr:
        """``new`` while the sequence of a row runs."""
        if self.lengths is None:
            return new
        return tirx.Select(self.k.splat(self.time < self.lengths[row], lanes), new, ended)

    def _functions(self, lanes: int) -> Functions:
        zero = self.k.splat(0.0, lanes)
        return Functions(vector_math.sigmoid, vector_math.tanh, lambda v: tirx.max(v, zero), self.k.let)
