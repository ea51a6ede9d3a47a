"""Products of two computed 8-bit tensors: the scores of attention, and its weighted sums of values.

Loop structure::

    parallel over batch x panels of NR columns:
        pack the panel of B in words of K, and the sums of its columns     (once; they stay in L2)
    parallel over batch x blocks of rows:
        take the rows of A as 0 to 255, and their sums                     (L2)
        for each panel, for each tile of MR rows:
            acc[MR][NR] = U[rows, :] . W[:, panel]                         int32 (dots.py, matrix_unit.py)
            acc + terms of the zero points, scale, rounding; stored where Y lies

A and B are read where they lie, by their strides, so that heads are neither transposed nor copied before, nor
the result after.  Packing is a pass over B, which tiles of a whole block of rows read; a step multiplies four
values of K where a float tile multiplies one, and nothing is a float in memory.
"""

from __future__ import annotations

import math

from hetero_tvm.codegen.amx import TILE_WORDS
from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.integers.batch_matmul import QuantBatchMatmul
from hetero_tvm.ops.integers.quantized import OFFSET
from hetero_tvm.schedules.base import Knob, Packer, Point
from hetero_tvm.schedules.cpu.integers import integer_tile
from hetero_tvm.schedules.cpu.integers.dynamic_matmul import DynamicMatmulSpace
from hetero_tvm.schedules.cpu.integers.matrix_unit import tile_cycles, tile_for
from hetero_tvm.schedules.cpu.integers.product_kernel import (
    MATRICES,
    VECTORS,
    IntegerDecisions,
    IntegerProductKernel,
    Place,
)
from hetero_tvm.schedules.cpu.integers.requantize import Steps
from hetero_tvm.schedules.cpu.products import few_rows
from hetero_tvm.schedules.cpu.register_tile import RegisterTile
from hetero_tvm.schedules.emit import Index, int32, strided_position, vector_loop
from hetero_tvm.schedules.symbolic import Witnesses

_MIDDLE = 128
"""Distance of the values of A that are multiplied, 0 to 255, from those of int8."""
_MOST_K = 1 << 14
"""Longest reduction: three sums of 255 * 128 each, of which two are terms of the zero points, fit 32 bits."""
_PACK_CYCLES = 1.0
"""Cycles of packing a value of B."""


