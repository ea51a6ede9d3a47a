"""The kernel of a reduction (see :mod:`.reduce`), written as what one thread does."""

from __future__ import annotations

import math
from collections.abc import Callable

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, T, TensorLoad, Var, tirx
from hetero_tvm.machines.gpu import WARP
from hetero_tvm.schedules.cuda.buffers import workspace
from hetero_tvm.schedules.cuda.tensor_program.plain import PlainKernel, distinct, vector
from hetero_tvm.schedules.cuda.tensor_program.reduction import LANES, Reduction, ReductionBlock, neighbours
from hetero_tvm.schedules.cuda.threads import barrier, reduce_in_row
from hetero_tvm.schedules.cuda.values import cast
from hetero_tvm.schedules.emit import int32
from hetero_tvm.schedules.nests.nest import Nests, loads_of, offset, substitute, unflatten

_MERGE_THREADS = 128


def emit(nests: Nests, found: Reduction, block: ReductionBlock) -> PrimFunc:
    """The function of a reduction, divided among threads as ``block`` says."""
    kernel = PlainKernel(nests)
    with kernel.arguments():
        _Emitter(kernel, found, block).write()
    return kernel.function


class _Emitter:
    """Emits the kernel, and the one that merges splits."""

    def __init__(self, kernel: PlainKernel, found: Reduction, block: ReductionBlock):
        self.kernel, self.found, self.k = kernel, found, kernel.k
        self.nest, self.width = found.nest, found.width
        self.threads, self.beside, self.splits = block.threads, block.beside, block.splits
        # Terms of one split: whole steps of all threads along the reduction.
        length = self.nest.length // (self.width if found.rows else 1)
        self.each = -(-length // block.splits)
        self.steps = -(-self.each // block.threads)
        self.length = length

    def write(self) -> None:
        if self.splits > 1:
            self.partial = workspace(self.splits * self.nest.size, self.found.dtype)
        (self._rows if self.found.rows else self._columns)()
        if self.splits > 1:
            self._merge()

    def _neutral(self) -> Expr:
        """First value of the reduction: combining it twice must change nothing.

        A largest (smallest) value of nothing is minus (plus) infinity: TVM's finite one would win over it.
        """
        init, kind = self.nest.init, str(self.nest.buffer.dtype)
        if isinstance(init, tirx.FloatImm) and self.found.combine in (tirx.max, tirx.min):
            finite = tirx.min_value(kind) if self.found.combine is tirx.max else tirx.max_value(kind)
            if float(init.value) == float(finite.value):
                return tirx.const(math.copysign(math.inf, init.value), self.found.dtype)
        return cast(init, self.found.dtype)

    # rows
    def _rows(self) -> None:
        k, nest, dtype = self.k, self.nest, self.nest.index_dtype
        blocks = -(-nest.size // self.beside)
        with self.kernel.launch(blocks * self.splits, self.threads * self.beside, dtype) as (block, thread):
            x, y = thread % self.threads, thread // self.threads
            split, group = block % self.splits, block // self.splits
            result = group * self.beside + y
            known = result
            if nest.size % self.beside:  # threads past the last row work on it again, and store nothing
                known = tirx.min(result, tirx.const(nest.size - 1, dtype))
            sums = k.scratch((1,), self.found.dtype)
            k.store(sums, self._neutral(), [int32(0)])
            shared = None
            if self.threads > WARP:
                words = self.beside * (self.threads // WARP)
                shared = T.alloc_buffer((words,), self.found.dtype, scope="shared")
            self._along(split, x, known, lambda e: int32(0), sums)
            reduce_in_row(k, sums, [int32(0)], self.threads, x, self.found.combine, shared, y)
            inside = tirx.EQ(x, tirx.const(0, dtype))
            with k.when(tirx.all(inside, result < nest.size) if nest.size % self.beside else inside):
                self._put(split, known, k.load(sums, [int32(0)]))

    def _along(
        self, split: Expr, lane: Expr, result: Expr, slot: Callable[[int], Expr], sums: Buffer
    ) -> None:
        """Emit one thread's part of the reduction: every ``threads``-th step of its split."""
        k = self.k
        with k.serial(tirx.const(self.steps, self.nest.index_dtype)) as step:
            inner = step * self.threads + lane
            place = split * self.each + inner if self.splits > 1 else inner
            limits = []
            if self.each % self.threads:
                limits.append(inner < self.each)
            if self.each * self.splits != self.length:
                limits.append(place < self.length)
            if limits:
                with k.when(tirx.all(*limits)):
                    self._terms(place, result, slot, sums)
            else:
                self._terms(place, result, slot, sums)

    def _terms(self, place: Expr, result: Expr, slot: Callable[[int], Expr], sums: Buffer) -> None:
        k, nest, width, rows = self.k, self.nest, self.width, self.found.rows

        def values(e: int) -> dict[Var, Expr]:
            if rows:
                here = place * width + e if width > 1 else place
                return {**unflatten(nest.axes, result), **unflatten(nest.reduced, here)}
            here = result + e if width > 1 else result
            return {**unflatten(nest.axes, here), **unflatten(nest.reduced, place)}

        known: list[list[tuple[TensorLoad, Expr]]] = [[] for _ in range(width)]
        if width > 1:
            near, at = neighbours(nest, rows, width)
            for load in distinct([load for load, guarded in loads_of(self.found.term) if not guarded]):
                kind = str(load.source.dtype)
                step = near.step(lambda i, load=load: at(offset(load.source, load.indices), i))
                if step is None or kind == "bool":
                    continue
                flat = self.kernel.with_loads(offset(load.source, load.indices), known[0])
                held = k.scratch((width if step else 1,), kind)
                origin = substitute(flat, values(0))
                vector(k, held, self.kernel.flat(load.source), origin, width if step else 1, kind)
                for e in range(width):
                    known[e].append((load, k.load(held, [int32(e * step)])))
        for e in range(width):
            term = substitute(self.kernel.with_loads(self.found.term, known[e]), values(e))
            at_sum = [slot(e)]
            combined = self.found.combine(k.load(sums, at_sum), cast(term, self.found.dtype))
            k.store(sums, combined, at_sum)

    # columns
    def _columns(self) -> None:
        k, nest, width, dtype = self.k, self.nest, self.width, self.nest.index_dtype
        blocks = -(-nest.size // (LANES * width))
        with self.kernel.launch(blocks * self.splits, LANES * self.threads, dtype) as (block, thread):
            x, y = thread % LANES, thread // LANES
            split, group = block % self.splits, block // self.splits
            first = (group * LANES + x) * width
            sums = k.scratch((width,), self.found.dtype)
            for e in range(width):
                k.store(sums, self._neutral(), [int32(e)])
            exact = nest.size % (LANES * width) == 0
            known = first if exact else tirx.min(first, tirx.const(nest.size - width, dtype))
            self._along(split, y, known, lambda e: int32(e), sums)
            if self.threads > 1:
                pitch = LANES * width
                shared = T.alloc_buffer((self.threads * pitch,), self.found.dtype, scope="shared")
                for e in range(width):
                    k.store(shared, k.load(sums, [int32(e)]), [y * pitch + e * LANES + x])
                barrier()
            leader = tirx.EQ(y, tirx.const(0, dtype))
            with k.when(leader if exact else tirx.all(leader, first < nest.size)):
                for e in range(width):
                    if self.threads > 1:
                        with k.serial(tirx.const(self.threads - 1, dtype)) as other:
                            more = k.load(shared, [(other + 1) * pitch + e * LANES + x])
                            k.store(sums, self.found.combine(k.load(sums, [int32(e)]), more), [int32(e)])
                    self._put(split, first + e if width > 1 else first, k.load(sums, [int32(e)]))

    # results
    def _put(self, split: Expr, result: Expr, value: Expr) -> None:
        if self.splits > 1:
            self.k.store(self.partial, value, [split * self.nest.size + result])
        else:
            self._finish(result, value)

    def _finish(self, result: Expr, value: Expr) -> None:
        nest, after, kernel = self.nest, self.found.after, self.kernel
        value = cast(value, str(nest.buffer.dtype))
        if after is None:
            self.k.store(kernel.flat(nest.buffer), value, [result])
            return
        loads = [load for load, _ in loads_of(after.value) if load.source.same_as(nest.buffer)]
        known = [(load, value) for load in distinct(loads)]
        self.k.store(kernel.flat(after.buffer), kernel.value(after, after.value, result, known), [result])

    def _merge(self) -> None:
        k, nest, dtype = self.k, self.nest, self.nest.index_dtype
        blocks = -(-nest.size // _MERGE_THREADS)
        with self.kernel.launch(blocks, _MERGE_THREADS, dtype) as (block, thread):
            result = block * _MERGE_THREADS + thread
            with k.when(result < nest.size):
                sums = k.scratch((1,), self.found.dtype)
                k.store(sums, self._neutral(), [int32(0)])
                with k.unroll(self.splits) as split:
                    more = k.load(self.partial, [split * nest.size + result])
                    k.store(sums, self.found.combine(k.load(sums, [int32(0)]), more), [int32(0)])
                self._finish(result, k.load(sums, [int32(0)]))
