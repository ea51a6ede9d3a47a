"""Reductions of a tensor over any of its axes.

Loop structure::

    parallel tiles of results, and where there are few of them pieces of the reduced axes:
        blocks of terms:
            registers = the neutral value
            for each term of the block, vectors of lanes:
                registers = combine(registers, term)
            tile = combine(tile, registers)
    tile = combine of its pieces

Where the innermost axis is kept, a tile is a strip of results and its lanes are results, in registers, or
in L1 where rows of terms lie far apart: then a strip is long, as the hardware fetches ahead in a row.  Where
it is reduced, a tile is one result, several vectors hold independent parts of it and are folded at the end.
Either way memory is read along its contiguous axis, once, and the accumulators stay in registers.  Sums of
many values are exact to a few roundings more than a block has: an accumulator takes a few hundred terms,
then starts anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hetero_tvm.host.tvm import Buffer, Expr, T, TensorLoad, tirx, tvm, tvm_ffi
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.cpu.programs.linear import LinearNest, Tail, Views, linear_nest, split_index, stored
from hetero_tvm.schedules.cpu.programs.long_sums import LONG
from hetero_tvm.schedules.emit import Index, Kernel, as_index, int32, vector_loop, vector_pieces
from hetero_tvm.schedules.nests.nest import Nest

PARALLEL_WORTH = 8192
"""Terms below which waking the other threads costs more than it saves."""

_VECTORS = 8
"""Most vectors of a strip of results."""

_LONG_STRIP = 1024
"""Results of a strip whose accumulators are in L1."""

_FAR = 2048
"""Bytes between rows of terms from which on strips are long."""

_ROWS = 8
"""Rows of terms that a long strip takes at once, between two accesses of its accumulators."""

_SETS = 4
"""Independent accumulators of one result, to hide the latency of add and max."""

_BLOCK = 128
"""Terms that one accumulator takes before it starts anew."""

_NEUTRAL = {tirx.Add: 0, tirx.Mul: 1, tirx.Max: None, tirx.Min: None}
"""Operations that combine terms, and the value that they must begin with (None: any)."""


_WIDE = ("float32", "float64", "int32", "int64")
_NARROW = ("int8", "uint8", "int16", "uint16")
"""Types of results: those of extrema may be narrow as well."""


@dataclass(frozen=True)
class Reduction:
    """A nest that combines terms of linear accesses."""

    form: LinearNest
    combine: Callable[[Expr, Expr], Expr]
    init: Expr
    dtype: str


def reduction_of(nest: Nest, tail: Tail | None = None) -> Reduction | None:
    """The reduction that a nest is; None where its terms are not each read from memory once."""
    if not nest.reduced or nest.init is None or type(nest.value) not in _NEUTRAL:
        return None
    combine, neutral = type(nest.value), _NEUTRAL[type(nest.value)]
    sides = [nest.value.a, nest.value.b]
    own = [_is_own(side, nest) for side in sides]
    if sum(own) != 1 or not isinstance(nest.init, tirx.IntImm | tirx.FloatImm):
        return None
    if neutral is not None and float(nest.init.value) != neutral:
        return None
    dtype = str(nest.buffer.dtype)
    if dtype not in _WIDE and not (neutral is None and dtype in _NARROW):
        return None
    form = linear_nest(nest, sides[own.index(False)], tail)
    if form is None or not form.reduced:
        return None
    if combine is tirx.Mul and math.prod(form.reduced) >= LONG:
        return None  # products of blocks lean to one side where terms are near 1: one product, in float64
    # A product of matrices reads no operand along all axes, and wants tiles of registers.
    if not any(all(access.steps) for _, access in form.loads):
        return None
    return Reduction(form, lambda a, b: combine(a, b), nest.init, dtype)


def _is_own(side: Any, nest: Nest) -> bool:
    return (
        isinstance(side, TensorLoad)
        and side.source.same_as(nest.buffer)
        and tvm_ffi.structural_equal(list(side.indices), list(nest.indices))
    )


@contextmanager
def vector(width: int) -> Iterator[Expr]:
    """The lanes of one vector."""
    if width == 1:
        yield int32(0)
        return
    with T.vectorized(0, width) as lane:
        yield lane


@dataclass(frozen=True)
class _Part:
    """Blocks of the reduced axes: ``groups`` of ``per`` runs of ``length`` terms of the innermost one.

    Run number ``r`` starts at ``first + r % pieces * length`` of outer position ``r // pieces``.
    """

    groups: int
    per: int
    run: int
    pieces: int
    first: int
    length: int


class ReductionKernel:
    """Loops of one reduction in a kernel that is being built."""

    def __init__(self, k: Kernel, reduction: Reduction, views: Views, machine: CpuModel):
        self._k, self._r, self._views, self._machine = k, reduction, views, machine
        form = reduction.form
        lanes = max(1, machine.lanes * 32 // tvm.DataType(reduction.dtype).bits)
        self._lanes = lanes
        kept, reduced = list(range(len(form.kept))), [n + len(form.kept) for n in range(len(form.reduced))]
        main = max((a for _, a in form.loads if all(a.steps)), key=lambda a: len(a.steps))
        sizes = (*form.kept, *form.reduced)
        unit = min(range(len(sizes)), key=lambda n: abs(main.steps[n]))
        if unit in reduced and sizes[unit] < lanes and kept and sizes[kept[-1]] >= lanes:
            unit = kept[-1]
        self._column = unit if unit in kept else None
        inner = unit if unit in reduced else reduced[-1]
        self._inner = inner
        self._kept = [n for n in kept if n != self._column]
        self._outer = [n for n in reduced if n != inner]
        self._sizes = sizes
        if self._column is None:
            self._strip, self._columns = 1, 1
            self._sets = min(_SETS, _power_of_two(sizes[inner] // lanes))
        else:
            self._columns = sizes[self._column]
            vectors = min(_VECTORS, max(1, self._columns // lanes))
            self._strip = vectors * lanes
            self._sets = max(1, _SETS // vectors)
            apart = abs(main.steps[inner]) * (tvm.DataType(reduction.dtype).bits // 8)
            if vectors == _VECTORS and apart >= _FAR and sizes[inner] >= _ROWS:
                self._strip = min(_LONG_STRIP, self._columns // lanes * lanes)
        self._long = self._strip > _VECTORS * lanes
        self._parts = self._cut()

    def _cut(self) -> list[_Part]:
        """Blocks of the reduced axes, those that many threads may share first."""
        runs = math.prod(self._sizes[n] for n in self._outer)
        length = self._sizes[self._inner]
        most = _BLOCK * self._sets * (self._lanes if self._column is None else 1)
        cuts = [(runs, 1, 0, length)]
        if length >= 2 * most:
            pieces, rest = divmod(length, most)
            cuts = [(runs * pieces, pieces, 0, most)]
            if rest:
                cuts.append((runs, 1, pieces * most, rest))
        parts = []
        for count, pieces, first, size in cuts:
            per = max(1, min(count, most // size))
            groups, rest = divmod(count, per)
            parts.append(_Part(groups, per, 0, pieces, first, size))
            if rest:
                parts.append(_Part(1, rest, groups * per, pieces, first, size))
        return parts

    # one tile ----------------------------------------------------------------------------------
    def _clear(self, buffer: Buffer, size: int) -> None:
        def clear(start: Index, width: int) -> None:
            with vector(width) as v:
                self._k.store(buffer, self._r.init, [v + start])

        self._vectors(size, clear)

    def _vectors(self, size: int, body: Callable[[Index, int], None]) -> None:
        """``body(start, width)`` for the vectors of a tile: a loop over those of a long strip."""
        if self._long:
            vector_loop(self._k, size, self._lanes, body)
            return
        for start, width in vector_pieces(size, self._lanes):
            body(start, width)

    def _fold(self, target: Buffer, source: Callable[[Expr], Expr], size: int) -> None:
        """``target = combine(target, source)`` for each element."""
        k = self._k

        def fold(start: Index, width: int) -> None:
            with vector(width) as v:
                k.store(target, self._r.combine(k.load(target, [v + start]), source(v + start)), [v + start])

        self._vectors(size, fold)

    def _run(self, registers: Buffer, tile: list[Expr], columns: int, part: _Part, run: Expr) -> None:
        """One run of terms of the innermost axis into the registers."""
        k, lanes, sets = self._k, self._lanes, self._sets
        outer = split_index(tirx.floordiv(run, int32(part.pieces)), [self._sizes[n] for n in self._outer])
        first = tirx.floormod(run, int32(part.pieces)) * part.length + part.first

        def term(inner: Expr, column: Expr) -> Expr:
            positions = list(tile)
            for axis, position in zip(self._outer, outer, strict=True):
                positions[axis] = position
            positions[self._inner] = inner
            if self._column is not None:
                positions[self._column] = tile[self._column] + column
            return self._r.form.value(k, self._views, positions)

        def take(at: Index, inner: Expr, column: Expr) -> None:
            k.store(registers, self._r.combine(k.load(registers, [at]), term(inner, column)), [at])

        def rows(start: Index, count: int) -> None:
            """``count`` rows of terms of a long strip."""

            def column(at: Index, width: int) -> None:
                with vector(width) as v:
                    value = k.load(registers, [v + at])
                    for u in range(count):
                        value = self._r.combine(value, term(first + start + u, v + at))
                    k.store(registers, value, [v + at])

            vector_loop(k, columns, lanes, column)

        def step(start: Index, count: int) -> None:
            """``count`` terms for vertical tiles: one per set of accumulators."""
            for u in range(count):
                for at, width in vector_pieces(columns, lanes):
                    with vector(width) as v:
                        take(v + (u * columns + at), first + start + u, v + at)

        if self._long or self._column is not None:
            body, each = (rows, _ROWS) if self._long else (step, sets)
            steps, rest = divmod(part.length, each)
            if steps:
                with k.serial(steps) as s:
                    body(s * each, each)
            if rest:
                body(int32(steps * each), rest)
            return
        steps, rest = divmod(part.length, sets * lanes)
        if steps:
            # Two registers in one expression: what is computed of each term waits less.
            wide = 2 * lanes if sets % 2 == 0 else lanes
            with k.serial(steps) as s:
                for u in range(0, sets * lanes, wide):
                    with vector(wide) as v:
                        take(v + u, first + (s * (sets * lanes) + u + v), v)
        for u, (start, width) in enumerate(vector_pieces(rest, lanes)):
            with vector(width) as v:
                take(v + u % sets * lanes, first + (steps * sets * lanes + start + v), v)

    def _size(self, columns: int) -> int:
        """Accumulators of a tile."""
        return self._sets * (self._lanes if self._column is None else columns)

    def _blocks(self, tile: list[Expr], columns: int, parts: Sequence[tuple[_Part, Index, Index]]) -> Buffer:
        """The accumulators of a tile after groups ``low`` to ``high`` of parts."""
        k, size = self._k, self._size(columns)
        total = k.scratch((size,), self._r.dtype)
        self._clear(total, size)
        single = all(isinstance(low, int) and high == 1 for _, low, high in parts) and len(parts) == 1
        for part, low, high in parts:
            with k.serial(as_index(high) - as_index(low)) as group:
                registers = total if single else k.scratch((size,), self._r.dtype)
                if not single:
                    self._clear(registers, size)
                with k.serial(part.per) as j:
                    self._run(registers, tile, columns, part, part.run + (low + group) * part.per + j)
                if not single:
                    held = registers
                    self._fold(total, lambda at, held=held: k.load(held, [at]), size)
        return total

    def _folded(self, total: Buffer, columns: int) -> None:
        """Fold the accumulators of each result into the first one."""
        k, size = self._k, self._size(columns)
        width = size
        while width > columns:
            width //= 2
            self._fold(total, lambda at, width=width: k.load(total, [at + width]), width)

    def _store(self, tile: list[Expr], total: Buffer, columns: int) -> None:
        """Finishes the results of a tile."""
        k, store = self._k, self._r.form.store

        def finish(start: Index, width: int) -> None:
            with vector(width) as v:
                positions = list(tile)
                if self._column is not None:
                    positions[self._column] = tile[self._column] + start + v
                value = self._r.form.result(k, self._views, positions, k.load(total, [v + start]))
                k.store(self._views[store.buffer], stored(value), [store.place(positions)])

        self._vectors(columns, finish)

    # all tiles ---------------------------------------------------------------------------------
    def _each(self, index: Expr, body: Callable[[list[Expr], Expr, int], None]) -> None:
        """``body(tile, first result, columns)`` of tile number ``index``."""
        tile: list[Expr] = [int32(0)] * len(self._sizes)
        strips, rest = divmod(self._columns, self._strip)
        across = int32(strips + (rest > 0))
        row, strip = tirx.floordiv(index, across), tirx.floormod(index, across)
        kept = split_index(row, [self._sizes[n] for n in self._kept])
        for axis, position in zip(self._kept, kept, strict=True):
            tile[axis] = position
        alone = math.prod(self._sizes[n] for n in self._kept) == 1
        begin = int32(0) if alone else row * self._columns

        def at(place: Expr, columns: int) -> None:
            if self._column is not None:
                tile[self._column] = place * self._strip
            body(tile, begin + place * self._strip, columns)

        if rest and strips:
            # Numbers where a branch knows the strip: TVM cuts memory between two loops to what they reach,
            # and takes an index that the branch leaves one value for a variable of that memory's size.
            whole = strip if strips > 1 else int32(0)
            self._k.branch(strip < strips, lambda: at(whole, self._strip), lambda: at(int32(strips), rest))
        else:
            at(strip, rest or self._strip)

    @property
    def of_rows(self) -> bool:
        """Whether each tile is one result."""
        return self._column is None

    def emit_tile(self, index: Expr) -> None:
        """One tile, over all that is reduced."""

        def whole(tile: list[Expr], _first: Expr, columns: int) -> None:
            total = self._blocks(tile, columns, [(part, 0, part.groups) for part in self._parts])
            self._folded(total, columns)
            self._store(tile, total, columns)

        self._each(index, whole)

    def emit(self) -> None:
        """The loops over all tiles."""
        k, threads = self._k, self._machine.threads
        results = math.prod(self._sizes[n] for n in self._kept) * self._columns
        tiles = results // self._columns * -(-self._columns // self._strip)
        worth = math.prod(self._sizes) >= PARALLEL_WORTH
        if worth and threads > 1 and tiles < 2 * threads and self._parts[0].groups > 1:
            self._emit_pieces(tiles, results, min(self._parts[0].groups, -(-4 * threads // tiles)))
            return
        with k.parallel(tiles) if worth else k.serial(tiles) as index:
            self.emit_tile(index)

    def _emit_pieces(self, tiles: int, results: int, chunks: int) -> None:
        """The loops where threads share what is reduced: pieces of each tile, then their combination."""
        k, main = self._k, self._parts[0]
        pieces = k.scratch((chunks * results,), self._r.dtype)
        with k.parallel(tiles * chunks) as index:
            chunk = tirx.floormod(index, int32(chunks))
            low = tirx.floordiv(chunk * main.groups, int32(chunks))
            high = tirx.floordiv((chunk + 1) * main.groups, int32(chunks))

            def piece(tile: list[Expr], first: Expr, columns: int) -> None:
                total = self._blocks(tile, columns, [(main, low, high)])
                self._folded(total, columns)

                def keep(start: Index, width: int) -> None:
                    with vector(width) as v:
                        k.store(pieces, k.load(total, [v + start]), [chunk * results + first + start + v])

                self._vectors(columns, keep)

            self._each(tirx.floordiv(index, int32(chunks)), piece)

        def last(tile: list[Expr], first: Expr, columns: int) -> None:
            total = self._blocks(tile, columns, [(part, 0, part.groups) for part in self._parts[1:]])
            self._folded(total, columns)
            with k.serial(chunks) as c:
                self._fold(total, lambda at: k.load(pieces, [c * results + first + at]), columns)
            self._store(tile, total, columns)

        with k.serial(tiles) as index:
            self._each(index, last)


def _power_of_two(value: int) -> int:
    """The largest power of two up to ``value``, at least 1."""
    return 1 << max(0, value.bit_length() - 1)
