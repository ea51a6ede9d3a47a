"""Products of two computed tensors.

Loop structure::

    parallel over batch x panels of NR columns:
        pack the panel of B as [k][NR]                              (L1 or L2, each panel once)
        for each tile of MR rows:
            acc[MR][NR] = A panel  (register tile of schedules/cpu/register_tile.py), stored where Y lies
        the last m % MR rows: one more tile of that height

or, where all of B fits in L2 and a reduction is so short that results are most of the work::

    parallel over batch x pieces of the rows:
        pack B as [n / NR][k][NR]
        for each tile of MR rows, for each panel:
            acc[MR][NR] = A panel, stored: rows of Y are written from end to end

B is packed because the tile wants whole vectors of columns: rows are copied, and columns (the keys of
``Q K^T``) transposed in registers.  Where a tile has all rows of A, rows of B are read where they lie.  A is
always read where it lies, a scalar per row and step; so neither operand is transposed, sliced or repeated
before, nor the result after.

Few rows of A with a large B whose rows are contiguous, or rows that are contiguous along the reduction:
``few_rows.py`` (float32).  A vector of float64 has half as many columns; the rest is as above.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from hetero_tvm.codegen import transpose
from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.batch_matmul import BatchMatmul
from hetero_tvm.schedules.base import DesignSpace, Knob, Point
from hetero_tvm.schedules.cpu import register_tile
from hetero_tvm.schedules.cpu.products import few_rows, pack
from hetero_tvm.schedules.cpu.register_tile import RegisterTile, Terms
from hetero_tvm.schedules.emit import Index, Kernel, int32, share, strided_position

_PANEL_LIMIT = 1 << 20
"""Bytes of a packed panel that still make sense in L2; longer reductions are refused."""

_TILE_CYCLES, _RESULT_CYCLES = 16.0, 2.0
"""Cycles of a register tile beside its products, and of each vector of results."""
_WRITE_CYCLES, _SCATTERED_CYCLES = 8.0, 25.0
"""Cycles in which memory takes a vector of results, where rows are written from end to end, and where a piece
of each row is; products go on meanwhile."""

_BYTES = {"float32": 4, "float64": 8}
"""Bytes of an element, by the types that are served."""

Declare = Callable[[Kernel], tuple[Buffer, Buffer, Buffer]]
"""Declares the parameters of a kernel; gives A, B and Y."""

PANELS, ROWS = "panels", "rows"
"""Orders of the register tiles: by columns of one, or by rows of one."""


class BatchMatmulSpace(DesignSpace):
    """Knobs: rows and vectors of the register tile, unrolling, the order of the tiles."""

    name = "cpu.batch_matmul"
    version = 3

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, BatchMatmul):
            return "not a product of two computed tensors"
        if op.dtype not in _BYTES:
            return f"dtype is {op.dtype}, expected {' or '.join(_BYTES)}"
        if 0 in (op.batch, op.m, op.n, op.k):
            return "an extent is zero"
        if op.k * machine.lanes * 4 > _PANEL_LIMIT:
            return f"a panel of {op.k} rows does not fit {_PANEL_LIMIT >> 10} KiB"
        return None

    def knobs(self, op: BatchMatmul, machine: CpuModel) -> tuple[Knob, ...]:
        tiles, lanes = [], lanes_of(op.dtype, machine)
        for vectors in (2, 1, 4, 3, 6) if op.m == 1 else (2, 1, 4, 3):
            for rows in (6, 4, 8, 12, 3, 2, 1):
                fits = RegisterTile(rows, vectors).fits(machine) and rows <= op.m
                needed = vectors == 1 or (vectors - 1) * lanes < op.n
                if fits and needed and op.k * vectors * machine.lanes * 4 <= _PANEL_LIMIT:
                    tiles.append((rows, vectors))
        orders = (PANELS, *([ROWS] if _fits_whole(op, machine) else []), *few_rows.orders(op))
        return Knob("tile", tuple(tiles)), Knob("unroll", (4, 8, 2)), Knob("order", orders, absent=PANELS)

    def default(self, op: BatchMatmul, machine: CpuModel) -> Point:
        tiles, _, orders = (knob.choices for knob in self.knobs(op, machine))
        points = [{"tile": tile, "unroll": 4, "order": order} for tile in tiles for order in orders]
        return min(points, key=lambda point: self.estimate(op, point, machine))

    def features(self, op: BatchMatmul, point: Point, machine: CpuModel) -> list[float]:
        tile = RegisterTile.of(point["tile"])
        sizes = [math.log2(extent) for extent in (op.batch, op.m, op.n, op.k)]
        rests = [op.m % tile.rows / tile.rows, op.n % tile.columns(lanes_of(op.dtype, machine))]
        return [*sizes, tile.rows, tile.vectors, *rests, point["unroll"], _order(point) != PANELS]

    def estimate(self, op: BatchMatmul, point: Point, machine: CpuModel) -> float:
        rows, vectors = point["tile"]
        if _order(point) not in (PANELS, ROWS):
            return few_rows.estimate(op, _order(point), machine)
        per_k = max(rows * vectors / machine.fma_units, machine.fma_latency, 0.5 * rows + vectors)
        panels, height = -(-op.n // (vectors * lanes_of(op.dtype, machine))), -(-op.m // rows)
        by_rows = _order(point) == ROWS
        pieces = _row_pieces(op, rows, machine.threads) if by_rows else panels
        work = op.batch * pieces
        reads = -(-height // pieces) if by_rows else height  # tiles for which B is packed once
        per_k += few_rows.page_cycles(op, vectors, machine) / reads
        per_k += 0 if _reads_in_place(op, rows) and not by_rows else 1.5 * vectors / reads
        once = _TILE_CYCLES + _RESULT_CYCLES * rows * vectors
        outside = max(0.0, 1.0 - machine.threads * machine.l2 / (_BYTES[op.dtype] * op.batch * op.m * op.n))
        written = outside * rows * vectors * (_WRITE_CYCLES if by_rows or panels == 1 else _SCATTERED_CYCLES)
        tile = max(per_k * op.k + once, written)
        return tile / op.k * height * panels * (-(-work // machine.threads) * machine.threads / work)

    def canonical(self, op: BatchMatmul, point: Point, machine: CpuModel) -> Point:
        if _order(point) in (PANELS, ROWS):
            return {**point, "order": _order(point)}
        tiles, unrolls, _ = (knob.choices for knob in self.knobs(op, machine))
        return {"tile": tiles[0], "unroll": unrolls[0], "order": point["order"]}

    def emit(self, op: BatchMatmul, point: Point, machine: CpuModel) -> PrimFunc:
        if _order(point) in (PANELS, ROWS):
            return _Emitter(op, point, machine).emit()
        return few_rows.emit(op, _order(point), machine)

    def emit_terms(self, op: BatchMatmul, machine: CpuModel, terms: Terms, declare: Declare) -> PrimFunc:
        """The kernel of other ``terms`` of A and B, which are combined where the products are."""
        tiles, _, orders = (knob.choices for knob in self.knobs(op, machine))
        orders = [order for order in orders if order in (PANELS, ROWS)]
        points = [{"tile": tile, "unroll": 4, "order": order} for tile in tiles for order in orders]
        point = min(points, key=lambda point: self.estimate(op, point, machine))
        return _Emitter(op, point, machine, terms, declare).emit()


class _Emitter:
    """Emits the order of register tiles, by panels of B or by rows of A."""

    def __init__(
        self,
        op: BatchMatmul,
        point: Point,
        machine: CpuModel,
        terms: Terms | None = None,
        declare: Declare | None = None,
    ):
        self.terms, self._declare = terms, declare or self._in_order
        self.op, self.unroll, self.lanes = op, point["unroll"], lanes_of(op.dtype, machine)
        self.tile, self.order, self.threads = RegisterTile.of(point["tile"]), _order(point), machine.threads
        self.columns = self.tile.columns(self.lanes)
        self.panels = -(-op.n // self.columns)
        self.last = op.n - (self.panels - 1) * self.columns
        self.k = Kernel()

    def emit(self) -> PrimFunc:
        k, op = self.k, self.op
        with k:
            left, right, y = self._declare(k)
            self.left, self.right, self.y = (
                k.view(b, (math.prod(int(e) for e in b.shape),)) for b in (left, right, y)
            )
            with k.imported(transpose.ir(self.lanes, 8 * _BYTES[op.dtype])):
                if self.order == PANELS:
                    self._by_panels()
                else:
                    self._by_rows()
        return k.function

    def _in_order(self, k: Kernel) -> tuple[Buffer, Buffer, Buffer]:
        left, right = (k.argument(o.name, o.shape, o.dtype) for o in self.op.inputs)
        return left, right, k.argument("Y", self.op.output.shape, self.op.output.dtype)

    def _places(self, item: Expr) -> None:
        """Positions of an item of the batch."""
        k, op = self.k, self.op
        *lead_strides, self.row_stride = few_rows.result_strides(op)
        *a_place, self.a_row, self.a_column = op.left_at
        *b_place, self.b_row, self.b_column = op.right_at
        self.a_base = k.let(strided_position(item, op.lead, a_place))
        self.b_base = strided_position(item, op.lead, b_place)
        self.y_base = strided_position(item, op.lead, [0, *lead_strides])

    def _by_panels(self) -> None:
        k, op, columns = self.k, self.op, self.columns
        with k.parallel(op.batch * self.panels, op.flops) as work:
            panel, item = tirx.floormod(work, self.panels), tirx.floordiv(work, self.panels)
            self._places(item)
            self.b_base = k.let(self.b_base + panel * columns * self.b_column)
            self.y_base = k.let(self.y_base + panel * columns)
            in_place = _reads_in_place(op, self.tile.rows)
            packed = k.scratch((1, 1 if in_place and self.last == columns else op.k, columns), op.dtype)

            def of_width(width: int) -> None:
                """Emit the tiles of a panel with ``width`` columns."""
                direct = in_place and width == columns
                if not direct:
                    self._pack(packed, width)
                source, rows = None if direct else packed, self.tile.rows
                full, rest = divmod(op.m, rows)
                if full:
                    with k.serial(full) as t:
                        self._tile(source, int32(0), t * rows, rows, width)
                if rest:
                    self._tile(source, int32(0), int32(full * rows), rest, width)

            if self.panels == 1 or self.last == columns:
                of_width(self.last)
            else:
                k.branch(panel < self.panels - 1, lambda: of_width(columns), lambda: of_width(self.last))

    def _by_rows(self) -> None:
        k, op, rows = self.k, self.op, self.tile.rows
        pieces = _row_pieces(op, rows, self.threads)
        full, rest = divmod(op.m, rows)
        with k.parallel(op.batch * pieces, op.flops) as work:
            piece, item = tirx.floormod(work, pieces), tirx.floordiv(work, pieces)
            self._places(item)
            self.b_base, self.y_base = k.let(self.b_base), k.let(self.y_base)
            packed = k.scratch((self.panels, op.k, self.columns), op.dtype)
            self._pack(packed, op.n)
            begin, count = share(piece, full, pieces)

            def of_height(first: Expr, height: int) -> None:
                """Emit the tiles of ``height`` rows."""
                whole = self.panels if self.last == self.columns else self.panels - 1
                with k.serial(whole) as panel:
                    self._tile(packed, panel, first, height, self.columns)
                if whole < self.panels:
                    self._tile(packed, int32(whole), first, height, self.last)

            with k.serial(count) as t:
                of_height((begin + t) * rows, rows)
            if rest:
                with k.when(piece == pieces - 1):
                    of_height(int32(op.m - rest), rest)

    def _pack(self, packed: Buffer, width: int) -> None:
        """Lay ``width`` columns of B out in panels."""
        k, op, columns, lanes = self.k, self.op, self.columns, self.lanes
        if self.b_column == 1 or width == 1:
            rows = pack.Rows(self.right, self.b_base, self.b_row, op.k, width)
            pack.rows_as_they_are(k, packed, rows, columns, lanes)
        elif self.b_row == 1 or op.k == 1:
            pack.columns_from_rows(
                k, packed, pack.Rows(self.right, self.b_base, self.b_column, width, op.k), columns, lanes
            )
        else:
            with k.serial(op.k) as d:
                for panel in range(-(-width // columns)):
                    valid = min(columns, width - panel * columns)
                    with k.serial(valid) as j:
                        at = self.b_base + d * self.b_row + (panel * columns + j) * self.b_column
                        k.store(packed, k.load(self.right, [at]), [int32(panel), d, j])
                    pack.clear(k, packed, [int32(panel), d], valid, columns, lanes)

    def _tile(self, packed: Buffer | None, panel: Expr, first: Expr, height: int, width: int) -> None:
        """Emit one register tile of ``height`` rows; without ``packed`` B is read where it lies."""
        k, lanes = self.k, self.lanes
        acc = k.scratch((height, self.columns), self.op.dtype)

        def b_at(d: Index, at: Expr) -> Expr:
            if packed is None:
                return k.load(self.right, [k.ramp(self.b_base + d * self.b_row + at.base, lanes)])
            return k.load(packed, [panel, d, at])

        register_tile.accumulate(
            k,
            acc,
            RegisterTile(height, self.tile.vectors),
            lanes,
            self.op.k,
            self.unroll,
            a_at=lambda r, d: k.load(self.left, [self.a_base + (first + r) * self.a_row + d * self.a_column]),
            b_at=b_at,
            terms=self.terms,
        )

        def put(r: Expr, column: Index, lanes_: int, value: Expr) -> None:
            at = self.y_base + panel * self.columns + (first + r) * self.row_stride + column
            k.store(self.y, value, [k.ramp(at, lanes_)])

        register_tile.store(k, acc, height, width, lanes, put)


def lanes_of(dtype: str, machine: CpuModel) -> int:
    """Elements of a product of ``dtype`` in one vector register."""
    return machine.lanes * 4 // _BYTES[dtype]


def _row_pieces(op: BatchMatmul, rows: int, threads: int) -> int:
    """Pieces that the rows of an item are cut into: few where the batch gives every thread work."""
    return max(1, min(-(-2 * threads // op.batch), op.m // rows))


def _order(point: Point) -> str:
    return str(point.get("order", PANELS))


def _fits_whole(op: BatchMatmul, machine: CpuModel) -> bool:
    """Whether all of B can be packed at once, for several tiles of rows."""
    return (
        _BYTES[op.dtype] * op.k * op.n <= machine.l2 // 4 and op.n > lanes_of(op.dtype, machine) and op.m > 1
    )


def _reads_in_place(op: BatchMatmul, rows: int) -> bool:
    """Whether one tile has all rows, and rows of B are contiguous: a panel is used once, without a copy."""
    return op.m <= rows and op.right_at[-1] == 1
