"""Matrix product with a constant right operand, packed when the model is compiled.

Loop structure::

    parallel (block of rows) x (panel of NR columns):    contiguous pieces per thread
        for each register tile of MR rows in the block:
            acc[MR][NR] = X[rows, :] @ W[:, panel]        (see schedules/cpu/register_tile.py)
            epilogue on the registers: bias, activation, residual; store
        the last M % MR rows: one more nest of that height (no padding, no predicate)

W is packed as [panels, K, NR], so a tile reads it with unit stride; a panel (K * NR floats) is used
by all row tiles of the block while it is in L2.  Weights are cold in a network (each is used once
per inference), so every step of k also prefetches a line of the *next* panel.

With blocks of rows and ``k_blocks`` > 1 the reduction is cut as well (Goto and van de Geijn, 2008)::

    parallel block of rows:
        Y[block] = bias + residual, or 0
        for each piece of K, for each panel of NR columns, for each register tile of the block:
            Y[rows, panel] += X[rows, piece] @ W[piece, panel]
        Y[block] = activation(Y[block]), if there is one

For long K the rows of a block (times K) and a panel no longer share L2, and both would stream from
beyond it for every panel; a piece of them does fit.  Y may lie where a residual lay that is added before
any activation.

``row_blocks = 1`` splits columns among the threads, ``row_blocks = threads`` splits rows (each
thread's activations stay in its own L2), more than that blocks the rows for large M.
"""

from __future__ import annotations

import math

import numpy as np

from hetero_tvm.host import mapped
from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.gated_matmul import GatedMatmul
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.schedules.base import DesignSpace, Knob, Packer, Point
from hetero_tvm.schedules.cpu.products.matmul_estimate import (
    estimate,
    k_block_choices,
    row_block_choices,
    tile_choices,
)
from hetero_tvm.schedules.cpu.products.matmul_kernel import MatmulDecisions, MatmulKernel
from hetero_tvm.schedules.cpu.register_tile import RegisterTile

_FEW_ROWS = 8
"""Rows below which a product waits for its weights."""
_WANTED_VECTORS = 4
"""Accumulators of each of two streams that hide latency and read whole pages of weights."""
_LEAST_COLUMNS = 16
"""Columns of a panel whose rows are whole cache lines: from half ones too little is on its way."""
_IDLE = 1.15
"""Share of threads that wait for the last panel, beyond which narrower panels are better."""


