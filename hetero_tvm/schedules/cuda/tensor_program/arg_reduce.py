"""Places of the largest and smallest values (argmax, argmin) on a GPU.

Loop structure, where the reduced axes lie side by side in memory ("rows")::

    blockIdx.x over groups of results
      threads along the row keep the best value and its place
      pairs meet by shuffles, and by one pair a warp in shared memory

and where the results do ("columns")::

    blockIdx.x, threadIdx.x over results, one after another along the reduction

Threads side by side read values side by side in both.  Of equal values the first place wins whatever the
order in which threads meet, and NaN is better than any number, as in NumPy and PyTorch.
"""

from __future__ import annotations

import math

from hetero_tvm.host.tvm import Expr, PrimFunc, T, tirx, tvm
from hetero_tvm.machines.gpu import WARP, GpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.schedules.base import DesignSpace, Knob, Point
from hetero_tvm.schedules.cuda.tensor_program.plain import PlainKernel, distinct
from hetero_tvm.schedules.cuda.tensor_program.reduction import in_place, moves_along
from hetero_tvm.schedules.cuda.threads import barrier, shuffle_xor
from hetero_tvm.schedules.cuda.values import bytes_of, cast
from hetero_tvm.schedules.emit import int32
from hetero_tvm.schedules.nests.arg_nest import ArgNest
from hetero_tvm.schedules.nests.nest import (
    Nests,
    loads_of,
    substitute,
    unflatten,
)
from hetero_tvm.schedules.nests.program import program_nests

_THREADS = 128
_NOWHERE = 2**31 - 1


class CudaArgReduceSpace(DesignSpace):
    """argmax and argmin over any axes.  Knob ``threads``: along the reduction."""

    name = "cuda.arg_reduce"

    def refuses(self, op: FusedOp, machine: GpuModel) -> str | None:
        nests = program_nests(op)
        return nests if isinstance(nests, str) else refuses(nests)

    def knobs(self, op: FusedOp, machine: GpuModel) -> tuple[Knob, ...]:
        nest = program_nests(op).nests[0]
        rows = moves_along(nest, nest.value)
        every = (1, 8, 32, 128, 256, 512, 1024) if rows else (1,)
        return (Knob("threads", tuple(n for n in every if n == 1 or n < 2 * nest.length)),)

    def default(self, op: FusedOp, machine: GpuModel) -> Point:
        """The most threads that fill the GPU and have a few values each to compare."""
        nest = program_nests(op).nests[0]
        known = self.knobs(op, machine)[0].choices
        wanted = [
            n for n in known if n <= 32 or (n * 4 <= nest.length and n * nest.size <= 2048 * machine.sms)
        ]
        return {"threads": wanted[-1]}

    def emit(self, op: FusedOp, point: Point, machine: GpuModel) -> PrimFunc:
        return emit(program_nests(op), point["threads"])

    def features(self, op: FusedOp, point: Point, machine: GpuModel) -> list[float]:
        nest = program_nests(op).nests[0]
        return [
            math.log2(point["threads"]),
            math.log2(nest.length),
            math.log2(nest.size),
            point["threads"] * nest.size / (machine.sms * machine.threads_per_sm),
        ]


def refuses(nests: Nests) -> str | None:
    """Reason why these nests are not one place of an extreme; None when they are."""
    first, *more = nests.nests
    if not isinstance(first, ArgNest) or len(more) != 1 or more[0].reduced:
        return "it is not one argmax or argmin with an elementwise step behind it"
    if any(
        not buffer.same_as(first.buffer) and not buffer.same_as(first.extreme) for buffer in nests.temporary
    ):
        return "it has more than one intermediate result"
    if bytes_of(str(first.extreme.dtype)) not in (2, 4, 8) or str(first.extreme.dtype) == "bool":
        return f"shuffles exchange no {first.extreme.dtype}"
    if not in_place(first, more[0]):
        return "the step behind the reduction uses it in another order"
    return None


def emit(nests: Nests, threads: int) -> PrimFunc:
    """The function; ``threads`` along the reduction: 1, or a power of two of at least 8."""
    kernel = PlainKernel(nests)
    with kernel.arguments():
        _Emitter(kernel, nests, threads).write()
    return kernel.function


