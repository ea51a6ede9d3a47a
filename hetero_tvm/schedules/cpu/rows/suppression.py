"""Non-maximum suppression of boxes, class by class.

Loop structure::

    parallel sequences x classes:
        candidates = boxes whose score exceeds the threshold
        candidates sorted by score, in four passes over digits of 8 bits
        for each candidate, the best first, until enough are taken:
            its overlaps with the boxes that were taken, a vector of them at a time; without one it is taken
    in order: what was taken moves to the front of the table

Candidates behind the last one that is taken cost nothing but their part of the sort, and boxes that were
taken are far fewer than candidates.
"""

from __future__ import annotations

from collections.abc import Sequence

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.emit import Kernel, for_graph, int32, ordered_bits

_BOX_FLOPS = 100
"""Work for a box, in operations: what decides whether threads are worth waking."""
_DIGITS = 256


def emit_suppression(machine: CpuModel, batch: int, classes: int, count: int, rounds: int) -> PrimFunc:
    """The kernel of boxes [B, N, 4], scores [B, C, N], largest number of boxes of a class, overlap and
    least score (scalars); table [B * C * N, 3] of int64, total [1] of int64.

    Boxes are any two corners, scores that do not exceed the least one are not taken.  Of equal scores the
    first box is the best.  Rows of the table behind the total are 0 up to ``rounds`` for each class, and
    undefined from there on.
    """
    return _Suppression(machine, batch, classes, count, rounds).emit()