class MatmulSpace(DesignSpace):
    """Knobs: register tile, unrolling of k, number of row blocks, prefetch of the next panel, cuts of k."""

    name = "cpu.matmul"
    version = 1
    kernel: type[MatmulKernel] = MatmulKernel

    def product(self, op: Matmul | GatedMatmul) -> Matmul:
        """The plain product that costs the same."""
        return op

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, Matmul):
            return "not a matmul"
        if op.dtype != "float32":
            return f"the operands are {op.dtype}"
        return "an extent is zero" if 0 in (op.m, op.n, op.k) else None

    def knobs(self, op: Matmul | GatedMatmul, machine: CpuModel) -> tuple[Knob, ...]:
        return (
            Knob("tile", tuple((tile.rows, tile.vectors) for tile in self._tiles(op, machine))),
            Knob("row_blocks", tuple(row_block_choices(op, machine))),
            Knob("unroll", tuple(u for u in (4, 8, 2, 1) if u <= op.k)),
            Knob("prefetch", (1, 0)),
            Knob("k_blocks", tuple(self._k_blocks(op, machine)), absent=1),
        )

    def _tiles(self, op: Matmul | GatedMatmul, machine: CpuModel) -> tuple[RegisterTile, ...]:
        return tile_choices(self.product(op), machine, self.kernel.parts)[:24]

    def _k_blocks(self, op: Matmul | GatedMatmul, machine: CpuModel) -> list[int]:
        # Partial sums of several products side by side would not fit into the result.
        return k_block_choices(op, machine) if self.kernel.parts == 1 else [1]

    def canonical(self, op: Matmul | GatedMatmul, point: Point, machine: CpuModel) -> Point:
        return {**point, "k_blocks": MatmulDecisions.of(point).k_blocks}

    def default(self, op: Matmul | GatedMatmul, machine: CpuModel) -> Point:
        product = self.product(op)
        few = self._few_rows(op, machine)
        if few is not None:
            return few
        points = [
            (tile, blocks, cuts)
            for tile in self._tiles(op, machine)
            for blocks in row_block_choices(op, machine)
            for cuts in self._k_blocks(op, machine)
            if cuts == 1 or blocks > 1
        ]

        def order(point: tuple[RegisterTile, int, int]) -> tuple[float, int, int]:
            tile, blocks, cuts = point
            return estimate(product, tile, blocks, machine, cuts), cuts, blocks

        tile, blocks, cuts = min(points, key=order)
        return {
            "tile": (tile.rows, tile.vectors),
            "row_blocks": blocks,
            "unroll": 4 if op.k >= 4 else 1,
            "prefetch": 1,
            "k_blocks": cuts,
        }

    def _few_rows(self, op: Matmul | GatedMatmul, machine: CpuModel) -> Point | None:
        """The point for rows that fit into a register tile twice: all time goes to reading the weights."""
        least = min(_LEAST_COLUMNS, 2 * machine.lanes, self.product(op).n)
        panels = {
            tile: -(-self.product(op).n // tile.columns(machine.lanes))
            for tile in self._tiles(op, machine)
            if tile.rows == op.m and tile.streams(machine) and tile.columns(machine.lanes) >= least
        }
        # Enough accumulators, and no wider than that, with the same number of panels for each thread.
        if op.m > _FEW_ROWS or not panels:
            return None

        wanted = -(-_WANTED_VECTORS // op.m)
        # Rows that are broadcast for one vector alone would take longer than their products.
        if op.m / machine.fma_units < machine.broadcast_cycles * op.m + machine.load_cycles:
            wanted = max(2, wanted)

        def order(tile: RegisterTile) -> tuple[float, int, int]:
            threads = machine.threads
            idle = -(-panels[tile] // threads) * threads / panels[tile]
            return idle > _IDLE, abs(tile.vectors - wanted), tile.vectors

        tile = min(panels, key=order)
        unroll = 4 if op.k >= 8 else 1
        return {
            "tile": (tile.rows, tile.vectors),
            "row_blocks": 1,
            "unroll": unroll,
            "prefetch": 0,
            "k_blocks": 1,
        }

    def features(self, op: Matmul | GatedMatmul, point: Point, machine: CpuModel) -> list[float]:
        op, chosen = self.product(op), MatmulDecisions.of(point)
        tile, cuts = chosen.tile, chosen.k_blocks
        columns = tile.columns(machine.lanes)
        panels = -(-op.n // columns)
        cycles = estimate(op, tile, chosen.row_blocks, machine, cuts)
        ideal = op.flops / 2 / machine.lanes / machine.fma_units / machine.threads
        sizes = [math.log2(op.m), math.log2(op.n), math.log2(op.k), len(op.epilogue)]
        shape = [tile.rows, tile.vectors, tile.rows * tile.vectors, columns]
        waste = [(op.m % tile.rows) / tile.rows, (panels * columns - op.n) / op.n]
        decisions = [chosen.row_blocks, chosen.unroll, point["prefetch"]]
        caches = [math.log2(op.k * columns * 4 / machine.l2), math.log2(op.m * op.k * 4 / machine.l2)]
        cut = [cuts, math.log2(op.k / cuts * columns * 4 / machine.l2)]
        idle = panels * chosen.row_blocks % machine.threads
        return [*sizes, *shape, *waste, *decisions, idle, *caches, ideal / cycles, *cut]

    def estimate(self, op: Matmul | GatedMatmul, point: Point, machine: CpuModel) -> float:
        chosen = MatmulDecisions.of(point)
        cycles = estimate(self.product(op), chosen.tile, chosen.row_blocks, machine, chosen.k_blocks)
        few = self._few_rows(op, machine)
        if few is None:
            return cycles
        # All tiles wait for the same weights; which of them wait least was measured.
        return cycles * (1.0 + 0.02 * abs(chosen.tile.vectors - few["tile"][1]) + 0.01 * chosen.prefetch)

    def pack(self, op: Matmul | GatedMatmul, point: Point, machine: CpuModel) -> dict[int, Packer]:
        kernel = self.kernel(op, MatmulDecisions.of(point), machine)
        parts, panels, columns, pieces = kernel.parts, kernel.panels, kernel.columns, kernel.cuts

        def weight(w: np.ndarray) -> np.ndarray:
            """[K, parts * N] -> [pieces of K * panels, K / pieces, NR], zero columns after N."""
            source = w.reshape(pieces, op.k // pieces, parts, op.n)
            packed = mapped.empty((pieces, panels, op.k // pieces, parts, columns), w.dtype)
            for panel in range(panels):
                part = source[..., panel * columns : (panel + 1) * columns]
                packed[:, panel, ..., : part.shape[-1]] = part
                packed[:, panel, ..., part.shape[-1] :] = 0
                mapped.touched(part.nbytes)
            return packed.reshape(pieces * panels, op.k // pieces, parts * columns)

        return {1: weight}

    def emit(self, op: Matmul | GatedMatmul, point: Point, machine: CpuModel) -> PrimFunc:
        return self.kernel(op, MatmulDecisions.of(point), machine).emit()
