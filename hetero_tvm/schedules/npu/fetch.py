"""A copy from DRAM to L1 that several kernels share.

Loops: pieces of some ten kilobytes, so that readers of the first rows need not wait for the last::

    for piece:   L1 <- DRAM
"""

from __future__ import annotations

from dataclasses import dataclass

from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.schedules.base import Knob, Point
from hetero_tvm.schedules.npu.base import CHANNELS_LAST, ROW_MAJOR, NpuSpace
from hetero_tvm.schedules.npu.emit import DRAM, L1, UB, At, Kernel
from hetero_tvm.schedules.npu.tiles import ceil_div, extent_at

_PIECE = 1 << 15
"""Bytes of a piece."""


@dataclass(frozen=True)
class Fetch:
    """Every ``strides``-th row and pixel of an image [height, width, channels], from (0, 0) on; packed
    weights are an image of one pixel."""

    height: int
    width: int
    channels: int
    strides: tuple[int, int] = (1, 1)
    vector: bool = False
    """Whether it is ``channels`` float32 that go to the unified buffer."""

    @property
    def out(self) -> tuple[int, int]:
        """Rows and pixels per row of the copy."""
        return ceil_div(self.height, self.strides[0]), ceil_div(self.width, self.strides[1])


class FetchSpace(NpuSpace):
    """The space of copies that feed chains on chip; not for operators of a graph."""

    name = "npu.fetch"

    def refuses(self, op: object, machine: NpuMachine) -> str | None:
        return "is for what the region builder adds"

    def knobs(self, op: Fetch, machine: NpuMachine) -> tuple[Knob, ...]:
        return ()

    def default(self, op: Fetch, machine: NpuMachine) -> Point:
        return {}

    def layouts(self, op: object) -> tuple[tuple[str, ...], str]:
        layout = CHANNELS_LAST if isinstance(op, Fetch) and op.height * op.width > 1 else ROW_MAJOR
        return (layout,), layout

    def dtypes(self, op: Fetch, machine: NpuMachine) -> tuple[str, ...]:
        return ("float32" if op.vector else machine.dtype,)

    def on_chip(self, op: Fetch) -> frozenset[int]:
        return frozenset({1})

    def emit_held(self, op: Fetch, point: Point, machine: NpuMachine, held: frozenset[int]) -> PrimFunc:
        k, (rows, columns), c, dtype = Kernel(), op.out, op.channels, machine.dtype
        (sy, sx), scope = op.strides, L1 if 1 in held else DRAM
        if op.vector:
            with k:
                source, target = k.argument("X", (c,), "float32"), k.argument("Y", (c,), "float32", UB)
                k.load((c,), At(target, lambda i: (i,)), At(source, lambda i: (i,)))
            return k.function
        with k:
            x = k.argument("X", (op.height, op.width, c), dtype)
            y = k.argument("Y", (rows, columns, c), dtype, scope)
            if rows * columns == 1:
                size = min(c, _PIECE // 2)
                with k.loop(ceil_div(c, size)) as t:
                    part = At(y, lambda i: (0, 0, t * size + i))
                    k.load((extent_at(c, size, t),), part, At(x, lambda i: (0, 0, t * size + i)))
            else:
                high = max(1, min(rows, _PIECE // (2 * columns * c)))
                with k.loop(ceil_div(rows, high)) as t:
                    part = At(y, lambda a, b, q: (t * high + a, b, q))
                    source = At(x, lambda a, b, q: ((t * high + a) * sy, b * sx, q))
                    k.load((extent_at(rows, high, t), columns, c), part, source)
        return k.function
