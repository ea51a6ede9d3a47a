"""Layer and RMS normalization of rows on the vector unit.

Loops: rows are cut into tiles that fit the unified buffer several times; a tile is loaded, all
passes run on it, and it is stored, while the next one is loaded (two versions of every buffer)::

    for tile of rows:   UB <- DRAM;  reduce, scale, ... (vector);  DRAM <- UB

Why it is fast: elements stay in 2 bytes, so all lanes work, and only sums are float32; a pass over
a tile of some thousand elements makes the cost of issuing an instruction small.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.schedules.base import Packer, Point
from hetero_tvm.schedules.emit import Index
from hetero_tvm.schedules.npu.emit import DRAM, L1, UB, At, Kernel
from hetero_tvm.schedules.npu.rows.row_tiles import RowSpace, tile_rows
from hetero_tvm.schedules.npu.tiles import ceil_div, extent_at


class NpuNormalizationSpace(RowSpace):
    """``ops.Normalization`` on the vector unit."""

    name = "npu.normalize"
    version = 1
    operator = Normalization

    def unsupported(self, op: Normalization, machine: NpuMachine) -> str | None:
        return op.special or self.does_not_fit(op, machine)

    def ranked(self, op: Normalization, machine: NpuMachine) -> list[int]:
        # Scale and shift stay in the unified buffer for all tiles.
        return tile_rows(op.n, op.rows, 2, machine.spec, shared=4 * op.n + 1024)

    def pack(self, op: Normalization, point: Point, machine: NpuMachine) -> dict[int, Packer]:
        dtype = machine.numpy_dtype
        return {i: lambda v: np.ascontiguousarray(v).astype(dtype) for i in range(1, len(op.inputs))}

    def on_chip(self, op: Normalization) -> frozenset[int]:
        return frozenset({len(op.inputs)})

    def emit_held(
        self, op: Normalization, point: Point, machine: NpuMachine, held: frozenset[int]
    ) -> PrimFunc:
        rows, n, dtype = point["rows"], op.n, machine.dtype
        k = Kernel()
        with k:
            x = k.argument("X", (op.rows, n), dtype)
            vectors = [k.argument(name, (n,), dtype) for name in ("scale", "shift")[: 1 + op.shifted]]
            y = k.argument("Y", (op.rows, n), dtype, L1 if held else DRAM)
            buffers = [k.alloc(UB, (n,), dtype) for _ in vectors]
            for vector, buffer in zip(vectors, buffers, strict=True):
                k.load((n,), At(buffer, lambda j: (j,)), At(vector, lambda j: (j,)))
            scale, *shift = (At(buffer, lambda i, j: (j,)) for buffer in buffers)
            with k.loop(ceil_div(op.rows, rows), buffers=2) as t:
                high = extent_at(op.rows, rows, t)
                box, whole = (high, n), lambda i, j: (i, j)
                a = k.alloc(UB, (rows, n), dtype)
                b = k.alloc(UB, (rows, n), dtype)
                tile, out = At(a, whole), At(b, whole)
                k.load(box, tile, At(x, lambda i, j: (t * rows + i, j)))
                emit_normalization(k, op, rows, box, out, tile, scale, *shift)
                k.store(box, At(y, lambda i, j: (t * rows + i, j)), out)
        return k.function


def emit_normalization(
    k: Kernel,
    op: Normalization,
    rows: int,
    box: Sequence[Index],
    out: At,
    tile: At,
    scale: At,
    shift: At | None = None,
) -> None:
    """``out = norm(tile) * scale + shift`` by rows, at most ``rows``; ``out`` may be the tile."""
    n, high = op.n, box[0]
    mean = At(k.alloc(UB, (rows,), "float32"), lambda i, *_: (i,))
    inverse = At(k.alloc(UB, (rows,), "float32"), lambda i, *_: (i,))
    k.reduce("sumsq", box, [1], inverse, tile)
    if op.centered:
        # Variance as mean of squares less square of the mean, in float32: the inputs have
        # 11 bits, so what cancels is below their own rounding; never below zero.
        square = At(k.alloc(UB, (rows,), "float32"), lambda i, *_: (i,))
        k.reduce("sum", box, [1], mean, tile)
        k.unary("copy", (high,), mean, mean, mul=1.0 / n)
        k.unary("square", (high,), square, mean)
        k.unary("copy", (high,), inverse, inverse, mul=1.0 / n)
        k.binary("sub", (high,), inverse, inverse, square)
        k.unary("relu", (high,), inverse, inverse)
        k.unary("rsqrt", (high,), inverse, inverse, add=op.eps)
        k.ternary("submul", box, out, tile, mean, inverse)
    else:
        k.unary("rsqrt", (high,), inverse, inverse, mul=1.0 / n, add=op.eps)
        k.binary("mul", box, out, tile, inverse)
    if shift is not None:
        k.ternary("muladd", box, out, out, scale, shift)
    else:
        k.binary("mul", box, out, out, scale)
