"""The register tile: the innermost loops of every matrix product on a CPU.

::

    acc[rows][vectors] = 0                       (registers)
    for ko in k / unroll:                        (serial)
        prefetch a line or two of the next panel
        for ki in unroll:                        (unrolled)
            for r in rows, v in vectors:         (unrolled)
                acc[r][v] += splat(A[r, k]) * B[k, v]
    epilogue on acc, store

``rows * vectors`` independent accumulators hide the FMA latency; per k the tile loads ``vectors``
vectors and ``rows`` scalars for ``rows * vectors`` FMAs, so FMA issue is the bound, not the load
ports.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hetero_tvm.host.tvm import Buffer, Expr, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.emit import Index, Kernel, as_index, int32, vector_pieces

_EXPOSED_LATENCY = 1.12
"""Latency of a chain of FMAs, as a multiple of one FMA's, in products whose tile is small."""

_STREAMS = 2
"""Parts of the reduction that a tile of few rows goes through at once."""

_LONG = 1 << 14
"""Terms from which on accumulators start anew after each :data:`_BLOCK`: an error grows with the terms that
one accumulator takes (2e-4 of the result after a million)."""

_BLOCK = 1 << 10
"""Terms that one accumulator of a long reduction takes, a multiple of all unrollings."""


@dataclass(frozen=True)
class RegisterTile:
    """Shape of a register tile: ``rows`` broadcast scalars times ``vectors`` loaded vectors."""

    rows: int
    vectors: int

    @classmethod
    def of(cls, choice: Sequence[int]) -> RegisterTile:
        """The tile that a knob's choice (rows, vectors) stands for."""
        rows, vectors = choice
        return cls(rows=rows, vectors=vectors)

    def fits(self, machine: CpuModel) -> bool:
        """Whether the accumulators, the loaded vectors and one broadcast have a register each."""
        return self.rows * self.vectors + self.vectors + 1 <= machine.registers

    def streams(self, machine: CpuModel) -> bool:
        """Whether its accumulators fit twice, as :func:`accumulate_streams` wants them."""
        return RegisterTile(_STREAMS * self.rows, self.vectors).fits(machine)

    def columns(self, lanes: int) -> int:
        """Scalars in the vectors of one row."""
        return self.vectors * lanes

    def step_cycles(self, machine: CpuModel, load_cycles: float, fetch_cycles: float = 0.0) -> float:
        """Cycles of one k: FMA issue, load issue or FMA latency, whichever is the bound.

        ``load_cycles`` is what one vector load takes, ``fetch_cycles`` what all loads wait for cache lines
        that are not in L1.
        """
        return max(
            self.rows * self.vectors / machine.fma_units,
            machine.broadcast_cycles * self.rows + load_cycles * self.vectors + fetch_cycles,
            _EXPOSED_LATENCY * machine.fma_latency,
        )


@dataclass(frozen=True)
class Terms:
    """Terms that a tile combines: sums of products unless given.

    Attributes
    ----------
    term : of the place along the reduction, and of vectors of both operands there.
    combine : of what has been combined, and a term.
    init : what accumulators begin with.
    """

    term: Callable[[Index, Expr, Expr], Expr] = lambda at, a, b: a * b
    combine: Callable[[Expr, Expr], Expr] = operator.add
    init: float = 0.0


def accumulate(
    k: Kernel,
    acc: Buffer,
    tile: RegisterTile,
    lanes: int,
    depth: Index,
    unroll: int,
    a_at: Callable[[Expr, Index], Expr],
    b_at: Callable[[Index, Expr], Expr],
    on_step: Callable[[Expr], None] | None = None,
    terms: Terms | None = None,
) -> None:
    """Emit the reduction of one register tile.

    Parameters
    ----------
    acc : local buffer [rows, vectors * lanes].
    depth, unroll : reduction length, and how much of it is unrolled (nothing of a run-time length).
    a_at : (row, k) -> scalar expression of the left operand.
    b_at : (k, column ramp) -> vector expression of the right operand.
    on_step : called with the number of the unrolled step, for prefetches.
    terms : what is combined, and how; sums of products unless given.
    """
    terms = terms or Terms()

    def each(body: Callable[[Expr, Expr], None]) -> None:
        with k.unroll(tile.rows) as r:
            with k.unroll(tile.vectors) as v:
                body(r, k.ramp(v * lanes, lanes))

    each(lambda r, column: k.store(acc, k.splat(terms.init, lanes, acc.dtype), [r, column]))

    def step(k_index: Index) -> None:
        def fma(r: Expr, column: Expr) -> None:
            term = terms.term(k_index, k.splat(a_at(r, k_index), lanes), b_at(k_index, column))
            k.store(acc, terms.combine(k.load(acc, [r, column]), term), [r, column])

        each(fma)

    if not isinstance(depth, int):
        with k.serial(depth) as ki:
            step(ki)
        return

    def steps(first: Index, count: int) -> None:
        full = count // unroll
        if full:
            with k.serial(full) as ko:
                if on_step is not None:
                    on_step(tirx.floordiv(first, int32(unroll)) + ko if count < depth else ko)
                with k.unroll(unroll) as ki:
                    step(first + ko * unroll + ki)
        for rest in range(full * unroll, count):
            step(first + rest)

    if terms.combine is operator.add:
        _in_blocks(k, acc, tile.rows, tile.vectors, lanes, depth, steps)
    else:
        steps(0, depth)


