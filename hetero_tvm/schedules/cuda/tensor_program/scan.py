"""Running sums and products along one axis on a GPU.

Loop structure::

    blockIdx.x over rows (all indices but the axis)
      for tile of T values along the axis
        threadIdx.x reads a value, the tile goes to shared memory
        for step in 1, 2, 4, ...        W. D. Hillis and G. L. Steele, 1986
          each value takes in that of ``step`` places before; two buffers in turns, a barrier between
        each result takes in what all tiles before came to

Every order of threads gives the same result: TVM's own scan reads what the other lanes of a warp wrote
without a barrier, which holds only where lanes run in step.  Lanes side by side read values side by side
when the axis is the last one; rows longer than a tile are read once.
"""

from __future__ import annotations

import math

from hetero_tvm.host.tvm import Expr, PrimFunc, T, tirx
from hetero_tvm.schedules.cuda.tensor_program.plain import launch
from hetero_tvm.schedules.cuda.threads import barrier
from hetero_tvm.schedules.emit import Kernel, for_graph

_MOST_THREADS = 512


def scan(
    shape: tuple[int, ...],
    axis: int,
    given: str,
    dtype: str,
    *,
    product: bool = False,
    exclusive: bool = False,
) -> PrimFunc:
    """The function ``(x, y)``: ``y[.., i, ..]`` is the sum of ``x[.., :i + 1, ..]`` (``:i`` if exclusive).

    Parameters
    ----------
    shape : of both; no extent is 0.
    given, dtype : of ``x`` and of ``y``, which is also what is computed with.
    product : multiply instead of adding.
    """
    length, inner = shape[axis], math.prod(shape[axis + 1 :])
    rows = math.prod(shape) // length
    threads = 32
    while threads < min(length, _MOST_THREADS):
        threads *= 2
    index = "int64" if math.prod(shape) >= 2**31 else "int32"
    neutral = tirx.const(1 if product else 0, dtype)

    def both(a: Expr, b: Expr) -> Expr:
        return a * b if product else a + b

    k = Kernel("main")
    with k:
        arguments = k.argument("x", shape, given), k.argument("y", shape, dtype)
        x, y = (k.view(argument, (math.prod(shape),)) for argument in arguments)
        with launch(rows, threads, index) as (row, thread):
            tile = T.alloc_buffer((2 * threads,), dtype, scope="shared")
            before = k.scratch((1,), dtype)
            k.store(before, neutral, [0])
            first = row // inner * (length * inner) + row % inner
            with k.serial(tirx.const(-(-length // threads), index)) as step:
                at = step * threads + thread
                k.store(tile, neutral, [thread])
                with k.when(at < length):
                    k.store(tile, k.load(x, [first + at * inner]).astype(dtype), [thread])
                barrier()
                reach, now = 1, 0
                while reach < threads:
                    own, other = now * threads, (1 - now) * threads
                    k.store(tile, k.load(tile, [own + thread]), [other + thread])
                    with k.when(thread >= reach):
                        value = both(k.load(tile, [own + thread - reach]), k.load(tile, [own + thread]))
                        k.store(tile, value, [other + thread])
                    barrier()
                    reach, now = 2 * reach, 1 - now
                own = now * threads
                with k.when(at < length):
                    if exclusive:
                        k.store(y, k.load(before, [0]), [first + at * inner])
                        with k.when(thread > 0):
                            value = both(k.load(before, [0]), k.load(tile, [own + thread - 1]))
                            k.store(y, value, [first + at * inner])
                    else:
                        value = both(k.load(before, [0]), k.load(tile, [own + thread]))
                        k.store(y, value, [first + at * inner])
                k.store(before, both(k.load(before, [0]), k.load(tile, [own + threads - 1])), [0])
                barrier()
    return for_graph(k.function, math.prod(shape))
