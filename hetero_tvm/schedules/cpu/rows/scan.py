"""Running sums and products along an axis.

Loop structure, where the axis is not the innermost one::

    parallel rows of outer axes x strips of inner columns:
        Y of the first element = X
        for each further element of the axis:
            Y = combine(Y of the element before, which is in L1, X)

and where it is::

    parallel rows:
        for each vector of the row:
            its own scan, in log2(lanes) steps of a shuffle and an addition
            combined with the last result so far, stored

Only that last combination waits for the vector before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hetero_tvm.host.tvm import Expr, PrimFunc, tirx, tvm
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.emit import Index, Kernel, for_graph, int32, vector_loop

_STRIP_BYTES = 8 << 10
"""Bytes of a strip: it stays in L1, and is long enough for the hardware to fetch ahead in each row."""


def emit_scan(
    machine: CpuModel,
    shape: Sequence[int],
    axis: int,
    given: str,
    dtype: str,
    *,
    product: bool,
    exclusive: bool,
) -> PrimFunc:
    """The kernel from a tensor of dtype ``given`` to one of ``dtype`` (what ``ScanAsKernel`` asks for)."""
    return _ScanKernel(machine, shape, axis, given, dtype, product, exclusive).emit()


class _ScanKernel:
    """Emits one scan."""

    def __init__(
        self,
        machine: CpuModel,
        shape: Sequence[int],
        axis: int,
        given: str,
        dtype: str,
        product: bool,
        exclusive: bool,
    ):
        self.shape, self.given, self.dtype = tuple(shape), given, dtype
        self.extent, self.inner = shape[axis], math.prod(shape[axis + 1 :])
        self.outer = math.prod(shape[:axis])
        self.product, self.exclusive, self.threads = product, exclusive, machine.threads
        self.lanes = max(2, machine.lanes * 32 // tvm.DataType(dtype).bits)
        self.k = Kernel()

    def emit(self) -> PrimFunc:
        """The PrimFunc: X, Y."""
        k, size = self.k, math.prod(self.shape)
        with k:
            x, y = k.argument("X", self.shape, self.given), k.argument("Y", self.shape, self.dtype)
            self.x, self.y = k.view(x, (size,)), k.view(y, (size,))
            if self.inner == 1:
                with k.parallel(self.outer, 8 * size) as row:
                    self._row(k.let(row * self.extent))
            else:
                self._strips(size)
        return for_graph(k.function, size)

    def _strips(self, size: int) -> None:
        k, wanted = self.k, -(-self.inner // -(-self.threads // self.outer))  # wide: rows may be pages apart
        whole = -(-wanted // self.lanes) * self.lanes
        strip = min(whole, self.inner, _STRIP_BYTES * 8 // tvm.DataType(self.dtype).bits)
        strips = -(-self.inner // strip)
        last = self.inner - (strips - 1) * strip
        with k.parallel(self.outer * strips, 8 * size) as item:
            at, number = tirx.floordiv(item, strips), tirx.floormod(item, strips)
            base = k.let(at * (self.extent * self.inner) + number * strip)
            if last == strip:
                self._strip(base, strip)
            else:
                whole = number < strips - 1
                k.branch(whole, lambda: self._strip(base, strip), lambda: self._strip(base, last))

    # values --------------------------------------------------------------------------------------
    def _combined(self, a: Expr, b: Expr) -> Expr:
        return a * b if self.product else a + b

    def _neutral(self, width: int) -> Expr:
        return self.k.splat(tirx.const(1 if self.product else 0, self.dtype), width)

    def _load(self, at: Index, width: int) -> Expr:
        value = self.k.load(self.x, [self.k.ramp(at, width)])
        if self.given == self.dtype:
            return value
        return tirx.Cast(self.dtype if width == 1 else f"{self.dtype}x{width}", value)

    # strips of columns ---------------------------------------------------------------------------
    def _strip(self, base: Expr, columns: int) -> None:
        k = self.k

        def first(start: Index, width: int) -> None:
            at = base + start
            value = self._neutral(width) if self.exclusive else self._load(at, width)
            k.store(self.y, value, [k.ramp(at, width)])

        vector_loop(k, columns, self.lanes, first, unroll=4)
        with k.serial(self.extent - 1) as e:

            def step(start: Index, width: int) -> None:
                before = base + e * self.inner + start
                at = before + self.inner
                result = self._combined(
                    k.load(self.y, [k.ramp(before, width)]),
                    self._load(before if self.exclusive else at, width),
                )
                k.store(self.y, result, [k.ramp(at, width)])

            vector_loop(k, columns, self.lanes, step, unroll=4)

    # rows ----------------------------------------------------------------------------------------
    def _row(self, base: Expr) -> None:
        k, lanes = self.k, self.lanes
        last = k.scratch((1,), self.dtype)
        k.store(last, self._neutral(1), [0])
        full, rest = divmod(self.extent, lanes)
        if full:
            with k.serial(full) as v:
                self._vector(last, base + v * lanes)
        if rest:
            with k.serial(rest) as e:
                at = base + full * lanes + e
                value = k.let(self._load(at, 1))
                after = k.let(self._combined(k.load(last, [0]), value))
                k.store(self.y, k.load(last, [0]) if self.exclusive else after, [at])
                k.store(last, after, [0])

    def _vector(self, last: Expr, at: Expr) -> None:
        k, lanes = self.k, self.lanes
        value, step = k.let(self._load(at, lanes)), 1
        while step < lanes:
            value = k.let(self._combined(value, self._shifted(value, step)))
            step *= 2
        before = k.let(k.load(last, [0]))
        own = self._shifted(value, 1) if self.exclusive else value
        k.store(self.y, self._combined(own, k.splat(before, lanes)), [k.ramp(at, lanes)])
        total = tirx.Shuffle([value], [int32(lanes - 1)])
        k.store(last, self._combined(before, total), [0])

    def _shifted(self, value: Expr, step: int) -> Expr:
        """``value`` moved ``step`` lanes up, neutral values below."""
        lanes = self.lanes
        return tirx.Shuffle([self._neutral(lanes), value], [int32(lanes - step + n) for n in range(lanes)])
