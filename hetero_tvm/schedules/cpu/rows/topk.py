"""The greatest or least k values of rows and their positions; all of them, in order, where k is the length.

Loop structure::

    parallel rows:
        in vectors: the best of each of some classes of elements; the k-th of those is the threshold
        for each block of elements:
            in vectors: has one a key not below the threshold?           (as a rule: no)
            for each vector of it, the same; then, one by one: such keys are appended
            a full buffer is sorted, its first k stay, the k-th is the threshold
        the buffer is sorted; the values of its first k are looked up

Few values of short rows, and one of any row, are found one after another, each by a pass in vectors over
those that are below the last one found.

A key is one int64: the number as an integer of the same order, then the position, so that no two are equal
and of equal numbers the first one wins.  NaN counts as greater than all numbers, as in NumPy and PyTorch.

Runs of ``RUN`` keys are sorted by counting, for each key, those above it (in vectors).  Longer ones are
merged from both ends at once: neither end can pass its run, so that no step has a condition.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.emit import Index, Kernel, for_graph, int32, ordered_bits

RUN = 64
"""Keys that are sorted by counting."""

_BLOCK_VECTORS = 8
"""Vectors that are compared with the threshold together."""

FEW = 2048
"""Most elements that are looked at for values found one after another."""

_CLASSES = 2
"""Classes of elements for each of the k that are looked for: their k-th best lets few others pass."""

_LEAST, _GREATEST = -(1 << 31), (1 << 31) - 1
"""Numbers below and above those of all elements."""

_LEAST_KEY = -(1 << 63)
_POSITIONS = (1 << 32) - 1

VALUES, INDICES = "values", "indices"

DTYPES = ("float32", "float16", "int8", "uint8", "int16", "uint16", "int32")
"""Types whose numbers have an int32 of the same order."""


def emit_topk(
    shape: Sequence[int],
    axis: int,
    k: int,
    largest: bool,
    results: Sequence[tuple[str, str]],
    machine: CpuModel,
    kernel: type[TopkKernel] | None = None,
    dtype: str = "float32",
) -> PrimFunc:
    """The kernel of X [shape] and the results.

    Parameters
    ----------
    axis, k, largest : as in ``relax.op.topk``; 1 <= k.
    results : what is stored, in order: (:data:`VALUES` or :data:`INDICES`, its dtype).
    kernel : what emits it; :class:`TopkKernel`, of the extents that are given.
    dtype : of X; one of :data:`DTYPES`.
    """
    return (kernel or TopkKernel)(shape, axis, k, largest, results, machine, dtype).emit()


class TopkKernel:
    """Emits one kernel."""

    def __init__(
        self,
        shape: Sequence[int],
        axis: int,
        count: int,
        largest: bool,
        results: Sequence[tuple[str, str]],
        machine: CpuModel,
        dtype: str = "float32",
    ):
        self.shape, self.axis, self.count, self.largest = tuple(shape), axis, count, largest
        self.dtype = dtype
        self.results, self.lanes = results, machine.lanes
        self.extent, self.inner = shape[axis], math.prod(shape[axis + 1 :])
        wanted = min(self.extent, max(2 * count, RUN))
        self.capacity = RUN
        while self.capacity < wanted:
            self.capacity *= 2
        self.k = Kernel()

    def emit(self) -> PrimFunc:
        """The PrimFunc: X, the results."""
        k = self.k
        out = [*self.shape]
        out[self.axis] = self.count
        with k:
            x = k.argument("X", self.shape, self.dtype)
            ys = [k.argument(name, out, dtype) for name, dtype in self.results]
            self.x = k.view(x, (math.prod(self.shape),))
            ys = [k.view(y, (math.prod(out),)) for y in ys]
            rows = math.prod(self.shape) // self.extent
            with k.parallel(rows, self._work(rows)) as row:
                first = tirx.floordiv(row, self.inner) * self.inner
                lane = tirx.floormod(row, self.inner)
                self.base = k.let(first * self.extent + lane)
                self._row(ys, k.let(first * self.count + lane))
        return for_graph(k.function, math.prod(self.shape))

    def _work(self, rows: int) -> int | None:
        return 4 * math.prod(self.shape) + 40 * self.capacity * rows

    def _row(self, ys: list[Buffer], target: Expr) -> None:
        if self.count == 1 or (self.count * self.extent <= FEW and not self._may_be_least()):
            self._one_by_one(ys, target)
        else:
            self._sorted(ys, target)

    def _may_be_least(self) -> bool:
        """Whether an element's number may be the one that stands for none."""
        return self.dtype == "int32"

    def _put(self, ys: list[Buffer], target: Expr, number: Expr, place: Expr) -> None:
        """Store the results of rank ``number``, which element ``place`` of the row has."""
        k = self.k
        for y, (name, dtype) in zip(ys, self.results, strict=True):
            value = k.load(self.x, [self.base + place * self.inner]) if name == VALUES else place
            value = value if name == VALUES or dtype == "int32" else tirx.Cast(dtype, value)
            k.store(y, value, [target + number * self.inner])

    def _fits(self) -> bool:
        """Whether a row is sorted as it is."""
        return self.extent <= self.capacity

    def _whole(self, width: int) -> Index:
        """Number of whole pieces of ``width`` elements of a row."""
        return self.extent // width

    def _has_rest(self, width: int) -> bool:
        return bool(self.extent % width)

    def _begin(self) -> None:
        """A first threshold, where a row is long."""
        classes = self._classes()
        if self.lanes > 1 and self.extent >= 4 * classes:
            self._bound(classes)

    def _classes(self) -> int:
        return _CLASSES * max(self.lanes, 1 << (self.count - 1).bit_length())

    # one after another ---------------------------------------------------------------------------
    def _one_by_one(self, ys: list[Buffer], target: Expr) -> None:
        self._by_passes(ys, target, self.lanes if self.extent >= self.lanes else 1)

    def _by_passes(self, ys: list[Buffer], target: Expr, lanes: int) -> None:
        k = self.k
        best, places, last = (k.scratch((size,), "int32") for size in (lanes, lanes, 2))
        whole = [k.ramp(0, lanes)]
        k.store(last, int32(_GREATEST), [0])
        k.store(last, int32(-1), [1])

        def take(at: Expr) -> None:
            number = k.let(self._number(self._load(at, lanes), lanes))
            place = k.ramp(at, lanes)
            if self.count > 1:
                taken, taken_at = (k.splat(k.load(last, [n]), lanes) for n in (0, 1))
                never = k.splat(int32(_LEAST), lanes)
                equal = tirx.Select(place > taken_at, number, never)
                later = tirx.Select(number == taken, equal, never)
                number = k.let(tirx.Select(number < taken, number, later))
            held = k.let(k.load(best, whole))
            k.store(places, tirx.Select(number > held, place, k.load(places, whole)), whole)
            k.store(best, tirx.max(held, number), whole)

        with k.serial(self.count) as j:
            k.store(best, k.splat(int32(_LEAST), lanes), whole)
            k.store(places, k.splat(int32(0), lanes), whole)
            with k.serial(self._whole(lanes)) as v:
                take(v * lanes)
            if self._has_rest(lanes):  # some twice, which changes nothing
                take(int32(self.extent - lanes))
            width = lanes
            while width > 1:
                width //= 2
                low, high = [k.ramp(0, width)], [k.ramp(width, width)]
                number, other = k.let(k.load(best, low)), k.let(k.load(best, high))
                place, there = k.let(k.load(places, low)), k.let(k.load(places, high))
                first = tirx.Select(tirx.EQ(other, number), tirx.min(place, there), place)
                k.store(places, tirx.Select(other > number, there, first), low)
                k.store(best, tirx.max(number, other), low)
            k.store(last, k.load(best, [0]), [0])
            k.store(last, k.load(places, [0]), [1])
            self._put(ys, target, j, k.let(k.load(places, [0])))

    # all sorted ----------------------------------------------------------------------------------
    def _sorted(self, ys: list[Buffer], target: Expr) -> None:
        k = self.k
        self.keys = [k.scratch((self.capacity,), "int64") for _ in range(2)]
        self.state = k.scratch((2,), "int32")
        """Number of keys; the number that further ones must exceed."""
        if self._fits():
            with k.serial(self.extent) as e:
                k.store(self.keys[0], self._key(self._number(self._load(e)), e), [e])
            self._pad(self.keys[0], int32(self.extent), int32(self.capacity))
        else:
            self._scan()
        keys = self._sort()
        with k.serial(self.count) as j:
            self._put(ys, target, j, tirx.Cast("int32", self._position(k.load(keys, [j]))))

    # keys ----------------------------------------------------------------------------------------
    def _load(self, element: Index, width: int = 1) -> Expr:
        at = self.base + element * self.inner
        return self.k.load(self.x, [tirx.Ramp(at, int32(self.inner), width) if width > 1 else at])

    def _number(self, x: Expr, width: int = 1) -> Expr:
        """``x`` as int32 in the wanted order: greater is better."""

        def of(value: int) -> Expr:
            return self.k.splat(int32(value), width)

        # One less than the greatest integer: the opposite is still above the least.
        if self.dtype == "float16":
            x = tirx.Cast("float32" if width == 1 else f"float32x{width}", x)
        if "float" in self.dtype:
            number = tirx.Select(tirx.isnan(x), of(0x7FFFFFFE), ordered_bits(x, width))
        else:
            number = x if self.dtype == "int32" else tirx.Cast("int32" if width == 1 else f"int32x{width}", x)
        return number if self.largest else of(-1) ^ number

    @staticmethod
    def _key(number: Expr, position: Expr) -> Expr:
        # An exclusive or: a difference would be simplified into int32, where its constant does not fit.
        low = tirx.Cast("int64", position) ^ tirx.const(_POSITIONS, "int64")
        return tirx.Cast("int64", number) * tirx.const(1 << 32, "int64") + low

    @staticmethod
    def _position(key: Expr) -> Expr:
        mask = tirx.const(_POSITIONS, "int64")
        return (key & mask) ^ mask

    def _pad(self, keys: Buffer, first: Expr, end: Expr) -> None:
        """Keys below all others, each another one, from ``first`` to ``end``."""
        with self.k.serial(end - first) as i:
            at = first + i
            self.k.store(keys, tirx.const(_LEAST_KEY, "int64") + tirx.Cast("int64", at), [at])

    # the scan ------------------------------------------------------------------------------------
    def _scan(self) -> None:
        k, block = self.k, _BLOCK_VECTORS * self.lanes
        k.store(self.state, int32(0), [0])
        k.store(self.state, int32(_LEAST), [1])
        self._begin()
        blocks = self._whole(block)
        with k.serial(blocks) as b:
            best = k.scratch((self.lanes,), "int32")
            at = [k.ramp(0, self.lanes)]
            for v in range(_BLOCK_VECTORS):
                numbers = self._number(self._load(b * block + v * self.lanes, self.lanes), self.lanes)
                k.store(best, numbers if v == 0 else tirx.max(k.load(best, at), numbers), at)
            with k.when(self._has_better(best)), k.serial(_BLOCK_VECTORS) as v:
                start = k.let(b * block + v * self.lanes)
                one = k.scratch((self.lanes,), "int32")
                k.store(one, self._number(self._load(start, self.lanes), self.lanes), at)
                with k.when(self._has_better(one)), k.serial(self.lanes) as e:
                    self._take(start + e)
        if self._has_rest(block):
            with k.serial(self.extent - blocks * block) as e:
                self._take(blocks * block + e)
        if self._may_be_least():
            self._take_least()
        self._pad(self.keys[0], k.load(self.state, [0]), int32(self.capacity))

    def _has_better(self, numbers: Buffer) -> Expr:
        """Whether one of a vector of numbers is above the threshold; the greatest becomes its first."""
        k, width = self.k, self.lanes
        while width > 1:
            width //= 2
            low, high = [k.ramp(0, width)], [k.ramp(width, width)]
            k.store(numbers, tirx.max(k.load(numbers, low), k.load(numbers, high)), low)
        return k.load(numbers, [0]) > k.load(self.state, [1])

    def _bound(self, classes: int) -> None:
        """A threshold that at least k elements exceed: less than the k-th of the best of each class.

        The k-th of numbers is found bit by bit: the greatest number that k of them are not below.
        """
        k, lanes = self.k, self.lanes
        best = k.scratch((classes,), "int32")
        with k.serial(classes // lanes) as c:
            k.store(best, self._number(self._load(c * lanes, lanes), lanes), [k.ramp(c * lanes, lanes)])
        with k.serial(self._whole(classes) - 1) as step, k.serial(classes // lanes) as c:
            at = [k.ramp(c * lanes, lanes)]
            numbers = self._number(self._load((step + 1) * classes + c * lanes, lanes), lanes)
            k.store(best, tirx.max(k.load(best, at), numbers), at)
        bound, count = k.scratch((1,), "int32"), k.scratch((lanes,), "int32")
        k.store(bound, int32(_LEAST), [0])
        whole = [k.ramp(0, lanes)]
        with k.serial(32) as n:
            # From the least number, the first bit takes away the sign.
            higher = k.let(k.load(bound, [0]) ^ (int32(1) << (31 - n)))
            k.store(count, k.splat(int32(0), lanes), whole)
            with k.serial(classes // lanes) as c:
                above = k.load(best, [k.ramp(c * lanes, lanes)]) >= k.splat(higher, lanes)
                k.store(count, k.load(count, whole) + tirx.Cast(f"int32x{lanes}", above), whole)
            width = lanes
            while width > 1:
                width //= 2
                low, high = [k.ramp(0, width)], [k.ramp(width, width)]
                k.store(count, k.load(count, low) + k.load(count, high), low)
            with k.when(k.load(count, [0]) >= self.count):
                k.store(bound, higher, [0])
        with k.when(k.load(bound, [0]) > _LEAST):
            k.store(self.state, k.load(bound, [0]) - 1, [1])

    def _take(self, element: Expr) -> None:
        """Append an element's key if it is above the threshold; sort a full buffer."""
        k = self.k
        number = k.let(self._number(self._load(element)))
        with k.when(number > k.load(self.state, [1])):
            held = k.let(k.load(self.state, [0]))
            k.store(self.keys[0], self._key(number, element), [held])
            k.store(self.state, held + 1, [0])
            with k.when(tirx.EQ(held, int32(self.capacity - 1))):
                keys = self._sort()
                if keys is not self.keys[0]:
                    with k.serial(self.count) as i:
                        k.store(self.keys[0], k.load(keys, [i]), [i])
                last = k.load(self.keys[0], [int32(self.count - 1)])
                k.store(self.state, tirx.Cast("int32", last >> tirx.const(32, "int64")), [1])
                k.store(self.state, int32(self.count), [0])

    def _take_least(self) -> None:
        """Append elements that no threshold lets pass, the first ones, as long as keys are too few."""
        k = self.k
        with k.when(k.load(self.state, [0]) < self.count), k.serial(self.extent) as e:
            held = k.let(k.load(self.state, [0]))
            number = k.let(self._number(self._load(e)))
            # An equality with the least integer would be simplified away.
            with k.when(tirx.all(number < int32(_LEAST + 1), held < self.count)):
                k.store(self.keys[0], self._key(number, e), [held])
                k.store(self.state, held + 1, [0])

    # sorting -------------------------------------------------------------------------------------
    def _sort(self) -> Buffer:
        """Sort all keys, the greatest first; the buffer that then holds them."""
        k = self.k
        source, target = self.keys
        with k.serial(self.capacity // RUN) as run:
            self._count_ranks(source, target, run * RUN)
        width = RUN
        while width < self.capacity:
            source, target = target, source
            with k.serial(self.capacity // (2 * width)) as pair:
                self._merge(source, target, pair * (2 * width), width)
            width *= 2
        return target

    def _count_ranks(self, source: Buffer, target: Buffer, first: Expr, to: Expr | None = None) -> None:
        """A run of ``source`` in order, in ``target`` from ``to`` on, or from the same place."""
        k, lanes = self.k, max(2, self.lanes // 2)
        to = first if to is None else to
        with k.serial(RUN) as i:
            key = k.let(k.load(source, [first + i]))
            ranks = k.scratch((lanes,), "int64")
            at = [k.ramp(0, lanes)]
            k.store(ranks, k.splat(tirx.const(0, "int64"), lanes), at)
            with k.unroll(RUN // lanes) as v:
                others = k.load(source, [k.ramp(first + v * lanes, lanes)])
                above = tirx.Cast(f"int64x{lanes}", others > k.splat(key, lanes))
                k.store(ranks, k.load(ranks, at) + above, at)
            width = lanes
            while width > 1:
                width //= 2
                low, high = [k.ramp(0, width)], [k.ramp(width, width)]
                k.store(ranks, k.load(ranks, low) + k.load(ranks, high), low)
            k.store(target, key, [to + tirx.Cast("int32", k.load(ranks, [0]))])

    def _merge(
        self, source: Buffer, target: Buffer, first: Expr, width: Index, to: Expr | None = None
    ) -> None:
        """Two sorted runs as one, from ``to`` on: its first half from their fronts, its second from their
        ends."""
        k, to = self.k, first if to is None else to
        heads = k.scratch((4,), "int32")  # next of each run from the front, then from the end
        for n, start in enumerate((0, width, width - 1, 2 * width - 1)):
            k.store(heads, first + start, [n])
        one, none = int32(1), int32(0)
        with k.serial(width) as o:
            for n, place in ((0, to + o), (2, to + (2 * width - 1) - o)):
                a, b = k.let(k.load(heads, [n])), k.let(k.load(heads, [n + 1]))
                left, right = k.let(k.load(source, [a])), k.let(k.load(source, [b]))
                larger = left > right
                step = k.let(tirx.Select(larger if n == 0 else right > left, one, none))
                k.store(target, tirx.max(left, right) if n == 0 else tirx.min(left, right), [place])
                k.store(heads, a + step if n == 0 else a - step, [n])
                k.store(heads, b + (1 - step) if n == 0 else b - (1 - step), [n + 1])
