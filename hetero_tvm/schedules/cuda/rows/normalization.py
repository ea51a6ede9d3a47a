"""Layer and RMS normalisation of rows on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from hetero_tvm.host.tvm import tirx
from hetero_tvm.machines.gpu import GpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.normalization import Normalize
from hetero_tvm.schedules.base import DesignSpace, Knob, Point
from hetero_tvm.schedules.cuda.rows import row_tiles as rows
from hetero_tvm.schedules.emit import Kernel, int32


class CudaNormalizeSpace(DesignSpace):
    """Rows in registers (see :mod:`.rows`): mean, then variance around it, then one write.

    The second pass over the registers keeps float32 accurate where the mean is large.  Knob ``block``:
    threads a row, rows a block.
    """

    name = "cuda.normalize"

    def refuses(self, op: FusedOp, machine: GpuModel) -> str | None:
        if not isinstance(op, Normalize):
            return f"it serves normalize, not {op.kind}"
        if op.trail:
            return op.special
        return "an extent is zero" if 0 in (op.rows, op.n) else None

    def _shapes(self, op: Normalize, machine: GpuModel) -> list[rows.RowShape]:
        return rows.shapes(op.rows, op.n, _vector(op), machine, beside=len(op.inputs) - 1)

    def knobs(self, op: Normalize, machine: GpuModel) -> tuple[Knob, ...]:
        return rows.knobs(self._shapes(op, machine))

    def default(self, op: Normalize, machine: GpuModel) -> Point:
        return rows.default(self._shapes(op, machine))

    def features(self, op: Normalize, point: Point, machine: GpuModel) -> list[float]:
        return rows.chosen(op.rows, op.n, _vector(op), point).features

    def emit(self, op: Normalize, point: Point, machine: GpuModel) -> Any:
        k = Kernel("normalize")
        shape = rows.chosen(op.rows, op.n, _vector(op), point)
        with k:
            x, *vectors = (k.argument(o.name, o.shape, o.dtype) for o in op.inputs)
            y = k.argument("Y", op.output.shape, op.dtype)
            x, y = k.view(x, (math.prod(op.inputs[0].shape),)), k.view(y, (op.rows, op.n))
            kernel = rows.RowKernel(k, shape, op.dtype)
            with kernel.threads(reductions=2):
                start = k.let(_start(op, kernel.row))
                kernel.load(lambda c, lanes: k.load(x, [k.ramp(start + c, lanes)]), 0.0)
                finish(k, kernel, op, vectors, y)
        return k.function


def _vector(op: Normalize) -> int:
    """Elements of a vector: rows that lie at strides of their own must start at whole ones."""
    return math.gcd(rows.vector_of(op.n, op.dtype), *op.place)


def _start(op: Normalize, row: Any) -> Any:
    """Where row ``row`` of the result begins in the operand."""
    if not op.place:
        return row * op.n
    start, rest = int32(op.place[0]), row
    for extent, stride in zip(reversed(op.lead), reversed(op.place[1:]), strict=True):
        start = start + tirx.floormod(rest, extent) * stride
        rest = tirx.floordiv(rest, extent)
    return start


def finish(k: Kernel, kernel: rows.RowKernel, op: Any, vectors: Sequence[Any], y: Any) -> None:
    """Statistics of the loaded row, and its normalised form to row ``kernel.row`` of ``y``."""
    centered, factor = statistics(k, kernel, op)
    width = kernel.shape.vector
    weights = [k.scratch((width,)) for _ in vectors]

    def result(value: Any, column: Any, e: int) -> Any:
        if e == 0:
            for weight, vector in zip(weights, vectors, strict=True):
                for at in range(0, width, 4):
                    part = min(4, width - at)
                    k.store(weight, k.load(vector, [k.ramp(column + at, part)]), [k.ramp(int32(at), part)])
        result = centered(value) * factor * k.load(weights[0], [int32(e)])
        return result + k.load(weights[1], [int32(e)]) if len(weights) > 1 else result

    kernel.store(result, lambda c, vector: k.store(y, vector, [kernel.row, k.ramp(c, width)]))


def statistics(k: Kernel, kernel: rows.RowKernel, op: Any) -> tuple[Callable[[Any], Any], Any]:
    """``x - mean`` as a function of x (x itself for RMS norms), and ``1 / sqrt(variance + eps)``."""

    def centered(value: Any) -> Any:
        return value if mean is None else value - mean

    def square(value: Any) -> Any:
        value = k.let(centered(value))
        return value * value

    mean = None
    if getattr(op, "centered", True):
        total = kernel.reduce(lambda value: value, rows.add, 0.0, padded=False)
        mean = k.let(total * rows.const(1.0 / op.n))
    squares = kernel.reduce(square, rows.add, 0.0, padded=mean is not None)
    return centered, k.let(tirx.rsqrt(squares * rows.const(1.0 / op.n) + rows.const(op.eps)))
