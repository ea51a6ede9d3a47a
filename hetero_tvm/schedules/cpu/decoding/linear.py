"""Products with a stored weight for any number of rows.

Structure::

    one row:    threads share groups of panels; each weight is read once, in streams
    some rows:  threads share panels; register tiles of rows times two vectors, the last of a fitting height
    many rows:  threads share blocks of rows as well, once each has enough of them

Every result is summed up along K in one accumulator in the same order whatever the number of rows, so that a
row of float weights has the same bits alone and among others.  Integers become floats on the way into
registers when there are few rows (:mod:`.words`), and panel by panel in L2 when there are many.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from hetero_tvm.host.tvm import Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.decoding.contracts import Linear
from hetero_tvm.schedules.cpu import next_panel
from hetero_tvm.schedules.cpu.activation_code import ActivationCode
from hetero_tvm.schedules.cpu.decoding.integer_words import IntegerWordProduct, has_integer_words
from hetero_tvm.schedules.cpu.decoding.layout import VECTORS, PanelLayout
from hetero_tvm.schedules.cpu.decoding.matrix_halves import (
    ENOUGH_FOR_TILES,
    MatrixHalfProduct,
    halves_product,
)
from hetero_tvm.schedules.cpu.decoding.matrix_words import integer_product
from hetero_tvm.schedules.cpu.decoding.parts import Parts
from hetero_tvm.schedules.cpu.decoding.symbolic import (
    BLOCK_ROWS,
    Block,
    SymbolicKernel,
    Tile,
    each_tile,
    fetch_ahead,
    quotient,
    remainder,
)
from hetero_tvm.schedules.cpu.decoding.words import WordProduct
from hetero_tvm.schedules.cpu.register_tile import RegisterTile, accumulate
from hetero_tvm.schedules.emit import LINE_BYTES, LINE_FLOATS, Index, int32

_UNROLL = 4
_STREAMED_ROWS = {True: 6, False: 2}
"""Whether weights are float32 -> rows that are done before memory has sent the weights: processors follow
such streams themselves."""
_TILES_WORTH_A_COPY = 3
"""Register tiles of rows from which on a panel of halves is made floats once."""
_SHARE_OF_L2 = 0.5
"""Share of L2 that the rows of a block may take, beside panels of weights."""
_LEAST_ROWS = 64
"""Rows of a block at least: each block reads all weights from beyond L2."""


def emit_linear(op: Linear, machine: CpuModel, x_bits: int = 0) -> PrimFunc:
    """Kernel with arguments X [rows, k], the arrays of :class:`PanelLayout`, bias, residual, Y [rows, n].

    ``x_bits`` : see :class:`Parts`.
    """
    layout = PanelLayout.of(op, machine)
    k = SymbolicKernel("linear")
    with k:
        symbol = k.symbol("m")
        x = k.argument("X", (symbol, op.k))
        weight = [k.argument(*array) for array in layout.arrays()]
        bias = k.argument("bias", (layout.panels, layout.width)) if op.bias else None
        residual = k.argument("R", (symbol, op.n)) if op.residual else None
        y = k.argument("Y", (symbol, op.n))
        activation = ActivationCode([op.activation] if op.activation else [], machine)
        parts = Parts(op, machine, layout, k, x, weight, bias, residual, y, activation, x_bits)
        rows = k.count(symbol)
        integers: IntegerWordProduct | None = None
        if op.storage.bits and has_integer_words(machine):
            integers = integer_product(parts)
        halves = halves_product(parts)
        with k.imported(
            *activation.imports, *(text for way in (integers, halves) if way for text in way.imports)
        ):
            if integers is not None:
                integers.emit_rows(rows)
            elif op.storage.bits:
                WordProduct(parts).emit(rows, lambda: many_rows(parts, rows))
            else:
                k.branch(tirx.EQ(rows, 1), lambda: one_row(parts), lambda: _several_rows(parts, rows, halves))
    return k.function


def one_row(p: Parts) -> None:
    """One row: each thread reads its share of the weight once."""
    k, together = p.k, p.layout.together
    with k.shared_out(p.layout.panels // together) as group:
        sums = row_sums(p, int32(0), group * together)
        for i in range(together):
            p.finish(int32(0), group * together + i, sums(i))


def row_sums(p: Parts, row: Expr, first: Expr) -> Callable[[int], Callable[[Index, int], Expr]]:
    """A row times the panels that are read at once, of which ``first`` is the first; gives number of a panel
    among them -> (column, width) -> its sums."""
    k, lanes, layout, depth = p.k, p.lanes, p.layout, p.op.k
    every = [(i, v * lanes) for i in range(layout.together) for v in range(VECTORS)]
    acc = k.scratch((layout.together, layout.width))
    for i, v in every:
        k.store(acc, k.splat(0.0, lanes), [i, k.ramp(v, lanes)])

    def step(at: Expr) -> None:
        value = k.splat(k.load(p.x, [row, at]), lanes)
        for i, v in every:
            place = [i, k.ramp(v, lanes)]
            product = value * p.floats(first + i, at, k.ramp(v, lanes))
            k.store(acc, k.load(acc, place) + product, place)

    full = depth // _UNROLL
    fetched = layout.ahead and p.op.storage.dtype != "float32"
    rows = _UNROLL // 2 if layout.pairs else _UNROLL
    with k.serial(full) as ko:
        for i in range(layout.together if fetched else 0):
            for line in range(0, rows, max(1, 2 * LINE_FLOATS // layout.width)):
                fetch_ahead(k, p.weight[0], first + i, ko * rows + line, layout.ahead, layout.together)
        with k.unroll(_UNROLL) as ki:
            step(ko * _UNROLL + ki)
    for rest in range(full * _UNROLL, depth):
        step(int32(rest))
    return lambda i: lambda start, width: k.load(acc, [i, k.ramp(start, width)])


def tile_height(machine: CpuModel) -> int:
    """Rows of a register tile."""
    return 8 if machine.registers >= 32 else 6


def _several_rows(p: Parts, rows: Expr, halves: MatrixHalfProduct | None) -> None:
    """Halves are made floats on the way into registers, or once per panel where many tiles read it; tiles of
    a matrix unit take them as they are."""
    if p.op.storage.dtype == "float32":
        many_rows(p, rows)
    elif halves is not None:
        p.k.branch(rows < ENOUGH_FOR_TILES, lambda: many_rows(p, rows), lambda: halves.emit(rows))
    else:
        few = _TILES_WORTH_A_COPY * tile_height(p.machine)
        p.k.branch(rows < few, lambda: many_rows(p, rows), lambda: many_rows(p, rows, copied=True))


def many_rows(p: Parts, rows: Expr, height: int | None = None, copied: bool = False) -> None:
    """Register tiles over blocks of rows and panels, ``height`` rows each.

    ``copied``: a panel of halves is made floats in scratch, as one of integers always is.
    """
    height = height or tile_height(p.machine)

    def panel_code(block: Block) -> Tile:
        b_at, ahead = _panel_reader(p, block.panel, copied), _next_panel(p, block, rows)

        def tile(first: Expr, height: int, number: Expr) -> None:
            _tile(p, first, height, block.panel, b_at, functools.partial(ahead, number))

        return tile

    fitting = int(_SHARE_OF_L2 * p.machine.l2 / (4 * p.op.k)) // height * height
    most = min(BLOCK_ROWS, max(_LEAST_ROWS, fitting))
    each_tile(p.k, rows, height, -(-p.op.n // p.layout.columns), p.machine, panel_code, most=most)


def _next_panel(p: Parts, block: Block, rows: Expr) -> Callable[[Expr, Expr], None]:
    """Code, by the number of a tile and its step, that asks for lines of the next panel.

    The tiles of a block share them evenly: a panel is in L2 when it is read, however many rows there are.
    """
    k, (extent, width) = p.k, map(int, p.weight[0].shape[1:])
    of_line = LINE_BYTES // np.dtype(str(p.weight[0].dtype)).itemsize
    lines, steps = -(-extent * width // of_line), max(p.op.k // _UNROLL, 1)
    following = k.let(next_panel.following(block.panel, p.layout.panels))
    tiles = tirx.max(block.end - block.first, int32(1))  # more threads than tiles: some have none
    each = tirx.truncdiv(int32(lines - 1), tiles * steps) + 1
    each = k.named(tirx.Select(rows > _STREAMED_ROWS[p.op.storage.name == "f32"], each, int32(0)))

    def ask(number: Expr, step: Expr) -> None:
        first = k.let((number * steps + step) * each)
        with k.serial(each) as i:
            at = tirx.min(first + i, int32(lines - 1)) * of_line
            k.prefetch(p.weight[0], [following, quotient(at, width), remainder(at, width)])

    return ask


def _panel_reader(p: Parts, panel: Expr, copied: bool) -> Callable[[Index, Expr], Expr]:
    """(k, columns) -> a vector of the panel as float32; integers are made floats once, in scratch."""
    k, op = p.k, p.op
    if not op.storage.bits and not copied:
        return lambda at, column: p.floats(panel, at, column)
    if not op.storage.bits:
        copy = k.scratch((op.k, p.layout.width))
        with k.serial(op.k) as at:
            for v in range(VECTORS):
                column = k.ramp(v * p.lanes, p.lanes)
                k.store(copy, p.floats(panel, at, column), [at, column])
        return lambda at, column: k.load(copy, [at, column])
    copy = k.scratch((p.layout.groups * op.storage.group, p.layout.width))
    WordProduct(p).dequantize(panel, copy)
    return lambda at, column: k.load(copy, [at, column])


def _tile(
    p: Parts,
    first: Expr,
    height: int,
    panel: Expr,
    b_at: Callable[[Index, Expr], Expr],
    ahead: Callable[[Expr], None],
) -> None:
    k, lanes, depth = p.k, p.lanes, p.op.k
    acc = k.scratch((height, p.layout.width))
    accumulate(
        k,
        acc,
        RegisterTile(height, VECTORS),
        lanes,
        depth,
        _UNROLL,
        lambda r, at: k.load(p.x, [first + r, at]),
        b_at,
        ahead,
    )
    with k.unroll(height) as r:
        p.finish(first + r, panel, lambda start, width: k.load(acc, [r, k.ramp(start, width)]))
