"""Running sums and products along an axis.

Loop structure, where the axis is not the innermost one::

    parallel rows of outer axes x strips of inner columns:
        Y of the first element = X
        for each further element of the axis:
            Y = combine(result of the element before, which is in L1, X)

and where it is::

    parallel rows:
        for each vector of the row:
            its own scan, in log2(lanes) steps of a shuffle and an addition
            combined with the last result so far, stored

Only that last combination waits for the vector before.  What has been summed up so far is kept in float64
where results are float32, else each step would add a rounding error as large as that of the sum.

Scans in reverse go from the last element of the axis to the first.

Of extents that may be known at run time only, strips have one width, and the columns that are left come by
vectors and one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hetero_tvm.host.tvm import Expr, PrimFunc, tirx, tvm
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.emit import Index, Kernel, for_graph, int32, vector_loop

_STRIP_BYTES = 8 << 10
"""Bytes of a strip: it stays in L1, and is long enough for the hardware to fetch ahead in each row."""
_ALONE = 8192
"""Elements below which other threads are not woken."""


def emit_scan(
    machine: CpuModel,
    shape: Sequence[int],
    axis: int,
    given: str,
    dtype: str,
    *,
    product: bool,
    exclusive: bool,
    reverse: bool = False,
    ranges: bool = False,
) -> PrimFunc:
    """The kernel from a tensor of dtype ``given`` to one of ``dtype`` (what ``ScanAsKernel`` asks for).

    ``ranges`` : whether extents may be known at run time only; the loops are the same at all of them then.
    """
    kind = _OpenScanKernel if ranges else _ScanKernel
    return kind(machine, shape, axis, given, dtype, product, exclusive, reverse).emit()


class _ScanKernel:
    """Emits one scan."""

    extent: Index
    inner: Index

    def __init__(
        self,
        machine: CpuModel,
        shape: Sequence[int],
        axis: int,
        given: str,
        dtype: str,
        product: bool,
        exclusive: bool,
        reverse: bool,
    ):
        self.reverse = reverse
        self.shape, self.given, self.dtype = tuple(shape), given, dtype
        self.extent, self.inner = shape[axis], math.prod(shape[axis + 1 :])
        self.outer = math.prod(shape[:axis])
        self.product, self.exclusive, self.threads = product, exclusive, machine.threads
        self.lanes = max(2, machine.lanes * 32 // tvm.DataType(dtype).bits)
        self.state = "float64" if dtype == "float32" else dtype
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
        strip = min(whole, self.inner, _STRIP_BYTES * 8 // tvm.DataType(self.state).bits)
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

    def _vectors_of(self, extent: Index) -> Index:
        """Whole vectors of an extent."""
        if isinstance(extent, int):
            return extent // self.lanes
        return self.k.let(tirx.truncdiv(extent, int32(self.lanes)))

    # values --------------------------------------------------------------------------------------
    def _combined(self, a: Expr, b: Expr) -> Expr:
        return a * b if self.product else a + b

    def _neutral(self, width: int, dtype: str = "") -> Expr:
        return self.k.splat(tirx.const(1 if self.product else 0, dtype or self.dtype), width)

    def _load(self, at: Index, width: int, dtype: str = "") -> Expr:
        return _cast(self.k.load(self.x, [self.k.ramp(at, width)]), self.given, dtype or self.dtype, width)

    def _rounded(self, state: Expr, width: int) -> Expr:
        """Result that a state of float64 stands for."""
        return _cast(state, self.state, self.dtype, width)

    # strips of columns ---------------------------------------------------------------------------
    def _strip(self, base: Expr, columns: int) -> None:
        k = self.k
        state = k.scratch((columns,), self.state)
        if self.reverse:
            base = k.let(base + (self.extent - 1) * self.inner)

        def first(start: Index, width: int) -> None:
            at = base + start
            exclusive = self.exclusive
            value = k.let(
                self._neutral(width, self.state) if exclusive else self._load(at, width, self.state)
            )
            k.store(state, value, [k.ramp(start, width)])
            k.store(self.y, self._rounded(value, width), [k.ramp(at, width)])

        vector_loop(k, columns, self.lanes, first, unroll=4)
        with k.serial(self.extent - 1) as e:

            def step(start: Index, width: int) -> None:
                there, sign = [k.ramp(start, width)], -1 if self.reverse else 1
                before = base + sign * e * self.inner + start
                at = before + sign * self.inner
                value = self._load(before if self.exclusive else at, width, self.state)
                result = k.let(self._combined(k.load(state, there), value))
                k.store(state, result, there)
                k.store(self.y, self._rounded(result, width), [k.ramp(at, width)])

            vector_loop(k, columns, self.lanes, step, unroll=4)

    # rows ----------------------------------------------------------------------------------------
    def _row(self, base: Expr) -> None:
        k, lanes = self.k, self.lanes
        last = k.scratch((1,), self.state)
        k.store(last, self._neutral(1, self.state), [0])
        full = self._vectors_of(self.extent)
        rest = self.extent - full * lanes
        if not isinstance(full, int) or full:
            with k.serial(full) as v:
                self._vector(last, base + (self.extent - (v + 1) * lanes if self.reverse else v * lanes))
        if not isinstance(rest, int) or rest:
            with k.serial(rest) as e:
                at = base + (rest - 1 - e if self.reverse else full * lanes + e)
                value = self._load(at, 1, self.state)
                after = k.let(self._combined(k.load(last, [0]), value))
                k.store(self.y, self._rounded(k.load(last, [0]) if self.exclusive else after, 1), [at])
                k.store(last, after, [0])

    def _vector(self, last: Expr, at: Expr) -> None:
        # Errors of products of one vector multiply, those of sums are small beside all that is summed up.
        k, lanes, kind = self.k, self.lanes, self.state if self.product else self.dtype
        value, step = k.let(self._load(at, lanes, kind)), 1
        while step < lanes:
            value = k.let(self._combined(value, self._shifted(value, step, kind)))
            step *= 2
        before = k.let(k.load(last, [0]))
        own = self._shifted(value, 1, kind) if self.exclusive else value
        result = self._combined(own, k.splat(_cast(before, self.state, kind, 1), lanes))
        k.store(self.y, _cast(result, kind, self.dtype, lanes), [k.ramp(at, lanes)])
        end = 0 if self.reverse else lanes - 1
        total = _cast(tirx.Shuffle([value], [int32(end)]), kind, self.state, 1)
        k.store(last, self._combined(before, total), [0])

    def _shifted(self, value: Expr, step: int, kind: str) -> Expr:
        """``value`` moved ``step`` lanes on, neutral values behind it."""
        lanes, neutral = self.lanes, self._neutral(self.lanes, kind)
        if self.reverse:
            return tirx.Shuffle([value, neutral], [int32(step + n) for n in range(lanes)])
        return tirx.Shuffle([neutral, value], [int32(lanes - step + n) for n in range(lanes)])


class _OpenScanKernel(_ScanKernel):
    """Emits one scan of any extents."""

    def __init__(self, machine: CpuModel, shape: Sequence[int], axis: int, *of: Any):
        super().__init__(machine, shape, axis, *of)
        self.axis = axis

    def emit(self) -> PrimFunc:
        k = self.k
        with k:
            x, y = k.argument("X", self.shape, self.given), k.argument("Y", self.shape, self.dtype)
            counted = k.counted(*self.shape)
            parts = counted[: self.axis], [counted[self.axis]], counted[self.axis + 1 :]
            outer, self.extent, self.inner = (k.let(math.prod(part, start=int32(1))) for part in parts)
            size = k.let(outer * self.extent * self.inner)
            self.x, self.y = k.view(x, (size,)), k.view(y, (size,))
            alone = True if self.threads == 1 else size < _ALONE
            if self.axis == len(self.shape) - 1:
                k.shared_unless(alone, outer, lambda row: self._row(k.let(row * self.extent)))
            else:
                k.strips(outer, self.inner, self.lanes, 4, alone, self._open_strip)
        return for_graph(k.function)

    def _open_strip(self, at: Expr, first: Expr, width: int) -> None:
        self._strip(self.k.let(at * (self.extent * self.inner) + first), width)


def _cast(value: Expr, given: str, dtype: str, width: int) -> Expr:
    if given == dtype:
        return value
    return tirx.Cast(dtype if width == 1 else f"{dtype}x{width}", value)