def _in_blocks(
    k: Kernel,
    acc: Buffer,
    rows: int,
    vectors: int,
    lanes: int,
    depth: int,
    steps: Callable[[Index, int], None],
) -> None:
    """``steps(first, count)`` over a reduction of ``depth``, whose sums are in ``acc`` afterwards.

    Of a long one the sums of blocks are added up beside ``acc``, which begins every block with zeros.
    """
    if depth < _LONG:
        steps(0, depth)
        return
    total = k.scratch((rows, vectors * lanes), acc.dtype)

    def each(body: Callable[[list[Expr]], None]) -> None:
        with k.unroll(rows) as r, k.unroll(vectors) as v:
            body([r, k.ramp(v * lanes, lanes)])

    def begin_anew(at: list[Expr]) -> None:
        k.store(total, k.load(total, at) + k.load(acc, at), at)
        k.store(acc, k.splat(0.0, lanes, acc.dtype), at)

    each(lambda at: k.store(total, k.splat(0.0, lanes, acc.dtype), at))
    with k.serial(depth // _BLOCK) as block:
        steps(block * _BLOCK, _BLOCK)
        each(begin_anew)
    if depth % _BLOCK:
        steps(depth // _BLOCK * _BLOCK, depth % _BLOCK)
    each(lambda at: k.store(acc, k.load(total, at) + k.load(acc, at), at))


def accumulate_run_time(
    k: Kernel,
    acc: Buffer,
    tile: RegisterTile,
    lanes: int,
    depth: Index,
    unroll: int,
    a_at: Callable[[Expr, Index], Expr],
    b_at: Callable[[Index, Expr], Expr],
    terms: Terms | None = None,
) -> None:
    """Emit the reduction of :func:`accumulate` over a run-time ``depth``: unrolled steps, then the rest."""
    terms = terms or Terms()

    def each(body: Callable[[Expr, Expr], None]) -> None:
        with k.unroll(tile.rows) as r, k.unroll(tile.vectors) as v:
            body(r, k.ramp(v * lanes, lanes))

    def step(at: Index) -> None:
        def fma(r: Expr, column: Expr) -> None:
            term = terms.term(at, k.splat(a_at(r, at), lanes), b_at(at, column))
            k.store(acc, terms.combine(k.load(acc, [r, column]), term), [r, column])

        each(fma)

    each(lambda r, column: k.store(acc, k.splat(terms.init, lanes, acc.dtype), [r, column]))
    full = k.let(tirx.truncdiv(as_index(depth), int32(unroll)))
    with k.serial(full) as ko, k.unroll(unroll) as ki:
        step(ko * unroll + ki)
    with k.serial(depth - full * unroll) as rest:
        step(full * unroll + rest)


def accumulate_streams(
    k: Kernel,
    acc: Buffer,
    tile: RegisterTile,
    lanes: int,
    depth: int,
    unroll: int,
    a_at: Callable[[Expr, Index], Expr],
    b_at: Callable[[Index, Expr], Expr],
) -> None:
    """Emit the reduction of a tile of few rows, in two halves of ``depth`` at once.

    With few rows the time is that of reading B: two places of it at once make more accesses run ahead, and
    twice the accumulators hide the latency.  ``acc`` is [2 * rows, vectors * lanes]; the result is its first
    half.
    """
    half = depth // _STREAMS

    def each(rows: int, body: Callable[[Expr, Expr], None]) -> None:
        with k.unroll(rows) as r, k.unroll(tile.vectors) as v:
            body(r, k.ramp(v * lanes, lanes))

    each(_STREAMS * tile.rows, lambda r, column: k.store(acc, k.splat(0.0, lanes, acc.dtype), [r, column]))

    def step(at: Index, streams: int) -> None:
        for stream in range(streams):
            place = at + stream * half

            def fma(r: Expr, column: Expr, stream: int = stream, place: Index = place) -> None:
                product = k.splat(a_at(r, place), lanes) * b_at(place, column)
                target = [stream * tile.rows + r, column]
                k.store(acc, k.load(acc, target) + product, target)

            each(tile.rows, fma)

    def steps(first: Index, count: int) -> None:
        full = count // unroll
        if full:
            with k.serial(full) as ko:
                for ki in range(unroll):
                    step(first + ko * unroll + ki, _STREAMS)
        for rest in range(full * unroll, count):
            step(as_index(first + rest), _STREAMS)

    _in_blocks(k, acc, _STREAMS * tile.rows, tile.vectors, lanes, half, steps)
    for rest in range(_STREAMS * half, depth):
        step(int32(rest), 1)

    def fold(r: Expr, column: Expr) -> None:
        total = k.load(acc, [r, column])
        for stream in range(1, _STREAMS):
            total = total + k.load(acc, [stream * tile.rows + r, column])
        k.store(acc, total, [r, column])

    each(tile.rows, fold)


def store(
    k: Kernel,
    acc: Buffer,
    rows: Index,
    columns: int,
    lanes: int,
    put: Callable[[Expr, Index, int, Expr], None],
    in_memory: bool = False,
) -> None:
    """Hand the tile's first ``columns`` columns to ``put(row, column, width, value)``, vector by vector.

    A tile ``in_memory`` has a loop over its rows, whose number may be known at run time only.
    """
    with (k.serial if in_memory else k.unroll)(rows) as r:
        full = columns // lanes
        if full:
            with k.unroll(full) as v:
                put(r, v * lanes, lanes, k.load(acc, [r, k.ramp(v * lanes, lanes)]))
        for start, width in vector_pieces(columns - full * lanes, lanes):
            column = full * lanes + start
            put(r, column, width, k.load(acc, [r, k.ramp(column, width)]))
