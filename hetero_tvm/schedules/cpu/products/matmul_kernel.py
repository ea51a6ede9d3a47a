"""The kernel of the packed matrix product; ``matmul.py`` tells its loop structure and why it is fast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.gated_matmul import GatedMatmul
from hetero_tvm.ops.matmul import BIAS, RESIDUAL, TENSORS, Matmul, joined, steps_with_operands
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.cpu import next_panel, register_tile
from hetero_tvm.schedules.cpu.activation_code import ActivationCode
from hetero_tvm.schedules.cpu.register_tile import RegisterTile
from hetero_tvm.schedules.emit import LINE_FLOATS, Index, Kernel, int32, vector_loop

PANEL_ATTR = "hetero.panels"
"""Attribute of kernels whose threads each go through all weight panels in turn: index of the weight."""

_ALL_STEPS = slice(None)


@dataclass(frozen=True)
class MatmulDecisions:
    """A point of the space.

    Attributes
    ----------
    tile : register tile; its vectors hold columns of ``parts`` products side by side.
    row_blocks, k_blocks : pieces that M and K are cut into.
    unroll : steps of K in one loop body.
    prefetch : whether the next weight panel is fetched ahead.
    """

    tile: RegisterTile
    row_blocks: int
    unroll: int
    prefetch: bool
    k_blocks: int

    @classmethod
    def of(cls, point: Point) -> MatmulDecisions:
        """Decisions of a point; a kernel whose threads share out columns does not cut K."""
        row_blocks = point["row_blocks"]
        return cls(
            tile=RegisterTile.of(point["tile"]),
            row_blocks=row_blocks,
            unroll=point["unroll"],
            prefetch=bool(point["prefetch"]),
            k_blocks=point.get("k_blocks", 1) if row_blocks > 1 else 1,
        )


def split_epilogue(steps: Sequence[str]) -> tuple[slice, slice]:
    """The steps that may precede the sum, and the others: from the first activation on."""
    linear = next((i for i, step in enumerate(steps) if step not in (BIAS, RESIDUAL)), len(steps))
    return slice(0, linear), slice(linear, None)


class MatmulKernel:
    """Emits one product."""

    parts = 1
    """Products side by side in one register tile: a panel holds as many columns of each."""

    def __init__(self, op: Matmul | GatedMatmul, decisions: MatmulDecisions, machine: CpuModel):
        self.op, self.decisions, self.machine = op, decisions, machine
        self.lanes, self.tile = machine.lanes, decisions.tile
        self.blocks, self.cuts = decisions.row_blocks, decisions.k_blocks
        self.columns = self.tile.columns(self.lanes) // self.parts
        self.panels = -(-op.n // self.columns)
        self.slabs, self.depth = self.cuts * self.panels, op.k // self.cuts
        self.full, self.rest = divmod(op.m, self.tile.rows)
        self.tiles = self.full + bool(self.rest)
        self.activations = ActivationCode(self.steps(), machine)
        self.k = Kernel()

    def steps(self) -> Sequence[str]:
        """Names of the epilogue's steps."""
        return self.op.epilogue

    def bind_epilogue(self, extra: list[Buffer]) -> None:
        """Take the operands of the epilogue."""
        self.extra = [
            self.k.view(buffer, (self.op.m, self.op.n)) if operand.name in TENSORS else buffer
            for buffer, operand in zip(extra, self.op.inputs[2:], strict=True)
        ]

    def finish(self, values: list[Expr], row: Index, column: Index, width: int, steps: slice) -> Expr:
        """The vectors of each part at (row, column) after these of the epilogue's steps."""
        k, (value,), at = self.k, values, self.k.ramp(column, width)
        for step, operand in steps_with_operands(self.op.epilogue, self.extra)[steps]:
            if step == BIAS:
                value = value + k.load(operand, [at])
            elif step in TENSORS:
                value = joined(step, value, k.load(operand, [row, at]))
            else:
                value = self.activations.apply(step, value, width)
        return value

    def emit(self) -> PrimFunc:
        """The PrimFunc: X, packed W, the epilogue's operands, Y."""
        op, k = self.op, self.k
        with k:
            x = k.argument("X", op.inputs[0].shape)
            self.w = k.argument("W", (self.slabs, self.depth, self.tile.columns(self.lanes)))
            extra = [k.argument(operand.name, operand.shape) for operand in op.inputs[2:]]
            y = k.argument("Y", op.output.shape)
            self.x, self.y = k.view(x, (op.m, op.k)), k.view(y, (op.m, op.n))
            self.bind_epilogue(extra)
            with k.imported(*self.activations.imports):
                if self.cuts > 1:
                    with k.parallel(self.blocks, op.flops) as block:
                        self._cut_block(block)
                else:
                    with k.parallel(self.blocks * self.panels, op.flops) as piece:
                        panel = tirx.floormod(piece, self.panels)
                        self._block_of_rows(tirx.floordiv(piece, self.panels), panel)
        if self.decisions.prefetch and self.slabs > 1 and self.blocks % self.machine.threads == 0:
            return k.function.with_attr(PANEL_ATTR, 1)
        return k.function

    # rows ----------------------------------------------------------------------------------------
    def _block_of_rows(self, block: Expr, slab: Expr) -> None:
        """Emit all register tiles of one block of rows on one slab of W."""
        k, rows, full, blocks = self.k, self.tile.rows, self.full, self.blocks
        if blocks == 1:
            if full:
                with k.serial(full) as t:
                    self._row_tile(t * rows, rows, slab, t, full)
            if self.rest:
                self._row_tile(full * rows, self.rest, slab, full, max(1, full))
            return
        first = tirx.floordiv(block * self.tiles, blocks)
        count = tirx.min(tirx.floordiv((block + 1) * self.tiles, blocks), int32(full)) - first
        if full:
            with k.serial(count) as t:
                self._row_tile((first + t) * rows, rows, slab, t, max(1, full // blocks))
        if self.rest:
            with k.when(tirx.EQ(block, int32(blocks - 1))):
                self._row_tile(full * rows, self.rest, slab, int32(0), max(1, full // blocks))

    def _cut_block(self, block: Expr) -> None:
        """Emit one block of rows whose reduction is cut: partial sums lie in Y."""
        k, op = self.k, self.op
        early, late = split_epilogue(op.epilogue)
        self._whole_rows(block, lambda *at: self.finish([k.splat(0.0, at[2])], *at, early))
        with k.serial(self.slabs) as slab:
            self._block_of_rows(block, slab)
        if op.epilogue[late]:
            self._whole_rows(
                block, lambda r, c, w: self.finish([k.load(self.y, [r, k.ramp(c, w)])], r, c, w, late)
            )

    def _whole_rows(self, block: Expr, value_at: Callable[[Expr, Index, int], Expr]) -> None:
        """Y[block] = ``value_at(row, column, width)``."""
        k, op, rows = self.k, self.op, self.tile.rows
        first = tirx.floordiv(block * self.tiles, self.blocks) * rows
        end = tirx.min(tirx.floordiv((block + 1) * self.tiles, self.blocks) * rows, int32(op.m))
        with k.serial(end - first) as r:

            def put(column: Index, width: int) -> None:
                k.store(self.y, value_at(first + r, column, width), [first + r, k.ramp(column, width)])

            vector_loop(k, op.n, self.lanes, put, unroll=4)

    # one register tile -----------------------------------------------------------------------------
    def _streams(self, rows: RegisterTile, tile_index: Index | None) -> bool:
        """Whether a tile of all rows there are goes through two places of its panel at once."""
        alone = self.op.m == rows.rows and self.blocks == 1
        return alone and not self.decisions.prefetch and rows.streams(self.machine)

    def _row_tile(
        self, first_row: Index, height: int, slab: Expr, tile_index: Index | None, tiles: int
    ) -> None:
        """Emit ``height`` rows of one panel; tile ``tile_index`` of ``tiles`` (None: it does not) fetches its
        share of the next panel ahead."""
        k, depth, width = self.k, self.depth, self.tile.columns(self.lanes)
        unroll = self.decisions.unroll
        panel, first_k = slab, int32(0)
        if self.cuts > 1:
            panel = tirx.floormod(slab, self.panels)
            first_k = tirx.floordiv(slab, self.panels) * depth
        rows = RegisterTile(height, self.tile.vectors)
        streams = self._streams(rows, tile_index)
        acc = k.scratch((2 * height if streams else height, width))

        def a_at(r: Expr, kk: Index) -> Expr:
            return k.load(self.x, [first_row + r, first_k + kk])

        def b_at(kk: Index, at: Expr) -> Expr:
            return k.load(self.w, [slab, kk, at])

        if streams:
            register_tile.accumulate_streams(k, acc, rows, self.lanes, depth, unroll, a_at, b_at)
        else:
            ahead = None
            if self.decisions.prefetch and self.slabs > 1 and tile_index is not None:
                steps, lines = max(1, depth // unroll), -(-depth * width // LINE_FLOATS)
                ahead = next_panel.lines_ahead(k, self.w, slab, tile_index, tiles, steps, lines, LINE_FLOATS)
            register_tile.accumulate(k, acc, rows, self.lanes, depth, unroll, a_at, b_at, ahead)

        def put(r: Expr, c: Index, width: int, value: Expr) -> None:
            others = [k.load(acc, [r, k.ramp(p * self.columns + c, width)]) for p in range(1, self.parts)]
            row, column = first_row + r, panel * self.columns + c
            at = [row, k.ramp(column, width)]
            if self.cuts > 1:
                k.store(self.y, k.load(self.y, at) + value, at)
            else:
                k.store(self.y, self.finish([value, *others], row, column, width, _ALL_STEPS), at)

        def write(count: int) -> None:
            register_tile.store(k, acc, height, count, self.lanes, put)

        last_columns = self.op.n - (self.panels - 1) * self.columns
        if last_columns == self.columns:
            write(self.columns)
        elif self.panels == 1:
            write(last_columns)
        else:
            k.branch(panel < self.panels - 1, lambda: write(self.columns), lambda: write(last_columns))
