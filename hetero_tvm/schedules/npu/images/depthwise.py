"""Depthwise convolutions on the vector unit, channels last.

Loops: those of :mod:`hetero_tvm.schedules.npu.images.windows`, with a tile's weights in the unified buffer
for all its rows::

    for channels:                UB <- weights, biases
      for image, rows:           UB <- DRAM (padded);  one multiply-add per tap;  epilogue;  DRAM <- UB

Why it is fast: a tap costs one pass over all lanes and no copy.
"""

from __future__ import annotations

import math

import numpy as np

from hetero_tvm.host.tvm import Buffer, PrimFunc
from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.matmul import BIAS, RESIDUAL
from hetero_tvm.schedules.base import Packer, Point
from hetero_tvm.schedules.npu import epilogue
from hetero_tvm.schedules.npu.base import image_layouts, other_layout
from hetero_tvm.schedules.npu.emit import DRAM, L1, UB, At, Kernel
from hetero_tvm.schedules.npu.images.windows import Window, WindowSpace, WindowTile
from hetero_tvm.schedules.npu.tiles import ceil_div, extent_at


class NpuDepthwiseSpace(WindowSpace):
    """Depthwise ``ops.Conv2d`` on the vector unit."""

    name = "npu.depthwise"
    operator = Conv2d

    def unsupported(self, op: Conv2d, machine: NpuMachine) -> str | None:
        if not op.depthwise:
            return f"is for depthwise convolutions, not {op.kind}"
        return other_layout(op) or epilogue.supported(op.epilogue) or self.does_not_fit(op, machine)

    def layouts(self, op: Conv2d) -> tuple[tuple[str, ...], str]:
        return image_layouts(op)

    def window_tiles(self, op: Conv2d, machine: NpuMachine) -> list[WindowTile]:
        return Window(op).tiles(machine.spec, epilogue.temporaries(op.epilogue))

    def pack(self, op: Conv2d, point: Point, machine: NpuMachine) -> dict[int, Packer]:
        """Weights as [taps, channels]."""
        dtype = machine.numpy_dtype
        return {1: lambda w: np.ascontiguousarray(w.reshape(op.channels, -1).T).astype(dtype)}

    def on_chip(self, op: Conv2d) -> frozenset[int]:
        return frozenset({len(op.inputs)})

    def emit_held(self, op: Conv2d, point: Point, machine: NpuMachine, held: frozenset[int]) -> PrimFunc:
        t, dtype, w = WindowTile.of(point), machine.dtype, Window(op)
        out_h, out_w, taps = op.out_height, op.out_width, math.prod(op.kernel)
        first_bias = 0 if op.epilogue[:1] == (BIAS,) else None
        k = Kernel()
        with k:
            x = k.argument("X", (op.batch, op.height, op.width, op.channels), dtype)
            weights = k.argument("W", (taps, op.channels), dtype)
            shape = (op.batch, out_h, out_w, op.channels)
            order = [step for step in op.epilogue if step in (BIAS, RESIDUAL)]
            extra = [
                k.argument(f"{step}{n}", *(((op.channels,), "float32") if step == BIAS else (shape, dtype)))
                for n, step in enumerate(order)
            ]
            y = k.argument("Y", shape, dtype, L1 if held else DRAM)
            with k.loop(ceil_div(op.channels, t.channels), buffers=2) as g:
                first, deep = g * t.channels, extent_at(op.channels, t.channels, g)
                factors = k.alloc(UB, (taps, t.channels), dtype)
                source = At(weights, lambda n, c: (n, first + c))
                k.load((taps, deep), At(factors, lambda n, c: (n, c)), source)
                biases = {}
                for n, step in enumerate(order):
                    if step == BIAS:
                        vector = k.alloc(UB, (t.channels,), "float32")
                        k.load((deep,), At(vector, lambda c: (c,)), At(extra[n], lambda c: (first + c,)))
                        biases[n] = At(vector, lambda i, j, c, vector=vector: (c,))
                with k.loop(op.batch) as b, k.loop(ceil_div(out_h, t.rows), buffers=2) as r:
                    high = extent_at(out_h, t.rows, r)
                    image = w.load(k, x, b, t, r * t.rows, high, first, deep, 0.0)
                    acc = k.alloc(UB, (t.rows, out_w, t.channels), dtype)
                    box, tile = (high, out_w, deep), At(acc, lambda i, j, c: (i, j, c))
                    start = None if first_bias is None else biases[0]
                    for n, (i, j) in enumerate(w.taps()):
                        source, factor = w.tap(image, i, j), At(factors, lambda i, j, c, n=n: (n, c))
                        if start is None:
                            k.binary("mul", box, tile, source, factor)
                        else:
                            k.ternary("muladd", box, tile, source, factor, start)
                        start = tile
                    pending = [n for n in range(len(order)) if n != first_bias]

                    def at_output(buffer: Buffer) -> At:
                        return At(buffer, lambda i, j, c: (b, r * t.rows + i, j, first + c))

                    def load_residual(buffer: Buffer) -> None:
                        n = next(n for n in pending if order[n] == RESIDUAL)
                        pending.remove(n)
                        k.load(box, At(buffer, lambda i, j, c: (i, j, c)), at_output(extra[n]))

                    later = next((n for n in pending if order[n] == BIAS), None)
                    steps = op.epilogue[1:] if first_bias == 0 else op.epilogue
                    rest = epilogue.Operands(load_residual, None if later is None else biases[later])
                    epilogue.apply(k, steps, acc, box, dtype, rest)
                    k.store(box, at_output(y), tile)
        return k.function
