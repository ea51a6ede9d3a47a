"""Pooling of plain images whose sizes are known only when they come.

The loops are those of ``images/pool2d_plain.py``: down the rows of a window to a line, then across its
columns.  A row that is no whole number of vectors ends with a vector that begins earlier; what both hold is
written twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hetero_tvm.host.tvm import Expr, PrimFunc, tirx
from hetero_tvm.ops.pool2d import Pool2d
from hetero_tvm.schedules.cpu.images.pool2d_plain import PlainPoolKernel, PoolExtents
from hetero_tvm.schedules.cpu.symbolic.tails import narrowed
from hetero_tvm.schedules.emit import Index, as_index, int32
from hetero_tvm.schedules.extents import Unfit
from hetero_tvm.schedules.symbolic import Witnesses, shape_variables


class RunTimePoolKernel(PlainPoolKernel):
    """Emits one pooling, ``rows`` output rows at a time.

    Raises
    ------
    Unfit : the windows depend on the sizes.
    """

    def __init__(self, witnesses: Witnesses, rows: int, lanes: int):
        super().__init__(witnesses.largest, rows, lanes)
        self.witnesses = witnesses
        if len({(op.kernel, op.strides) for op in witnesses.ops}) > 1:
            raise Unfit("the windows depend on the sizes")
        ends = {op.kernel[1] == 1 and op.padding[1] == 0 and op.out[1] <= op.width for op in witnesses.ops}
        self.straight = self.straight and ends == {True}

    def emit(self) -> PrimFunc:
        """The PrimFunc: X, Y."""
        op, k = self.op, self.k
        with k:
            variables = shape_variables(self.witnesses.symbols)
            shapes = self.witnesses.shapes(variables)
            x, y = k.argument("X", shapes[0], op.dtype), k.argument("Y", shapes[-1], op.dtype)
            narrow = narrowed(k, variables)

            def of(value: Callable[[Pool2d], Any]) -> Index:
                found = self.witnesses.value(value, narrow)
                return found if isinstance(found, int) else k.let(found)

            top, left, bottom, right = (of(lambda op, n=n: op.padding[n]) for n in range(4))
            self.measure(
                PoolExtents(
                    planes=of(lambda op: op.batch * op.channels),
                    height=of(lambda op: op.height),
                    width=of(lambda op: op.width),
                    padding=(top, left, bottom, right),
                    out=(of(lambda op: op.out[0]), of(lambda op: op.out[1])),
                )
            )
            self.loops(x, y)
        return k.function

    def vectors(self, extent: Index, body: Callable[[Index, int], None]) -> None:
        """``body(start, width)`` over ``extent`` elements: whole vectors, the last from where it fits."""
        if isinstance(extent, int):
            super().vectors(extent, body)
            return
        k, lanes = self.k, self.lanes
        whole = k.let(tirx.truncdiv(extent, int32(lanes)))

        def singly(first: Expr, count: Expr) -> None:
            with k.serial(count) as n:
                body(as_index(first + n), 1)

        def filled() -> None:
            with k.serial(whole) as step:
                body(step * lanes, lanes)
            with k.when(whole * lanes < extent):
                body(extent - lanes, lanes)

        k.branch(whole > 0, filled, lambda: singly(int32(0), extent))
