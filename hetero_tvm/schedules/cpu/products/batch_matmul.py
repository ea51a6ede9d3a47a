"""Products of two computed tensors.

Loop structure::

    parallel over batch x panels of NR columns:
        pack the panel of B as [k][NR]                              (L1 or L2, each panel once)
        for each tile of MR rows:
            acc[MR][NR] = A panel  (register tile of schedules/cpu/register_tile.py), stored where Y lies
        the last m % MR rows: one more tile of that height

B is packed because the tile wants whole vectors of columns: rows are copied, and columns (the keys of
``Q K^T``) transposed in registers.  Where a tile has all rows of A, rows of B are read where they lie.  A is
always read where it lies, a scalar per row and step; so neither operand is transposed, sliced or repeated
before, nor the result after.

Few rows of A with a large B whose rows are contiguous, or rows that are contiguous along the reduction:
``few_rows.py``.
"""

from __future__ import annotations

import math

from hetero_tvm.codegen import transpose
from hetero_tvm.host.tvm import Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.batch_matmul import BatchMatmul
from hetero_tvm.schedules.base import DesignSpace, Knob, Point
from hetero_tvm.schedules.cpu import register_tile
from hetero_tvm.schedules.cpu.products import few_rows, pack
from hetero_tvm.schedules.cpu.register_tile import RegisterTile
from hetero_tvm.schedules.emit import Index, Kernel, int32, strided_position

_PANEL_LIMIT = 1 << 20
"""Bytes of a packed panel that still make sense in L2; longer reductions are refused."""

_TILE_CYCLES, _RESULT_CYCLES = 16.0, 2.0
"""Cycles of a register tile beside its products, and of each vector of results."""


PANELS = "panels"
"""The order of the register tiles: B is read by columns of one."""


