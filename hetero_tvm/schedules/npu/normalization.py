"""Row kernels on the vector unit: layer and RMS normalisation, softmax.

Loops: rows are cut into tiles that fit the unified buffer several times; a tile is loaded, all
passes run on it in place, and it is stored, while the next one is loaded (two versions of every
buffer)::

    for tile of rows:   UB <- DRAM;  reduce, scale, ... (vector);  DRAM <- UB

Why it is fast: elements stay in 2 bytes, so all lanes work, and only sums are float32; a pass over
a tile of some thousand elements makes the cost of issuing an instruction small.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.normalization import Normalize
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.base import Knob, Packer, Point
from hetero_tvm.schedules.npu.base import NpuSpace
from hetero_tvm.schedules.npu.emit import DRAM, L1, UB, At, Kernel
from hetero_tvm.schedules.npu.tiles import ceil_div, even, extent_at


def tile_rows(n: int, rows: int, tiles: int, spec: Any, *, shared: int = 0) -> list[int]:
    """Sizes of a row tile, the best guess first; none when one row does not fit.

    ``tiles``: buffers of 2-byte elements per row tile; ``shared``: bytes beside them.
    """
    room = (spec.scratchpad("ub") - shared) // (2 * (2 * tiles * n + 32))
    if room < 1:
        return []
    wanted = max(1, min(room, rows, ceil_div(64 * spec.vector_lanes, n)))
    wanted = min(wanted, max(1, ceil_div(rows, 4))) if rows * n > 16 * spec.vector_lanes else wanted
    first = even(rows, wanted)
    others = {even(rows, min(room, r)) for r in (1, 2, 4, 8, 16, 32, 64, 128, 256) if r <= room}
    return [first, *sorted(others - {first})]


_MOST_SUMMED = 1 << 13
"""Weights of a softmax whose sum is kept in 2 bytes."""


class _RowSpace(NpuSpace):
    """What both row spaces share: one knob, the rows of a tile."""

    version = 1
    tiles = 2
    vectors = 0
    """Constant vectors of a row's length that stay in the unified buffer."""

    def _rows(self, op: Any, machine: Any) -> list[int]:
        return tile_rows(op.n, op.rows, self.tiles, machine.spec, shared=2 * self.vectors * op.n + 1024)

    def knobs(self, op: FusedOp, machine: Any) -> tuple[Knob, ...]:
        return (Knob("rows", tuple(self._rows(op, machine))),)

    def default(self, op: FusedOp, machine: Any) -> Point:
        return {"rows": self._rows(op, machine)[0]}

    def features(self, op: FusedOp, point: Point, machine: Any) -> list[float]:
        return [float(point["rows"]), float(ceil_div(op.rows, point["rows"])), float(op.n)]

    def _fits(self, op: Any, machine: Any) -> str | None:
        if not self._rows(op, machine):
            return f"a row of {op.n} elements does not fit the unified buffer of {machine.spec.name}"
        return None


class NpuNormalizeSpace(_RowSpace):
    """``ops.Normalize`` on the vector unit."""

    name = "npu.normalize"
    vectors = 2

    def refuses(self, op: FusedOp, machine: Any) -> str | None:
        if not isinstance(op, Normalize):
            return f"is for normalize, not {op.kind}"
        return op.special or self._fits(op, machine)

    def pack(self, op: FusedOp, point: Point, machine: Any) -> dict[int, Packer]:
        from hetero_tvm.machines.npu.numbers import numpy_dtype

        dtype = numpy_dtype(machine.short)
        return {i: lambda v: np.ascontiguousarray(v).astype(dtype) for i in range(1, len(op.inputs))}

    def on_chip(self, op: FusedOp) -> frozenset[int]:
        return frozenset({len(op.inputs)})

    def emit(self, op: FusedOp, point: Point, machine: Any) -> Any:
        return self.emit_held(op, point, machine, frozenset())

    def emit_held(self, op: FusedOp, point: Point, machine: Any, held: frozenset[int]) -> Any:
        rows, n, dtype = point["rows"], op.n, machine.dtype
        k = Kernel()
        with k:
            x = k.argument("X", (op.rows, n), dtype)
            vectors = [k.argument(name, (n,), dtype) for name in ("scale", "shift")[: 1 + op.shifted]]
            y = k.argument("Y", (op.rows, n), dtype, L1 if held else DRAM)
            held = [k.alloc(UB, (n,), dtype) for _ in vectors]
            for vector, buffer in zip(vectors, held, strict=True):
                k.load((n,), At(buffer, lambda j: (j,)), At(vector, lambda j: (j,)))
            scale, *shift = (At(buffer, lambda i, j: (j,)) for buffer in held)
            with k.loop(ceil_div(op.rows, rows), buffers=2) as t:
                high = extent_at(op.rows, rows, t)
                box, whole = (high, n), lambda i, j: (i, j)
                a = k.alloc(UB, (rows, n), dtype)
                b = k.alloc(UB, (rows, n), dtype)
                tile, out = At(a, whole), At(b, whole)
                k.load(box, tile, At(x, lambda i, j: (t * rows + i, j)))
                normalise(k, op, rows, box, out, tile, scale, *shift)
                k.store(box, At(y, lambda i, j: (t * rows + i, j)), out)
        return k.function


class NpuSoftmaxSpace(_RowSpace):
    """``ops.Softmax`` on the vector unit."""

    name = "npu.softmax"
    tiles = 1

    def refuses(self, op: FusedOp, machine: Any) -> str | None:
        return self._fits(op, machine) if isinstance(op, Softmax) else f"is for softmax, not {op.kind}"

    def emit(self, op: FusedOp, point: Point, machine: Any) -> Any:
        rows, n, dtype = point["rows"], op.n, machine.dtype
        k = Kernel()
        with k:
            x = k.argument("X", (op.rows, n), dtype)
            y = k.argument("Y", (op.rows, n), dtype)
            with k.loop(ceil_div(op.rows, rows), buffers=2) as t:
                high = extent_at(op.rows, rows, t)
                a = k.alloc(UB, (rows, n), dtype)
                peak = k.alloc(UB, (rows,), dtype)
                # A sum of more would come near the end of float16, its reciprocal too near to zero.
                total = k.alloc(UB, (rows,), dtype if n <= _MOST_SUMMED else "float32")
                tile = At(a, lambda i, j: (i, j))
                k.load((high, n), tile, At(x, lambda i, j: (t * rows + i, j)))
                row_peak, row_total = (At(buffer, lambda i, *_: (i,)) for buffer in (peak, total))
                weights(k, (high, n), tile, row_peak, row_total)
                k.binary("mul", (high, n), tile, tile, At(total, lambda i, j: (i,)))
                k.store((high, n), At(y, lambda i, j: (t * rows + i, j)), tile)
        return k.function


def normalise(
    k: Kernel,
    op: Normalize,
    rows: int,
    box: Sequence[Any],
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


def weights(k: Kernel, box: Sequence[Any], tile: At, peak: At, total: At) -> None:
    """``tile = exp(tile - max)`` by rows; ``total`` becomes the reciprocal of the row's sum.

    ``peak`` and ``total`` have one element per row, whatever the column of their index.  The sum is
    taken in float32 and rounded once; in 2 bytes the pass runs at the full rate.
    """
    k.reduce("max", box, [1], peak, tile)
    k.binary("sub", box, tile, tile, peak)
    k.unary("exp", box, tile, tile)
    k.reduce("sum", box, [1], total, tile)
    k.unary("reciprocal", box[:1], total, total)
