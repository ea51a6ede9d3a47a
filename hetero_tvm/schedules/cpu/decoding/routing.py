"""Choice of the experts of each row."""

from __future__ import annotations

from hetero_tvm.codegen import vector_math
from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.decoding.experts import Route
from hetero_tvm.schedules.cpu.decoding.linear import tile_height
from hetero_tvm.schedules.cpu.decoding.symbolic import SymbolicKernel, quotient
from hetero_tvm.schedules.emit import Index, constant, int32

_LOWEST = -3.0e38


def emit_route(op: Route, machine: CpuModel) -> PrimFunc:
    """Kernel with arguments logits [rows, experts], correction [experts] when there is one, and of all slots:
    expert, share, order, runs.

    One thread does all: there are few numbers, and the order needs them all.
    """
    k = SymbolicKernel("route")
    with k:
        symbol, slots = k.symbol("m"), k.symbol("s")
        logits = k.argument("logits", (symbol, op.experts))
        correction = k.argument("correction", (op.experts,)) if op.corrected else None
        chosen = k.argument("chosen", (slots,), "int32")
        shares = k.argument("shares", (slots,))
        order, runs = (k.argument(name, (slots,), "int32") for name in ("order", "runs"))
        rows = k.count(symbol)
        router = _Router(k, op, logits, correction, chosen, shares)
        with k.serial(rows) as i:
            router.row(i)
        count = k.let(rows * op.top)
        first = k.scratch((op.experts + 1,), "int32")
        with k.serial(op.experts + 1) as e:
            k.store(first, int32(0), [e])
        with k.serial(count) as slot:
            e = k.let(k.load(chosen, [slot]) + 1)
            k.store(first, k.load(first, [e]) + 1, [e])
        with k.serial(op.experts) as e:
            k.store(first, k.load(first, [e + 1]) + k.load(first, [e]), [e + 1])
        with k.serial(count) as slot:
            e = k.let(k.load(chosen, [slot]))
            place = k.let(k.load(first, [e]))
            k.store(order, slot, [place])
            k.store(runs, int32(0), [place])
            k.store(first, place + 1, [e])
        # Each entry is the end of its expert's slots now, which is where those of the next begin.
        height = tile_height(machine)
        with k.serial(op.experts) as e:
            begin = k.let(tirx.Select(e > 0, k.load(first, [tirx.max(e - 1, int32(0))]), int32(0)))
            length = k.let(k.load(first, [e]) - begin)
            with k.serial(quotient(length + (height - 1), height)) as run:
                size = tirx.min(length - run * height, int32(height))
                k.store(runs, size, [begin + run * height])
    return k.function


