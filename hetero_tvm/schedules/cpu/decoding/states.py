"""Kernels of layers that keep a state of each text: threads share channels, and each goes through the rows
one after the other, so that the state of its channels stays in its cache."""

from __future__ import annotations

import math
from collections.abc import Callable

from hetero_tvm.codegen import vector_functions, vector_math
from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, Var, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.decoding.states import DeltaScan, Gate, GatedNorm, Scan, ShortConvolution
from hetero_tvm.schedules.cpu.activation_code import ActivationCode
from hetero_tvm.schedules.cpu.decoding.symbolic import SymbolicKernel, each_row, quotient, remainder
from hetero_tvm.schedules.cpu.rows.row_reduction import add, each_vector, reduce_row
from hetero_tvm.schedules.emit import LAUNCH_FLOPS, Index, constant

_ALL_BUT_LINEAR = 20.0
"""Steps from which the softplus is the identity, as in PyTorch."""

_VECTORS = 16
"""Most vectors of a row that a convolution takes before the next row."""


_TOGETHER, _TERMS = 4, 8
"""Most vectors of a head that a thread takes together, which read the same B and C (queries and keys), and
most terms that are summed up before the sum in memory, so that no term waits for another."""


class _States:
    """Places of the states of rows, as arguments of a kernel."""

    def __init__(self, k: SymbolicKernel, rows: Var):
        self._k = k
        self._positions = k.argument("positions", (rows,), "int32")
        self._sequences = k.argument("sequences", (rows,), "int32")
        self._slots = k.argument("slots", (k.symbol("s"),), "int32")
        self._place = k.argument("place", (1,), "int32")

    def pool(self, width: int) -> Buffer:
        """The next argument: the pool."""
        return self._k.argument("states", (self._k.symbol("q"), width))

    def of(self, i: Expr) -> tuple[Expr, Expr, Expr]:
        """Position of a row, the slot of its state, and where the layer's part begins in it."""
        k = self._k
        slot = k.let(k.load(self._slots, [k.load(self._sequences, [i])]))
        return k.let(k.load(self._positions, [i])), slot, k.let(k.load(self._place, [0]))


