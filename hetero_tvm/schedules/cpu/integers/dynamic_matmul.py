"""Product of rows that are quantised on the way in with packed 8-bit weights.

Loop structure::

    parallel (block of rows) x (block of panels):
        for each row of the block:                              two passes, the second from L1
            scale and zero point; the row in 8 bits             (row_quantizer.py; stays in L2)
        for each panel of NR columns in the block:
            for each register tile of MR rows:
                acc[MR][NR] = U[rows, :] . W[:, panel]          int32, four products at once (dots.py)
                (acc - zero * sums of the columns) * scales, epilogue; store

A step of the tile multiplies four values of K where a float tile multiplies one, so the same loads feed four
times the work, and weights take a quarter of the memory traffic.  Quantising in this kernel costs no launch
and no trip of the 8-bit rows beyond L2; a block of rows is quantised once per block of panels, so panels are
only shared out where there are few rows.
"""

from __future__ import annotations

import functools
import math
from itertools import product

from hetero_tvm.codegen.amx import TILE_WORDS
from hetero_tvm.host.peaks import INT8
from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.integers.dynamic_matmul import MOST_K, DynamicGatedMatmul, DynamicMatmul
from hetero_tvm.schedules.base import DesignSpace, Knob, Packer, Point
from hetero_tvm.schedules.cpu.integers import integer_tile
from hetero_tvm.schedules.cpu.integers.dynamic_kernel import DynamicGatedMatmulKernel, DynamicMatmulKernel
from hetero_tvm.schedules.cpu.integers.matrix_unit import has_matrix_unit, tile_cycles, tile_for
from hetero_tvm.schedules.cpu.integers.product_kernel import (
    MATRICES,
    VECTORS,
    IntegerDecisions,
    IntegerProductKernel,
)
from hetero_tvm.schedules.cpu.integers.run_time_rows import run_time_rows
from hetero_tvm.schedules.cpu.register_tile import RegisterTile
from hetero_tvm.schedules.symbolic import Witnesses

_MAX_ROWS = 14
_MAX_VECTORS = 8


_SHOWN = 0.2
"""Share of the products that shows where weights come too slowly for them."""


