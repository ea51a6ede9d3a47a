"""Matrix product with a constant right operand, packed when the model is compiled.

Loop structure::

    parallel (block of rows) x (panel of NR columns):    contiguous pieces per thread
        for each register tile of MR rows in the block:
            acc[MR][NR] = X[rows, :] @ W[:, panel]        (see schedules/cpu/products/tile.py)
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
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.matmul import BIAS, RESIDUAL, Matmul
from hetero_tvm.schedules.base import DesignSpace, Knob, Packer, Point
from hetero_tvm.schedules.cpu.activations import Activations
from hetero_tvm.schedules.cpu.products import tile
from hetero_tvm.schedules.emit import LINE_FLOATS, Kernel, int32, tirx, vector_loop

PANEL_ATTR = "hetero.panels"
"""On a kernel in which each thread goes through all weight panels in turn: the weight's operand index."""

Finish = Callable[[list[Any], Any, Any, int, slice], Any]

_WHOLE = slice(None)

_MAX_ROWS = 14
_MAX_VECTORS = 8


def tile_choices(op: Matmul, machine: CpuModel, parts: int = 1) -> list[tuple[int, int]]:
    """Register tiles (rows, vectors) that fit the register file, the best estimate first.

    ``parts`` is how many products of equal width lie side by side in one tile.
    """
    choices = []
    vectors_of_n = parts * -(-op.n // parts // machine.lanes)
    for vectors in range(parts, min(_MAX_VECTORS, vectors_of_n) + 1, parts):
        for rows in range(1, min(_MAX_ROWS, op.m) + 1):
            if rows * vectors + vectors + 1 <= machine.registers:
                choices.append((rows, vectors))
    return sorted(
        choices, key=lambda t: min(estimate(op, t, b, machine) for b in row_block_choices(op, machine))
    )


def k_block_choices(op: Matmul, machine: CpuModel) -> list[int]:
    """Into how many equal pieces the reduction may be cut; partial sums lie in Y."""
    if len(row_block_choices(op, machine)) == 1:
        return [1]
    return [b for b in (1, 2, 3, 4, 6, 8) if op.k % b == 0 and (b == 1 or op.k // b >= 256)]


def row_block_choices(op: Matmul, machine: CpuModel) -> list[int]:
    """Into how many blocks the rows may be cut; every block has at least one row tile."""
    most = max(1, op.m // 4)
    wanted = {1, machine.threads, 2 * machine.threads, 4 * machine.threads}
    return sorted(b for b in wanted if b <= most)


def estimate(
    op: Matmul, tile_shape: tuple[int, int], row_blocks: int, machine: CpuModel, k_blocks: int = 1
) -> float:
    """Cycles of one call on the busiest thread, from a port model of the register tile.

    Per k a tile of r rows costs the larger of FMA issue, load issue and FMA latency; 24 cycles per
    tile and piece of K go to its prologue and epilogue, and more to partial sums that come back.  X is
    streamed once per panel: when a block of it does not fit L2, that traffic is added.  Every further
    block of rows reads the weights again.  When every thread reads all rows, most of X comes from other
    cores' caches once.
    """
    rows, vectors = tile_shape
    columns = vectors * machine.lanes
    load_cycles = 1.0 if machine.lanes >= 16 else 0.5
    far = max(0.0, 1.0 - machine.l2 / 2 / (op.m * op.n * 4 / row_blocks))  # share of Y beyond L2

    def per_k(r: int) -> float:
        issue = r * vectors / machine.fma_units
        loads = 0.5 * r + load_cycles * vectors
        # Each row is a stream of its own, and rows a power of two apart share few sets of an 8-way L1.
        crowded = 1.0 + 0.02 * max(0, r - 8)
        # With few accumulators more than the bare latency shows: 8 of the needed 8 reach 91%.
        spare = 1.5 * machine.fma_latency * machine.fma_units
        thin = 1.0 + 0.25 * max(0.0, 1.0 - r * vectors / spare)
        once = 24 + (k_blocks - 1) * (48 + far * r * columns * 8 / 12.0)
        return max(issue, loads, machine.fma_latency) * crowded * thin + once / op.k

    full, rest = divmod(op.m, rows)
    panels = -(-op.n // columns)
    row_cost = full * per_k(rows) + (per_k(rest) if rest else 0.0)
    pieces = panels * row_blocks
    imbalance = -(-pieces // machine.threads) * machine.threads / pieces
    if row_blocks > 1:
        tiles = full + bool(rest)
        imbalance *= -(-tiles // row_blocks) * row_blocks / tiles
    block_bytes = op.m * op.k * 4 / row_blocks / k_blocks
    spill = max(0.0, 1.0 - machine.l2 / 2 / max(block_bytes, 1))
    traffic = spill * op.m * 4 / 80.0  # most of it is hidden by the hardware's prefetcher
    foreign = 0.0 if row_blocks >= machine.threads else op.m * op.k * 4 * (1 - 1 / machine.threads) / 8.0
    rereads = max(0.0, row_blocks / machine.threads - 1) * op.n * op.k * 4 / 50.0
    compute = (row_cost + traffic) * op.k * panels * imbalance / machine.threads + foreign + rereads
    # A panel and the next one, which is being fetched, push each other and X out of L2.
    compute *= 1.0 + 0.06 * max(0.0, 1.0 - 0.75 * machine.l2 / (2 * columns * op.k * 4 / k_blocks))
    # With few rows the weights' way from memory is what takes time; blocks of rows read all of them.
    weights = op.n * op.k * 4 / (machine.threads if row_blocks == 1 else 1) / 8.0
    return max(compute, weights)


class MatmulSpace(DesignSpace):
    """Knobs: register tile, unrolling of k, number of row blocks, prefetch of the next panel, cuts of k."""

    name = "cpu.matmul"
    version = 1
    parts = 1
    """Products side by side in one register tile: a panel holds as many columns of each."""

    def product(self, op: Any) -> Matmul:
        """The plain product that costs the same."""
        return op

    def _tiles(self, op: Any, machine: CpuModel) -> list[tuple[int, int]]:
        return tile_choices(self.product(op), machine, self.parts)[:24]

    def _panels(self, op: Any, point: Point, machine: CpuModel) -> tuple[int, int]:
        """Number of panels, and columns of the result in one."""
        columns = point["tile"][1] * machine.lanes // self.parts
        return -(-op.n // columns), columns

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, Matmul):
            return "not a matmul"
        if op.dtype != "float32":
            return f"the operands are {op.dtype}"
        return "an extent is zero" if 0 in (op.m, op.n, op.k) else None

    def knobs(self, op: Matmul, machine: CpuModel) -> tuple[Knob, ...]:
        return (
            Knob("tile", tuple(self._tiles(op, machine))),
            Knob("row_blocks", tuple(row_block_choices(op, machine))),
            Knob("unroll", tuple(u for u in (4, 8, 2, 1) if u <= op.k)),
            Knob("prefetch", (1, 0)),
            Knob("k_blocks", tuple(self._k_blocks(op, machine)), absent=1),
        )

    def _k_blocks(self, op: Any, machine: CpuModel) -> list[int]:
        # Partial sums of several products side by side would not fit into the result.
        return k_block_choices(op, machine) if self.parts == 1 else [1]

    @staticmethod
    def _cuts(point: Point) -> int:
        """Pieces of K; a kernel whose threads share out columns does not cut it."""
        return point.get("k_blocks", 1) if point["row_blocks"] > 1 else 1

    def canonical(self, op: Matmul, point: Point, machine: CpuModel) -> Point:
        return {**point, "k_blocks": self._cuts(point)}

    def default(self, op: Matmul, machine: CpuModel) -> Point:
        product = self.product(op)
        points = [
            (t, b, cuts)
            for t in self._tiles(op, machine)
            for b in row_block_choices(op, machine)
            for cuts in self._k_blocks(op, machine)
            if cuts == 1 or b > 1
        ]
        shape, blocks, cuts = min(
            points, key=lambda p: (estimate(product, p[0], p[1], machine, p[2]), p[2], p[1])
        )
        unroll = 4 if op.k >= 4 else 1
        return {"tile": shape, "row_blocks": blocks, "unroll": unroll, "prefetch": 1, "k_blocks": cuts}

    def features(self, op: Any, point: Point, machine: CpuModel) -> list[float]:
        op = self.product(op)
        rows, vectors = point["tile"]
        columns = vectors * machine.lanes
        panels = -(-op.n // columns)
        cuts = self._cuts(point)
        cycles = estimate(op, point["tile"], point["row_blocks"], machine, cuts)
        ideal = op.flops / 2 / machine.lanes / machine.fma_units / machine.threads
        return [
            math.log2(op.m), math.log2(op.n), math.log2(op.k), len(op.epilogue),
            rows, vectors, rows * vectors, columns, (op.m % rows) / rows, (panels * columns - op.n) / op.n,
            point["row_blocks"], point["unroll"], point["prefetch"],
            panels * point["row_blocks"] % machine.threads,
            math.log2(op.k * columns * 4 / machine.l2), math.log2(op.m * op.k * 4 / machine.l2),
            ideal / cycles, cuts, math.log2(op.k / cuts * columns * 4 / machine.l2),
        ]  # fmt: skip

    def pack(self, op: Any, point: Point, machine: CpuModel) -> dict[int, Packer]:
        panels, columns = self._panels(op, point, machine)
        pieces = self._cuts(point)

        def weight(w: np.ndarray) -> np.ndarray:
            """[K, parts * N] -> [pieces of K * panels, K / pieces, NR], zero columns after N."""
            parts = w.reshape(op.k, self.parts, op.n)
            if panels * columns != op.n:
                parts = np.pad(parts, ((0, 0), (0, 0), (0, panels * columns - op.n)))
            tiles = parts.reshape(pieces, op.k // pieces, self.parts, panels, columns)
            tiles = tiles.transpose(0, 3, 1, 2, 4)
            return np.ascontiguousarray(tiles.reshape(pieces * panels, op.k // pieces, self.parts * columns))

        return {1: weight}

    def activations(self, op: Any, machine: CpuModel) -> Activations:
        return Activations(op.epilogue, machine)

    def epilogue(self, k: Kernel, op: Any, extra: list[Any], activations: Activations) -> Finish:
        """``finish(values, row, column, width, steps)``: what is stored for the vectors of each part, after
        these of the epilogue's steps."""
        extra = [
            k.view(buffer, (op.m, op.n)) if operand.name == RESIDUAL else buffer
            for buffer, operand in zip(extra, op.inputs[2:], strict=True)
        ]

        def finish(values: list[Any], row: Any, column: Any, width: int, steps: slice) -> Any:
            (value,), at = values, k.ramp(column, width)
            operands = iter(extra)
            pairs = [(step, next(operands) if step in (BIAS, RESIDUAL) else None) for step in op.epilogue]
            for step, operand in pairs[steps]:
                if step == BIAS:
                    value = value + k.load(operand, [at])
                elif step == RESIDUAL:
                    value = value + k.load(operand, [row, at])
                else:
                    value = activations.apply(step, value, width)
            return value

        return finish

    def emit(self, op: Any, point: Point, machine: CpuModel) -> Any:
        lanes = machine.lanes
        rows, vectors = point["tile"]
        width_of_tile = vectors * lanes
        panels, columns = self._panels(op, point, machine)
        blocks, cuts = point["row_blocks"], self._cuts(point)
        depth, slabs = op.k // cuts, cuts * panels
        full, rest = divmod(op.m, rows)
        tiles = full + bool(rest)
        last_columns = op.n - (panels - 1) * columns

        activations = self.activations(op, machine)
        k = Kernel()
        with k:
            x = k.argument("X", op.inputs[0].shape)
            w = k.argument("W", (slabs, depth, width_of_tile))
            extra = [k.argument(operand.name, operand.shape) for operand in op.inputs[2:]]
            y = k.argument("Y", op.output.shape)
            x, y = k.view(x, (op.m, op.k)), k.view(y, (op.m, op.n))
            finish = self.epilogue(k, op, extra, activations)

            def row_tile(first_row: Any, height: int, slab: Any, tile_index: Any, tiles: int) -> None:
                panel, first_k = slab, int32(0)
                if cuts > 1:
                    panel = tirx.floormod(slab, panels)
                    first_k = tirx.floordiv(slab, panels) * depth
                acc = k.scratch((height, width_of_tile))
                steps = max(1, depth // point["unroll"])
                lines = -(-depth * width_of_tile // LINE_FLOATS)
                per_step = -(-lines // (tiles * steps))

                def prefetch(step: Any) -> None:
                    next_slab = tirx.min(slab + 1, int32(slabs - 1))
                    with k.unroll(per_step) as p:
                        line = ((tile_index * steps + step) * per_step + p) * LINE_FLOATS
                        at = [tirx.floordiv(line, width_of_tile), tirx.floormod(line, width_of_tile)]
                        k.prefetch(w, [next_slab, *at])

                tile.accumulate(
                    k, acc, height, vectors, lanes, depth, point["unroll"],
                    a_at=lambda r, kk: k.load(x, [first_row + r, first_k + kk]),
                    b_at=lambda kk, at: k.load(w, [slab, kk, at]),
                    on_step=prefetch if point["prefetch"] and slabs > 1 else None,
                )  # fmt: skip

                def put(r: Any, c: Any, width: int, value: Any) -> None:
                    others = [k.load(acc, [r, k.ramp(p * columns + c, width)]) for p in range(1, self.parts)]
                    row, column = first_row + r, panel * columns + c
                    at = [row, k.ramp(column, width)]
                    if cuts > 1:
                        k.store(y, k.load(y, at) + value, at)
                    else:
                        k.store(y, finish([value, *others], row, column, width, _WHOLE), at)

                def write(count: int) -> None:
                    tile.store(k, acc, height, count, lanes, put)

                if last_columns == columns:
                    write(columns)
                elif panels == 1:
                    write(last_columns)
                else:
                    k.branch(panel < panels - 1, lambda: write(columns), lambda: write(last_columns))

            def block_of_rows(block: Any, slab: Any) -> None:
                if blocks == 1:
                    if full:
                        with k.serial(full) as t:
                            row_tile(t * rows, rows, slab, t, full)
                else:
                    first = tirx.floordiv(block * tiles, blocks)
                    count = tirx.min(tirx.floordiv((block + 1) * tiles, blocks), int32(full)) - first
                    if full:
                        with k.serial(count) as t:
                            row_tile((first + t) * rows, rows, slab, t, max(1, full // blocks))
                if rest:
                    if blocks == 1:
                        row_tile(full * rows, rest, slab, full, max(1, full))
                    else:
                        with k.when(tirx.EQ(block, int32(blocks - 1))):
                            row_tile(full * rows, rest, slab, int32(0), max(1, full // blocks))

            def whole_rows(block: Any, value_at: Callable[[Any, Any, int], Any]) -> None:
                first = tirx.floordiv(block * tiles, blocks) * rows
                end = tirx.min(tirx.floordiv((block + 1) * tiles, blocks) * rows, int32(op.m))
                with k.serial(end - first) as r:

                    def put(column: Any, width: int) -> None:
                        k.store(y, value_at(first + r, column, width), [first + r, k.ramp(column, width)])

                    vector_loop(k, op.n, lanes, put, unroll=4)

            def cut_block(block: Any) -> None:
                early, late = split_epilogue(op.epilogue)
                whole_rows(block, lambda *at: finish([k.splat(0.0, at[2])], *at, early))
                with k.serial(slabs) as slab:
                    block_of_rows(block, slab)
                if op.epilogue[late]:
                    whole_rows(block, lambda r, c, w: finish([k.load(y, [r, k.ramp(c, w)])], r, c, w, late))

            with k.imported(*activations.imports):
                if cuts > 1:
                    with k.parallel(blocks, op.flops) as block:
                        cut_block(block)
                else:
                    with k.parallel(blocks * panels, op.flops) as piece:
                        block_of_rows(tirx.floordiv(piece, panels), tirx.floormod(piece, panels))
        if point["prefetch"] and slabs > 1 and blocks % machine.threads == 0:
            return k.function.with_attr(PANEL_ATTR, 1)
        return k.function


def split_epilogue(steps: Sequence[str]) -> tuple[slice, slice]:
    """The steps that may precede the sum, and the others: from the first activation on."""
    linear = next((i for i, step in enumerate(steps) if step not in (BIAS, RESIDUAL)), len(steps))
    return slice(0, linear), slice(linear, None)
