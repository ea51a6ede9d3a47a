"""Products of two computed tensors.

Loop structure::

    parallel over batch x panels of NR columns:
        pack the panel of B as [k][NR]                              (L1 or L2, each panel once)
        for each tile of MR rows:
            acc[MR][NR] = A panel  (register tile of schedules/cpu/products/tile.py), stored where Y lies
        the last m % MR rows: one more tile of that height

B is packed because the tile wants whole vectors of columns: rows are copied, and columns (the keys of
``Q K^T``) transposed in registers.  A is read where it lies, a scalar per row and step; so neither operand
is transposed, sliced or repeated before, nor the result after.
"""

from __future__ import annotations

import math
from typing import Any

from hetero_tvm.codegen import transpose
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.batch_matmul import BatchMatmul
from hetero_tvm.schedules.base import DesignSpace, Knob, Point
from hetero_tvm.schedules.cpu.products import pack, tile
from hetero_tvm.schedules.emit import Kernel, chunks, int32, tirx

_PANEL_LIMIT = 1 << 20
"""Bytes of a packed panel that still make sense in L2; longer reductions are refused."""


class BatchMatmulSpace(DesignSpace):
    """Knobs: rows and vectors of the register tile, unrolling."""

    name = "cpu.batch_matmul"
    version = 1

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, BatchMatmul):
            return "not a product of two computed tensors"
        if op.dtype != "float32":
            return f"dtype is {op.dtype}, expected float32"
        if 0 in (op.batch, op.m, op.n, op.k):
            return "an extent is zero"
        if op.k * machine.lanes * 4 > _PANEL_LIMIT:
            return f"a panel of {op.k} rows does not fit {_PANEL_LIMIT >> 10} KiB"
        return None

    def knobs(self, op: BatchMatmul, machine: CpuModel) -> tuple[Knob, ...]:
        tiles = []
        for vectors in (2, 1, 4, 3):
            for rows in (6, 4, 8, 12, 3, 2, 1):
                fits = rows * vectors + vectors + 1 <= machine.registers and rows <= op.m
                needed = vectors == 1 or (vectors - 1) * machine.lanes < op.n
                if fits and needed and op.k * vectors * machine.lanes * 4 <= _PANEL_LIMIT:
                    tiles.append((rows, vectors))
        return Knob("tile", tuple(tiles)), Knob("unroll", (4, 8, 2))

    def default(self, op: BatchMatmul, machine: CpuModel) -> Point:
        def cost(shape: tuple[int, int]) -> float:
            rows, vectors = shape
            per_k = max(rows * vectors / machine.fma_units, machine.fma_latency, 0.5 * rows + vectors)
            panels = -(-op.n // (vectors * machine.lanes))
            steps = -(-op.m // rows) * panels
            work = op.batch * panels
            return per_k * steps * (-(-work // machine.threads) * machine.threads / work)

        return {"tile": min(self.knobs(op, machine)[0].choices, key=cost), "unroll": 4}

    def features(self, op: BatchMatmul, point: Point, machine: CpuModel) -> list[float]:
        rows, vectors = point["tile"]
        sizes = [math.log2(extent) for extent in (op.batch, op.m, op.n, op.k)]
        return [*sizes, rows, vectors, op.m % rows / rows, op.n % (vectors * machine.lanes), point["unroll"]]

    def emit(self, op: BatchMatmul, point: Point, machine: CpuModel) -> Any:
        (rows, vectors), lanes = point["tile"], machine.lanes
        columns = vectors * lanes
        panels = -(-op.n // columns)
        last = op.n - (panels - 1) * columns
        result_at = _result_strides(op)
        k = Kernel()
        with k:
            left, right = (k.argument(o.name, o.shape) for o in op.inputs)
            y = k.argument("Y", op.output.shape)
            left, right, y = (k.view(b, (math.prod(int(e) for e in b.shape),)) for b in (left, right, y))
            with k.imported(transpose.ir(lanes)), k.parallel(op.batch * panels, op.flops) as work:
                panel, item = tirx.floormod(work, panels), tirx.floordiv(work, panels)
                a_base = k.let(_base(op, op.left_at, item))
                b_base = k.let(_base(op, op.right_at, item) + panel * columns * op.right_at[-1])
                y_base = k.let(_base(op, (0, *result_at), item) + panel * columns)
                packed = k.scratch((1, op.k, columns))

                def of_width(width: int) -> None:
                    _pack(k, op, packed, right, b_base, width, columns, lanes)
                    full, rest = divmod(op.m, rows)
                    if full:
                        with k.serial(full) as t:
                            of_height(t * rows, rows, width)
                    if rest:
                        of_height(int32(full * rows), rest, width)

                def of_height(first: Any, height: int, width: int) -> None:
                    acc = k.scratch((height, columns))
                    a_row, a_column = op.left_at[-2:]
                    tile.accumulate(
                        k, acc, height, vectors, lanes, op.k, point["unroll"],
                        a_at=lambda r, d: k.load(left, [a_base + (first + r) * a_row + d * a_column]),
                        b_at=lambda d, at: k.load(packed, [int32(0), d, at]),
                    )  # fmt: skip

                    def put(r: Any, column: Any, lanes_: int, value: Any) -> None:
                        k.store(y, value, [k.ramp(y_base + (first + r) * result_at[-1] + column, lanes_)])

                    tile.store(k, acc, height, width, lanes, put)

                if panels == 1 or last == columns:
                    of_width(last)
                else:
                    k.branch(panel < panels - 1, lambda: of_width(columns), lambda: of_width(last))
        return k.function


def _pack(
    k: Kernel, op: BatchMatmul, packed: Any, right: Any, base: Any, width: int, columns: int, lanes: int
) -> None:
    """``width`` columns of B from ``base`` on; those up to ``columns`` are zero."""
    row, column = op.right_at[-2:]
    if column == 1 or width == 1:
        pack.rows(k, packed, right, base, row, op.k, columns, width, lanes)
    elif row == 1 or op.k == 1:
        pack.transposed(k, packed, right, base, column, width, columns, op.k, lanes)
    else:
        with k.serial(op.k) as d:
            for j in range(width):
                k.store(packed, k.load(right, [base + d * row + j * column]), [int32(0), d, int32(j)])
            for start, extent in chunks(columns - width, lanes):
                k.store(packed, k.splat(0.0, extent), [int32(0), d, k.ramp(width + start, extent)])


def _result_strides(op: BatchMatmul) -> tuple[int, ...]:
    """Strides in Y of each lead dimension and of the rows."""
    extents, strides, below = (*op.lead, op.m, op.n), {}, 1
    for axis in reversed(op.order):
        strides[axis] = below
        below *= extents[axis]
    return tuple(strides[axis] for axis in range(len(extents) - 1))


def _base(op: BatchMatmul, place: tuple[int, ...], item: Any) -> Any:
    """Where batch ``item`` starts."""
    start = int32(place[0])
    for extent, stride in zip(reversed(op.lead), reversed(place[1 : len(op.lead) + 1]), strict=True):
        start = start + tirx.floormod(item, int32(extent)) * stride
        item = tirx.floordiv(item, int32(extent))
    return start