class DynamicMatmulSpace(DesignSpace):
    """Knobs: register tile, grid of row and column blocks, unrolling of K, prefetch of the next panel."""

    name = "cpu.dynamic_matmul"
    version = 2
    kernel: type[IntegerProductKernel] = DynamicMatmulKernel

    contract: type[FusedOp] = DynamicMatmul

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, self.contract):
            return "not a dynamically quantised matmul"
        if op.k > MOST_K:
            return "sums of so many products may not fit 32 bits"
        return "an extent is zero" if 0 in (op.m, op.n, op.k) else None

    def arithmetic(self, op: FusedOp, machine: CpuModel) -> str:
        return INT8

    def grids(self, op: DynamicMatmul, machine: CpuModel) -> list[tuple[int, int]]:
        """Pairs of row blocks and column blocks."""
        return grids(op.m, op.n, machine)

    def kernel_for(self, op: DynamicMatmul) -> type[IntegerProductKernel]:
        """The kernel of an operator."""
        return self.kernel

    def knobs(self, op: DynamicMatmul, machine: CpuModel) -> tuple[Knob, ...]:
        tiles = tuple((tile.rows, tile.vectors) for tile in self._tiles(op, machine))
        return (
            Knob("tile", tiles),
            Knob("grid", tuple(self.grids(op, machine))),
            Knob("unroll", (4, 2, 8, 1)),
            Knob("prefetch", (1, 0)),
            *(
                [Knob("unit", (MATRICES, VECTORS), absent=VECTORS)]
                if has_matrix_unit(machine, self.kernel.instruction)
                else []
            ),
        )

    @functools.lru_cache(maxsize=64)  # noqa: B019  (spaces live as long as the process)
    def _tiles(self, op: DynamicMatmul, machine: CpuModel) -> tuple[RegisterTile, ...]:
        """Register tiles, the best first; kept, as :meth:`canonical` asks for every point of a search."""
        dot = self.kernel_for(op).way(op, machine)
        parts = self.kernel_for(op).parts
        most = min(_MAX_VECTORS, parts * -(-op.n // machine.lanes))
        choices = [
            tile
            for vectors in range(parts, most + 1, parts)
            for rows in range(1, min(_MAX_ROWS, op.m) + 1)
            if integer_tile.tile_fits(tile := RegisterTile(rows, vectors), dot, machine)
        ]
        best = self.grids(op, machine)
        return tuple(sorted(choices, key=lambda t: min(self.cycles(op, t, g, machine) for g in best))[:24])

    def canonical(self, op: DynamicMatmul, point: Point, machine: CpuModel) -> Point:
        if point.get("unit", VECTORS) == VECTORS:
            return point
        tile = self._tiles(op, machine)[0]
        return {**point, "tile": (tile.rows, tile.vectors), "unroll": 4}  # matrices have their own

    def default(self, op: DynamicMatmul, machine: CpuModel) -> Point:
        units = (VECTORS, MATRICES) if has_matrix_unit(machine, self.kernel.instruction) else (VECTORS,)
        tile, grid, unit = min(
            product(self._tiles(op, machine), self.grids(op, machine), units),
            key=lambda point: self.cycles(op, point[0], point[1], machine, point[2]),
        )
        point = {"tile": (tile.rows, tile.vectors), "grid": grid, "unroll": 4, "prefetch": int(op.m > 1)}
        return self.canonical(op, point | ({"unit": unit} if len(units) > 1 else {}), machine)

    def cycles(
        self,
        op: DynamicMatmul,
        tile: RegisterTile,
        grid: tuple[int, int],
        machine: CpuModel,
        unit: str = VECTORS,
    ) -> float:
        """Estimate of one call on the busiest thread."""
        dot = self.kernel_for(op).way(op, machine)
        row_blocks, column_blocks = grid
        n = self.kernel_for(op).parts * op.n
        if unit == MATRICES:
            tile = tile_for(op.m, op.n, self.kernel_for(op).parts)
        groups, panels = -(-op.k // dot.group), -(-n // tile.columns(machine.lanes))
        tiles = -(-op.m // tile.rows)
        per_thread = -(-row_blocks * column_blocks // machine.threads)
        each = -(-tiles // row_blocks)
        if unit == MATRICES:
            one = each * (tile_cycles(tile, -(-groups // TILE_WORDS)) + 16 + 3 * tile.rows * tile.vectors)
        else:
            once = 16 + 3 * tile.rows * tile.vectors
            one = each * (groups * integer_tile.step_cycles(tile, dot, machine) + once)
        rows = min(op.m, each * tile.rows)
        quantise = rows * self.row_cycles(op, machine)
        compute = per_thread * (one * -(-panels // column_blocks) + quantise)
        # Rows beyond L2 are read again for every panel.
        far = max(0.0, 1.0 - machine.l2 / 2 / (rows * op.k))
        compute += per_thread * far * rows * op.k * -(-panels // column_blocks) / 32
        size = 2 if dot.sums == "float32" else 1
        rereads = per_thread * n * op.k * size / column_blocks / 10.0  # weights, from beyond L2
        if unit == VECTORS:
            return max(compute, rereads + _SHOWN * compute)
        # Tiles take weights faster than they can be fetched ahead: the two add up.  Threads that share out
        # columns only read rows that other cores wrote.
        other = 1 - 1 / machine.threads if row_blocks < machine.threads else 0.0
        foreign = op.m * op.k * (1 if op.inputs[0].dtype.endswith("int8") else 4) * other / machine.far_bytes
        return compute + rereads + foreign

    def row_cycles(self, op: DynamicMatmul, machine: CpuModel) -> float:
        """Estimate of what bringing one row to 8 bits takes."""
        return 60 + 5 * op.k / machine.lanes

    def features(self, op: DynamicMatmul, point: Point, machine: CpuModel) -> list[float]:
        chosen = IntegerDecisions.of(point)
        tile, grid = chosen.tile, (chosen.row_blocks, chosen.column_blocks)
        dot = self.kernel_for(op).way(op, machine)
        ideal = op.flops / 2 / dot.group * dot.cycles / machine.lanes / machine.fma_units / machine.threads
        sizes = [
            math.log2(op.m),
            math.log2(op.n),
            math.log2(op.k),
            float(self.kernel_for(op).parts),
            dot.group,
        ]
        shape = [tile.rows, tile.vectors, tile.rows * tile.vectors]
        waste = [(op.m % tile.rows) / tile.rows, -op.n % tile.columns(machine.lanes) / op.n]
        decisions = [*grid, chosen.unroll, float(chosen.prefetch)]
        return [*sizes, *shape, *waste, *decisions, ideal / self.cycles(op, tile, grid, machine, chosen.unit)]

    def estimate(self, op: DynamicMatmul, point: Point, machine: CpuModel) -> float:
        chosen = IntegerDecisions.of(point)
        grid = (chosen.row_blocks, chosen.column_blocks)
        cycles = self.cycles(op, chosen.tile, grid, machine, chosen.unit)
        # What the model of ports does not see: short loop bodies, and weights that come from far.
        return cycles * (1.0 + 0.01 * abs(chosen.unroll - 4) + 0.005 * (chosen.prefetch != (op.m > 1)))

    def pack(self, op: DynamicMatmul, point: Point, machine: CpuModel) -> dict[int, Packer]:
        return {1: self.kernel_for(op)(op, IntegerDecisions.of(point), machine).pack}

    def emit(self, op: DynamicMatmul, point: Point, machine: CpuModel) -> PrimFunc:
        return self.kernel_for(op)(op, IntegerDecisions.of(point), machine).emit()

    def run_time_kernel(self, witnesses: Witnesses, point: Point, machine: CpuModel) -> PrimFunc | None:
        kernel = self.kernel_for(witnesses.largest)
        return run_time_rows(kernel, witnesses, IntegerDecisions.of(point), machine)


class DynamicGatedMatmulSpace(DynamicMatmulSpace):
    """Knobs of the plain product; tiles have an even number of vectors."""

    name = "cpu.dynamic_gated_matmul"
    version = 2
    kernel = DynamicGatedMatmulKernel
    contract = DynamicGatedMatmul


def grids(m: int, n: int, machine: CpuModel) -> list[tuple[int, int]]:
    """Pairs of row blocks and column blocks: every row block has four rows or all, columns a vector."""
    threads = machine.threads
    rows = [b for b in sorted({1, threads, 2 * threads, 4 * threads, 16 * threads}) if b <= max(1, m // 4)]
    most = max(1, n // machine.lanes)
    found = [(r, c) for r in rows for c in sorted({1, threads, 2 * threads, 4 * threads}) if c <= most]
    return [(r, c) for r, c in found if r == 1 or c == 1 or r * c <= 4 * threads]
