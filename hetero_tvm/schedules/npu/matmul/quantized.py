"""Products of 8-bit integers on the matrix unit.

Loops: those of :mod:`hetero_tvm.schedules.npu.matmul.kernel`, with int32 accumulators; their way out adds the
bias, scales by column, rounds and saturates in one instruction::

    for s in sub, rows of the tile: UB <- requantised(L0C + bias);  DRAM <- UB

Why it is fast: the matrix unit takes twice the depth per cycle, and half the bytes move.
"""

from __future__ import annotations

import numpy as np

from hetero_tvm.host.tvm import Buffer, PrimFunc
from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.integers.quantized import OFFSET, QuantConv2d, QuantMatmul
from hetero_tvm.ops.matmul import BIAS, Matmul
from hetero_tvm.schedules.base import Packer, Point
from hetero_tvm.schedules.emit import Index
from hetero_tvm.schedules.npu.base import DerivedSpace, NpuSpace, stored_as
from hetero_tvm.schedules.npu.emit import UB, At
from hetero_tvm.schedules.npu.matmul.kernel import ProductEmitter
from hetero_tvm.schedules.npu.matmul.space import WholeMatmulSpace
from hetero_tvm.schedules.npu.matmul.tiles import Tiles, column_panels
from hetero_tvm.schedules.npu.tiles import extent_at, round_up, tile_count

FLOAT_EPILOGUE = (BIAS, "silu")
"""Epilogue of floats that takes as much of the unified buffer as bias, scale and results of four bytes."""


class NpuQuantizedMatmulSpace(DerivedSpace):
    """``ops.QuantMatmul`` on the NPU."""

    name = "npu.quant_matmul"
    version = 1
    operator = QuantMatmul

    def base_space(self) -> NpuSpace:
        return WholeMatmulSpace()

    def base_operator(self, op: QuantMatmul) -> Matmul:
        return Matmul(op.lead, op.n, op.k, FLOAT_EPILOGUE)

    def pack(self, op: QuantMatmul, point: Point, machine: NpuMachine) -> dict[int, Packer]:
        tn = Tiles.of(point).tn
        return {1: lambda w: column_panels(w, tn, np.dtype(np.int8)), **pack_vectors(op)}

    def emit(self, op: QuantMatmul, point: Point, machine: NpuMachine) -> PrimFunc:
        like, panels = self.base_operator(op), point.get("panels")
        return QuantizedEmitter(op, like, Tiles.of(point), machine, panels).run()


def pack_vectors(op: QuantMatmul | QuantConv2d) -> dict[int, Packer]:
    """Packers of the bias and, where there is one, the scale: as they are."""
    return {2: np.ascontiguousarray} | ({3: np.ascontiguousarray} if op.scaled else {})


class QuantizedEmitter(ProductEmitter):
    """Writes the loops for int8 operands; ``like`` is the operator of floats whose tiles they are."""

    def __init__(
        self,
        quantized: QuantMatmul | QuantConv2d,
        like: Matmul | Conv2d,
        tiles: Tiles,
        machine: NpuMachine,
        panels: int | None = None,
    ):
        super().__init__(like, tiles, machine, panels=panels)
        self.quantized = quantized
        self.dtype, self.accumulator = "int8", "int32"
        self.into = stored_as(quantized.out, machine.dtype)

    def _constants_and_result(self, shape: tuple[int, ...]) -> None:
        op, k = self.op, self.k
        self.w = k.argument("W", (op.k * round_up(op.n, self.t.tn),), "int8")
        self.bias = k.argument("bias", (op.n,), "int32")
        self.scale = k.argument("scale", (op.n,), "float32") if self.quantized.scaled else None
        self.y = k.argument("Y", shape, self.into)

    def _finish(self, i: Index, j: Index, s: Index, accumulators: Buffer) -> None:
        op, t, k, quantized = self.op, self.t, self.k, self.quantized
        high, width = extent_at(op.m, t.tm, i), extent_at(op.n, t.tn, j)
        with k.loop(1, buffers=2):
            vectors = {}
            for name, vector in (("bias", self.bias), ("scale", self.scale)):
                if vector is not None:
                    tile = k.alloc(UB, (t.tn,), str(vector.dtype))
                    source = At(vector, lambda b: (j * t.tn + b,))
                    k.load((width,), At(tile, lambda b: (b,)), source)
                    vectors[name] = At(tile, lambda a, b: (b,))
            with k.loop(tile_count(high, t.rows), buffers=2) as e:
                box = (extent_at(high, t.rows, e), width)
                piece = At(k.alloc(UB, (t.rows, t.tn), self.into), lambda a, b: (a, b))
                zero = quantized.y_zero - OFFSET.get(quantized.out, 0)
                sums = At(accumulators, lambda a, b: (s, e * t.rows + a, b))
                k.move_out(box, piece, sums, relu=quantized.relu, zero_point=zero, **vectors)
                k.store(box, self._output(i * t.tm + e * t.rows, j * t.tn, self.y), piece)
