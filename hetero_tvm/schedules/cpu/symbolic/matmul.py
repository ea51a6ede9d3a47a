"""Packed matrix products whose rows are counted at run time.

Loop structure::

    parallel over blocks of rows x panels of columns:                        (their number: a run-time value)
        for each register tile of MR rows in the block:  as in products/matmul.py
        in the last block: a nest of its own for the rows that are left, of every height below MR

Few rows wait for their weights, so the threads share the panels out and each weight is read once; many rows
wait for the arithmetic, and then each thread takes rows of its own, which stay in its L2.  Which of the two,
and how many blocks, is computed from the rows at the call.  So few rows of a small matrix that waking other
threads takes longer are computed by a copy of the loops on the calling one.
"""

from __future__ import annotations

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.matmul import TENSORS
from hetero_tvm.schedules.cpu.products.gated_matmul import GatedMatmulKernel
from hetero_tvm.schedules.cpu.products.matmul_kernel import MatmulDecisions, MatmulKernel
from hetero_tvm.schedules.cpu.register_tile import RegisterTile
from hetero_tvm.schedules.cpu.symbolic.tails import last_rows, narrowed
from hetero_tvm.schedules.emit import LAUNCH_FLOPS, Index, int32, pieces_of
from hetero_tvm.schedules.symbolic import Witnesses, shape_variables

_MANY_ROWS, _EARLIER = 96, 64
"""Rows from which on threads take rows instead of panels; and where panels alone are too few pieces to share
evenly."""
_PIECES = 8
"""Pieces of each thread that share evenly."""
_SHARING, _FEW_SHARING = 6, 2
"""Tiles among which the next panel's lines are shared; the same where there are fewer tiles."""
_BLOCK_ROWS = 128
"""Rows of a block at most: with a panel of weights they share L2."""


class _RunTimeRows(MatmulKernel):
    """The rows of a product whose m is an expression."""

    def __init__(self, witnesses: Witnesses, decisions: MatmulDecisions, machine: CpuModel):
        super().__init__(witnesses.largest, decisions, machine)
        self.witnesses = witnesses

    def emit(self) -> PrimFunc:
        """The PrimFunc: X, packed W, the epilogue's operands, Y."""
        op, k, rows = self.op, self.k, self.tile.rows
        with k:
            variables = shape_variables(self.witnesses.symbols)
            shapes = self.witnesses.shapes(variables)
            x = k.argument("X", shapes[0])
            self.w = k.argument("W", (self.slabs, self.depth, self.tile.columns(self.lanes)))
            extra = [k.argument(o.name, shapes[2 + n]) for n, o in enumerate(op.inputs[2:])]
            y = k.argument("Y", shapes[-1])
            m = k.let(self.witnesses.value(lambda op: op.m, narrowed(k, variables)))
            self.x, self.y = k.view(x, (m, op.k)), k.view(y, (m, op.n))
            self.bind_epilogue(
                [
                    k.view(b, (m, op.n)) if operand.name in TENSORS else b
                    for b, operand in zip(extra, op.inputs[2:], strict=True)
                ]
            )
            full = k.let(tirx.truncdiv(m, int32(rows)))
            rest = k.let(m - full * rows)
            tiles = k.let(full + tirx.Cast("int32", rest > 0))
            blocks = k.named(self._block_count(m, tiles))

            def work(piece: Expr) -> None:
                block = k.let(tirx.truncdiv(piece, int32(self.panels)))
                panel = k.let(piece - block * self.panels)
                first = k.let(tirx.truncdiv(block * tiles, blocks))
                end = k.let(tirx.min(tirx.truncdiv((block + 1) * tiles, blocks), full))

                def row_tiles(sharing: int) -> None:
                    with k.serial(end - first) as t:
                        self._row_tile((first + t) * rows, rows, panel, t, sharing)

                if self.decisions.prefetch and self.slabs > 1:
                    k.branch(full < _SHARING, lambda: row_tiles(_FEW_SHARING), lambda: row_tiles(_SHARING))
                else:
                    row_tiles(_SHARING)
                with k.when(tirx.EQ(block, blocks - 1)):
                    last_rows(k, rest, rows, lambda height: self._last_tile(full * rows, height, panel))

            most = LAUNCH_FLOPS // (op.flops // op.m) if self.machine.threads > 1 else 0
            with k.imported(*self.activations.imports):
                k.shared_unless(m <= most if most else False, blocks * self.panels, work)
        return k.function

    def _block_count(self, m: Expr, tiles: Expr) -> Expr:
        threads = self.machine.threads
        many = pieces_of(m, _BLOCK_ROWS * threads) * threads
        # One of no rows as well: they are divided by this count.
        few = int32(1) if self.panels >= threads else tirx.max(tirx.min(tiles, int32(threads)), int32(1))
        return tirx.Select(m >= (_EARLIER if self.panels < _PIECES * threads else _MANY_ROWS), many, few)

    def bind_epilogue(self, extra: list[Buffer]) -> None:
        self.extra = extra

    def _last_tile(self, first_row: Index, height: int, panel: Expr) -> None:
        self._row_tile(first_row, height, panel, None, 1)

    def _streams(self, rows: RegisterTile, tile_index: Index | None) -> bool:
        return tile_index is None and rows.streams(self.machine)


class RunTimeMatmulKernel(_RunTimeRows):
    """A plain product."""


class RunTimeGatedMatmulKernel(_RunTimeRows, GatedMatmulKernel):
    """A gated product."""

    def bind_epilogue(self, extra: list[Buffer]) -> None:
        GatedMatmulKernel.bind_epilogue(self, extra)
