"""Means over whole images on the matrix unit, channels last.

A mean is a product of a row of ones with the pixels [pixels, channels], divided on the way out of the
accumulators.

Loops::

    L0A <- ones
    for image, channels:
      for pixels:    L0B <- pixels (through L1 when they come from DRAM);  mmad
      UB <- L0C / pixels;  DRAM or L1 <- UB

Why it is fast: the vector unit could not take pixels from L1, so an image that the kernel before leaves
there would go through DRAM; sums are in float32 and cost one row of blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.ops.pool2d import AVERAGE, Pool2d
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.npu.base import CHANNELS_LAST, KnobTile, RankedSpace, other_layout
from hetero_tvm.schedules.npu.emit import DRAM, L0A, L0B, L0C, L1, UB, At, Kernel
from hetero_tvm.schedules.npu.tiles import ceil_div, extent_at, round_up


@dataclass(frozen=True)
class GlobalPoolTile(KnobTile):
    """Channels and pixels that one product takes."""

    channels: int
    pixels: int
    knob = "tile"


class NpuGlobalPoolSpace(RankedSpace):
    """``ops.Pool2d`` that takes the mean of every channel."""

    name = "npu.global_pool"
    version = 1
    operator = Pool2d
    knob = "tile"

    def unsupported(self, op: Pool2d, machine: NpuMachine) -> str | None:
        if reason := other_layout(op):
            return reason
        whole = op.out == (1, 1) and op.kernel == (op.height, op.width) and not any(op.padding)
        if op.mode != AVERAGE or not whole:
            return "is for means over whole images"
        if not any(True for _ in _tiles(op, machine.spec)):
            return f"no tile fits the scratchpads of {machine.spec.name}"
        return None

    def layouts(self, op: Pool2d) -> tuple[tuple[str, ...], str]:
        return (CHANNELS_LAST,), CHANNELS_LAST

    def ranked(self, op: Pool2d, machine: NpuMachine) -> list[tuple[int | str, ...]]:
        tiles = sorted(_tiles(op, machine.spec), key=lambda t: _cost(op, t, machine.spec))
        return [tile.choice() for tile in tiles]

    def features(self, op: Pool2d, point: Point, machine: NpuMachine) -> list[float]:
        return [*map(float, point["tile"]), 1e6 / _cost(op, GlobalPoolTile.of(point), machine.spec)]

    def estimate(self, op: Pool2d, point: Point, machine: NpuMachine) -> float | None:
        return _cost(op, GlobalPoolTile.of(point), machine.spec)

    def tables(self, op: Pool2d, point: Point, machine: NpuMachine) -> list[np.ndarray]:
        return [np.ones(GlobalPoolTile.of(point).pixels, machine.numpy_dtype)]

    def on_chip(self, op: Pool2d) -> frozenset[int]:
        return frozenset({0, 1})

    def emit_held(self, op: Pool2d, point: Point, machine: NpuMachine, held: frozenset[int]) -> PrimFunc:
        tile, dtype = GlobalPoolTile.of(point), machine.dtype
        wide, deep = tile.channels, tile.pixels
        pixels, channels = op.height * op.width, op.channels
        k = Kernel()
        with k:
            x = k.argument("X", (op.batch, pixels, channels), dtype, L1 if 0 in held else DRAM)
            ones = k.argument("ones", (deep,), dtype)
            y = k.argument("Y", (op.batch, channels), dtype, L1 if 1 in held else DRAM)
            row = k.alloc(L1, (1, deep), dtype)
            k.load((1, deep), At(row, lambda i, p: (i, p)), At(ones, lambda i, p: (p,)))
            a0 = k.alloc(L0A, (1, deep), dtype)
            k.move((1, deep), At(a0, lambda i, p: (i, p)), At(row, lambda i, p: (i, p)))
            with k.loop(op.batch) as n, k.loop(ceil_div(channels, wide), buffers=2) as g:
                count = extent_at(channels, wide, g)
                sums = k.alloc(L0C, (1, wide), "float32")
                with k.loop(ceil_div(pixels, deep), buffers=2) as r:
                    box = (extent_at(pixels, deep, r), count)
                    source = At(x, lambda p, c: (n, r * deep + p, g * wide + c))
                    if 0 not in held:
                        part = k.alloc(L1, (deep, wide), dtype)
                        k.load(box, At(part, lambda p, c: (p, c)), source)
                        source = At(part, lambda p, c: (p, c))
                    b0 = k.alloc(L0B, (deep, wide), dtype)
                    k.move(box, At(b0, lambda p, c: (p, c)), source)
                    a, b = At(a0, lambda i, c, p: (i, p)), At(b0, lambda i, c, p: (p, c))
                    k.mmad((1, count, box[0]), At(sums, lambda i, c, p: (i, c)), a, b, r == 0)
                out = At(k.alloc(UB, (1, wide), dtype), lambda i, c: (i, c))
                k.move_out((1, count), out, At(sums, lambda i, c: (i, c)), scale=1.0 / pixels)
                k.store((1, count), At(y, lambda i, c: (n, g * wide + c)), out)
        return k.function


def _tiles(op: Pool2d, spec: NPUSpec) -> Iterator[GlobalPoolTile]:
    """Tiles that fit every scratchpad twice."""
    _, bn, bk = spec.matrix_block
    pixels = op.height * op.width
    for blocks in (1, 2, 4, 8, 16, 32, 64):
        wide = min(op.channels, bn * blocks)
        deep = min(spec.scratchpad("l0b") // (4 * wide), spec.scratchpad("l0a") // 2, pixels)
        deep = deep if deep == pixels else deep // bk * bk
        fits = 8 * round_up(wide, 32) <= min(spec.scratchpad("l0c"), 2 * spec.scratchpad("ub"))
        if deep and fits and 4 * deep * (wide + 16) <= spec.scratchpad("l1"):
            yield GlobalPoolTile(wide, deep)
        if wide == op.channels:
            break


def _cost(op: Pool2d, tile: GlobalPoolTile, spec: NPUSpec) -> float:
    """Cycles: the images from DRAM, and what every tile issues."""
    wide, deep = tile.channels, tile.pixels
    pixels = op.height * op.width
    tiles = op.batch * ceil_div(op.channels, wide)
    # Runs of channels in L1 meet in few banks when they are short.
    move = 2.0 * pixels * op.channels / spec.l1_to_l0b * max(1.0, 256 / (2 * wide))
    steps = tiles * ceil_div(pixels, deep)
    dram = 2.0 * op.batch * pixels * op.channels / spec.dram_bytes_per_cycle
    ends = 2 * spec.dram_latency + 2.0 * wide * deep / spec.l1_to_l0b
    return max(op.batch * move, dram) + 30 * steps + 20 * tiles + ends
