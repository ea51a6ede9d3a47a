"""Kernels of mixtures of experts.

Structure of a product::

    threads share (panels, run):   runs of slots that have one expert, in the order of the experts: its
                                   panels come from memory once and stay in L2 for the runs behind
        a slot alone               panels abreast, as one row of :mod:`.linear`
        several                    register tiles of their rows, gathered, times two vectors
        integers                   tiles by the instructions of :mod:`.integer_words`, where the machine
                                   has them

Every slot is summed up in the same order whatever its company.
"""

from __future__ import annotations

from collections.abc import Callable

from hetero_tvm.codegen import vector_math
from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.decoding.experts import Combine, ExpertLinear
from hetero_tvm.schedules.cpu.activation_code import ActivationCode
from hetero_tvm.schedules.cpu.decoding.integer_words import IntegerWordProduct, has_integer_words
from hetero_tvm.schedules.cpu.decoding.layout import VECTORS, PanelLayout
from hetero_tvm.schedules.cpu.decoding.linear import row_sums, tile_height
from hetero_tvm.schedules.cpu.decoding.parts import Parts
from hetero_tvm.schedules.cpu.decoding.symbolic import SymbolicKernel, each_row, quotient, remainder
from hetero_tvm.schedules.cpu.decoding.words import WordProduct
from hetero_tvm.schedules.cpu.register_tile import RegisterTile, accumulate
from hetero_tvm.schedules.cpu.rows.row_reduction import each_vector
from hetero_tvm.schedules.emit import Index, constant, int32

SumsAt = Callable[[Index, int], Expr]
"""(column of a panel, width) -> its sums."""
_UNROLL = 4
_SPLITS = 4
"""Accumulators of a column, which neighbours along K go to in turn."""


