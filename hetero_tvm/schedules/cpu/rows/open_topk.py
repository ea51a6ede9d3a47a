"""The greatest or least k values of rows whose lengths are known when they come; see ``topk.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hetero_tvm.host.tvm import Buffer, Expr, tirx
from hetero_tvm.schedules.cpu.rows.topk import FEW, RUN, TopkKernel
from hetero_tvm.schedules.emit import Index, int32

_MOST_MERGES = 24
"""Doublings of a run until it is as long as any row."""


class OpenTopkKernel(TopkKernel):
    """Emits one kernel that is the same for all extents of a row, but for numbers that grow with it.

    It is lifted to all extents: what they decide is decided at the call.

    What is compared with the extent, and divided, is read from memory: as a constant it would be folded.
    LLVM does that where it is known.
    """

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.capacity = max(RUN, 1 << (2 * self.count - 1).bit_length())

    def _work(self, rows: int) -> int | None:
        return None

    def _row(self, ys: list[Buffer], target: Expr) -> None:
        (self.size,) = self.k.counted(self.extent)
        few = self.size <= FEW // self.count
        if self.count == 1:
            self._one_by_one(ys, target)
        elif self.count == self.extent:
            self._sorted_whole(ys, target)
        else:
            if self._may_be_least():
                self._sorted(ys, target)
                return
            self.k.branch(few, lambda: self._one_by_one(ys, target), lambda: self._sorted(ys, target))

    def _one_by_one(self, ys: list[Buffer], target: Expr) -> None:
        if self.lanes == 1:
            return self._by_passes(ys, target, 1)
        return self.k.branch(
            self.size >= self.lanes,
            lambda: self._by_passes(ys, target, self.lanes),
            lambda: self._by_passes(ys, target, 1),
        )

    def _sorted_whole(self, ys: list[Buffer], target: Expr) -> None:
        """A row in order: as many runs as its length asks for, merged to and fro in one buffer."""
        k, room = self.k, 2 * self.extent + RUN
        keys, state = k.scratch((2 * room,), "int64"), k.scratch((2,), "int32")
        second = k.let(self.size * 2 + RUN)

        def doubled(body: Callable[[Expr], None]) -> Expr:
            """``body`` of each width of runs that is shorter than the row; the width behind the last."""
            k.store(state, int32(RUN), [0])
            with k.serial(_MOST_MERGES):
                width = k.let(k.load(state, [0]))
                with k.when(width < self.size):
                    body(width)
                    k.store(state, width * 2, [0])
            return k.let(k.load(state, [0]))

        capacity = doubled(lambda width: None)
        with k.serial(self.size) as e:
            k.store(keys, self._key(self._number(self._load(e)), e), [e])
        self._pad(keys, self.size, capacity)
        with k.serial(tirx.floordiv(capacity, int32(RUN))) as run:
            self._count_ranks(keys, keys, run * RUN, second + run * RUN)
        k.store(state, second, [1])

        def merged(width: Expr) -> None:
            begin = k.let(k.load(state, [1]))
            end = k.let(second - begin)  # the other half: one begins at 0
            with k.serial(tirx.floordiv(capacity, width * 2)) as pair:
                self._merge(keys, keys, begin + pair * (width * 2), width, end + pair * (width * 2))
            k.store(state, end, [1])

        doubled(merged)
        begin = k.let(k.load(state, [1]))
        with k.serial(self.size) as j:
            self._put(ys, target, j, tirx.Cast("int32", self._position(k.load(keys, [begin + j]))))

    def _fits(self) -> bool:
        return False

    def _whole(self, width: int) -> Index:
        return tirx.floordiv(self.size, width) if width > 1 else self.extent

    def _has_rest(self, width: int) -> bool:
        return width > 1

    def _begin(self) -> None:
        classes = self._classes()
        if self.lanes > 1:
            with self.k.when(self.size >= 4 * classes):
                self._bound(classes)
