"""Products of two computed tensors whose extents are known only when they come.

Loop structure, as in ``products/batch_matmul.py``::

    parallel over batch x panels of NR columns x pieces of rows, where there are fewer than threads:
        pack the panel of B as [k][NR], zeros behind the last column
        for each tile of MR rows:
            acc[MR][NR] = A panel, stored where Y lies
        the last rows in heights of powers of two

A whole panel is packed and stored by vectors; the last one, of which some columns may not exist, value by
value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from hetero_tvm.codegen import transpose
from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.batch_matmul import BatchMatmul
from hetero_tvm.schedules.cpu import register_tile
from hetero_tvm.schedules.cpu.products.batch_matmul import lanes_of
from hetero_tvm.schedules.cpu.products.few_rows import strides_in_order
from hetero_tvm.schedules.cpu.programs.linear import bits_of
from hetero_tvm.schedules.cpu.programs.reduction import vector
from hetero_tvm.schedules.cpu.register_tile import RegisterTile, Terms
from hetero_tvm.schedules.cpu.symbolic.tails import declared, narrowed
from hetero_tvm.schedules.emit import Index, Kernel, as_index, in_powers_of_two, int32, pieces_of
from hetero_tvm.schedules.extents import Unfit
from hetero_tvm.schedules.symbolic import Witnesses, shape_variables

_TILES_OF_A_PIECE = 4
"""Register tiles of rows of a piece at least."""

_BLOCK = 512
"""Terms of a block."""


class RunTimeProducts:
    """The loops of one product, whose extents and places a subclass names.

    Parameters
    ----------
    by_rows, by_columns : whether rows, and columns, of B are contiguous.
    terms : what is combined in place of products.
    after : what each result goes through; it may be of another type then.
    in_blocks : whether terms are combined in blocks, whose results are then: of many terms the sum is as
        exact as of few.
    """

    left: Buffer
    right: Buffer
    y: Buffer
    rows: Index
    width: Index
    depth: Index
    lead: Sequence[Index]
    a_place: Sequence[Index]
    b_place: Sequence[Index]
    y_place: Sequence[Index]

    def __init__(
        self,
        dtype: str,
        tile: RegisterTile,
        unroll: int,
        machine: CpuModel,
        by_rows: bool,
        by_columns: bool,
        terms: Terms | None = None,
        after: Callable[[Expr], Expr] | None = None,
        in_blocks: bool = False,
    ):
        self.dtype, self.tile, self.unroll, self.threads = dtype, tile, unroll, machine.threads
        self.lanes = lanes_of(dtype, machine)
        self.columns = tile.columns(self.lanes)
        self.by_rows, self.by_columns, self.terms = by_rows, by_columns, terms
        self.after, self.in_blocks = after, in_blocks
        self.k = Kernel()

    def products(self, batch: Expr, depth: Expr, flops: int) -> None:
        """Emit the loops; ``depth`` is no name yet, as buffers are made by it."""
        k, packed = self.k, depth * self.columns
        panels = k.let(pieces_of(self.width, self.columns))
        tiles = k.let(pieces_of(self.rows, self.tile.rows))
        # Each piece packs its panel, which a few tiles of rows are worth.
        several = tirx.min(int32(self.threads), tirx.truncdiv(tiles, int32(_TILES_OF_A_PIECE)))
        alone = batch * panels >= self.threads
        pieces = k.named(tirx.Select(alone, int32(1), tirx.max(several, int32(1))))
        share = k.let(tirx.truncdiv(tiles + pieces - 1, pieces) * self.tile.rows)
        with (
            k.imported(transpose.ir(self.lanes, bits_of(self.right))),
            k.parallel(batch * panels * pieces, flops) as work,
        ):
            self.packed = k.scratch((packed,), self.dtype)
            piece, rest = k.let(tirx.truncmod(work, pieces)), k.let(tirx.truncdiv(work, pieces))
            begin = k.let(piece * share)
            count = k.let(tirx.max(tirx.min(share, self.rows - begin), int32(0)))
            self._panel(k.let(tirx.truncdiv(rest, panels)), tirx.truncmod(rest, panels), begin, count)

    def begin(self, item: Expr, first: Index) -> None:
        """Name where the operands of item ``item`` begin, B and Y at column ``first``."""
        k = self.k
        *a_lead, self.a_row, self.a_column = self.a_place
        *b_lead, self.b_row, self.b_column = self.b_place
        *y_lead, self.y_row = self.y_place
        self.a_base = k.let(self._position(item, a_lead))
        self.b_base = k.let(self._position(item, b_lead) + first * self.b_column)
        self.y_base = k.let(self._position(item, y_lead) + first)

    def _panel(self, item: Expr, panel: Expr, begin: Expr, count: Expr) -> None:
        """Emit ``count`` rows, from ``begin`` on, of one panel of columns of one product."""
        k = self.k
        first = k.let(panel * self.columns)
        self.begin(item, first)
        self.valid = k.let(tirx.min(self.width - first, int32(self.columns)))
        whole = self.valid >= self.columns
        k.branch(whole, self._pack_whole, self._pack_part)
        full = k.let(tirx.truncdiv(count, int32(self.tile.rows)))
        with k.serial(full) as t:
            self._tile(begin + t * self.tile.rows, self.tile.rows)
        done = k.let(full * self.tile.rows)
        in_powers_of_two(k, begin + done, count - done, self.tile.rows, self._tile)

    def _position(self, index: Expr, place: Sequence[Index]) -> Expr:
        """Position of item ``index`` of the lead extents; ``place``: an offset, then a stride per extent."""
        position = as_index(place[0])
        for extent, stride in zip(reversed(self.lead), reversed(place[1:]), strict=True):
            position = position + tirx.truncmod(index, as_index(extent)) * stride
            index = tirx.truncdiv(index, as_index(extent))
        return position

    # the operand B -------------------------------------------------------------------------------
    def _pack_whole(self) -> None:
        """Emit the copy of a panel of which all columns exist."""
        k, lanes, vectors = self.k, self.lanes, self.tile.vectors
        if self.by_rows:
            with k.serial(self.depth) as d, k.unroll(vectors) as v:
                value = k.load(self.right, [k.ramp(self.b_base + d * self.b_row + v * lanes, lanes)])
                k.store(self.packed, value, [k.ramp(d * self.columns + v * lanes, lanes)])
            return
        done: Expr = int32(0)
        if self.by_columns:
            blocks = k.let(tirx.truncdiv(as_index(self.depth), int32(lanes)))
            name = transpose.name_of(lanes, bits_of(self.right))
            with k.serial(blocks) as d, k.serial(vectors) as v:
                target = k.address(self.packed, [d * (lanes * self.columns) + v * lanes])
                source = k.address(self.right, [self.b_base + v * lanes * self.b_column + d * lanes])
                k.call(name, target, int32(self.columns), source, as_index(self.b_column))
            done = k.let(blocks * lanes)
        self._pack_values(done, int32(self.columns))

    def _pack_part(self) -> None:
        """Emit the copy of a panel of which some columns exist, between zeros."""
        k, lanes = self.k, self.lanes
        with k.serial(self.depth) as d, k.unroll(self.tile.vectors) as v:
            k.store(
                self.packed, k.splat(0.0, lanes, self.dtype), [k.ramp(d * self.columns + v * lanes, lanes)]
            )
        self._pack_values(int32(0), self.valid)

    def _pack_values(self, first: Expr, columns: Expr) -> None:
        """Emit the copy of ``columns`` columns from row ``first`` of B on, value by value."""
        k = self.k
        with k.serial(columns) as j, k.serial(self.depth - first) as d:
            place = self.b_base + (first + d) * self.b_row + j * self.b_column
            k.store(self.packed, k.load(self.right, [place]), [(first + d) * self.columns + j])

    # the products --------------------------------------------------------------------------------
    def _tile(self, first: Expr, height: int) -> None:
        """Emit one register tile of ``height`` rows."""
        k, lanes, tile = self.k, self.lanes, RegisterTile(height, self.tile.vectors)
        acc, terms = k.scratch((height, self.columns), self.dtype), self.terms or Terms()

        def accumulate(into: Buffer, begin: Index, count: Index) -> None:
            def a_at(r: Expr, d: Index) -> Expr:
                return k.load(
                    self.left, [self.a_base + (first + r) * self.a_row + (begin + d) * self.a_column]
                )

            def b_at(d: Index, at: Expr) -> Expr:
                return k.load(self.packed, [k.ramp((begin + d) * self.columns + at.base, lanes)])

            placed = replace(terms, term=lambda at, a, b: terms.term(begin + at, a, b))
            register_tile.accumulate_run_time(
                k, into, tile, lanes, count, self.unroll, a_at=a_at, b_at=b_at, terms=placed
            )

        if not self.in_blocks:
            accumulate(acc, 0, self.depth)
        else:
            block = k.scratch((height, self.columns), self.dtype)

            def each(body: Callable[[list[Index]], None]) -> None:
                with k.unroll(height) as r, k.unroll(tile.vectors) as v:
                    body([r, k.ramp(v * lanes, lanes)])

            each(lambda at: k.store(acc, k.splat(terms.init, lanes, acc.dtype), at))
            with k.serial(tirx.truncdiv(self.depth + (_BLOCK - 1), int32(_BLOCK))) as number:
                begin = k.let(number * _BLOCK)
                accumulate(block, begin, k.let(tirx.min(self.depth - begin, int32(_BLOCK))))
                each(lambda at: k.store(acc, terms.combine(k.load(acc, at), k.load(block, at)), at))

        def stored() -> None:
            with k.unroll(height) as r, k.unroll(tile.vectors) as v:
                place = self.y_base + (first + r) * self.y_row + v * lanes
                if self.after is None:
                    k.store(self.y, k.load(acc, [r, k.ramp(v * lanes, lanes)]), [k.ramp(place, lanes)])
                else:
                    with vector(lanes) as lane:
                        k.store(self.y, self.after(k.load(acc, [r, v * lanes + lane])), [place + lane])

        k.branch(self.valid >= self.columns, stored, lambda: self._store_part(acc, first, height))

    def _store_part(self, acc: Buffer, first: Expr, height: int) -> None:
        """Emit the store of the columns of a tile that exist; from memory, as they are counted."""
        k, lanes = self.k, self.lanes
        row = k.scratch((height, self.columns), self.dtype)
        with k.unroll(height) as r, k.unroll(self.tile.vectors) as v:
            k.store(row, k.load(acc, [r, k.ramp(v * lanes, lanes)]), [r, k.ramp(v * lanes, lanes)])
        with k.serial(height) as r, k.serial(self.valid) as j:
            result = k.load(row, [r, j])
            result = result if self.after is None else self.after(result)
            k.store(self.y, result, [self.y_base + (first + r) * self.y_row + j])


class RunTimeBatchMatmulKernel(RunTimeProducts):
    """Emits one product for all sizes of its witnesses' range.

    Raises
    ------
    Unfit : it is not one of float32 or float64, or an operand lies in another order at other sizes.
    """

    def __init__(self, witnesses: Witnesses, tile: RegisterTile, unroll: int, machine: CpuModel):
        op: BatchMatmul = witnesses.largest
        if op.dtype not in ("float32", "float64"):
            raise Unfit("not a product of float32 or float64")
        by_rows = all(each.right_at[-1] == 1 for each in witnesses.ops)
        by_columns = all(each.right_at[-2] == 1 for each in witnesses.ops)
        if not by_rows and any(each.right_at[-1] == 1 for each in witnesses.ops):
            raise Unfit("rows of an operand are contiguous at some sizes only")
        super().__init__(op.dtype, tile, unroll, machine, by_rows, by_columns)
        self.witnesses = witnesses

    def emit(self) -> PrimFunc:
        """The PrimFunc: A, B, what only tells sizes, Y."""
        k, largest = self.k, self.witnesses.largest
        with k:
            variables = shape_variables(self.witnesses.symbols)
            operands, shape = declared(k, self.witnesses, variables)
            result = k.argument("Y", shape, self.dtype)
            small = narrowed(k, variables)

            def of(value: Callable[[BatchMatmul], int | tuple[int, ...]]) -> object:
                return self.witnesses.value(value, small)

            # Extent by extent: products of several that depend on the sizes are no polynomials that fit.
            extents = of(lambda o: tuple(operand.shape for operand in (*o.inputs, o.output)))
            self.left, self.right, self.y = (
                k.view(b, (math.prod(shape, start=int32(1)),))
                for b, shape in zip((*operands, result), extents, strict=True)
            )
            self.rows, self.width = k.let(as_index(of(lambda o: o.m))), k.let(as_index(of(lambda o: o.n)))
            depth = of(lambda o: o.k)
            self.depth = depth if isinstance(depth, int) else k.let(depth)
            self.lead = of(lambda o: o.lead)
            self.a_place = self._places(lambda o: (o.left, o.left_at), extents[0], of)
            self.b_place = self._places(lambda o: (o.right, o.right_at), extents[1], of)
            self.y_place = (0, *strides_in_order((*self.lead, self.rows, self.width), largest.order))
            self.products(math.prod(self.lead, start=int32(1)), as_index(depth), largest.flops)
        return k.function

    def _places(
        self,
        operand: Callable[[BatchMatmul], tuple[tuple[int, ...], tuple[int, ...]]],
        extents: Sequence[Index],
        of: Callable[[Callable[[BatchMatmul], object]], object],
    ) -> list[Index]:
        """Distances between neighbours along each axis of a product, of an operand with (shape, distances):
        those that are products of its own extents are computed from these."""
        found = [operand(each) for each in self.witnesses.ops]

        def place(axis: int) -> Index:
            for first in range(len(extents) + 1):
                if all(at[axis] == math.prod(shape[first:]) for shape, at in found):
                    return self.k.named(math.prod(extents[first:], start=int32(1)))
            return of(lambda o: operand(o)[1][axis])

        return [place(axis) for axis in range(len(found[0][1]))]
