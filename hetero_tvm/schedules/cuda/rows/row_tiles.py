"""Kernels over independent rows (softmax, norms): every row is read once, kept in registers, written once.

Loop structure, for ``threads`` threads a row and ``block_rows`` rows a block::

    blockIdx.x over groups of rows
      threadIdx.y over the rows of a group, threadIdx.x over threads of a row
        16-byte pieces of the row, threads side by side, to registers
        reductions: registers, then shuffles, then (rows of several warps) one word a warp in shared memory
        the result from the registers, 16 bytes a thread

It is fast because memory sees exactly one read and one write of each element, in full vectors of
neighbouring threads.  Rows too long for the registers of a block are read again from L2 in every pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hetero_tvm.host.tvm import Expr, T, tirx
from hetero_tvm.machines.gpu import WARP, GpuModel
from hetero_tvm.schedules.cuda.threads import Combine, reduce_in_row
from hetero_tvm.schedules.cuda.values import VECTOR_BYTES, bytes_of, cast, const
from hetero_tvm.schedules.emit import Kernel, int32

_MOST_THREADS = 1024
_MOST_VALUES = 64
"""Values of a row that one thread keeps in registers at most."""
_GOOD_VALUES = 32
"""Values up to which registers do not limit the warps of a multiprocessor."""


@dataclass(frozen=True)
class RowShape:
    """Division of ``rows`` rows of ``n`` elements among threads: see the module's loop structure.

    Parameters
    ----------
    vector : elements of one access.
    threads : of a row.
    block_rows : rows of a block of threads.
    """

    rows: int
    n: int
    vector: int
    threads: int
    block_rows: int

    @property
    def pieces(self) -> int:
        """Vectors of a row that one thread handles."""
        return -(-self.n // (self.vector * self.threads))

    @property
    def resident(self) -> bool:
        """Whether a row stays in registers between the passes over it."""
        return self.pieces * self.vector <= _MOST_VALUES

    @property
    def blocks(self) -> int:
        """Number of blocks of the grid."""
        return -(-self.rows // self.block_rows)

    @property
    def features(self) -> list[float]:
        """Numbers that the cost model sees."""
        return [*map(math.log2, (self.threads, self.block_rows, self.vector)), float(self.pieces)]


def shapes(rows: int, n: int, vector: int, machine: GpuModel, weights: int = 0) -> list[RowShape]:
    """The divisions of rows among threads, the most promising first.

    ``weights`` counts the vectors (scale, shift) whose elements a thread holds beside its values.
    """
    found = []
    widest = min(_MOST_THREADS, _power_of_two(-(-n // vector)))
    threads = 1
    while threads <= widest:
        if threads == widest or RowShape(rows, n, vector, threads, 1).resident:
            for block in (128, 256, 32):
                block_rows = max(1, block // threads)
                shape = RowShape(rows, n, vector, threads, block_rows)
                if threads * block_rows >= WARP and shape not in found:
                    found.append(shape)
        threads *= 2
    return sorted(found, key=lambda shape: _cost(shape, machine, weights))


def _cost(shape: RowShape, machine: GpuModel, weights: int) -> tuple[float, ...]:
    """Relative cost: registers in use, idle multiprocessors, warps that must meet."""
    values = shape.pieces * shape.vector * (1 + weights / 4)
    threads = shape.blocks * shape.threads * shape.block_rows
    idle = max(0.0, math.log2(machine.sms * 1024 / threads)) if shape.pieces > 1 else 0.0
    unfilled = max(0.0, math.log2(machine.sms * 2 / shape.blocks)) if shape.block_rows > 1 else 0.0
    crowded = max(0.0, math.log2(values / _GOOD_VALUES))
    meetings = math.log2(max(1, shape.threads // WARP))
    wasted = shape.pieces * shape.threads * shape.vector / shape.n - 1
    block = abs(shape.threads * shape.block_rows - 128)
    return (2 * crowded + idle + unfilled + 0.5 * meetings + wasted, block)


def _power_of_two(value: int) -> int:
    """The least power of two that is not below ``value``."""
    return 1 << max(0, value - 1).bit_length()


Fetch = Callable[[Expr, int], Expr]
"""(column of the first element, number of elements) -> one vector, in the dtype held."""


Values = Callable[[int], Expr]
"""Index of an element of a piece -> its value as float32."""


class RowKernel:
    """One thread's part of its row: pieces in registers, reductions over the row, stores.

    Parameters
    ----------
    dtype : of the result.
    held : dtype of the row in registers; None for ``dtype``.
    """

    def __init__(self, k: Kernel, shape: RowShape, dtype: str, held: str | None = None):
        self.k, self.shape, self.dtype, self._held_dtype = k, shape, dtype, held or dtype
        self._reductions = 0

    @contextmanager
    def threads(self, reductions: int) -> Iterator[None]:
        """Open while the body is written; ``reductions`` is how many :meth:`reduce` it makes."""
        shape = self.shape
        with (
            T.launch_thread("blockIdx.x", shape.blocks) as block,
            T.launch_thread("threadIdx.y", shape.block_rows) as y,
            T.launch_thread("threadIdx.x", shape.threads) as x,
        ):
            self._x, self._y = x, y
            here = block * shape.block_rows + y
            self._exact = shape.rows % shape.block_rows == 0
            # Threads past the last row work on it again, and store nothing: shuffles want all of them.
            self.row = self.k.let(here if self._exact else tirx.min(here, int32(shape.rows - 1)))
            self._stored = here < shape.rows
            self._warps = shape.threads // WARP
            if self._warps > 1:
                size = reductions * shape.block_rows * self._warps
                self._shared = T.alloc_buffer((size,), "float32", scope="shared")
            size = shape.vector * (shape.pieces if shape.resident else 1)
            self._held = self.k.scratch((size,), self._held_dtype)
            self._sums = self.k.scratch((max(1, reductions),))
            self._out = self.k.scratch((shape.vector,), self.dtype)
            yield

    def load(self, fetch: Fetch, fill: float) -> None:
        """Load the row to registers; positions past its end hold ``fill``."""
        self._fetch, self._fill = fetch, fill
        if self.shape.resident:
            for piece in range(self.shape.pieces):
                self._load(piece, piece)

    def _load(self, piece: Expr, slot: int) -> None:
        k, width = self.k, self.shape.vector
        column = self._column(piece)
        lanes = min(width, VECTOR_BYTES // bytes_of(self._held_dtype))

        def fetch() -> None:
            for at in range(0, width, lanes):
                to = [k.ramp(int32(slot * width + at), lanes)]
                k.store(self._held, self._fetch(column + at, lanes), to)

        def fill() -> None:
            for e in range(width):
                k.store(self._held, _constant(self._fill, self._held_dtype), [int32(slot * width + e)])

        if self._whole(piece):
            fetch()
        else:
            k.branch(column < self.shape.n, fetch, fill)

    def _column(self, piece: Expr) -> Expr:
        return (piece * self.shape.threads + self._x) * self.shape.vector

    def _whole(self, piece: Expr) -> bool:
        """Whether every thread has elements in this piece."""
        last = self.shape.pieces if not isinstance(piece, int) else piece + 1
        return last * self.shape.threads * self.shape.vector <= self.shape.n

    def each(self, body: Callable[[Values, Expr, Expr | int], None]) -> None:
        """``body(values, column, slot)`` for each piece: ``values(e)`` is element e as float32."""
        if self.shape.resident:
            for piece in range(self.shape.pieces):
                body(self._values(piece), self._column(piece), piece)
            return
        with self.k.serial(self.shape.pieces) as piece:
            self._load(piece, 0)
            body(self._values(0), self._column(piece), piece)

    def _values(self, slot: int) -> Values:
        def value(e: int) -> Expr:
            held = self.k.load(self._held, [int32(slot * self.shape.vector + e)])
            return cast(held, "float32")

        return value

    def replace(self, term: Callable[[Expr], Expr]) -> None:
        """Make ``term(value)`` of each value of a row in registers, kept in float32."""
        k, width = self.k, self.shape.vector
        terms = k.scratch((width * self.shape.pieces,))

        def piece_terms(values: Values, column: Expr, slot: int) -> None:
            for e in range(width):
                k.store(terms, term(values(e)), [int32(slot * width + e)])

        self.each(piece_terms)
        self._held, self._held_dtype = terms, "float32"

    def reduce(self, term: Callable[[Expr], Expr], combine: Combine, neutral: float, padded: bool) -> Expr:
        """``combine`` over ``term(x)`` of the whole row, in every thread.

        ``padded`` says that the term of a position past the end is not neutral, and must be left out.
        """
        k, shape, at = self.k, self.shape, [int32(self._reductions)]
        k.store(self._sums, const(neutral), at)

        def piece_terms(values: Values, column: Expr, piece: Expr) -> None:
            def add() -> None:
                for e in range(shape.vector):
                    k.store(self._sums, combine(k.load(self._sums, at), term(values(e))), at)

            if padded and not self._whole(piece):
                with k.when(column < shape.n):
                    add()
            else:
                add()

        self.each(piece_terms)
        shared = self._shared if self._warps > 1 else None
        place = self._reductions * shape.block_rows + self._y
        reduce_in_row(k, self._sums, at, shape.threads, self._x, combine, shared, place)
        self._reductions += 1
        return k.load(self._sums, at)

    def store(self, result: Callable[[Expr, Expr, int], Expr], put: Callable[[Expr, Expr], None]) -> None:
        """Write the row: ``result(x, column, e)`` is the float32 value of element ``column + e``, from
        the row's own value x; ``put(column, vector)`` stores ``vector`` elements."""
        k, width = self.k, self.shape.vector

        def piece_results(values: Values, column: Expr, piece: Expr) -> None:
            def write() -> None:
                for e in range(width):
                    k.store(self._out, cast(result(values(e), column, e), self.dtype), [int32(e)])
                put(column, k.load(self._out, [k.ramp(0, width)]))

            conditions = [] if self._exact else [self._stored]
            if not self._whole(piece):
                conditions.append(column < self.shape.n)
            if conditions:
                with k.when(tirx.all(*conditions)):
                    write()
            else:
                write()

        self.each(piece_results)


_LOWEST_BFLOAT16 = -3.3895313892515355e38


def _constant(value: float, dtype: str) -> Expr:
    """A constant; TVM's code generator writes no infinity of bfloat16, where the lowest value serves."""
    return tirx.const(max(value, _LOWEST_BFLOAT16) if dtype == "bfloat16" else value, dtype)