class QuantBatchMatmulKernel(IntegerProductKernel):
    """Emits all products of one operator."""

    op: QuantBatchMatmul

    def __init__(self, op: QuantBatchMatmul, decisions: IntegerDecisions, machine: CpuModel):
        super().__init__(op, decisions, machine)
        self._a_zero = op.a_zero + (_MIDDLE if op.a_dtype == "int8" else 0)
        """Zero point of A as it is multiplied, 0 to 255."""
        self._b_zero = op.b_zero - OFFSET[op.b_dtype]
        """Zero point of B likewise, -128 to 127."""
        step = self.lanes * self.dot.group
        self._wide = -(-self.length // step) * step
        """Values of a row of a block: whole vectors, zeros behind."""

    @property
    def imports(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*super().imports, *self.dot.imports)))  # sums are dot products, too

    def emit(self) -> PrimFunc:
        """The PrimFunc: A, B, Y."""
        op, k, grid = self.op, self.k, self.decisions
        with k:
            buffers = [k.argument(o.name, o.shape, o.dtype) for o in (*op.inputs, op.output)]
            self.a, self.b, self.y = (k.view(b, (math.prod(map(int, b.shape)),)) for b in buffers)
            every = k.scratch((op.batch, *self.panels.shape), "int8")
            size = math.prod(self.panels.shape)
            with k.imported(*self.imports):
                with k.parallel(op.batch * self.panels.count, op.flops) as work:
                    item = k.let(tirx.floordiv(work, self.panels.count))
                    self.w = k.part(every, self.panels.shape, item * size)
                    self._pack(item, k.let(tirx.floormod(work, self.panels.count)))
                with k.parallel(op.batch * grid.row_blocks, op.flops) as piece:
                    item = k.let(tirx.floordiv(piece, grid.row_blocks))
                    self.w = k.part(every, self.panels.shape, item * size)
                    self._a_base = k.let(strided_position(item, op.lead, op.left_at[:-2]))
                    *lead_strides, self._y_row = few_rows.result_strides(op)
                    self._y_base = k.let(strided_position(item, op.lead, [0, *lead_strides]))
                    with self.memory_for(self.rows_at_once):
                        self._piece(tirx.floormod(piece, grid.row_blocks), int32(0))
        return k.function

    # --- B --------------------------------------------------------------------------------------

    def _pack(self, item: Expr, panel: Expr) -> None:
        """Lay one panel of B out in words, with the terms of A's zero point behind."""
        k, op, group, columns = self.k, self.op, self.dot.group, self.columns
        *place, row, column = op.right_at
        first = panel * columns
        base = k.let(strided_position(item, op.lead, place) + first * column)
        last = op.n - (self.panels.count - 1) * columns

        def of_width(width: int) -> None:
            whole, rest = divmod(op.k, group)
            if width < columns:
                self._clear(panel, int32(0), self.panels.groups)
            elif whole < self.panels.groups:
                self._clear(panel, int32(whole), self.panels.groups - whole)
            if row == 1 and group > 1:
                with k.serial(width) as j, k.serial(whole) as g:
                    self._store_words(self._word_along(base + j * column + g * group), panel, g, j, 1)
            else:
                with k.serial(whole) as g:
                    self._words_across(panel, g, base, group, width)
            if rest:
                self._words_across(panel, int32(whole), base, rest, width)

        if last == columns or self.panels.count == 1:
            of_width(last)
        else:
            k.branch(panel < self.panels.count - 1, lambda: of_width(columns), lambda: of_width(last))
        if self._a_zero:
            self._column_terms(panel)

    def _clear(self, panel: Expr, first: Expr, count: int) -> None:
        k, width = self.k, self.columns * self.dot.group
        with k.serial(count) as g:
            zeros = k.splat(tirx.const(0, "int8"), width)
            k.store(self.w, zeros, [panel, first + g, k.ramp(0, width)])

    def _word_along(self, at: Expr) -> Expr:
        """A word whose values lie beside each other in B."""
        bits = tirx.reinterpret(self._word, self.k.load(self.b, [self.k.ramp(at, self.dot.group)]))
        return tirx.bitwise_xor(bits, self._flips(self.dot.group))

    def _words_across(self, panel: Expr, g: Expr, base: Expr, count: int, width: int) -> None:
        """Words of ``count`` values, one below the other in B, of ``width`` columns."""
        k, group = self.k, self.dot.group
        row, column = self.op.right_at[-2:]

        def some(j: Index, lanes: int) -> None:
            word = None
            for inside in range(count):
                at = base + (g * group + inside) * row + j * column
                value = k.load(self.b, [k.ramp(at, lanes)])
                many = f"x{lanes}" if lanes > 1 else ""
                value = tirx.reinterpret(f"uint8{many}", value).astype(f"{self._word}{many}")
                if inside:
                    value = tirx.shift_left(value, k.splat(tirx.const(8 * inside, self._word), lanes))
                word = value if word is None else tirx.bitwise_or(word, value)
            self._store_words(tirx.bitwise_xor(word, k.splat(self._flips(count), lanes)), panel, g, j, lanes)

        vector_loop(k, width, self.lanes if column == 1 else 1, some)

    @property
    def _word(self) -> str:
        """Type as wide as a word of B."""
        return f"uint{8 * self.dot.group}"

    def _flips(self, count: int) -> Expr:
        """Bits that make uint8 of the first ``count`` values of a word less 128."""
        flips = sum(0x80 << 8 * i for i in range(count)) if self.op.b_dtype == "uint8" else 0
        return tirx.const(flips, self._word)

    def _store_words(self, words: Expr, panel: Expr, g: Expr, column: Index, lanes: int) -> None:
        k, group = self.k, self.dot.group
        many = f"x{group * lanes}" if group * lanes > 1 else ""
        at = [panel, g, k.ramp(column * group, group * lanes)]
        k.store(self.w, tirx.reinterpret(f"int8{many}", words), at)

    def _column_terms(self, panel: Expr) -> None:
        """Sums of the columns times A's zero point, in the place of the sums."""
        k, group, lanes = self.k, self.dot.group, self.lanes
        row_bytes = self.columns * group
        for start in range(0, self.columns, lanes):
            acc = k.scratch((lanes,), "int32")
            at = [k.ramp(0, lanes)]
            k.store(acc, k.splat(int32(0), lanes), at)
            with k.serial(self.panels.groups) as g:
                values = k.load(self.w, [panel, g, k.ramp(start * group, group * lanes)])
                words = self.dot.w_words(values, lanes)
                k.store(acc, self.dot.add(k.load(acc, at), lanes, self._ones, words), at)
            terms = k.load(acc, at) * k.splat(int32(self._a_zero), lanes)
            place = [panel, int32(self.panels.groups + start * 4 // row_bytes)]
            k.store(
                self.w,
                tirx.reinterpret(f"int8x{4 * lanes}", terms),
                [*place, k.ramp(start * 4 % row_bytes, 4 * lanes)],
            )

    @property
    def _ones(self) -> Expr:
        """Words of ones."""
        step = 32 // self.dot.group
        return self.k.splat(int32(sum(1 << step * i for i in range(self.dot.group))), self.lanes)

    # --- A --------------------------------------------------------------------------------------

    def bind(self, extra: list[Buffer]) -> None:
        """Take nothing: there are no operands behind A and B."""

    def begin(self, rows: int) -> Buffer:
        self.block = self.k.scratch((rows, self._wide), self.dot.x_dtype)
        self._row_terms = self.k.scratch((rows,), "int32")
        return self.block

    def take(self, inside: Expr, row: Expr) -> None:
        k, op, dtype = self.k, self.op, self.dot.x_dtype
        a_row, a_column = op.left_at[-2:]
        base = k.let(self._a_base + row * a_row)

        def move(column: Index, width: int) -> None:
            many = f"x{width}" if width > 1 else ""
            value = k.load(self.a, [k.ramp(base + column * a_column, width)])
            if op.a_dtype == "int8":
                value = tirx.reinterpret(f"uint8{many}", value)
                value = tirx.bitwise_xor(value, k.splat(tirx.const(_MIDDLE, "uint8"), width))
            k.store(self.block, value.astype(f"{dtype}{many}"), [inside, k.ramp(column, width)])

        def clear(column: Index, width: int) -> None:
            at = [inside, k.ramp(op.k + column, width)]
            k.store(self.block, k.splat(tirx.const(0, dtype), width), at)

        vector_loop(k, op.k, 2 * self.lanes if a_column == 1 else 1, move, unroll=2)
        vector_loop(k, self._wide - op.k, self.lanes, clear)
        if self._b_zero:
            self._take_sum(inside)

    def _take_sum(self, inside: Expr) -> None:
        """The term of B's zero point for a row."""
        k, lanes, many = self.k, self.lanes, self.lanes * self.dot.group
        acc, at = k.scratch((lanes,), "int32"), [k.ramp(0, lanes)]
        k.store(acc, k.splat(int32(0), lanes), at)
        with k.serial(self._wide // many) as step:
            values = k.load(self.block, [inside, k.ramp(step * many, many)])
            words = self.dot.w_words(values, lanes)
            k.store(acc, self.dot.add(k.load(acc, at), lanes, words, self._ones), at)
        total = k.load(acc, [int32(0)])
        for lane in range(1, lanes):
            total = total + k.load(acc, [int32(lane)])
        term = (total - int32(self.op.k * self._a_zero)) * int32(self._b_zero)
        k.store(self._row_terms, term, [inside])

    # --- Y --------------------------------------------------------------------------------------

    def result(self, totals: list[Expr], inside: Index, row: Index, place: Place, width: int) -> Expr:
        k, (total,) = self.k, totals
        if self._a_zero:
            total = total - self.column_sums(0, place, width)
        if self._b_zero:
            total = total - k.splat(k.load(self._row_terms, [inside]), width)
        scale = k.splat(tirx.const(self.op.scale, "float32"), width)
        return Steps(k, self.op, [width]).requantized([total], [scale])[0]

    def put(self, value: Expr, row: Index, column: Index, width: int) -> None:
        at = self._y_base + row * self._y_row + column
        self.k.store(self.y, value, [self.k.ramp(at, width)])


class QuantBatchMatmulSpace(DynamicMatmulSpace):
    """Knobs: register tile, blocks of rows of each product, unrolling of K, unit that multiplies."""

    name = "cpu.quant_batch_matmul"
    version = 1
    kernel = QuantBatchMatmulKernel
    contract = QuantBatchMatmul

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, QuantBatchMatmul):
            return "not a product of two computed tensors of bytes"
        if op.k > _MOST_K:
            return "sums of so many products may not fit 32 bits"
        if machine.lanes < 8:
            return "products of bytes are no faster than floats without AVX2"
        return "an extent is zero" if 0 in (op.batch, op.m, op.n, op.k) else None

    def grids(self, op: QuantBatchMatmul, machine: CpuModel) -> list[tuple[int, int]]:
        """Blocks of rows: one, or as many as give each thread some of 16 rows and more."""
        most = max(1, op.m // 16)
        return [(blocks, 1) for blocks in (1, 2, 4, 8, 16, 32) if blocks <= most]

    def knobs(self, op: QuantBatchMatmul, machine: CpuModel) -> tuple[Knob, ...]:
        found = super().knobs(op, machine)
        return tuple(Knob("prefetch", (0,)) if knob.name == "prefetch" else knob for knob in found)

    def default(self, op: QuantBatchMatmul, machine: CpuModel) -> Point:
        return super().default(op, machine) | {"prefetch": 0}

    def cycles(
        self,
        op: QuantBatchMatmul,
        tile: RegisterTile,
        grid: tuple[int, int],
        machine: CpuModel,
        unit: str = VECTORS,
    ) -> float:
        dot = self.kernel.way(op, machine)
        if unit == MATRICES:
            tile = tile_for(op.m, op.n)
        groups, panels = -(-op.k // dot.group), -(-op.n // tile.columns(machine.lanes))
        tiles, blocks, threads = -(-op.m // tile.rows), grid[0], machine.threads
        each = -(-tiles // blocks)
        if unit == MATRICES:
            steps = -(-groups // TILE_WORDS)
            one, wide = tile_cycles(tile, steps), steps * TILE_WORDS * dot.group
        else:
            one, wide = groups * integer_tile.step_cycles(tile, dot, machine), groups * dot.group
        one += 16 + 4 * tile.rows * tile.vectors
        rows = min(op.m, each * tile.rows)
        taken = rows * (20 + op.k / machine.lanes)
        # Rows beyond L2 are read again for every panel.
        far = max(0.0, 1.0 - machine.l2 / 2 / (rows * wide))
        piece = each * one * panels + taken + far * rows * wide * panels / 32
        busiest = -(-op.batch * blocks // threads)
        packed = _PACK_CYCLES * op.k * panels * tile.columns(machine.lanes)
        return busiest * piece + packed * -(-op.batch * panels // threads) / panels

    def pack(self, op: QuantBatchMatmul, point: Point, machine: CpuModel) -> dict[int, Packer]:
        return {}

    def run_time_kernel(self, witnesses: Witnesses, point: Point, machine: CpuModel) -> PrimFunc | None:
        return None  # extents are known
