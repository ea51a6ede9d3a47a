"""Kernels of mixtures of experts.

Structure of a product::

    threads share (panel, slot):   slots in the order of their experts, so that a panel of one
                                   is read from memory once and stays in L2 for its other slots
        sums along K               of one slot, in several accumulators that are independent; integers by
                               the instructions of :mod:`.integer_words`, where the machine has them

Every slot is summed up in the same order whatever its company.
"""

from __future__ import annotations

from collections.abc import Callable

from hetero_tvm.codegen import vector_math
from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.decoding.experts import Combine, ExpertLinear, Route
from hetero_tvm.schedules.cpu.activation_code import ActivationCode
from hetero_tvm.schedules.cpu.decoding.integer_words import IntegerWordProduct, has_integer_words
from hetero_tvm.schedules.cpu.decoding.layout import VECTORS, PanelLayout
from hetero_tvm.schedules.cpu.decoding.parts import Parts
from hetero_tvm.schedules.cpu.decoding.symbolic import SymbolicKernel, each_row, quotient
from hetero_tvm.schedules.cpu.decoding.words import WordProduct
from hetero_tvm.schedules.cpu.rows.row_reduction import each_vector
from hetero_tvm.schedules.emit import Index, constant, int32

SumsAt = Callable[[Index, int], Expr]
"""(column of a panel, width) -> its sums."""
_LOWEST = -3.0e38
_SPLITS = 4
"""Accumulators of a column, which neighbours along K go to in turn."""


def emit_route(op: Route, machine: CpuModel) -> PrimFunc:
    """Kernel with arguments logits [rows, experts], and of all slots: expert, share, order.

    One thread does all: there are few numbers, and the order needs them all.
    """
    k = SymbolicKernel("route")
    with k:
        symbol, slots = k.symbol("m"), k.symbol("s")
        logits = k.argument("logits", (symbol, op.experts))
        chosen = k.argument("chosen", (slots,), "int32")
        shares = k.argument("shares", (slots,))
        order = k.argument("order", (slots,), "int32")
        rows = k.count(symbol)
        left, best = k.scratch((op.experts,)), k.scratch((1,), "int32")
        total, first = k.scratch((1,)), k.scratch((op.experts + 1,), "int32")
        with k.serial(rows) as i:
            with k.serial(op.experts) as e:
                k.store(left, k.load(logits, [i, e]), [e])
            with k.serial(op.top) as t:
                k.store(best, int32(0), [0])
                with k.serial(op.experts) as e:
                    with k.when(k.load(left, [e]) > k.load(left, [k.load(best, [0])])):
                        k.store(best, e, [0])
                found = k.let(k.load(best, [0]))
                k.store(chosen, found, [i * op.top + t])
                k.store(shares, k.load(logits, [i, found]), [i * op.top + t])
                k.store(left, constant(_LOWEST), [found])
            peak = k.let(k.load(shares, [i * op.top]))

            def power(value: Expr, peak: Expr = peak) -> Expr:
                return vector_math.exp(value - peak)

            k.store(total, constant(0.0), [0])
            with k.serial(op.top if op.normalised else op.experts) as e:
                term = k.load(shares, [i * op.top + e]) if op.normalised else k.load(logits, [i, e])
                k.store(total, k.load(total, [0]) + power(term), [0])
            with k.serial(op.top) as t:
                at = [i * op.top + t]
                k.store(shares, power(k.load(shares, at)) / k.load(total, [0]), at)

        count = k.let(rows * op.top)
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
            k.store(first, place + 1, [e])
    return k.function


