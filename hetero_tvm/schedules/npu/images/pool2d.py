"""Pooling on the vector unit, channels last.

Loops: those of :mod:`hetero_tvm.schedules.npu.images.windows`; a mean is summed in float32 and multiplied by
one over the number of its places::

    for image, channels, rows:   UB <- DRAM (padded);  one max or add per tap;  DRAM <- UB

Why it is fast: a tap costs one pass over all lanes and no copy.
"""

from __future__ import annotations

import math

import numpy as np

from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.ops.pool2d import MAX, Pool2d
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.npu.base import CHANNELS_LAST, other_layout
from hetero_tvm.schedules.npu.emit import DRAM, L1, UB, At, Kernel
from hetero_tvm.schedules.npu.images.windows import Window, WindowSpace, WindowTile
from hetero_tvm.schedules.npu.tiles import ceil_div, extent_at


class NpuPool2dSpace(WindowSpace):
    """``ops.Pool2d`` on the vector unit."""

    name = "npu.pool2d"
    operator = Pool2d

    def unsupported(self, op: Pool2d, machine: NpuMachine) -> str | None:
        if "int" in op.dtype:
            return f"pools {machine.dtype}, not {op.dtype}"
        return other_layout(op) or self.does_not_fit(op, machine)

    def tables(self, op: Pool2d, point: Point, machine: NpuMachine) -> list[np.ndarray]:
        """Factor of the sum of each window, where windows count differently."""
        if not _counts_differ(op):
            return []
        counts = [[op.counted(0, i) * op.counted(1, j) for j in range(op.out[1])] for i in range(op.out[0])]
        return [(1.0 / np.maximum(counts, 1)).astype(np.float32)]

    def layouts(self, op: Pool2d) -> tuple[tuple[str, ...], str]:
        return (CHANNELS_LAST,), CHANNELS_LAST

    def window_tiles(self, op: Pool2d, machine: NpuMachine) -> list[WindowTile]:
        accumulator = 0 if op.mode == MAX else 8 if _counts_differ(op) else 4
        return Window(op).tiles(machine.spec, accumulator=accumulator)

    def on_chip(self, op: Pool2d) -> frozenset[int]:
        return frozenset({len(op.inputs)})

    def emit_held(self, op: Pool2d, point: Point, machine: NpuMachine, held: frozenset[int]) -> PrimFunc:
        t, dtype, w = WindowTile.of(point), machine.dtype, Window(op)
        fill = -math.inf if op.mode == MAX else 0.0
        k = Kernel()
        with k:
            x = k.argument("X", (op.batch, op.height, op.width, op.channels), dtype)
            factors = k.argument("factors", op.out, "float32") if _counts_differ(op) else None
            y = k.argument("Y", (op.batch, *op.out, op.channels), dtype, L1 if held else DRAM)
            with (
                k.loop(op.batch) as b,
                k.loop(ceil_div(op.channels, t.channels)) as g,
                k.loop(ceil_div(op.out[0], t.rows), buffers=2) as r,
            ):
                row, first = r * t.rows, g * t.channels
                high, deep = extent_at(op.out[0], t.rows, r), extent_at(op.channels, t.channels, g)
                image = w.load(k, x, b, t, row, high, first, deep, fill)
                box = (high, op.out[1], deep)
                out = k.alloc(UB, (t.rows, op.out[1], t.channels), dtype)
                tile = At(out, lambda i, j, c: (i, j, c))
                if op.mode == MAX:
                    for n, (i, j) in enumerate(w.taps()):
                        if n == 0:
                            k.unary("copy", box, tile, w.tap(image, i, j))
                        else:
                            k.binary("max", box, tile, tile, w.tap(image, i, j))
                else:
                    total = k.alloc(UB, (t.rows, op.out[1], t.channels), "float32")
                    sums = At(total, lambda i, j, c: (i, j, c))
                    if op.out == (1, 1):  # global: the reduction reads every element once
                        whole = At(image, lambda i, j, c: (i, j, c))
                        extents = (op.kernel[0], op.kernel[1], deep)
                        k.reduce("sum", extents, [0, 1], At(total, lambda i, j, c: (0, 0, c)), whole)
                    else:
                        k.unary("copy", box, sums, w.tap(image, 0, 0))
                        for i, j in list(w.taps())[1:]:
                            k.binary("add", box, sums, sums, w.tap(image, i, j))
                    if factors is None:
                        k.unary("copy", box, tile, sums, mul=1.0 / math.prod(op.kernel))
                    else:
                        own = k.alloc(UB, (t.rows, op.out[1]), "float32")
                        source = At(factors, lambda i, j: (row + i, j))
                        k.load((high, op.out[1]), At(own, lambda i, j: (i, j)), source)
                        k.binary("mul", box, tile, sums, At(own, lambda i, j, c: (i, j)))
                k.store(box, At(y, lambda i, j, c: (b, row + i, j, first + c)), tile)
        return k.function


def _counts_differ(op: Pool2d) -> bool:
    """Whether some window of a mean counts fewer places than it has."""
    whole = math.prod(op.kernel)
    return op.mode != MAX and any(
        op.counted(0, i) * op.counted(1, j) != whole for i in range(op.out[0]) for j in range(op.out[1])
    )
