"""Depthwise convolutions of 8-bit images on the vector unit, exact in int32.

Loops: those of :mod:`hetero_tvm.schedules.npu.images.windows`, with int32 sums that begin at the bias::

    for image, channels, rows:   UB <- DRAM (padded with the zero point);  one pass per tap
                                 scale, relu, round, saturate;  DRAM <- UB

Why it is fast: a tap costs no copy, and neighbouring channels fill all lanes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hetero_tvm.host.tvm import Buffer, PrimFunc
from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.ops.integers.quantized import OFFSET, QuantConv2d
from hetero_tvm.schedules.base import Packer, Point
from hetero_tvm.schedules.emit import Index
from hetero_tvm.schedules.npu.base import CHANNELS_LAST, ROW_MAJOR, stored_as
from hetero_tvm.schedules.npu.emit import UB, At, Kernel
from hetero_tvm.schedules.npu.images.windows import Window, WindowSpace, WindowTile
from hetero_tvm.schedules.npu.tiles import ceil_div, extent_at


class _ByteWindow(Window):
    """The geometry, with images of one byte and sums, scaled sums and results of four."""

    def tile_bytes(self, tile: WindowTile, temporaries: int, accumulator: int) -> int:
        image = self.reach(0, tile.rows) * self.reach(1, self.out[1])
        constants = tile.channels * (math.prod(self.kernel) + 8)
        return 2 * (tile.channels * (image + 12 * tile.rows * self.out[1]) + constants) + 512


class NpuQuantizedDepthwiseSpace(WindowSpace):
    """Depthwise ``ops.QuantConv2d`` on the vector unit."""

    name = "npu.quant_depthwise"
    operator = QuantConv2d

    def unsupported(self, op: QuantConv2d, machine: NpuMachine) -> str | None:
        if not op.plain.depthwise:
            return f"is for depthwise convolutions of 8 bits, not {op.kind}"
        return self.does_not_fit(op, machine)

    def layouts(self, op: QuantConv2d) -> tuple[tuple[str, ...], str]:
        return (CHANNELS_LAST, *(ROW_MAJOR,) * (len(op.inputs) - 1)), CHANNELS_LAST

    def window_tiles(self, op: QuantConv2d, machine: NpuMachine) -> list[WindowTile]:
        return _ByteWindow(op.plain).tiles(machine.spec)

    def features(self, op: QuantConv2d, point: Point, machine: NpuMachine) -> list[float]:
        return super().features(op.plain, point, machine)

    def estimate(self, op: QuantConv2d, point: Point, machine: NpuMachine) -> float | None:
        return super().estimate(op.plain, point, machine)

    def pack(self, op: QuantConv2d, point: Point, machine: NpuMachine) -> dict[int, Packer]:
        """Weights as [taps, channels]."""
        vectors = {n: np.ascontiguousarray for n in range(2, len(op.inputs))}
        return {1: lambda w: np.ascontiguousarray(w.reshape(op.channels, -1).T), **vectors}

    def emit(self, op: QuantConv2d, point: Point, machine: NpuMachine) -> PrimFunc:
        t, w = WindowTile.of(point), _ByteWindow(op.plain)
        (out_h, out_w), taps = w.out, math.prod(op.kernel)
        into = stored_as(op.out, machine.dtype)
        k = Kernel()
        with k:
            x = k.argument("X", (op.batch, op.height, op.width, op.channels), "int8")
            weights = k.argument("W", (taps, op.channels), "int8")
            bias = k.argument("bias", (op.channels,), "int32")
            scale = k.argument("scale", (op.channels,), "float32") if op.scaled else None
            y = k.argument("Y", (op.batch, out_h, out_w, op.channels), into)
            with k.loop(ceil_div(op.channels, t.channels), buffers=2) as g:
                first, deep = g * t.channels, extent_at(op.channels, t.channels, g)
                factors = k.alloc(UB, (taps, t.channels), "int8")
                source = At(weights, lambda n, c: (n, first + c))
                k.load((taps, deep), At(factors, lambda n, c: (n, c)), source)

                def vector(source: Buffer) -> At:
                    tile = k.alloc(UB, (t.channels,), str(source.dtype))
                    k.load((deep,), At(tile, lambda c: (c,)), At(source, lambda c: (first + c,)))
                    return At(tile, lambda i, j, c: (c,))

                biases = vector(bias)
                scales = None if scale is None else vector(scale)
                with k.loop(op.batch) as b, k.loop(ceil_div(out_h, t.rows), buffers=2) as r:
                    high = extent_at(out_h, t.rows, r)
                    image = w.load(k, x, b, t, r * t.rows, high, first, deep, op.fill)
                    box = (high, out_w, deep)

                    def tile(dtype: str) -> At:
                        buffer = k.alloc(UB, (t.rows, out_w, t.channels), dtype)
                        return At(buffer, lambda i, j, c: (i, j, c))

                    sums = tile("int32")
                    for n, (i, j) in enumerate(w.taps()):
                        factor = At(factors, lambda i, j, c, n=n: (n, c))
                        k.ternary("muladd", box, sums, w.tap(image, i, j), factor, sums if n else biases)
                    result = sums
                    if scales is None:
                        if op.relu:
                            k.binary("max", box, sums, sums, 0.0)
                    else:
                        result = tile(into)
                        _requantize(k, op, box, sums, scales, tile("float32"), result)
                    k.store(box, At(y, lambda i, j, c: (b, r * t.rows + i, j, first + c)), result)
        return k.function


def _requantize(
    k: Kernel, op: QuantConv2d, box: Sequence[Index], sums: At, scales: At, wide: At, result: At
) -> None:
    """``result = sums * scales`` in the type of the contract; ``wide`` is a temporary of float32."""
    k.binary("mul", box, wide, sums, scales)
    if op.relu:
        k.unary("relu", box, wide, wide)
    if op.out == "float32":
        k.unary("copy", box, result, wide)
        return
    k.unary("round", box, wide, wide)
    k.unary("copy", box, result, wide, add=float(op.y_zero - OFFSET[op.out]))
