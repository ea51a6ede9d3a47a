"""A block's tile of rows and keys of an attention: the cells of each thread, copies to shared memory."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from hetero_tvm.host.tvm import Buffer, Expr, T, tirx
from hetero_tvm.ops.attention import Attention, Heads
from hetero_tvm.schedules.cuda.async_copy import copy
from hetero_tvm.schedules.cuda.attention.shapes import is_grouped, rows_of, width_of
from hetero_tvm.schedules.emit import int32


class SharedRows(NamedTuple):
    """Rows of ``extent`` elements in shared memory, ``pitch`` apart; products read ``padded`` of each.

    They begin at element ``first`` of the buffer.
    """

    buffer: Buffer
    extent: int
    padded: int
    pitch: int
    first: Expr | int = 0

    def at(self, row: Expr, column: Expr) -> Expr:
        """Offset of an element in the buffer."""
        return self.first + row * self.pitch + column


def shared_rows(rows: int, extent: int, padded: int, pitch: int, dtype: str) -> SharedRows:
    """Allocate ``rows`` such rows."""
    buffer = T.alloc_buffer((rows * pitch,), dtype, scope="shared.dyn")
    return SharedRows(buffer, extent, padded, pitch)


class AttentionTile(ABC):
    """One thread of an attention kernel and its part of the tile.

    Values that come from memory are kept in scratch and never named: TVM's merging of dynamic shared
    memory knows loads in stores only.

    A subclass lays the tile out over threads: it names the cells of the score tile and of the result
    that a thread holds (:meth:`cells`, :meth:`outputs`), and writes the two products.
    """

    lanes: tuple[int, ...] = ()
    """Bits of a lane in which the threads that share a row differ."""
    stages = 1
    """Blocks of keys in shared memory at once: with two, the next one arrives during all of a step."""

    def __init__(self, op: Attention, rows: int, keys: int, threads: int, splits: int):
        self.op, self.rows, self.keys, self.threads, self.splits = op, rows, keys, threads, splits
        self.group = op.heads // op.kv_heads
        self.grouped = is_grouped(op)
        self.all_rows = rows_of(op)
        self.heads = op.kv_heads if self.grouped else op.heads
        self.blocks = -(-self.all_rows // rows)
        plain = not op.mask and not op.softcap and op.scale > 0
        # Scores wait as they are where the exponential's multiply-add can scale them.
        self.factor = op.scale * math.log2(math.e) if plain else 1.0
        self.plain = plain

    @abstractmethod
    def allocate(self) -> None:
        """Allocate registers: ``self.s_reg`` for scores, ``self.o_reg`` for results, and more."""

    @property
    @abstractmethod
    def held_rows(self) -> int:
        """Number of rows that a thread holds cells of."""

    @abstractmethod
    def row_at(self, r: int) -> Expr:
        """The thread's r-th row, counted from the first row of the block."""

    @abstractmethod
    def cells(self, body: Callable[[int, Expr, Expr], None]) -> None:
        """``body(r, place in s_reg, key counted from the first of the block)`` for each score."""

    @abstractmethod
    def outputs(self, r: int, body: Callable[[Expr, Expr, int], None]) -> None:
        """``body(place in o_reg, column, width)`` for vectors of the r-th row's result."""

    @abstractmethod
    def buffers(self) -> tuple[SharedRows, SharedRows, SharedRows]:
        """Shared memory for Q, K and V."""

    def queries_ready(self) -> None:
        """Prepare the queries, once they are in shared memory."""
        return

    @abstractmethod
    def scores(self) -> None:
        """Write S = Q K^T to ``s_reg``."""

    @abstractmethod
    def put_weight(self, at: Expr, row: int, key: Expr, weight: Expr) -> None:
        """Keep a weight for the second product."""

    @abstractmethod
    def accumulate(self) -> None:
        """Add P V to ``o_reg``."""

    @property
    @abstractmethod
    def padded_values(self) -> int:
        """Columns of the result that threads hold, those past its end included."""

    @abstractmethod
    def first_of_row(self) -> Expr:
        """Whether this thread is the first of those that share a row."""

    def head_of(self, row: Expr) -> Expr:
        """Head that a row belongs to."""
        return self.h * self.group + row // self.op.q_len if self.grouped else self.h

    def query_of(self, row: Expr) -> Expr:
        """Query that a row belongs to."""
        return row % self.op.q_len if self.grouped else row

    def inside(self, put: Callable[[Expr, Expr, int], None], at: Expr, column: Expr, width: int) -> None:
        """Call ``put(at, column, width)`` for the columns that the result has."""
        if self.op.values % width:
            for e in range(width):
                with self.k.when(column + e < self.op.values):
                    put(at + e, column + e, 1)
        elif self.padded_values != self.op.values:
            with self.k.when(column < self.op.values):
                put(at, column, width)
        else:
            put(at, column, width)

    def at(self, place: Heads, head: Expr, row: Expr, column: Expr) -> Expr:
        """Offset of an element of this block's batch in an operand."""
        return place.offset + self.b * place.batch + head * place.head + row * place.row + column

    def copy_queries(self) -> None:
        """Copy rows of Q to shared memory (past the last row, that row again), and zeros to all padding."""
        k, op, (source, place), to = self.k, self.op, self.query, self.shared_q
        self._clear_padding(to, self.rows)
        for stage in range(self.stages):
            for shared in self.stage(int32(stage)):
                self._clear_padding(shared, self.keys)
        width = width_of(place, op.head_dim, op.dtype)
        vectors = op.head_dim // width

        def move(i: Expr) -> None:
            row, column = i // vectors, i % vectors * width
            known = k.let(tirx.min(self.first_row + row, int32(self.all_rows - 1)))
            origin = self.at(place, self.head_of(known), self.query_of(known), column)
            copy(k, to.buffer, to.at(row, column), source, origin, width, op.dtype)

        self.spread(self.rows * vectors, move)

    def stage(self, number: Expr) -> tuple[SharedRows, SharedRows]:
        """Shared memory of K and V in a stage; with one stage, that of :meth:`buffers`."""
        return self.shared_k, self.shared_v

    def copy_keys(self, first: Expr) -> None:
        """Copy a block of keys from row ``first`` on."""
        self.to_shared(self.key, self.shared_k, first)

    def copy_values(self, first: Expr) -> None:
        """Copy a block of values from row ``first`` on."""
        self.to_shared(self.value, self.shared_v, first)

    def to_shared(self, tensor: tuple[Buffer, Heads], to: SharedRows, first: Expr) -> None:
        """Copy keys or values from row ``first`` on; zeros past the last, as zero times NaN is NaN."""
        k, (source, place) = self.k, tensor
        width = width_of(place, to.extent, self.op.dtype)
        vectors = to.extent // width

        def move(i: Expr) -> None:
            row, column = i // vectors, i % vectors * width
            at = to.at(row, column)

            def load() -> None:
                origin = self.at(place, self.kv_head, first + row, column)
                copy(k, to.buffer, at, source, origin, width, self.op.dtype)

            def zero() -> None:
                for e in range(width):
                    k.store(to.buffer, tirx.const(0, self.op.dtype), [at + e])

            if self.op.kv_len % self.keys:
                k.branch(first + row < self.op.kv_len, load, zero)
            else:
                load()

        self.spread(self.keys * vectors, move)

    def _clear_padding(self, to: SharedRows, rows: int) -> None:
        """Write zeros to the columns past the extent, which copies never touch."""
        more = to.padded - to.extent
        if more:

            def clear(i: Expr) -> None:
                at = to.at(i // more, to.extent + i % more)
                self.k.store(to.buffer, tirx.const(0, self.op.dtype), [at])

            self.spread(rows * more, clear)

    def spread(self, count: int, body: Callable[[Expr], None]) -> None:
        """Call ``body(i)`` for each i below ``count``, shared among the threads of the block."""
        k, steps = self.k, -(-count // self.threads)
        with k.unroll(steps) as step:
            index = k.let(step * self.threads + self.thread)
            if count % self.threads:
                with k.when(index < count):
                    body(index)
            else:
                body(index)