class _Emitter:
    """Emits the kernel: pairs of value and place, compared by threads, warps and blocks."""

    def __init__(self, kernel: PlainKernel, nests: Nests, threads: int):
        self.kernel, self.k, self.threads = kernel, kernel.k, threads
        self.nest, self.after = nests.nests
        kind = str(self.nest.extreme.dtype)
        self.dtype = "float32" if kind in ("float16", "bfloat16") else kind
        self.real = self.dtype.startswith("float")

    def write(self) -> None:
        k, nest, threads, dtype = self.k, self.nest, self.threads, self.nest.index_dtype
        beside = max(1, _THREADS // threads)
        blocks, exact = -(-nest.size // beside), nest.size % beside == 0
        with self.kernel.launch(blocks, threads * beside, dtype) as (block, thread):
            x, y = thread % threads, thread // threads
            result = block * beside + y
            known = result if exact else tirx.min(result, tirx.const(nest.size - 1, dtype))
            self.best, self.place = k.scratch((1,), self.dtype), k.scratch((1,), "int32")
            k.store(self.best, self._worst(), [0])
            k.store(self.place, int32(_NOWHERE), [0])
            with k.serial(tirx.const(-(-nest.length // threads), dtype)) as step:
                at = step * threads + x
                if nest.length % threads:
                    with k.when(at < nest.length):
                        self._take(known, at)
                else:
                    self._take(known, at)
            self._meet(x, y, beside)
            inside = [tirx.EQ(x, tirx.const(0, dtype))] if threads > 1 else []
            inside += [] if exact else [result < nest.size]
            if inside:
                with k.when(tirx.all(*inside)):
                    self._finish(known)
            else:
                self._finish(known)

    def _worst(self) -> Expr:
        """Value that every other one is better than."""
        if self.real:
            return tirx.const(-math.inf if self.nest.largest else math.inf, self.dtype)
        return tvm.tirx.min_value(self.dtype) if self.nest.largest else tvm.tirx.max_value(self.dtype)

    def _take(self, result: Expr, at: Expr) -> None:
        nest = self.nest
        values = {**unflatten(nest.axes, result), **unflatten(nest.reduced, at)}
        term = substitute(self.kernel.with_loads(nest.value), values)
        here = self.k.scratch((1,), self.dtype)
        self.k.store(here, cast(term, self.dtype), [0])
        position = substitute(nest.position, values).astype("int32")
        self._compare(self.k.load(here, [0]), position)

    def _compare(self, value: Expr, place: Expr) -> None:
        """Keep the better one of what is known and another pair."""
        k = self.k
        best, known = k.load(self.best, [0]), k.load(self.place, [0])
        better = value > best if self.nest.largest else value < best
        same = tirx.EQ(value, best)
        if self.real:
            nan, known_nan = (tirx.isnan(v) for v in (value, best))  # v != v would be simplified away
            better = tirx.any(better, tirx.all(nan, tirx.Not(known_nan)))
            same = tirx.any(same, tirx.all(nan, known_nan))
        with k.when(tirx.any(better, tirx.all(same, place < known))):
            k.store(self.best, value, [0])
            k.store(self.place, place, [0])

    def _meet(self, x: Expr, y: Expr, beside: int) -> None:
        """The best pair of all threads of a row, in each of them."""
        k, threads = self.k, self.threads
        self._within_warp(min(threads, WARP))
        warps = threads // WARP
        if warps <= 1:
            return
        values = T.alloc_buffer((beside * warps,), self.dtype, scope="shared")
        places = T.alloc_buffer((beside * warps,), "int32", scope="shared")
        with k.when(x % WARP == 0):
            k.store(values, k.load(self.best, [0]), [y * warps + x // WARP])
            k.store(places, k.load(self.place, [0]), [y * warps + x // WARP])
        barrier()
        k.store(self.best, k.load(values, [y * warps + x % warps]), [0])
        k.store(self.place, k.load(places, [y * warps + x % warps]), [0])
        self._within_warp(warps)

    def _within_warp(self, lanes: int) -> None:
        k = self.k
        while lanes > 1:
            lanes //= 2
            value, place = k.scratch((1,), self.dtype), k.scratch((1,), "int32")
            k.store(value, shuffle_xor(k.load(self.best, [0]), lanes), [0])
            k.store(place, shuffle_xor(k.load(self.place, [0]), lanes), [0])
            self._compare(k.load(value, [0]), k.load(place, [0]))

    def _finish(self, result: Expr) -> None:
        k, nest, after, kernel = self.k, self.nest, self.after, self.kernel
        value = cast(k.load(self.place, [0]), str(nest.buffer.dtype))
        loads = [load for load, _ in loads_of(after.value) if load.source.same_as(nest.buffer)]
        known = [(load, value) for load in distinct(loads)]
        k.store(kernel.flat(after.buffer), kernel.value(after, after.value, result, known), [result])