def emit_expert_linear(op: ExpertLinear, machine: CpuModel) -> PrimFunc:
    """Kernel with arguments X [rows, k], expert and order of the slots, the arrays of :class:`PanelLayout` of
    all experts, Y [slots, n]."""
    layout = PanelLayout.of(op.linear, machine)
    k = SymbolicKernel("experts")
    with k:
        slots = k.symbol("s")
        rows = k.symbol("m")
        x = k.argument("X", (rows, op.linear.k))
        chosen, order = (k.argument(name, (slots,), "int32") for name in ("chosen", "order"))
        weight = [k.argument(n, (op.experts * s[0], *s[1:]), dtype) for n, s, dtype in layout.arrays()]
        y = k.argument("Y", (slots, op.linear.n))
        name = op.linear.activation
        activation = ActivationCode([name] if name else [], machine)
        parts = Parts(op.linear, machine, layout, k, x, weight, None, None, y, activation)
        count = k.count(slots)
        words: _SlotWords | None = None
        if op.linear.storage.bits and has_integer_words(machine):
            words = _SlotWords(parts)
        with k.imported(*activation.imports, *(words.imports if words else ())):
            if words is not None:
                words.prepare(k.count(rows))
            with k.shared_out(count * -(-op.linear.n // layout.columns)) as work:
                panel = k.let(tirx.truncdiv(work, count))
                slot = k.let(k.load(order, [work - panel * count]))
                row = k.let(quotient(slot, op.spread))
                first = k.let(k.load(chosen, [slot]) * layout.panels + panel)

                def finish(value_at: SumsAt) -> None:
                    parts.finish(slot, panel, value_at)

                if words is not None:
                    words.multiply(row, first, finish)
                else:
                    total = (_integers if op.linear.storage.bits else _floats)(parts, row, first)
                    finish(lambda start, width: k.load(total, [k.ramp(start, width)]))
    return k.function


class _SlotWords(IntegerWordProduct):
    """Products of one row at a time with a panel of integers, by integer instructions."""

    def prepare(self, rows: Expr) -> None:
        """Integers of all rows of X."""
        self._prepare(rows, rows)

    def multiply(self, row: Expr, panel: Expr, finish: Callable[[SumsAt], None]) -> None:
        """A row times a panel; ``finish`` stores the sums."""
        self._finish = lambda _row, _panel, value_at: finish(value_at)
        self._tile([row], panel, 1)


class _Sums:
    """Sums of the two vectors of a panel, each in several accumulators."""

    def __init__(self, p: Parts):
        self._k, self._lanes, self._width = p.k, p.lanes, p.layout.width
        self._acc = p.k.scratch((_SPLITS, p.layout.width))
        for split in range(_SPLITS):
            for v in range(VECTORS):
                p.k.store(self._acc, p.k.splat(0.0, p.lanes), [split, p.k.ramp(v * p.lanes, p.lanes)])

    def add(self, split: int, v: int, value: Expr) -> None:
        at = [split % _SPLITS, self._k.ramp(v * self._lanes, self._lanes)]
        self._k.store(self._acc, self._k.load(self._acc, at) + value, at)

    def whole(self, v: int) -> Expr:
        column = self._k.ramp(v * self._lanes, self._lanes)
        value = self._k.load(self._acc, [0, column])
        for split in range(1, _SPLITS):
            value = value + self._k.load(self._acc, [split, column])
        return value


def _floats(p: Parts, row: Expr, panel: Expr) -> Buffer:
    """Sums of a row with a panel of stored floats, in scratch."""
    k, lanes, depth = p.k, p.lanes, p.op.k
    total, sums = k.scratch((p.layout.width,)), _Sums(p)

    def step(at: Expr, split: int) -> None:
        value = k.splat(k.load(p.x, [row, at]), lanes)
        for v in range(VECTORS):
            sums.add(split, v, value * p.floats(panel, at, k.ramp(v * lanes, lanes)))

    whole = depth // _SPLITS
    with k.serial(whole) as at:
        for split in range(_SPLITS):
            step(at * _SPLITS + split, split)
    for split in range(depth - whole * _SPLITS):
        step(int32(whole * _SPLITS + split), split)
    for v in range(VECTORS):
        k.store(total, sums.whole(v), [k.ramp(v * lanes, lanes)])
    return total


def _integers(p: Parts, row: Expr, panel: Expr) -> Buffer:
    """Sums of a row with a panel of integers, in scratch: group by group, times their scales."""
    k, lanes, op, layout = p.k, p.lanes, p.op, p.layout
    words, group = WordProduct(p), op.storage.group
    total, own = k.scratch((layout.width,)), k.scratch((layout.groups * group,))
    columns = [k.ramp(v * lanes, lanes) for v in range(VECTORS)]
    for column in columns:
        k.store(total, k.splat(0.0, lanes), [column])
    each_vector(
        k, op.k, lanes, lambda c, w, _slot: k.store(own, k.load(p.x, [row, k.ramp(c, w)]), [k.ramp(c, w)])
    )
    if layout.groups * group > op.k:
        with k.serial(layout.groups * group - op.k) as rest:
            k.store(own, constant(0.0), [op.k + rest])
    with k.serial(layout.groups) as g:
        sums = _Sums(p)
        words.each_value(
            panel,
            g,
            lambda at, j, v, q: sums.add(j, v, k.splat(k.load(own, [at]), lanes) * q),
        )
        for v, column in enumerate(columns):
            part = sums.whole(v) * words.scale(panel, g, v)
            k.store(total, k.load(total, [column]) + part, [column])
    return total


def emit_combine(op: Combine, machine: CpuModel) -> PrimFunc:
    """Kernel with arguments D [slots, n], shares [slots], R [rows, n], S [rows, n] and gate [rows, 1] when
    there is a shared expert, Y [rows, n]."""
    k = SymbolicKernel("combine")
    with k:
        slots, symbol = k.symbol("s"), k.symbol("m")
        d, shares = k.argument("D", (slots, op.n)), k.argument("shares", (slots,))
        residual = k.argument("R", (symbol, op.n))
        shared = k.argument("S", (symbol, op.n)) if op.shared else None
        gate = k.argument("gate", (symbol, 1)) if op.shared else None
        y = k.argument("Y", (symbol, op.n))
        rows = k.count(symbol)

        def one_row(i: Expr) -> None:
            factor = None if gate is None else k.let(vector_math.sigmoid(k.load(gate, [i, 0])))

            def vector(c: Index, width: int, _slot: int) -> None:
                at = k.ramp(c, width)
                value = k.load(residual, [i, at])
                for t in range(op.top):
                    slot = i * op.top + t
                    value = value + k.splat(k.load(shares, [slot]), width) * k.load(d, [slot, at])
                if shared is not None and factor is not None:
                    value = value + k.splat(factor, width) * k.load(shared, [i, at])
                k.store(y, value, [i, at])

            each_vector(k, op.n, machine.lanes, vector)

        each_row(k, rows, machine, one_row)
    return k.function