def emit_expert_linear(op: ExpertLinear, machine: CpuModel, x_bits: int = 0) -> PrimFunc:
    """Kernel with arguments X [rows, k], expert, order and runs of the slots, their shares when rows are
    scaled, the arrays of :class:`PanelLayout` of all experts, their biases when there are some, Y [slots, n].

    ``x_bits`` : see :class:`Parts`.
    """
    layout = PanelLayout.of(op.linear, machine)
    k = SymbolicKernel("experts")
    with k:
        slots = k.symbol("s")
        rows = k.symbol("m")
        x = k.argument("X", (rows, op.linear.k))
        chosen, order, runs = (k.argument(name, (slots,), "int32") for name in ("chosen", "order", "runs"))
        shares = k.argument("shares", (slots,)) if op.scaled else None
        weight = [k.argument(n, (op.experts * s[0], *s[1:]), dtype) for n, s, dtype in layout.arrays()]
        biases = (op.experts * layout.panels, layout.width)
        bias = k.argument("bias", biases) if op.linear.bias else None
        y = k.argument("Y", (slots, op.linear.n))
        name = op.linear.activation
        activation = ActivationCode([name] if name else [], machine)
        parts = Parts(op.linear, machine, layout, k, x, weight, bias, None, y, activation, x_bits)
        count = k.count(slots)
        words: _SlotWords | None = None
        if op.linear.storage.bits and has_integer_words(machine):
            words = _SlotWords(parts)
        with k.imported(*activation.imports, *(words.imports if words else ())):
            if words is not None:
                words.prepare(k.count(rows))
            pieces = -(-op.linear.n // (layout.columns * layout.together))
            with k.shared_out(count * pieces) as work:
                piece = k.let(tirx.truncdiv(work, count))
                place = k.let(work - piece * count)
                length = k.let(k.load(runs, [place]))
                with k.when(length > 0):
                    expert = k.let(k.load(chosen, [k.load(order, [place])]))
                    run = _Run(parts, op, order, shares, place, length, expert, piece * layout.together)
                    if words is not None:
                        run.integers(words)
                    elif op.linear.storage.bits:
                        run.slowly()
                    else:
                        run.floats()
    return k.function


class _Run:
    """Products of the slots of a run with panels of their expert, ``first`` and those abreast of it."""

    def __init__(
        self,
        p: Parts,
        op: ExpertLinear,
        order: Buffer,
        shares: Buffer | None,
        place: Expr,
        length: Expr,
        expert: Expr,
        first: Expr,
    ):
        self._p, self._k, self._spread = p, p.k, op.spread
        self._order, self._shares, self._place, self._length = order, shares, place, length
        self._base = p.k.let(expert * p.layout.panels)
        self._first = p.k.let(first)

    def floats(self) -> None:
        """Stored floats: one slot, or a tile of several."""
        p, k = self._p, self._k

        def one() -> None:
            slot, row = self._slot(int32(0))
            sums = row_sums(p, row, self._base + self._first)
            for i in range(p.layout.together):
                self._finish(slot, self._first + i, sums(i))

        def several(low: int, high: int) -> None:
            if low == high:
                self._tile(low)
                return
            middle = (low + high) // 2
            k.branch(self._length <= middle, lambda: several(low, middle), lambda: several(middle + 1, high))

        k.branch(tirx.EQ(self._length, 1), one, lambda: several(2, tile_height(p.machine)))

    def integers(self, words: _SlotWords) -> None:
        """Integers by integer instructions."""
        k, height = self._k, words.height
        whole = k.let(quotient(self._length, height))

        def tiles(panel: Expr) -> None:
            with k.serial(whole) as tile:
                self._words(words, panel, tile * height, height)
            power, rest = 1 << (height - 1).bit_length() - 1, k.let(remainder(self._length, height))
            while power:
                with k.when(tirx.bitwise_and(rest, int32(power)) > 0):
                    at = whole * height + tirx.bitwise_and(rest, int32(-2 * power))
                    self._words(words, panel, at, power)
                power //= 2

        with k.serial(self._p.layout.together) as i:
            tiles(k.let(self._first + i))

    def slowly(self) -> None:
        """Integers where there are no such instructions: as floats, slot by slot."""
        k = self._k
        with k.serial(self._length) as at, k.serial(self._p.layout.together) as i:
            slot, row = self._slot(at)
            total = _integers(self._p, row, self._base + self._first + i)
            self._finish(slot, self._first + i, lambda start, width: k.load(total, [k.ramp(start, width)]))

    def _slot(self, at: Expr) -> tuple[Expr, Expr]:
        """A slot of the run, and its row of X."""
        slot = self._k.let(self._k.load(self._order, [self._place + at]))
        return slot, self._k.let(quotient(slot, self._spread))

    def _finish(self, slot: Expr, panel: Expr, value_at: SumsAt) -> None:
        if self._shares is None:
            self._p.finish(slot, panel, value_at, self._base + panel)
            return
        share = self._k.let(self._k.load(self._shares, [slot]))
        self._p.finish(
            slot, panel, lambda c, width: value_at(c, width) * self._k.splat(share, width), self._base + panel
        )

    def _words(self, words: _SlotWords, panel: Expr, first: Expr, count: int) -> None:
        places = [self._slot(first + r) for r in range(count)]
        slots = [slot for slot, _ in places]
        words.multiply(
            [row for _, row in places],
            self._base + panel,
            lambda r, value_at: self._finish(slots[r], panel, value_at),
        )

    def _tile(self, height: int) -> None:
        p, k, lanes = self._p, self._k, self._p.lanes
        rows = k.scratch((height,), "int32")
        slots = [self._slot(int32(r)) for r in range(height)]
        for r, (_, row) in enumerate(slots):
            k.store(rows, row, [r])
        with k.serial(p.layout.together) as i:
            panel = k.let(self._first + i)
            acc = k.scratch((height, p.layout.width))
            accumulate(
                k,
                acc,
                RegisterTile(height, VECTORS),
                lanes,
                p.op.k,
                _UNROLL,
                lambda r, at: k.load(p.x, [k.load(rows, [r]), at]),
                lambda at, column: p.floats(self._base + panel, at, column),
            )
            for r, (slot, _) in enumerate(slots):
                self._finish(slot, panel, lambda start, width, r=r: k.load(acc, [r, k.ramp(start, width)]))


class _SlotWords(IntegerWordProduct):
    """Products of a few rows with a panel of integers, by integer instructions.

    Attributes
    ----------
    height : most rows of a tile.
    """

    def prepare(self, rows: Expr) -> None:
        """Integers of all rows of X."""
        self.height = self._height
        self._prepare(rows, rows)

    def multiply(self, rows: list[Expr], panel: Expr, finish: Callable[[int, SumsAt], None]) -> None:
        """Rows times a panel; ``finish(number of the row, sums)`` stores them."""
        self._stored = finish
        self._tile(rows, panel, 1)

    def _finish_tile(
        self, rows: list[Expr], first: Expr, vectors: list[tuple[int, int]], total: Buffer
    ) -> None:
        k, lanes = self._k, self._lanes
        for r in range(len(rows)):

            def value_at(start: Index, width: int, r: int = r) -> Expr:
                slot = r * VECTORS + int(start) // lanes
                return k.load(total, [slot, k.ramp(int(start) % lanes, width)])

            self._stored(r, value_at)


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
    """Kernel with arguments D [slots, n], shares [slots] if there are some, R [rows, n] if there is one,
    S [rows, n] and gate [rows, 1] when there is a shared expert, Y [rows, n]."""
    k = SymbolicKernel("combine")
    with k:
        slots, symbol = k.symbol("s"), k.symbol("m")
        d = k.argument("D", (slots, op.n))
        shares = k.argument("shares", (slots,)) if op.shares else None
        residual = k.argument("R", (symbol, op.n)) if op.residual else None
        shared = k.argument("S", (symbol, op.n)) if op.shared else None
        gate = k.argument("gate", (symbol, 1)) if op.shared else None
        y = k.argument("Y", (symbol, op.n))
        rows = k.count(symbol)

        def one_row(i: Expr) -> None:
            factor = None if gate is None else k.let(vector_math.sigmoid(k.load(gate, [i, 0])))

            def vector(c: Index, width: int, _slot: int) -> None:
                at = k.ramp(c, width)
                value = None if residual is None else k.load(residual, [i, at])
                for t in range(op.top):
                    slot = i * op.top + t
                    term = k.load(d, [slot, at])
                    if shares is not None:
                        term = k.splat(k.load(shares, [slot]), width) * term
                    value = term if value is None else value + term
                if shared is not None and factor is not None:
                    value = value + k.splat(factor, width) * k.load(shared, [i, at])
                k.store(y, value, [i, at])

            each_vector(k, op.n, machine.lanes, vector)

        each_row(k, rows, machine, one_row)
    return k.function
