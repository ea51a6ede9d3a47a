"""Inner products of few rows with any number of others: the loops of ``products/inner.py``.

Loop structure::

    parallel over batch x blocks of the many rows:
        for each few of them, then one by one:  vectors of both, multiplied and added up in registers, folded
"""

from __future__ import annotations

from hetero_tvm.host.tvm import Buffer, Expr, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.batch_matmul import BatchMatmul
from hetero_tvm.schedules.cpu.products import inner
from hetero_tvm.schedules.cpu.register_tile import RegisterTile
from hetero_tvm.schedules.cpu.symbolic.batch_matmul import RunTimeBatchMatmulKernel
from hetero_tvm.schedules.emit import Index, as_index, int32, pieces_of
from hetero_tvm.schedules.extents import Unfit
from hetero_tvm.schedules.symbolic import Witnesses

_STEPS = 8
"""Steps of a block."""


class RunTimeInnerKernel(RunTimeBatchMatmulKernel):
    """Emits one product of which one side has few rows, and what is summed up is contiguous, at all sizes.

    Raises
    ------
    Unfit : it is another one.
    """

    def __init__(self, witnesses: Witnesses, machine: CpuModel):
        super().__init__(witnesses, RegisterTile(1, 1), 1, machine)
        ops: tuple[BatchMatmul, ...] = witnesses.ops
        heights, widths = {op.m for op in ops}, {op.n for op in ops}
        self.few_left = len(heights) == 1 and max(heights) <= inner.MOST_FEW
        few = max(heights if self.few_left else widths)
        fixed = self.few_left or (len(widths) == 1 and few <= inner.MOST_FEW)
        if (
            not fixed
            or None in map(inner.roles_of, ops)
            or len({op.k for op in ops}) > 1
            or ops[0].k < self.lanes
        ):
            raise Unfit("no inner products of few rows")
        self.op, self.roles = ops[0], inner.Roles(self.few_left, few, 0)

    def products(self, batch: Expr, depth: Expr, flops: int) -> None:
        k, at_once = self.k, inner.rows_at_once(self.roles)
        many = self.width if self.few_left else self.rows
        blocks = k.let(pieces_of(many, at_once * _STEPS))
        with k.parallel(batch * blocks, flops) as work:
            item, block = k.let(tirx.truncdiv(work, blocks)), k.let(tirx.truncmod(work, blocks))
            self.begin(item, int32(0))
            first = k.let(block * (at_once * _STEPS))
            count = k.let(tirx.min(int32(at_once * _STEPS), many - first))
            whole = k.let(tirx.truncdiv(count, int32(at_once)))
            with k.serial(whole) as group:
                self._block(first + group * at_once, at_once)
            with k.serial(count - whole * at_once) as n:
                self._block(first + whole * at_once + n, 1)

    def _block(self, first: Expr, count: int) -> None:
        left = (self.left, self.a_base, as_index(self.a_row))
        right = (self.right, self.b_base, as_index(self.b_column))
        few, many = (left, right) if self.few_left else (right, left)

        def put(f: int, z: Expr, value: Expr) -> None:
            row, column = (f, z) if self.few_left else (z, f)
            self.k.store(self.y, value, [self.y_base + row * self.y_row + column])

        inner.emit_block(
            self.k,
            self.op,
            self.roles,
            self.k.let(first),
            count,
            self.lanes,
            lambda f, at, width: self._vector(few, f, at, width),
            lambda z, at, width: self._vector(many, z, at, width),
            put,
        )

    def _vector(self, side: tuple[Buffer, Expr, Expr], row: Index, at: Index, width: int) -> Expr:
        buffer, base, step = side
        return self.k.load(buffer, [self.k.ramp(base + row * step + at, width)])
