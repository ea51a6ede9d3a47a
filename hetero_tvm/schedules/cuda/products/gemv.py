"""Products of a few rows: decoding of one token or a small batch, bound by reading the weights once."""

from __future__ import annotations

import math
import operator

import numpy as np

from hetero_tvm.host.tvm import Expr, PrimFunc, T, tirx
from hetero_tvm.machines.gpu import WARP, GpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.gated_matmul import GatedMatmul
from hetero_tvm.ops.matmul import BIAS, Matmul
from hetero_tvm.schedules.base import DesignSpace, Knob, Packer, Point
from hetero_tvm.schedules.cuda import device
from hetero_tvm.schedules.cuda.activations import ACTIVATIONS
from hetero_tvm.schedules.cuda.buffers import flat_arguments
from hetero_tvm.schedules.cuda.threads import barrier, reduce_in_warp
from hetero_tvm.schedules.cuda.values import VECTOR_BYTES, bytes_of, oversized, whole
from hetero_tvm.schedules.emit import Kernel, int32

MOST_ROWS = 8
_DTYPES = ("float32", "float16", "bfloat16")


class CudaGemvSpace(DesignSpace):
    """:class:`Matmul` and :class:`GatedMatmul` of at most 8 rows.

    Loop structure::

        blockIdx.x over columns of the result
          threadIdx.y over warps: ``across`` of them side by side, ``split`` share the reduction
            threadIdx.x over lanes, each 16 bytes of a row of W at a time
              W's rows of ``columns`` columns, X's rows: multiply-adds in float32
            sums over lanes by shuffles, over the warps of a split in shared memory, then the epilogue

    It is fast because all that matters is that many 16-byte loads of W are under way at once, each value
    of W is read once, whatever the number of rows, and short reductions still fill the GPU by the split.
    W is packed as its transpose [n, k], rows filled with zeros to whole vectors.
    """

    name = "cuda.gemv"

    def refuses(self, op: FusedOp, machine: GpuModel) -> str | None:
        if not isinstance(op, Matmul | GatedMatmul):
            return f"it serves matmul and gated_matmul, not {op.kind}"
        if op.m > MOST_ROWS:
            return f"{op.m} rows are more than {MOST_ROWS}"
        if op.dtype not in _DTYPES:
            return f"it multiplies {', '.join(_DTYPES)}, not {op.dtype}"
        return oversized(op)

    def knobs(self, op: Matmul | GatedMatmul, machine: GpuModel) -> tuple[Knob, ...]:
        # More columns at once than these would not leave their sums in registers.
        columns = tuple(n for n in (1, 2, 4) if n * op.m * _terms(op) <= 32)
        return (Knob("columns", columns), Knob("split", (4, 2, 8, 1)), Knob("across", (1, 2, 4)))

    def default(self, op: Matmul | GatedMatmul, machine: GpuModel) -> Point:
        steps = -(-op.k // (32 * _vector(op)))
        split = next(s for s in (8, 4, 2, 1) if steps >= s or s == 1)
        if split == 8 and steps < 16:
            split = 4
        enough = op.n >= 16 * machine.sms
        columns = 2 if enough and 2 in self.knobs(op, machine)[0].choices else 1
        return {"columns": columns, "split": split, "across": 1 if split >= 4 else 4 // split}

    def emit(self, op: Matmul | GatedMatmul, point: Point, machine: GpuModel) -> PrimFunc:
        return _Emitter(op, point["columns"], split=point["split"], across=point["across"]).function()

    def pack(self, op: Matmul | GatedMatmul, point: Point, machine: GpuModel) -> dict[int, Packer]:
        length = whole(op.k, _vector(op))

        def transposed(w: np.ndarray) -> np.ndarray:
            result = np.zeros((w.shape[1], length), w.dtype)
            result[:, : op.k] = w.T
            return result

        return {1: transposed}

    def features(self, op: Matmul | GatedMatmul, point: Point, machine: GpuModel) -> list[float]:
        blocks = -(-op.n // (point["columns"] * point["across"]))
        return [
            math.log2(point["columns"]),
            math.log2(point["split"]),
            math.log2(point["across"]),
            blocks / machine.sms,
            op.m,
            op.k / (32 * _vector(op) * point["split"]),
        ]


def _vector(op: Matmul | GatedMatmul) -> int:
    """Elements of one load of W."""
    return VECTOR_BYTES // bytes_of(op.dtype)


def _terms(op: Matmul | GatedMatmul) -> int:
    """Number of products that make one result."""
    return 2 if isinstance(op, GatedMatmul) else 1


class _Emitter:
    """Emits the kernel of one point."""

    def __init__(self, op: Matmul | GatedMatmul, columns: int, split: int, across: int):
        self.op, self.columns, self.split, self.across = op, columns, split, across
        self.vector, self.terms = _vector(op), _terms(op)
        self.length = whole(op.k, self.vector)
        self.weights = self.columns * self.terms  # rows of W at once

    def function(self) -> PrimFunc:
        op, k = self.op, Kernel("gemv")
        with k:
            self.k = k
            rows = self.terms * op.n
            self.x, self.w, *self.extra, self.y = flat_arguments(k, op, (rows, self.length))
            with (
                T.launch_thread("blockIdx.x", -(-op.n // (self.columns * self.across))) as block,
                T.launch_thread("threadIdx.y", self.split * self.across) as warp,
                T.launch_thread("threadIdx.x", 32) as lane,
            ):
                self._body(block, warp, lane)
        return k.function

    def _body(self, block: Expr, warp: Expr, lane: Expr) -> None:
        k, op = self.k, self.op
        count = op.m * self.weights
        part, side = k.let(warp % self.split), k.let(warp // self.split)
        first = k.let((block * self.across + side) * self.columns)
        self.sums = k.scratch((count,))
        with k.unroll(count) as i:
            k.store(self.sums, tirx.const(0, "float32"), [i])
        self.w_regs = k.scratch((self.weights * self.vector,))
        self.x_regs = k.scratch((self.vector,))
        chunks = self.length // self.vector
        lanes = 32 * self.split
        with k.serial(-(-chunks // lanes)) as step:
            chunk = k.let(step * lanes + part * 32 + lane)
            if chunks % lanes:
                with k.when(chunk < chunks):
                    self._multiply(first, chunk)
            else:
                self._multiply(first, chunk)
        for i in range(count):
            reduce_in_warp(k, self.sums, [int32(i)], WARP, operator.add)
        self._finish(first, part, side, lane, count)

    def _multiply(self, first: Expr, chunk: Expr) -> None:
        k, op, vector = self.k, self.op, self.vector
        at = k.let(chunk * vector)
        for n in range(self.weights):
            column, term = first + n % self.columns, n // self.columns
            if op.n % (self.columns * self.across):
                column = tirx.min(column, int32(op.n - 1))
            source = device.pointer(self.w, (column + term * op.n) * self.length + at)
            to = device.pointer(self.w_regs, n * vector)
            device.call("htvm_load", source, to, template=str(vector))
        piece = math.gcd(vector, op.k)  # rows of X start at multiples of so many values
        for row in range(op.m):
            for part in range(0, vector, piece):

                def load(row: int = row, part: int = part) -> None:
                    source = device.pointer(self.x, at + (row * op.k + part))
                    device.call("htvm_load", source, device.pointer(self.x_regs, part), template=str(piece))

                def clear(part: int = part) -> None:
                    for e in range(piece):
                        k.store(self.x_regs, tirx.const(0, "float32"), [int32(part + e)])

                if op.k % vector:
                    k.branch(at + part < op.k, load, clear)
                else:
                    load()
            with k.unroll(self.weights) as n, k.unroll(vector) as e:
                place = [n * op.m + row]
                product = k.load(self.x_regs, [e]) * k.load(self.w_regs, [n * vector + e])
                k.store(self.sums, k.load(self.sums, place) + product, place)

    def _finish(self, first: Expr, part: Expr, side: Expr, lane: Expr, count: int) -> None:
        """Add the sums of a split's warps, lane by lane (column, row) of its first one, and store results."""
        k, op = self.k, self.op
        memory = T.alloc_buffer((self.split * self.across * count,), "float32", scope="shared")
        base = k.let((side * self.split + part) * count)
        with k.when(lane == 0), k.unroll(count) as i:
            k.store(memory, k.load(self.sums, [i]), [base + i])
        barrier()
        results = self.columns * op.m
        total = k.scratch((self.terms,))
        with k.when(tirx.all(part == 0, lane < results)):
            column, row = k.let(first + lane // op.m), k.let(lane % op.m)
            for term in range(self.terms):
                k.store(total, tirx.const(0, "float32"), [int32(term)])
                with k.unroll(self.split) as other:
                    at = (side * self.split + other) * count + term * results + lane
                    k.store(total, k.load(total, [int32(term)]) + k.load(memory, [at]), [int32(term)])
            with k.when(column < op.n):
                value = self._epilogue(total, row, column)
                k.store(self.y, value.astype(op.dtype), [row * op.n + column])

    def _epilogue(self, total: Expr, row: Expr, column: Expr) -> Expr:
        k, op, rest = self.k, self.op, iter(self.extra)
        if isinstance(op, GatedMatmul):
            gate, value = (k.load(total, [int32(term)]) for term in range(2))
            if op.biased:
                bias = next(rest)
                gate, value = gate + k.load(bias, [column]), value + k.load(bias, [column + op.n])
            return ACTIVATIONS[op.activation](k.let(gate)) * value
        value = k.load(total, [int32(0)])
        for step in op.epilogue:
            if step in ACTIVATIONS:
                value = ACTIVATIONS[step](k.let(value))
            else:
                at = column if step == BIAS else row * op.n + column
                value = value + k.load(next(rest), [at]).astype("float32")
        return value
