"""Depthwise convolutions of 8-bit images on the vector unit, exact in int32.

Loops: those of :mod:`hetero_tvm.schedules.npu.images.windows`, with int32 sums that begin at the bias::

    for image, channels, rows:   UB <- DRAM (padded with the zero point);  one pass per tap
                                 scale, relu, round, saturate;  DRAM <- UB

Why it is fast: a tap costs no copy, and neighbouring channels fill all lanes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.quantized import OFFSET, QuantConv2d
from hetero_tvm.schedules.base import Packer, Point
from hetero_tvm.schedules.npu.base import CHANNELS_LAST, ROW_MAJOR, stored_as
from hetero_tvm.schedules.npu.emit import UB, At, Kernel
from hetero_tvm.schedules.npu.images.windows import Tile, Window, WindowSpace
from hetero_tvm.schedules.npu.tiles import ceil_div, extent_at


class _Window8(Window):
    """The geometry, with images of one byte and sums, scaled sums and results of four."""

    def bytes(self, tile: Tile, temporaries: int, accumulator: int) -> int:
        rows, channels = tile
        image = self.reach(0, rows) * self.reach(1, self.out[1])
        constants = channels * (math.prod(self.kernel) + 8)
        return 2 * (channels * (image + 12 * rows * self.out[1]) + constants) + 512


class NpuQuantDepthwiseSpace(WindowSpace):
    """Depthwise ``ops.QuantConv2d`` on the vector unit."""

    name = "npu.quant_depthwise"

    def refuses(self, op: FusedOp, machine: Any) -> str | None:
        if not isinstance(op, QuantConv2d) or not op.plain.depthwise:
            return f"is for depthwise convolutions of 8 bits, not {op.kind}"
        return self._fits(op, machine)

    def layouts(self, op: FusedOp) -> tuple[tuple[str, ...], str]:
        return (CHANNELS_LAST, *(ROW_MAJOR,) * (len(op.inputs) - 1)), CHANNELS_LAST

    def on_chip(self, op: FusedOp) -> frozenset[int]:
        return frozenset()

    def _tiles(self, op: Any, machine: Any) -> list[Tile]:
        return _Window8(op.plain).tiles(machine.spec, 0, 0)

    def features(self, op: FusedOp, point: Point, machine: Any) -> list[float]:
        return super().features(op.plain, point, machine)

    def pack(self, op: FusedOp, point: Point, machine: Any) -> dict[int, Packer]:
        """Weights as [taps, channels]."""
        vectors = {n: np.ascontiguousarray for n in range(2, len(op.inputs))}
        return {1: lambda w: np.ascontiguousarray(w.reshape(op.channels, -1).T), **vectors}

    def emit(self, op: FusedOp, point: Point, machine: Any) -> Any:
        (rows, ct), w = point["tile"], _Window8(op.plain)
        out_h, out_w, taps = *w.out, math.prod(op.kernel)
        into = stored_as(op.out, machine.dtype)
        k = Kernel()
        with k:
            x = k.argument("X", (op.batch, op.height, op.width, op.channels), "int8")
            weights = k.argument("W", (taps, op.channels), "int8")
            bias = k.argument("bias", (op.channels,), "int32")
            scale = k.argument("scale", (op.channels,), "float32") if op.scaled else None
            y = k.argument("Y", (op.batch, out_h, out_w, op.channels), into)
            with k.loop(ceil_div(op.channels, ct), buffers=2) as g:
                deep = extent_at(op.channels, ct, g)
                held = k.alloc(UB, (taps, ct), "int8")
                k.load((taps, deep), At(held, lambda t, c: (t, c)), At(weights, lambda t, c: (t, g * ct + c)))

                def vector(source: Any) -> At:
                    tile = k.alloc(UB, (ct,), str(source.dtype))
                    k.load((deep,), At(tile, lambda c: (c,)), At(source, lambda c: (g * ct + c,)))
                    return At(tile, lambda i, j, c: (c,))

                begin = vector(bias)
                steps = None if scale is None else vector(scale)
                with k.loop(op.batch) as b, k.loop(ceil_div(out_h, rows), buffers=2) as r:
                    high = extent_at(out_h, rows, r)
                    reach = (high, w.reach(0, rows), deep)
                    image = w.load(k, x, b, reach, r * rows, g * ct, ct, op.fill)
                    box = (high, out_w, deep)

                    def tile(dtype: str) -> At:
                        return At(k.alloc(UB, (rows, out_w, ct), dtype), lambda i, j, c: (i, j, c))

                    sums = tile("int32")
                    for t, (i, j) in enumerate(w.taps()):
                        factor = At(held, lambda i, j, c, t=t: (t, c))
                        k.ternary("muladd", box, sums, w.tap(image, i, j), factor, sums if t else begin)
                    result = sums
                    if steps is None:
                        if op.relu:
                            k.binary("max", box, sums, sums, 0.0)
                    else:
                        result = tile(into)
                        _scaled(k, op, box, sums, steps, tile("float32"), result)
                    at = At(y, lambda i, j, c: (b, r * rows + i, j, g * ct + c))
                    k.store(box, at, result)
        return k.function


def _scaled(k: Kernel, op: Any, box: Any, sums: At, steps: At, wide: At, result: At) -> None:
    """``result`` = the sums times the steps, in the type of the contract."""
    k.binary("mul", box, wide, sums, steps)
    if op.relu:
        k.unary("relu", box, wide, wide)
    if op.out == "float32":
        k.unary("copy", box, result, wide)
        return
    k.unary("round", box, wide, wide)
    k.unary("copy", box, result, wide, add=float(op.y_zero - OFFSET[op.out]))
