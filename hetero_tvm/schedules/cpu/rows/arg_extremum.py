"""Positions of the greatest or least value of rows.

Loop structure::

    parallel rows:
        for each block of elements, in vectors: its greatest value, and whether one is NaN
            where that is above all before: note it, and the block                       (as a rule: no)
        the first position in that block that holds the value, in vectors

The last block of a row ends with it and overlaps the one before, which changes nothing.

NaN counts as greater, and as less, than all numbers, and of equal ones the first one wins, as in NumPy and
PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.emit import Index, Kernel, constant, for_graph, int32

_BLOCK_VECTORS = 16
"""Most vectors of a block."""

_SETS = 2
"""Independent maxima of a block, to hide their latency."""


def emit_arg_extremum(machine: CpuModel, shape: Sequence[int], largest: bool, dtype: str) -> PrimFunc:
    """The kernel from float32 X [*rows, length] to positions of type ``dtype`` [rows]."""
    return _ArgKernel(machine, shape, largest, dtype).emit()


class _ArgKernel:
    """Emits one kernel."""

    def __init__(self, machine: CpuModel, shape: Sequence[int], largest: bool, dtype: str):
        self.shape, self.largest, self.dtype, self.lanes = tuple(shape), largest, dtype, machine.lanes
        self.rows, self.extent = math.prod(shape[:-1]), shape[-1]
        self.k = Kernel()

    def emit(self) -> PrimFunc:
        """The PrimFunc: X, the positions."""
        k, size = self.k, math.prod(self.shape)
        with k:
            x = k.argument("X", self.shape)
            y = k.argument("Y", (self.rows,), self.dtype)
            self.x = k.view(x, (size,))
            with k.parallel(self.rows, 2 * size) as row:
                self.base = k.let(row * self.extent)
                self.best = k.scratch((1,))
                self.state = k.scratch((3,), "int32")
                """Start of the best block; position; whether the best value is NaN."""
                self._row()
                position = k.load(self.state, [1])
                k.store(y, position if self.dtype == "int32" else tirx.Cast(self.dtype, position), [row])
        return for_graph(k.function, size)

    def _value(self, element: Index, width: int = 1) -> Expr:
        """Values that are the greater the better."""
        value = self.k.load(self.x, [self.k.ramp(self.base + element, width)])
        return value if self.largest else value * self.k.splat(-1.0, width)

    def _row(self) -> None:
        k = self.k
        k.store(self.best, constant(-math.inf), [0])
        for n in range(3):
            k.store(self.state, int32(0), [n])
        self.vectors = min(_BLOCK_VECTORS, self.extent // self.lanes)
        if self.vectors < _SETS:
            self._one_by_one()
            return
        block = self.vectors * self.lanes
        blocks, rest = divmod(self.extent, block)
        with k.serial(blocks) as b:
            self._block(b * block)
        if rest:
            self._block(int32(self.extent - block))
        k.store(self.state, self._first(k.let(k.load(self.state, [0]))), [1])

    def _one_by_one(self) -> None:
        """The position in a row of less than a block."""
        k = self.k
        with k.serial(self.extent) as at:
            value = k.let(self._value(at))
            with k.when(self._better(value, tirx.isnan(value))):
                self._note(value, tirx.isnan(value))
                k.store(self.state, at, [1])

    def _first(self, begin: Expr) -> Expr:
        """First position in the block that begins there whose value is the best one, or NaN."""
        k, lanes = self.k, self.lanes
        found, at = k.scratch((lanes,), "int32"), [k.ramp(0, lanes)]
        k.store(found, k.splat(int32(self.extent), lanes), at)
        best = k.splat(k.load(self.best, [0]), lanes)
        with k.serial(self.vectors) as v:
            start = begin + v * lanes
            value = k.let(self._value(start, lanes))
            never = k.splat(int32(self.extent), lanes)
            place = tirx.Select(tirx.isnan(value), k.ramp(start, lanes), never)
            place = tirx.Select(tirx.EQ(value, best), k.ramp(start, lanes), place)
            k.store(found, tirx.min(k.load(found, at), place), at)
        return k.load(self._narrowed(found, tirx.min), [0])

    def _narrowed(self, buffer: Buffer, combine: Callable[[Expr, Expr], Expr]) -> Buffer:
        """Combine all elements of a buffer into its first."""
        k, width = self.k, math.prod(map(int, buffer.shape))
        while width > 1:
            width //= 2
            low, high = [k.ramp(0, width)], [k.ramp(width, width)]
            k.store(buffer, combine(k.load(buffer, low), k.load(buffer, high)), low)
        return buffer

    def _better(self, value: Expr, bad: Expr) -> Expr:
        """Whether a value goes before the best one so far; NaN before all but an earlier NaN."""
        return tirx.all(
            tirx.EQ(self.k.load(self.state, [2]), int32(0)),
            tirx.any(value > self.k.load(self.best, [0]), bad),
        )

    def _note(self, value: Expr, bad: Expr) -> None:
        k = self.k
        k.store(self.state, tirx.Select(bad, int32(1), int32(0)), [2])
        # NaN equals nothing: what is looked for then is NaN alone.
        k.store(self.best, tirx.Select(bad, constant(math.nan), value), [0])

    def _block(self, first: Expr) -> None:
        k, lanes = self.k, self.lanes
        best, bad = k.scratch((_SETS * lanes,)), k.scratch((_SETS * lanes,), "int32")
        for v in range(self.vectors):
            at = [k.ramp(v % _SETS * lanes, lanes)]
            value = k.let(self._value(first + v * lanes, lanes))
            nan = tirx.Select(tirx.isnan(value), k.splat(int32(1), lanes), k.splat(int32(0), lanes))
            if v < _SETS:
                k.store(best, value, at)
                k.store(bad, nan, at)
            else:
                k.store(best, tirx.max(k.load(best, at), value), at)
                k.store(bad, tirx.bitwise_or(k.load(bad, at), nan), at)
        self._narrowed(best, tirx.max)
        self._narrowed(bad, tirx.bitwise_or)
        value, nan = k.let(k.load(best, [0])), tirx.NE(k.load(bad, [0]), int32(0))
        with k.when(self._better(value, nan)):
            self._note(value, nan)
            k.store(self.state, first, [0])
