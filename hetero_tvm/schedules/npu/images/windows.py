"""Sliding windows on the vector unit, channels last: depthwise convolution and pooling.

Loops: tiles of some output rows and channels.  The input under a tile is loaded with its padding, then
one vector instruction per tap works on the whole tile, reading the input through strides::

    for image, channels, rows:   UB <- DRAM (padded);  one pass per tap;  epilogue;  DRAM <- UB

Why it is fast: neighbouring channels are contiguous, so every pass uses all lanes, and a tap costs
no copy: it is another base address.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.matmul import BIAS, RESIDUAL
from hetero_tvm.ops.pool2d import MAX, Pool2d
from hetero_tvm.schedules.base import Knob, Packer, Point
from hetero_tvm.schedules.npu import epilogue
from hetero_tvm.schedules.npu.base import CHANNELS_LAST, NpuSpace, image_layouts, other_layout
from hetero_tvm.schedules.npu.emit import DRAM, L1, UB, At, Kernel
from hetero_tvm.schedules.npu.tiles import ceil_div, even, extent_at

Tile = tuple[int, int]
"""Output rows, channels."""


class Window:
    """The geometry that both operators have."""

    def __init__(self, op: Any):
        self.batch, self.channels, self.height, self.width = op.batch, op.channels, op.height, op.width
        self.kernel, self.strides, self.padding = op.kernel, op.strides, op.padding
        self.dilation = getattr(op, "dilation", (1, 1))
        self.out = op.out if isinstance(op, Pool2d) else (op.out_height, op.out_width)

    def reach(self, axis: int, outputs: Any) -> Any:
        """Inputs along an axis under that many outputs."""
        return (outputs - 1) * self.strides[axis] + (self.kernel[axis] - 1) * self.dilation[axis] + 1

    def bytes(self, tile: Tile, temporaries: int, accumulator: int) -> int:
        """Of the unified buffer, both versions."""
        rows, channels = tile
        image = 2 * self.reach(0, rows) * self.reach(1, self.out[1])
        out = rows * self.out[1] * (2 * (1 + temporaries) + accumulator)
        constants = channels * (2 * math.prod(self.kernel) + 4)
        return 2 * channels * (image + out) + 2 * constants + 512

    def tiles(self, spec: Any, temporaries: int, accumulator: int) -> list[Tile]:
        """Tiles that fit, the cheapest first."""
        found = set()
        for parts in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64):
            channels = even(self.channels, ceil_div(self.channels, parts), 16) if parts > 1 else self.channels
            for rows in (1, 2, 3, 4, 7, 8, 14, 16, 28, 56, self.out[0]):
                tile = (even(self.out[0], min(rows, self.out[0])), min(channels, self.channels))
                if self.bytes(tile, temporaries, accumulator) <= spec.scratchpad("ub"):
                    found.add(tile)
        # Of wide images one row of a few channels, in short transfers, is better than none.
        for channels in (8, 4, 2, 1):
            tile = (1, min(channels, self.channels))
            if not found and self.bytes(tile, temporaries, accumulator) <= spec.scratchpad("ub"):
                found.add(tile)
        return sorted(found, key=lambda t: (self.cost(t, spec), t))

    def cost(self, tile: Tile, spec: Any) -> float:
        rows, channels = tile
        count = self.batch * ceil_div(self.out[0], rows) * ceil_div(self.channels, channels)
        vector = math.prod(self.kernel) * (rows * self.out[1] * channels / spec.vector_lanes + 8)
        image = self.reach(0, rows) * self.width * channels * 2
        dma = (image + rows * self.out[1] * channels * 2) / spec.dram_bytes_per_cycle
        return count * (max(vector, dma) + 0.1 * min(vector, dma)) + vector + dma + 2 * spec.dram_latency

    def load(self, k: Kernel, x: Any, n: Any, rows: Any, first: Any, start: Any, ct: int, fill: float) -> Any:
        """The input under ``rows`` output rows from ``first``, channels from ``start``, with its padding."""
        high, wide = rows[1], self.reach(1, self.out[1])
        buffer = k.alloc(UB, (high, wide, ct), str(x.dtype))
        top = first * self.strides[0] - self.padding[0]
        left = self.padding[1]
        deep = extent_at(self.channels, ct, start // ct) if isinstance(start, int) else rows[2]
        k.load_padded(
            (self.reach(0, rows[0]), wide, deep),
            At(buffer, lambda y, z, c: (y, z, c)),
            At(x, lambda y, z, c: (n, top + y, z - left, start + c)),
            lambda y, z, c: (top + y >= 0, top + y < self.height, z >= left, z < self.width + left),
            fill,
        )
        return buffer

    def tap(self, buffer: Any, i: int, j: int) -> At:
        """What tap (i, j) reads, by output row, column, channel."""
        di, dj = i * self.dilation[0], j * self.dilation[1]
        sy, sx = self.strides
        return At(buffer, lambda y, x, c: (y * sy + di, x * sx + dj, c))

    def taps(self) -> Iterator[tuple[int, int]]:
        return ((i, j) for i in range(self.kernel[0]) for j in range(self.kernel[1]))


class WindowSpace(NpuSpace):
    """What both spaces share: one knob, the tile."""

    version = 1

    def _tiles(self, op: Any, machine: Any) -> list[Tile]:
        raise NotImplementedError

    def knobs(self, op: FusedOp, machine: Any) -> tuple[Knob, ...]:
        return (Knob("tile", tuple(self._tiles(op, machine)[:32])),)

    def default(self, op: FusedOp, machine: Any) -> Point:
        return {"tile": self._tiles(op, machine)[0]}

    def on_chip(self, op: FusedOp) -> frozenset[int]:
        return frozenset({len(op.inputs)})

    def emit(self, op: FusedOp, point: Point, machine: Any) -> Any:
        return self.emit_held(op, point, machine, frozenset())

    def features(self, op: FusedOp, point: Point, machine: Any) -> list[float]:
        return [*map(float, point["tile"]), 1e6 / Window(op).cost(point["tile"], machine.spec)]

    def _fits(self, op: Any, machine: Any) -> str | None:
        if not self._tiles(op, machine):
            return f"one row of {op.width} pixels does not fit the unified buffer of {machine.spec.name}"
        return None


class NpuDepthwiseSpace(WindowSpace):
    """Depthwise ``ops.Conv2d`` on the vector unit."""

    name = "npu.depthwise"

    def refuses(self, op: FusedOp, machine: Any) -> str | None:
        if not isinstance(op, Conv2d) or not op.depthwise:
            return f"is for depthwise convolutions, not {op.kind}"
        if reason := other_layout(op):
            return reason
        return epilogue.supported(op.epilogue) or self._fits(op, machine)

    def layouts(self, op: FusedOp) -> tuple[tuple[str, ...], str]:
        return image_layouts(op)

    def _tiles(self, op: Any, machine: Any) -> list[Tile]:
        return Window(op).tiles(machine.spec, epilogue.temporaries(op.epilogue), 0)

    def pack(self, op: FusedOp, point: Point, machine: Any) -> dict[int, Packer]:
        """Weights as [taps, channels]."""
        from hetero_tvm.machines.npu.numbers import numpy_dtype

        dtype = numpy_dtype(machine.short)
        return {1: lambda w: np.ascontiguousarray(w.reshape(op.channels, -1).T).astype(dtype)}

    def emit_held(self, op: FusedOp, point: Point, machine: Any, held: frozenset[int]) -> Any:
        (rows, ct), dtype, w = point["tile"], machine.dtype, Window(op)
        out_h, out_w, taps = op.out_height, op.out_width, math.prod(op.kernel)
        k = Kernel()
        with k:
            x = k.argument("X", (op.batch, op.height, op.width, op.channels), dtype)
            weights = k.argument("W", (taps, op.channels), dtype)
            shape = (op.batch, out_h, out_w, op.channels)
            order = [step for step in op.epilogue if step in (BIAS, RESIDUAL)]
            extra = [
                k.argument(f"{step}{n}", (op.channels,), "float32") if step == BIAS
                else k.argument(f"{step}{n}", shape, dtype)
                for n, step in enumerate(order)
            ]  # fmt: skip
            y = k.argument("Y", shape, dtype, L1 if held else DRAM)
            with k.loop(ceil_div(op.channels, ct), buffers=2) as g:
                deep = extent_at(op.channels, ct, g)
                held = k.alloc(UB, (taps, ct), dtype)
                k.load((taps, deep), At(held, lambda t, c: (t, c)), At(weights, lambda t, c: (t, g * ct + c)))
                vectors = {}
                for n, step in enumerate(order):
                    if step == BIAS:
                        vectors[n] = k.alloc(UB, (ct,), "float32")
                        k.load((deep,), At(vectors[n], lambda c: (c,)), At(extra[n], lambda c: (g * ct + c,)))
                with k.loop(op.batch) as b, k.loop(ceil_div(out_h, rows), buffers=2) as r:
                    high = extent_at(out_h, rows, r)
                    image = w.load(k, x, b, (high, w.reach(0, rows), deep), r * rows, g * ct, ct, 0.0)
                    acc = k.alloc(UB, (rows, out_w, ct), dtype)
                    box, tile = (high, out_w, deep), At(acc, lambda i, j, c: (i, j, c))
                    first_bias = 0 if op.epilogue[:1] == (BIAS,) else None
                    for t, (i, j) in enumerate(w.taps()):
                        start: Any = tile
                        if t == 0:
                            start = None if first_bias is None else _row(vectors[0])
                        source, factor = w.tap(image, i, j), _tap_row(held, t)
                        if start is None:
                            k.binary("mul", box, tile, source, factor)
                        else:
                            k.ternary("muladd", box, tile, source, factor, start)
                    pending = [n for n in range(len(order)) if n != first_bias]

                    def at_output(buffer: Any) -> At:
                        return At(buffer, lambda i, j, c: (b, r * rows + i, j, g * ct + c))

                    def residual(buffer: Any) -> None:
                        n = next(n for n in pending if order[n] == RESIDUAL)
                        pending.remove(n)
                        k.load(box, At(buffer, lambda i, j, c: (i, j, c)), at_output(extra[n]))

                    later = next((n for n in pending if order[n] == BIAS), None)
                    steps = op.epilogue[1:] if first_bias == 0 else op.epilogue
                    row = None if later is None else _row(vectors[later])
                    epilogue.apply(k, steps, acc, box, dtype, epilogue.Operands(residual, row))
                    k.store(box, at_output(y), tile)
        return k.function


class NpuPoolSpace(WindowSpace):
    """``ops.Pool2d`` on the vector unit."""

    name = "npu.pool2d"

    def refuses(self, op: FusedOp, machine: Any) -> str | None:
        if not isinstance(op, Pool2d):
            return f"is for pool2d, not {op.kind}"
        if reason := other_layout(op):
            return reason
        return self._fits(op, machine)

    def tables(self, op: FusedOp, point: Point, machine: Any) -> list[np.ndarray]:
        """What the sum of each window is multiplied by, where windows count differently."""
        if op.mode == MAX or _one_count(op):
            return []
        counts = [
            [op.counted(0, i) * op.counted(1, j) for j in range(op.out[1])] for i in range(op.out[0])
        ]
        return [(1.0 / np.maximum(counts, 1)).astype(np.float32)]

    def layouts(self, op: FusedOp) -> tuple[tuple[str, ...], str]:
        return (CHANNELS_LAST,), CHANNELS_LAST

    def _tiles(self, op: Any, machine: Any) -> list[Tile]:
        accumulator = 0 if op.mode == MAX else 4 if _one_count(op) else 8
        return Window(op).tiles(machine.spec, 0, accumulator)

    def emit_held(self, op: FusedOp, point: Point, machine: Any, held: frozenset[int]) -> Any:
        (rows, ct), dtype, w = point["tile"], machine.dtype, Window(op)
        fill = -math.inf if op.mode == MAX else 0.0
        k = Kernel()
        with k:
            x = k.argument("X", (op.batch, op.height, op.width, op.channels), dtype)
            differ = op.mode != MAX and not _one_count(op)
            factors = k.argument("factors", op.out, "float32") if differ else None
            y = k.argument("Y", (op.batch, *op.out, op.channels), dtype, L1 if held else DRAM)
            with k.loop(op.batch) as b, k.loop(ceil_div(op.channels, ct)) as g, k.loop(
                ceil_div(op.out[0], rows), buffers=2
            ) as r:  # fmt: skip
                high, deep = extent_at(op.out[0], rows, r), extent_at(op.channels, ct, g)
                image = w.load(k, x, b, (high, w.reach(0, rows), deep), r * rows, g * ct, ct, fill)
                box = (high, op.out[1], deep)
                out = k.alloc(UB, (rows, op.out[1], ct), dtype)
                tile = At(out, lambda i, j, c: (i, j, c))
                if op.mode == MAX:
                    for t, (i, j) in enumerate(w.taps()):
                        if t == 0:
                            k.unary("copy", box, tile, w.tap(image, i, j))
                        else:
                            k.binary("max", box, tile, tile, w.tap(image, i, j))
                else:
                    total = k.alloc(UB, (rows, op.out[1], ct), "float32")
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
                        own = k.alloc(UB, (rows, op.out[1]), "float32")
                        k.load(
                            (high, op.out[1]), At(own, lambda i, j: (i, j)),
                            At(factors, lambda i, j: (r * rows + i, j)),
                        )  # fmt: skip
                        k.binary("mul", box, tile, sums, At(own, lambda i, j, c: (i, j)))
                k.store(box, At(y, lambda i, j, c: (b, r * rows + i, j, g * ct + c)), tile)
        return k.function


def _one_count(op: Pool2d) -> bool:
    """Whether every window of a mean counts all its places."""
    whole = math.prod(op.kernel)
    return all(
        op.counted(0, i) * op.counted(1, j) == whole for i in range(op.out[0]) for j in range(op.out[1])
    )


def _row(vector: Any) -> At:
    return At(vector, lambda i, j, c: (c,))


def _tap_row(weights: Any, t: int) -> At:
    return At(weights, lambda i, j, c: (t, c))
