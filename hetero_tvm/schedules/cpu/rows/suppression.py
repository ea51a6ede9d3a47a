"""Non-maximum suppression of boxes, class by class.

Loop structure::

    parallel sequences x classes:
        candidates = boxes whose score exceeds the threshold
        for each round, while candidates are left:
            the best candidate is taken; candidates that overlap with it too much are dropped
    in order: what was taken moves to the front of the table

Candidates are few after the first test, so that a round costs little however many boxes there are.
"""

from __future__ import annotations

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.schedules.emit import Kernel, for_graph, int32

_ROUND_FLOPS = 40
"""Work for a candidate in a round, in operations: what decides whether threads are worth waking."""


def emit_suppression(batch: int, classes: int, count: int, rounds: int) -> PrimFunc:
    """The kernel of boxes [B, N, 4], scores [B, C, N], largest number of boxes of a class, overlap and
    least score (scalars); table [B * C * N, 3] of int64, total [1] of int64.

    Boxes are any two corners, scores that do not exceed the least one are not taken.  Of equal scores the
    first box is the best.  Rows of the table behind the total are 0 up to ``rounds`` for each class, and
    undefined from there on.
    """
    return _Suppression(batch, classes, count, rounds).emit()


class _Suppression:
    """Emits one kernel."""

    def __init__(self, batch: int, classes: int, count: int, rounds: int):
        self.batch, self.classes, self.count, self.rounds = batch, classes, count, rounds
        self.k = Kernel()

    def emit(self) -> PrimFunc:
        """The PrimFunc."""
        k, rows = self.k, self.batch * self.classes
        work = rows * self.count * _ROUND_FLOPS
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
        places, values = k.scratch((self.count,), "int32"), k.scratch((self.count,))
        state = k.scratch((3,), "int32")
        """Candidates left; boxes taken; the best candidate."""
        left, done, best = ([int32(n)] for n in range(3))
        first = k.let(tirx.floordiv(row, self.classes) * self.count)
        k.store(state, int32(0), left)
        k.store(state, int32(0), done)
        with k.serial(self.count) as n:
            score = k.let(k.load(self.scores, [row, n]))

            def keep() -> None:
                end = k.let(k.load(state, left))
                k.store(places, n, [end])
                k.store(values, score, [end])
                k.store(state, end + 1, left)

            k.branch(score > k.load(self.least, [0]), keep)
        with k.serial(self.rounds) as number:
            k.branch(
                tirx.And(k.load(state, left) > 0, tirx.Cast("int64", number) < allowed),
                lambda: self._round(row, first, number, state, places, values),
            )
        k.store(taken, k.load(state, done), [row])

    def _round(
        self, row: Expr, first: Expr, number: Expr, state: Buffer, places: Buffer, values: Buffer
    ) -> None:
        """Take the best candidate, and drop it and what overlaps with it."""
        k = self.k
        left, done, best = ([int32(n)] for n in range(3))
        k.store(state, int32(0), best)
        candidates = k.let(k.load(state, left))
        with k.serial(candidates) as n:
            value = k.load(values, [n])
            k.branch(value > k.load(values, [k.load(state, best)]), lambda: k.store(state, n, best))
        chosen = k.let(k.load(places, [k.load(state, best)]))
        k.store(self.table, tirx.Cast("int64", chosen), [row * self.rounds + number, int32(2)])
        k.store(state, number + 1, done)
        mine = self._corners(first + chosen)
        k.store(state, int32(0), left)
        with k.serial(candidates) as n:
            place = k.let(k.load(places, [n]))
            value = k.let(k.load(values, [n]))

            def keep() -> None:
                end = k.let(k.load(state, left))
                k.store(places, place, [end])
                k.store(values, value, [end])
                k.store(state, end + 1, left)

            hidden = self._overlap(mine, self._corners(first + place))
            k.branch(tirx.And(place != chosen, tirx.Not(hidden)), keep)

    def _corners(self, box: Expr) -> tuple[Expr, Expr, Expr, Expr]:
        """Lower and upper ends of a box along both axes."""
        k = self.k
        a, b, c, d = (k.let(k.load(self.boxes, [box, int32(n)])) for n in range(4))
        ends = (tirx.min(a, c), tirx.min(b, d), tirx.max(a, c), tirx.max(b, d))
        low_y, low_x, high_y, high_x = (k.let(end) for end in ends)
        return low_y, low_x, high_y, high_x

    def _overlap(self, mine: tuple[Expr, ...], other: tuple[Expr, ...]) -> Expr:
        """Whether the common area of two boxes exceeds the limit's share of their union."""
        k, zero = self.k, tirx.const(0, "float32")
        sides = [
            tirx.max(tirx.min(mine[n + 2], other[n + 2]) - tirx.max(mine[n], other[n]), zero)
            for n in range(2)
        ]
        shared = k.let(sides[0] * sides[1])
        areas = [k.let((box[2] - box[0]) * (box[3] - box[1])) for box in (mine, other)]
        union = k.let(areas[0] + areas[1] - shared)
        real = tirx.And(tirx.And(areas[0] > zero, areas[1] > zero), union > zero)
        return tirx.And(real, shared / union > k.load(self.limit, [0]))

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