class BatchMatmulSpace(DesignSpace):
    """Knobs: rows and vectors of the register tile, unrolling, the order in which B is read."""

    name = "cpu.batch_matmul"
    version = 3

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
        for vectors in (2, 1, 4, 3, 6) if op.m == 1 else (2, 1, 4, 3):
            for rows in (6, 4, 8, 12, 3, 2, 1):
                fits = RegisterTile(rows, vectors).fits(machine) and rows <= op.m
                needed = vectors == 1 or (vectors - 1) * machine.lanes < op.n
                if fits and needed and op.k * vectors * machine.lanes * 4 <= _PANEL_LIMIT:
                    tiles.append((rows, vectors))
        orders = (PANELS, *few_rows.orders(op))
        return Knob("tile", tuple(tiles)), Knob("unroll", (4, 8, 2)), Knob("order", orders, absent=PANELS)

    def default(self, op: BatchMatmul, machine: CpuModel) -> Point:
        tiles, _, orders = (knob.choices for knob in self.knobs(op, machine))
        points = [{"tile": tile, "unroll": 4, "order": order} for tile in tiles for order in orders]
        return min(points, key=lambda point: self.estimate(op, point, machine))

    def features(self, op: BatchMatmul, point: Point, machine: CpuModel) -> list[float]:
        tile = RegisterTile.of(point["tile"])
        sizes = [math.log2(extent) for extent in (op.batch, op.m, op.n, op.k)]
        rests = [op.m % tile.rows / tile.rows, op.n % tile.columns(machine.lanes)]
        return [*sizes, tile.rows, tile.vectors, *rests, point["unroll"], _order(point) != PANELS]

    def estimate(self, op: BatchMatmul, point: Point, machine: CpuModel) -> float:
        rows, vectors = point["tile"]
        if _order(point) != PANELS:
            return few_rows.estimate(op, _order(point), machine)
        per_k = max(rows * vectors / machine.fma_units, machine.fma_latency, 0.5 * rows + vectors)
        panels = -(-op.n // (vectors * machine.lanes))
        steps = -(-op.m // rows) * panels
        work = op.batch * panels
        per_k += few_rows.page_cycles(op, vectors, machine) / -(-op.m // rows)
        per_k += 0 if _reads_in_place(op, rows) else 1.5 * vectors / -(-op.m // rows)
        once = _TILE_CYCLES + _RESULT_CYCLES * rows * vectors
        return (per_k + once / op.k) * steps * (-(-work // machine.threads) * machine.threads / work)

    def canonical(self, op: BatchMatmul, point: Point, machine: CpuModel) -> Point:
        if _order(point) == PANELS:
            return {**point, "order": PANELS}
        tiles, unrolls, _ = (knob.choices for knob in self.knobs(op, machine))
        return {"tile": tiles[0], "unroll": unrolls[0], "order": point["order"]}

    def emit(self, op: BatchMatmul, point: Point, machine: CpuModel) -> PrimFunc:
        if _order(point) != PANELS:
            return few_rows.emit(op, _order(point), machine)
        tile, lanes = RegisterTile.of(point["tile"]), machine.lanes
        rows, columns = tile.rows, tile.columns(lanes)
        panels = -(-op.n // columns)
        last = op.n - (panels - 1) * columns
        *lead_strides, row_stride = few_rows.result_strides(op)
        k = Kernel()
        with k:
            left, right = (k.argument(o.name, o.shape) for o in op.inputs)
            y = k.argument("Y", op.output.shape)
            left, right, y = (k.view(b, (math.prod(int(e) for e in b.shape),)) for b in (left, right, y))
            with k.imported(transpose.ir(lanes)), k.parallel(op.batch * panels, op.flops) as work:
                panel, item = tirx.floormod(work, panels), tirx.floordiv(work, panels)
                *a_place, a_row, a_column = op.left_at
                *b_place, b_row, b_column = op.right_at
                a_base = k.let(strided_position(item, op.lead, a_place))
                b_base = k.let(strided_position(item, op.lead, b_place) + panel * columns * b_column)
                y_base = k.let(strided_position(item, op.lead, [0, *lead_strides]) + panel * columns)
                in_place = _reads_in_place(op, rows)
                packed = k.scratch((1, 1 if in_place and last == columns else op.k, columns))

                def of_width(width: int) -> None:
                    """Emit the tiles of a panel with ``width`` columns."""
                    if in_place and width == columns:
                        pass
                    elif b_column == 1 or width == 1:
                        b_rows = pack.Rows(right, b_base, b_row, op.k, width)
                        pack.rows_as_they_are(k, packed, b_rows, columns, lanes)
                    elif b_row == 1 or op.k == 1:
                        b_columns = pack.Rows(right, b_base, b_column, width, op.k)
                        pack.columns_from_rows(k, packed, b_columns, columns, lanes)
                    else:
                        with k.serial(op.k) as d:
                            for j in range(width):
                                value = k.load(right, [b_base + d * b_row + j * b_column])
                                k.store(packed, value, [int32(0), d, int32(j)])
                            pack.clear(k, packed, [int32(0), d], width, columns, lanes)
                    full, rest = divmod(op.m, rows)
                    if full:
                        with k.serial(full) as t:
                            of_height(t * rows, rows, width)
                    if rest:
                        of_height(int32(full * rows), rest, width)

                def of_height(first: Expr, height: int, width: int) -> None:
                    """Emit one register tile of ``height`` rows."""
                    acc = k.scratch((height, columns))

                    def b_at(d: Index, at: Expr) -> Expr:
                        if in_place and width == columns:
                            return k.load(right, [k.ramp(b_base + d * b_row + at.base, lanes)])
                        return k.load(packed, [int32(0), d, at])

                    register_tile.accumulate(
                        k,
                        acc,
                        RegisterTile(height, tile.vectors),
                        lanes,
                        op.k,
                        point["unroll"],
                        a_at=lambda r, d: k.load(left, [a_base + (first + r) * a_row + d * a_column]),
                        b_at=b_at,
                    )

                    def put(r: Expr, column: Index, lanes_: int, value: Expr) -> None:
                        k.store(y, value, [k.ramp(y_base + (first + r) * row_stride + column, lanes_)])

                    register_tile.store(k, acc, height, width, lanes, put)

                if panels == 1 or last == columns:
                    of_width(last)
                else:
                    k.branch(panel < panels - 1, lambda: of_width(columns), lambda: of_width(last))
        return k.function


def _order(point: Point) -> str:
    return str(point.get("order", PANELS))


def _reads_in_place(op: BatchMatmul, rows: int) -> bool:
    """Whether one tile has all rows, and rows of B are contiguous: a panel is used once, without a copy."""
    return op.m <= rows and op.right_at[-1] == 1