class _Suppression:
    """Emits one kernel."""

    def __init__(self, machine: CpuModel, batch: int, classes: int, count: int, rounds: int):
        self.batch, self.classes, self.count, self.rounds = batch, classes, count, rounds
        self.lanes = machine.lanes
        self.k = Kernel()

    def emit(self) -> PrimFunc:
        """The PrimFunc."""
        k, rows = self.k, self.batch * self.classes
        work = rows * self.count * _BOX_FLOPS
        with k:
            boxes = k.argument("boxes", (self.batch, self.count, 4))
            scores = k.argument("scores", (self.batch, self.classes, self.count))
            most, limit = k.argument("most", (), "int64"), k.argument("limit", ())
            least = k.argument("least", ())
            table = k.argument("table", (rows * self.count, 3), "int64")
            total = k.argument("total", (1,), "int64")
            self.boxes = k.view(boxes, (self.batch * self.count, 4))
            self.scores = k.view(scores, (rows, self.count))
            self.limit, self.least, self.table = k.view(limit, (1,)), k.view(least, (1,)), table
            allowed = k.view(most, (1,))
            taken = k.scratch((rows,), "int32")
            with k.parallel(rows, work) as row:
                self._row(row, k.load(allowed, [0]), taken)
            self._gather(taken, total)
        return for_graph(k.function, work)

    def _row(self, row: Expr, allowed: Expr, taken: Buffer) -> None:
        """Take the boxes of one class; their numbers stay in the table, at the class's own rows."""
        k = self.k
        places, keys = (k.scratch((2, self.count), "int32") for _ in range(2))
        state = k.scratch((2,), "int32")
        """Candidates; boxes taken."""
        left, done = ([int32(n)] for n in range(2))
        first = k.let(tirx.floordiv(row, self.classes) * self.count)
        k.store(state, int32(0), left)
        k.store(state, int32(0), done)
        with k.serial(self.count) as n:
            score = k.let(k.load(self.scores, [row, n]))

            def keep() -> None:
                end = k.let(k.load(state, left))
                k.store(places, n, [int32(0), end])
                k.store(keys, ordered_bits(score) ^ int32(0x7FFFFFFF), [int32(0), end])  # the best first
                k.store(state, end + 1, left)

            k.branch(score > k.load(self.least, [0]), keep)
        candidates = k.let(k.load(state, left))
        self._sort(keys, places, candidates)
        corners = k.scratch((4, -(-max(1, self.rounds) // self.lanes) * self.lanes))
        for n in range(4):
            with k.serial(int(corners.shape[1]) // self.lanes) as v:
                k.store(corners, k.splat(0.0, self.lanes), [int32(n), k.ramp(v * self.lanes, self.lanes)])
        with k.serial(candidates) as n:
            number = k.let(k.load(state, done))
            room = tirx.And(number < self.rounds, tirx.Cast("int64", number) < allowed)
            k.branch(room, lambda: self._candidate(row, first, k.load(places, [int32(0), n]), state, corners))
        k.store(taken, k.load(state, done), [row])

    def _sort(self, keys: Buffer, places: Buffer, count: Expr) -> None:
        """Sort by keys, digit by digit from the last; equal ones keep their order."""
        k = self.k
        counts = k.scratch((_DIGITS,), "int32")
        for digit in range(4):
            source, target = digit % 2, 1 - digit % 2

            def digit_of(key: Expr, digit: int = digit) -> Expr:
                return tirx.bitwise_and(key >> int32(8 * digit), int32(_DIGITS - 1))

            with k.serial(_DIGITS) as n:
                k.store(counts, int32(0), [n])
            with k.serial(count) as n:
                at = [k.let(digit_of(k.load(keys, [int32(source), n])))]
                k.store(counts, k.load(counts, at) + 1, at)
            before = k.scratch((1,), "int32")
            k.store(before, int32(0), [0])
            with k.serial(_DIGITS) as n:
                number = k.let(k.load(counts, [n]))
                k.store(counts, k.load(before, [0]), [n])
                k.store(before, k.load(before, [0]) + number, [0])
            with k.serial(count) as n:
                key = k.let(k.load(keys, [int32(source), n]))
                at = [k.let(digit_of(key))]
                to = k.let(k.load(counts, at))
                k.store(counts, to + 1, at)
                k.store(keys, key, [int32(target), to])
                k.store(places, k.load(places, [int32(source), n]), [int32(target), to])

    def _candidate(self, row: Expr, first: Expr, place: Expr, state: Buffer, corners: Buffer) -> None:
        """Take the box at ``place`` unless it overlaps with one that was taken."""
        k, lanes = self.k, self.lanes
        place = k.let(place)
        mine = self._corners(first + place)
        done = k.let(k.load(state, [int32(1)]))
        hidden = k.scratch((lanes,), "int32")
        k.store(hidden, k.splat(int32(0), lanes), [k.ramp(0, lanes)])
        with k.serial(tirx.truncdiv(done + (lanes - 1), int32(lanes))) as v:
            at = k.ramp(v * lanes, lanes)
            other = tuple(k.let(k.load(corners, [int32(n), at])) for n in range(4))
            overlaps = self._overlap(other, tuple(k.splat(end, lanes) for end in mine))
            one, before = k.splat(int32(1), lanes), k.load(hidden, [k.ramp(0, lanes)])
            k.store(hidden, tirx.Select(overlaps, one, before), [k.ramp(0, lanes)])
        width = lanes
        while width > 1:
            width //= 2
            low, high = [k.ramp(0, width)], [k.ramp(width, width)]
            k.store(hidden, tirx.max(k.load(hidden, low), k.load(hidden, high)), low)

        def take() -> None:
            for n, end in enumerate(mine):
                k.store(corners, end, [int32(n), done])
            k.store(self.table, tirx.Cast("int64", place), [row * self.rounds + done, int32(2)])
            k.store(state, done + 1, [int32(1)])

        k.branch(tirx.EQ(k.load(hidden, [0]), int32(0)), take)

    def _corners(self, box: Expr) -> tuple[Expr, Expr, Expr, Expr]:
        """Lower and upper ends of a box along both axes."""
        k = self.k
        a, b, c, d = (k.let(k.load(self.boxes, [box, int32(n)])) for n in range(4))
        ends = (tirx.min(a, c), tirx.min(b, d), tirx.max(a, c), tirx.max(b, d))
        low_y, low_x, high_y, high_x = (k.let(end) for end in ends)
        return low_y, low_x, high_y, high_x

    def _overlap(self, mine: Sequence[Expr], other: Sequence[Expr]) -> Expr:
        """Whether the common areas of pairs of boxes exceed the limit's share of their unions."""
        k, lanes = self.k, self.lanes
        zero = k.splat(0.0, lanes)
        sides = [
            tirx.max(tirx.min(mine[n + 2], other[n + 2]) - tirx.max(mine[n], other[n]), zero)
            for n in range(2)
        ]
        shared = k.let(sides[0] * sides[1])
        areas = [k.let((box[2] - box[0]) * (box[3] - box[1])) for box in (mine, other)]
        union = k.let(areas[0] + areas[1] - shared)
        real = tirx.And(tirx.And(areas[0] > zero, areas[1] > zero), union > zero)
        return tirx.And(real, shared / union > k.splat(k.load(self.limit, [0]), lanes))

    def _gather(self, taken: Buffer, total: Buffer) -> None:
        """Move the rows that were taken to the front, and clear those behind."""
        k, rows = self.k, self.batch * self.classes
        end = k.scratch((1,), "int32")
        k.store(end, int32(0), [0])
        with k.serial(rows) as row, k.serial(k.load(taken, [row])) as n:
            to = k.let(k.load(end, [0]))
            box = k.let(k.load(self.table, [row * self.rounds + n, int32(2)]))
            k.store(self.table, tirx.Cast("int64", tirx.floordiv(row, self.classes)), [to, int32(0)])
            k.store(self.table, tirx.Cast("int64", tirx.floormod(row, self.classes)), [to, int32(1)])
            k.store(self.table, box, [to, int32(2)])
            k.store(end, to + 1, [0])
        found = k.let(k.load(end, [0]))
        k.store(total, tirx.Cast("int64", found), [0])
        with k.serial(rows * self.rounds - found) as n, k.unroll(3) as column:
            k.store(self.table, tirx.const(0, "int64"), [found + n, column])
