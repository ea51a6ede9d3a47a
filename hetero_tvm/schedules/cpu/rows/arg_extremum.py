"""Positions of the greatest or least value along an axis.

Loop structure, along the last axis::

    parallel rows:
        for each block of elements, in vectors: its greatest value, and whether one is NaN
            where that is above all before: note it, and the block                       (as a rule: no)
        the first position in that block that holds the value, in vectors

The last block of a row ends with it and overlaps the one before, which changes nothing.  Along another axis
(the classes of the pixels of a map)::

    parallel strips of what lies behind the axis, of some vectors:
        for each element along the axis: the values that are better, and their position, are taken

NaN counts as greater, and as less, than all numbers, and of equal ones the first one wins, as in NumPy and
PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.emit import LAUNCH_FLOPS, Index, Kernel, constant, for_graph, int32

_BLOCK_VECTORS = 16
"""Most vectors of a block."""

_SETS = 2
"""Independent maxima of a block, to hide their latency."""

_STRIP_VECTORS = 4
"""Vectors of a strip: as many maxima and positions stay in registers."""


def emit_arg_extremum(
    machine: CpuModel, shape: tuple[int, int, int], largest: bool, dtype: str, ranges: bool = False
) -> PrimFunc:
    """The kernel from float32 X [outer, extent, inner] to positions of type ``dtype`` [outer, inner].

    ``ranges`` : whether it is lifted to extents that are known at run time only.
    """
    kind = _ArgOfRows if shape[2] == 1 else _ArgOfColumns
    return kind(machine, shape, largest, dtype, ranges).emit()


class _ArgKernel:
    """Base of the kernels along either axis."""

    def __init__(
        self, machine: CpuModel, shape: tuple[int, int, int], largest: bool, dtype: str, ranges: bool
    ):
        self.shape, self.largest, self.dtype, self.lanes = shape, largest, dtype, machine.lanes
        self.ranges = ranges
        self.size = math.prod(shape)
        self.k = Kernel()

    def emit(self) -> PrimFunc:
        """The PrimFunc: X, the positions."""
        k, (outer, _, inner) = self.k, self.shape
        with k:
            x, y = k.argument("X", self.shape), k.argument("Y", (outer, inner), self.dtype)
            self.x, self.y = k.view(x, (self.size,)), k.view(y, (outer * inner,))
            self.alone: Expr | bool = 2 * self.size < LAUNCH_FLOPS
            self.outer, self.extent, self.inner = map(int32, self.shape)
            if self.ranges:
                self.outer, self.extent, self.inner = k.counted(*self.shape)
                self.alone = self.outer * self.extent * self.inner < LAUNCH_FLOPS // 2
            self._loops()
        return for_graph(k.function, self.size)

    def _loops(self) -> None:
        raise NotImplementedError

    def _write(self, position: Expr, at: Index, width: int = 1) -> None:
        kind = self.dtype if width == 1 else f"{self.dtype}x{width}"
        position = position if self.dtype == "int32" else tirx.Cast(kind, position)
        self.k.store(self.y, position, [self.k.ramp(at, width)])

    def _value(self, element: Index, width: int = 1) -> Expr:
        """Values that are the greater the better."""
        value = self.k.load(self.x, [self.k.ramp(element, width)])
        return value if self.largest else value * self.k.splat(-1.0, width)


class _ArgOfColumns(_ArgKernel):
    """Emits the kernel along another axis than the last."""

    def _loops(self) -> None:
        self.k.strips(self.outer, self.inner, self.lanes, _STRIP_VECTORS, self.alone, self._strip)

    def _strip(self, row: Expr, first: Expr, width: int) -> None:
        k = self.k
        base = k.let(row * self.extent * self.inner + first)
        pieces = [(start, min(self.lanes, width)) for start in range(0, width, self.lanes)]
        best, found = k.scratch((width,)), k.scratch((width,), "int32")
        for start, lanes in pieces:
            k.store(best, self._value(base + start, lanes), [k.ramp(start, lanes)])
            k.store(found, k.splat(int32(0), lanes), [k.ramp(start, lanes)])
        with k.serial(self.extent - 1) as n:
            for start, lanes in pieces:
                at = [k.ramp(start, lanes)]
                value = k.let(self._value(base + (n + 1) * self.inner + start, lanes))
                before = k.let(k.load(best, at))
                # The first NaN stays: nothing is greater, and the best one equals itself no more.
                unseen = tirx.all if lanes == 1 else tirx.bitwise_and
                either = tirx.any if lanes == 1 else tirx.bitwise_or
                better = either(value > before, unseen(tirx.isnan(value), tirx.EQ(before, before)))
                k.store(best, tirx.Select(better, value, before), at)
                position = k.splat(n + 1, lanes)
                k.store(found, tirx.Select(better, position, k.load(found, at)), at)
        for start, lanes in pieces:
            place = k.load(found, [k.ramp(start, lanes)])
            self._write(place, row * self.inner + first + start, lanes)


class _ArgOfRows(_ArgKernel):
    """Emits the kernel along the last axis."""

    def _loops(self) -> None:
        def row(number: Expr) -> None:
            k = self.k
            self.base = k.let(number * self.extent)
            self.best = k.scratch((1,))
            self.state = k.scratch((3,), "int32")
            """Start of the best block; position; whether the best value is NaN."""
            self._row()
            self._write(k.load(self.state, [1]), number)

        self.k.shared_unless(self.alone, self.outer if self.ranges else self.shape[0], row)

    def _at(self, element: Index, width: int = 1) -> Expr:
        return self._value(self.base + element, width)

    def _row(self) -> None:
        k = self.k
        k.store(self.best, constant(-math.inf), [0])
        for n in range(3):
            k.store(self.state, int32(0), [n])
        if not self.ranges:
            vectors = min(_BLOCK_VECTORS, self.shape[1] // self.lanes)
            self._one_by_one() if vectors < _SETS else self._blocks(vectors)
            return
        k.branch(
            self.extent >= _BLOCK_VECTORS * self.lanes,
            lambda: self._blocks(_BLOCK_VECTORS),
            lambda: k.branch(
                self.extent >= _SETS * self.lanes, lambda: self._blocks(_SETS), self._one_by_one
            ),
        )

    def _blocks(self, vectors: int) -> None:
        k, self.vectors = self.k, vectors
        block = vectors * self.lanes
        if self.ranges:
            blocks = k.let(tirx.truncdiv(self.extent, int32(block)))
            rest: Expr | bool = self.extent > blocks * block
        else:
            blocks, rest = self.shape[1] // block, self.shape[1] % block > 0
        with k.serial(blocks) as b:
            self._block(b * block)
        if rest is not False:
            with k.when(rest):
                self._block(self.extent - block)
        k.store(self.state, self._first(k.let(k.load(self.state, [0]))), [1])

    def _one_by_one(self) -> None:
        """The position in a row of less than a block."""
        k = self.k
        with k.serial(self.extent) as at:
            value = k.let(self._at(at))
            with k.when(self._better(value, tirx.isnan(value))):
                self._note(value, tirx.isnan(value))
                k.store(self.state, at, [1])

    def _first(self, begin: Expr) -> Expr:
        """First position in the block that begins there whose value is the best one, or NaN."""
        k, lanes = self.k, self.lanes
        found, at = k.scratch((lanes,), "int32"), [k.ramp(0, lanes)]
        k.store(found, k.splat(self.extent, lanes), at)
        best = k.splat(k.load(self.best, [0]), lanes)
        with k.serial(self.vectors) as v:
            start = begin + v * lanes
            value = k.let(self._at(start, lanes))
            never = k.splat(self.extent, lanes)
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
            value = k.let(self._at(first + v * lanes, lanes))
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