class _Router:
    """Choice of the experts of one row after the other, and their shares."""

    def __init__(
        self,
        k: SymbolicKernel,
        op: Route,
        logits: Buffer,
        correction: Buffer | None,
        chosen: Buffer,
        shares: Buffer,
    ):
        self._k, self._op = k, op
        self._logits, self._correction, self._chosen, self._shares = logits, correction, chosen, shares
        self._judged, self._left = k.scratch((op.experts,)), k.scratch((op.experts,))
        self._best, self._total = k.scratch((1,), "int32"), k.scratch((1,))
        self._final = op.sigmoid or op.corrected
        """Whether experts are judged by what their shares are, and not by logits, whose order is the same."""

    def row(self, i: Expr) -> None:
        """Choose for row ``i``."""
        k, op = self._k, self._op
        self._judge(i)
        if op.groups > 1:
            self._drop_groups()
        with k.serial(op.top) as t:
            found = self._largest(self._left, 0, op.experts)
            k.store(self._chosen, found, [i * op.top + t])
            share = self._sparse_share(found) if op.sparse else k.load(self._judged, [found])
            k.store(self._shares, share, [i * op.top + t])
            k.store(self._left, constant(_LOWEST), [found])
        if not op.sparse:
            self._share_out(i)

    def _judge(self, i: Expr) -> None:
        """Judge each expert of a row; what is left to choose from is all of it."""
        k, op = self._k, self._op

        def judged(e: Expr) -> Expr:
            value = k.load(self._logits, [i, e])
            return vector_math.sigmoid(value) if op.sigmoid else value

        with k.serial(op.experts) as e:
            k.store(self._judged, judged(e), [e])
        if self._final and not op.sigmoid:
            peak = k.let(k.load(self._judged, [self._largest(self._judged, 0, op.experts)]))
            k.store(self._total, constant(0.0), [0])
            with k.serial(op.experts) as e:
                power = k.let(vector_math.exp(k.load(self._judged, [e]) - peak))
                k.store(self._judged, power, [e])
                k.store(self._total, k.load(self._total, [0]) + power, [0])
            with k.serial(op.experts) as e:
                k.store(self._judged, k.load(self._judged, [e]) / k.load(self._total, [0]), [e])
        with k.serial(op.experts) as e:
            value = k.load(self._judged, [e])
            if self._correction is not None:
                value = value + k.load(self._correction, [e])
            k.store(self._left, value, [e])

    def _largest(self, values: Buffer, first: Index, count: int) -> Expr:
        """Place of the largest of ``count`` values, the first of equal ones."""
        k = self._k
        k.store(self._best, first if not isinstance(first, int) else int32(first), [0])
        with k.serial(count) as e:
            with k.when(k.load(values, [first + e]) > k.load(values, [k.load(self._best, [0])])):
                k.store(self._best, first + e, [0])
        return k.let(k.load(self._best, [0]))

    def _drop_groups(self) -> None:
        """Leave the experts of the best groups only."""
        k, op = self._k, self._op
        size = op.experts // op.groups
        of_groups, kept = k.scratch((op.groups,)), k.scratch((op.groups,), "int32")
        with k.serial(op.groups) as g:
            base = k.let(g * size)
            best = self._largest(self._left, base, size)
            value = k.let(k.load(self._left, [best]))
            k.store(of_groups, value, [g])
            if op.sigmoid and size > 1:
                k.store(self._left, constant(_LOWEST), [best])
                second = self._largest(self._left, base, size)
                k.store(of_groups, value + k.load(self._left, [second]), [g])
                k.store(self._left, value, [best])
            k.store(kept, int32(0), [g])
        with k.serial(op.kept):
            best = self._largest(of_groups, 0, op.groups)
            k.store(kept, int32(1), [best])
            k.store(of_groups, constant(_LOWEST), [best])
        with k.serial(op.experts) as e:
            with k.when(tirx.EQ(k.load(kept, [quotient(e, size)]), 0)):
                k.store(self._left, constant(_LOWEST), [e])

    def _share_out(self, i: Expr) -> None:
        """Make shares of what the chosen experts were judged by."""
        k, op, shares = self._k, self._op, self._shares

        def power(value: Expr) -> Expr:
            return value if self._final else vector_math.exp(value - peak)

        peak = k.let(k.load(shares, [i * op.top]))
        if not self._final and op.groups > 1:  # the largest of all may be in another group
            peak = k.let(k.load(self._judged, [self._largest(self._judged, 0, op.experts)]))
        k.store(self._total, constant(0.0 if op.normalised or not self._final else 1.0), [0])
        summed = op.top if op.normalised else 0 if self._final else op.experts
        with k.serial(summed) as e:
            term = k.load(shares, [i * op.top + e]) if op.normalised else k.load(self._judged, [e])
            k.store(self._total, k.load(self._total, [0]) + power(term), [0])
        factor = k.let(constant(op.scale) / k.load(self._total, [0]))
        with k.serial(op.top) as t:
            at = [i * op.top + t]
            k.store(shares, power(k.load(shares, at)) * factor, at)

    def _sparse_share(self, found: Expr) -> Expr:
        """Share of an expert in the softmax over those that are near it, of those that are left."""
        k, op = self._k, self._op
        peak = k.let(k.load(self._judged, [found]))
        k.store(self._total, constant(0.0), [0])
        with k.serial(op.experts) as e:
            value = k.let(k.load(self._judged, [e]))
            bound = constant(2 * op.sparse) * tirx.max(tirx.abs(value), peak)
            near = tirx.all(k.load(self._left, [e]) > constant(_LOWEST), peak - value <= bound)
            with k.when(near):
                k.store(self._total, k.load(self._total, [0]) + vector_math.exp(value - peak), [0])
        return constant(op.scale) / k.load(self._total, [0])