def _each_vector(
    k: SymbolicKernel, vectors: int, rows: Expr, work: int, body: Callable[[Expr], None]
) -> None:
    """``body(vector)`` of all, by all threads unless ``work`` of each for all rows is little."""
    few = max(1, LAUNCH_FLOPS // max(1, work * vectors))
    k.shared_unless(rows < few if few > 1 else False, vectors, body)


def _together(tasks: int, vectors: int, machine: CpuModel) -> int:
    """Vectors of a head that are taken together; fewer where threads would have nothing to do."""
    return max(n for n in (1, 2, _TOGETHER) if vectors % n == 0 and (n == 1 or tasks // n >= machine.threads))


def _kept(k: SymbolicKernel, value: Expr, lanes: int) -> Expr:
    """A value that is computed here and once: one that is only bound may be written out at every use, and
    what is made of several functions then grows as their product."""
    place, at = k.scratch((lanes,)), [k.ramp(0, lanes)]
    k.store(place, value, at)
    return k.load(place, at)


def _softplus(k: SymbolicKernel, raw: Expr, lanes: int) -> Expr:
    """``log(1 + exp(raw))``; above the bound the logarithm is not used, and its exponential stays finite."""
    bound, raw = k.splat(_ALL_BUT_LINEAR, lanes), _kept(k, raw, lanes)
    power = _kept(k, vector_math.exp(tirx.min(raw, bound)), lanes)
    return _kept(k, tirx.Select(raw > bound, raw, vector_functions.log1p(power)), lanes)


def emit_short_convolution(op: ShortConvolution, machine: CpuModel) -> PrimFunc:
    """Kernel with arguments X [rows, x.total], W [size, width], bias [width] when there is one, positions,
    sequences, slots, place [1], states, Y [rows, width]."""
    ring, width = op.size - 1, math.gcd(op.width, machine.lanes)
    k = SymbolicKernel("short_convolution")
    with k:
        symbol = k.symbol("n")
        x = k.argument("X", (symbol, op.x.total))
        w = k.argument("W", (op.size, op.width))
        bias = k.argument("bias", (op.width,)) if op.bias else None
        states = _States(k, symbol)
        pool = states.pool(op.pool)
        y = k.argument("Y", (symbol, op.width))
        rows = k.count(symbol)
        act = ActivationCode([op.activation] if op.activation else [], machine)

        def column(i: Expr, part: int, c: Expr) -> Expr:
            return k.load(x, [i, k.ramp(c + (op.x.first + part * op.width), width)])

        def one(i: Expr, c: Expr, position: Expr, slot: Expr, place: Expr) -> None:
            """One vector of a row."""
            value = column(i, 0, c)
            value = k.let(value * column(i, 2, c) if op.gated else value)
            first = value * k.load(w, [ring, k.ramp(c, width)])
            if bias is not None:
                first = first + k.load(bias, [k.ramp(c, width)])
            total, at = k.scratch((width,)), [k.ramp(0, width)]
            k.store(total, first, at)
            for before in range(1, op.size):
                with k.when(position >= before):
                    row = k.let(remainder(position - before, ring))
                    kept = k.load(pool, [slot, k.ramp(place + row * op.width + c, width)])
                    tap = k.load(w, [ring - before, k.ramp(c, width)])
                    k.store(total, k.load(total, at) + kept * tap, at)
            row = k.let(remainder(position, ring))
            k.store(pool, value, [slot, k.ramp(place + row * op.width + c, width)])
            result = k.load(total, at)
            if op.activation:
                result = act.apply(op.activation, result, width)
            if op.gated:
                result = result * column(i, 1, c)
            k.store(y, result, [i, k.ramp(c, width)])

        vectors = op.width // width
        # Neighbouring lines of a row together: rows are far apart, and each is another page.
        each = math.gcd(vectors, _VECTORS)

        def block(number: Expr) -> None:
            with k.serial(rows) as i:
                position, slot, place = states.of(i)
                with k.serial(each) as vector:
                    one(i, k.let((number * each + vector) * width), position, slot, place)

        _each_vector(k, vectors // each, rows, 4 * op.size * each, block)
    return k.function


def emit_scan(op: Scan, machine: CpuModel) -> PrimFunc:
    """Kernel with arguments X, B, C, steps, the gate when there is one, a, skip, the bias
    unless steps are of channels, positions, sequences, slots, place [1], states, Y [rows, heads * dim]."""
    width = math.gcd(op.dim, machine.lanes)
    channels, vectors = op.heads * op.dim, op.dim // width
    few = channels if op.by_channel else op.heads
    k = SymbolicKernel("scan")
    with k:
        symbol = k.symbol("n")
        x = k.argument("X", (symbol, op.x.total))
        written, read = (k.argument(n, (symbol, cols.total)) for n, cols in (("B", op.b), ("C", op.c)))
        steps = k.argument("steps", (symbol, op.steps.total))
        gate = k.argument("gate", (symbol, op.gate.total)) if op.gate else None
        rates = k.argument("a", (op.size, few) if op.by_channel else (few,))
        skips = k.argument("skip", (few,))
        bias = None if op.by_channel else k.argument("bias", (few,))
        states = _States(k, symbol)
        pool = states.pool(op.pool)
        y = k.argument("Y", (symbol, channels))
        rows = k.count(symbol)

        def step_of(i: Expr, at: Index, lanes: int) -> Expr:
            raw = k.load(steps, [i, k.ramp(at + op.steps.first, lanes)])
            return _softplus(k, raw if bias is None else raw + k.load(bias, [k.ramp(at, lanes)]), lanes)

        each = 1 if op.by_channel else _together(op.heads * vectors, vectors, machine)
        terms = math.gcd(op.size, 2 if op.by_channel else _TERMS)

        def block(number: Expr) -> None:
            head = k.let(quotient(number * each, vectors))
            first = k.let(number * (each * width))
            inner = k.let(remainder(number * each, vectors) * width)
            group = k.let(quotient(head, op.heads // op.groups) * op.size)
            totals, at = [k.scratch((width,)) for _ in range(each)], [k.ramp(0, width)]
            lanes, own = (width, first) if op.by_channel else (1, head)

            def wide(value: Expr) -> Expr:
                return value if op.by_channel else k.splat(value, width)

            with k.serial(rows) as i:
                position, slot, place = states.of(i)
                base = k.let(place + head * (op.size * op.dim) + inner)

                def cell(s: Expr, vector: int) -> list[Index]:
                    return [slot, k.ramp(base + s * op.dim + vector * width, width)]

                with k.when(tirx.EQ(position, 0)):
                    with k.serial(op.size) as s:
                        for vector in range(each):
                            k.store(pool, k.splat(0.0, width), cell(s, vector))
                step = step_of(i, own, lanes)
                skip = wide(k.load(skips, [k.ramp(own, lanes)]))
                grown = []
                for vector, total in enumerate(totals):
                    value = k.let(k.load(x, [i, k.ramp(first + (op.x.first + vector * width), width)]))
                    grown.append(_kept(k, value * wide(step), width))
                    k.store(total, value * skip, at)
                decay = None
                if not op.by_channel:
                    decay = k.splat(_kept(k, vector_math.exp(step * k.load(rates, [head])), 1), width)
                with k.serial(op.size // terms) as run:
                    sums: list[Expr | None] = [None] * each
                    for term in range(terms):
                        s = k.let(run * terms + term)
                        b = k.splat(k.load(written, [i, group + s + op.b.first]), width)
                        c_of = k.splat(k.load(read, [i, group + s + op.c.first]), width)
                        kept = decay
                        if kept is None:
                            kept = vector_math.exp(step * k.load(rates, [s, k.ramp(first, width)]))
                        for vector in range(each):
                            h = k.let(k.load(pool, cell(s, vector)) * kept + grown[vector] * b)
                            k.store(pool, h, cell(s, vector))
                            before = sums[vector]
                            sums[vector] = k.let(h * c_of if before is None else before + h * c_of)
                    for total, terms_of in zip(totals, sums, strict=True):
                        k.store(total, k.load(total, at) + terms_of, at)
                for vector, total in enumerate(totals):
                    result, c = k.load(total, at), first + vector * width
                    if gate is not None and op.gate is not None:
                        z = k.load(gate, [i, k.ramp(c + op.gate.first, width)])
                        result = result * vector_math.silu(z)
                    k.store(y, result, [i, k.ramp(c, width)])

        work = op.size * (12 if op.by_channel else 5) * each
        _each_vector(k, op.heads * vectors // each, rows, work, block)
    return k.function


def emit_delta_scan(op: DeltaScan, machine: CpuModel) -> PrimFunc:
    """Kernel with arguments QKV [rows, width], shares, steps, a [decays], bias [decays], positions,
    sequences, slots, place [1], states, Y [rows, heads * values]."""
    width = math.gcd(op.values, machine.lanes)
    vectors, keys = op.values // width, op.key_heads * op.dim
    k = SymbolicKernel("delta_scan")
    with k:
        symbol = k.symbol("n")
        qkv = k.argument("QKV", (symbol, op.width))
        shares = k.argument("shares", (symbol, op.shares.total))
        steps = k.argument("steps", (symbol, op.steps.total))
        rates, bias = (k.argument(name, (op.decays,)) for name in ("a", "bias"))
        states = _States(k, symbol)
        pool = states.pool(op.pool)
        y = k.argument("Y", (symbol, op.heads * op.values))
        rows = k.count(symbol)

        def unit(i: Expr, first: Expr) -> Expr:
            """Factor that gives the channels from ``first`` on the length 1."""

            def square(c: Index, lanes: int) -> Expr:
                value = k.let(k.load(qkv, [i, k.ramp(first + c, lanes)]))
                return value * value

            total = reduce_row(k, op.dim, machine.lanes, square, add, 0.0)
            return constant(1.0) / tirx.sqrt(total + constant(op.eps))

        each, terms = _together(op.heads * vectors, vectors, machine), math.gcd(op.dim, _TERMS)

        def block(number: Expr) -> None:
            head = k.let(quotient(number * each, vectors))
            inner = k.let(remainder(number * each, vectors) * width)
            query = k.let(quotient(head, op.heads // op.key_heads) * op.dim)
            totals, at = [k.scratch((width,)) for _ in range(each)], [k.ramp(0, width)]
            decays = k.scratch((op.dim if op.by_channel else 1,))
            with k.serial(rows) as i:
                position, slot, place = states.of(i)
                base = k.let(place + head * (op.dim * op.values) + inner)

                def cell(d: Expr, vector: int) -> list[Index]:
                    return [slot, k.ramp(base + d * op.values + vector * width, width)]

                with k.when(tirx.EQ(position, 0)):
                    with k.serial(op.dim) as d:
                        for vector in range(each):
                            k.store(pool, k.splat(0.0, width), cell(d, vector))
                to_q = _kept(k, unit(i, query) * constant(op.dim**-0.5), 1)
                to_k = _kept(k, unit(i, query + keys), 1)
                share = vector_math.sigmoid(k.load(shares, [i, head + op.shares.first]))
                share = _kept(k, share * constant(op.reach) if op.reach != 1.0 else share, 1)
                first = head * op.dim if op.by_channel else head

                def decay(c: Index, lanes: int, _slot: int) -> None:
                    at = [k.ramp(first + c, lanes)]
                    raw = k.load(steps, [i, k.ramp(first + c + op.steps.first, lanes)]) + k.load(bias, at)
                    value = vector_math.exp(_softplus(k, raw, lanes) * k.load(rates, at))
                    k.store(decays, value, [k.ramp(c, lanes)])

                each_vector(k, op.dim if op.by_channel else 1, machine.lanes, decay)

                def key(d: Expr) -> Expr:
                    return k.let(k.splat(k.load(qkv, [i, query + keys + d]) * to_k, width))

                def added_up(
                    kept_of: Callable[[Expr, int, Expr], Expr], factor: Callable[[Expr, Expr], Expr]
                ) -> None:
                    """Sums over the keys of what the state becomes times a factor."""
                    for total in totals:
                        k.store(total, k.splat(0.0, width), at)
                    with k.serial(op.dim // terms) as run:
                        sums: list[Expr | None] = [None] * each
                        for term in range(terms):
                            d = k.let(run * terms + term)
                            of_key = key(d)
                            times = factor(d, of_key)
                            for vector in range(each):
                                kept = k.let(kept_of(d, vector, of_key))
                                k.store(pool, kept, cell(d, vector))
                                before = sums[vector]
                                sums[vector] = k.let(
                                    kept * times if before is None else before + kept * times
                                )
                        for total, terms_of in zip(totals, sums, strict=True):
                            k.store(total, k.load(total, at) + terms_of, at)

                forgets = None if op.by_channel else k.splat(k.let(k.load(decays, [0])), width)

                def kept(d: Expr, vector: int, _of_key: Expr) -> Expr:
                    of_channel = k.splat(k.load(decays, [d]), width) if forgets is None else forgets
                    return k.load(pool, cell(d, vector)) * of_channel

                added_up(
                    kept,
                    lambda d, of_key: of_key,
                )
                c = k.let(head * op.values + inner)
                added = []
                for vector, total in enumerate(totals):
                    value = k.load(qkv, [i, k.ramp(c + (2 * keys + vector * width), width)])
                    added.append(_kept(k, (value - k.load(total, at)) * k.splat(share, width), width))
                added_up(
                    lambda d, vector, of_key: k.load(pool, cell(d, vector)) + added[vector] * of_key,
                    lambda d, of_key: k.let(k.splat(k.load(qkv, [i, query + d]) * to_q, width)),
                )
                for vector, total in enumerate(totals):
                    k.store(y, k.load(total, at), [i, k.ramp(c + vector * width, width)])

        _each_vector(k, op.heads * vectors // each, rows, 8 * op.dim * each, block)
    return k.function


def emit_gate(op: Gate, machine: CpuModel) -> PrimFunc:
    """Kernel with arguments X, gate, Y, each [rows, width]."""
    k = SymbolicKernel("gate")
    with k:
        symbol = k.symbol("n")
        x, gate, y = (k.argument(name, (symbol, op.width)) for name in ("X", "gate", "Y"))

        def one_row(i: Expr) -> None:
            def vector(c: Index, width: int, _slot: int) -> None:
                at = [i, k.ramp(c, width)]
                k.store(y, k.load(x, at) * vector_math.sigmoid(k.load(gate, at)), at)

            each_vector(k, op.width, machine.lanes, vector)

        each_row(k, k.count(symbol), machine, one_row)
    return k.function


def emit_gated_norm(op: GatedNorm, machine: CpuModel) -> PrimFunc:
    """Kernel with arguments X [rows, width], gate [rows, gate.total], scale [width], Y [rows, width]."""
    size = op.width // op.groups
    k = SymbolicKernel("gated_norm")
    with k:
        symbol = k.symbol("n")
        x = k.argument("X", (symbol, op.width))
        gate = k.argument("gate", (symbol, op.gate.total))
        scale = k.argument("scale", (op.width,))
        y = k.argument("Y", (symbol, op.width))

        def one_row(i: Expr) -> None:
            with k.serial(op.groups) as group:
                base = k.let(group * size)

                def opened(c: Index, width: int) -> Expr:
                    value = k.load(gate, [i, k.ramp(c + op.gate.first, width)])
                    return vector_math.sigmoid(value) if op.sigmoid else vector_math.silu(value)

                def square(c: Index, width: int) -> Expr:
                    at = [i, k.ramp(base + c, width)]
                    value = k.load(x, at)
                    if op.before:
                        value = k.let(value)
                    else:
                        value = k.let(value * opened(base + c, width))
                        k.store(y, value, at)
                    return value * value

                mean = reduce_row(k, size, machine.lanes, square, add, 0.0) * constant(1.0 / size)
                factor = k.let(constant(1.0) / tirx.sqrt(mean + constant(op.eps)))
                width = math.gcd(size, machine.lanes)
                with k.serial(size // width) as vector:
                    c = k.let(base + vector * width)
                    at = [i, k.ramp(c, width)]
                    value = k.load(x if op.before else y, at)
                    value = value * k.splat(factor, width) * k.load(scale, [k.ramp(c, width)])
                    k.store(y, value * opened(c, width) if op.before else value, at)

        each_row(k, k.count(symbol), machine, one_row)
    return k.function
