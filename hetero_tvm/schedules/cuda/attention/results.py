"""Results of an attention: stored as they are, or by splits of the keys and merged by a second kernel."""

from __future__ import annotations

from hetero_tvm.host.tvm import Expr, T, tirx
from hetero_tvm.schedules.cuda.attention.softmax import LOWEST, OnlineSoftmax
from hetero_tvm.schedules.cuda.buffers import workspace
from hetero_tvm.schedules.cuda.values import cast, const
from hetero_tvm.schedules.emit import int32

_MERGE_THREADS = 128


class Results(OnlineSoftmax):
    """Stores of O / sum to memory or, for one of several splits, of O, maximum and sum to a workspace."""

    def allocate_workspace(self) -> None:
        """Allocate global memory for the results of all splits."""
        self._results = self.op.batch * self.op.heads * self.op.q_len
        size = self.splits * self._results * (self.op.values + 2)
        self._workspace = workspace(size)

    def store(self) -> None:
        """Store the results of the block's rows."""
        for r in range(self.held_rows):
            self.over_row(self.total, r, lambda x, y: x + y)
            row = self.k.let(self.first_row + self.row_at(r))
            with self.k.when(row < self.all_rows):
                if self.splits > 1:
                    self._store_partial(r, row)
                else:
                    self._store_row(r, row)

    def _store_row(self, r: int, row: Expr) -> None:
        k, op = self.k, self.op
        k.store(self.scale, _inverse(k.load(self.total, [int32(r)]), op.zero_masked), [int32(r)])
        factor = k.load(self.scale, [int32(r)])

        def put(at: Expr, column: Expr, width: int) -> None:
            value = k.load(self.o_reg, [k.ramp(at, width)]) * k.splat(factor, width)
            kind = op.dtype + (f"x{width}" if width > 1 else "")
            place = [self.b, self.query_of(row), k.ramp(self.head_of(row) * op.values + column, width)]
            k.store(self.out, cast(value, kind), place)

        self.outputs(r, lambda at, column, width: self.inside(put, at, column, width))

    def _partial(self, split: Expr, result: Expr) -> Expr:
        """Offset in the workspace of a result of one split: its values, then its maximum and sum."""
        return (split * self._results + result) * (self.op.values + 2)

    def _store_partial(self, r: int, row: Expr) -> None:
        k, op = self.k, self.op
        result = (self.b * op.heads + self.head_of(row)) * op.q_len + self.query_of(row)
        place = k.let(self._partial(self.split, result))

        def put(at: Expr, column: Expr, width: int) -> None:
            for e in range(width):
                k.store(self._workspace, k.load(self.o_reg, [at + e]), [place + column + e])

        self.outputs(r, lambda at, column, width: self.inside(put, at, column, width))
        with k.when(self.first_of_row()):
            k.store(self._workspace, k.load(self.peak, [int32(r)]) * const(self.factor), [place + op.values])
            k.store(self._workspace, k.load(self.total, [int32(r)]), [place + (op.values + 1)])

    def merge(self) -> None:
        """Emit the second kernel: a thread for each value, over the splits."""
        k, op = self.k, self.op
        size = self._results * op.values
        with (
            T.launch_thread("blockIdx.x", -(-size // _MERGE_THREADS)) as block,
            T.launch_thread("threadIdx.x", _MERGE_THREADS) as thread,
        ):
            index = k.let(block * _MERGE_THREADS + thread)
            with k.when(index < size):
                result, column = k.let(index // op.values), k.let(index % op.values)
                sums = k.scratch((4,))  # value, sum, maximum, weight
                for i, start in enumerate((0.0, 0.0, LOWEST)):
                    k.store(sums, const(start), [int32(i)])

                def part(split: Expr, offset: Expr) -> Expr:
                    return k.load(self._workspace, [self._partial(split, result) + offset])

                with k.unroll(self.splits) as split:
                    peak = tirx.max(k.load(sums, [int32(2)]), part(split, op.values))
                    k.store(sums, peak, [int32(2)])
                with k.unroll(self.splits) as split:
                    k.store(sums, tirx.exp2(part(split, op.values) - k.load(sums, [int32(2)])), [int32(3)])
                    weight = k.load(sums, [int32(3)])
                    for i, offset in ((0, column), (1, op.values + 1)):
                        k.store(sums, k.load(sums, [int32(i)]) + weight * part(split, offset), [int32(i)])
                value = k.load(sums, [int32(0)]) * _inverse(k.load(sums, [int32(1)]), op.zero_masked)
                query, rest = result % op.q_len, result // op.q_len
                place = [rest // op.heads, query, rest % op.heads * op.values + column]
                k.store(self.out, cast(value, op.dtype), place)


def _inverse(total: Expr, zero_masked: bool) -> Expr:
    """1 / total, by which a row without a visible key becomes NaN; zero for it where the operator says so."""
    inverse = const(1) / total
    return tirx.Select(tirx.EQ(total, const(0)), const(0), inverse) if zero_masked else inverse
