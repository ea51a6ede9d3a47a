"""The gated half of an MLP as one kernel: two products that share their input and never leave the block."""

from __future__ import annotations

import numpy as np

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.gpu import GpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.gated_matmul import GatedMatmul
from hetero_tvm.schedules.base import Packer, Point
from hetero_tvm.schedules.cuda import device
from hetero_tvm.schedules.cuda.activations import ACTIVATIONS
from hetero_tvm.schedules.cuda.buffers import flat_arguments
from hetero_tvm.schedules.cuda.products.fragments import Element, element_for, element_of
from hetero_tvm.schedules.cuda.products.packing import packed, weight_rows
from hetero_tvm.schedules.cuda.products.product import Epilogue, blocks, emit_tile, packed_sources
from hetero_tvm.schedules.cuda.products.space import TiledProductSpace
from hetero_tvm.schedules.cuda.products.tiles import Problem, Tile
from hetero_tvm.schedules.cuda.values import oversized, vector_of, whole
from hetero_tvm.schedules.emit import Kernel, int32

_STRIPE = 8
"""Columns of the gate before as many columns of the values that it gates: both meet in one warp."""


class CudaGatedMatmulSpace(TiledProductSpace):
    """:class:`GatedMatmul` as one product with 2 n columns (see :mod:`.product`).

    Knob ``tile``: see :class:`TiledProductSpace`.  W is packed as [2 n, k], 8 columns of the gate before 8 of
    the values that it gates; the epilogue multiplies the two.
    """

    name = "cuda.gated_matmul"

    def refuses(self, op: FusedOp, machine: GpuModel) -> str | None:
        if not isinstance(op, GatedMatmul):
            return f"it serves gated_matmul, not {op.kind}"
        if op.dtype == "int8" or element_for(op.dtype, machine.features) is None:
            return f"it multiplies float16, bfloat16 and float32, not {op.dtype}"
        return oversized(op)

    def problem(self, op: GatedMatmul, machine: GpuModel) -> Problem:
        element = element_of(op.dtype, machine)
        return Problem(op.m, 2 * whole(op.n, _STRIPE), op.k, element.size, bool(element.mma))

    def emit(self, op: GatedMatmul, point: Point, machine: GpuModel) -> PrimFunc:
        return _kernel(op, Tile.of(point["tile"]), element_of(op.dtype, machine))

    def pack(self, op: GatedMatmul, point: Point, machine: GpuModel) -> dict[int, Packer]:
        tile, element = Tile.of(point["tile"]), element_of(op.dtype, machine)
        return {1: lambda w: packed(_striped(w, op.n), tile, element)}


def _striped(w: np.ndarray, n: int) -> np.ndarray:
    """Columns [gate | gated] in alternating stripes, each half filled with zeros to whole stripes."""
    k, stripes = w.shape[0], -(-n // _STRIPE)
    result = np.zeros((k, stripes, 2, _STRIPE), w.dtype)
    for half in range(2):
        padded = np.zeros((k, stripes * _STRIPE), w.dtype)
        padded[:, :n] = w[:, half * n : (half + 1) * n]
        result[:, :, half] = padded.reshape(k, stripes, _STRIPE)
    return result.reshape(k, 2 * stripes * _STRIPE)


class _Gate(Epilogue):
    """``activation(gate + bias) * (gated + bias)``: half as many results as columns of the product."""

    def __init__(self, op: GatedMatmul, out: Buffer, bias: Buffer | None):
        self.op, self.out, self.bias = op, out, bias
        self.vector = vector_of(op.dtype, op.n)

    def width(self, columns: Expr | int) -> Expr | int:
        return columns // 2

    def take(self, k: Kernel, shared: Expr, at: Expr, column: Expr, dtype: str) -> Buffer:
        sums = k.scratch((2 * self.vector,), dtype)
        first = k.let(at + (column // _STRIPE * (2 * _STRIPE) + column % _STRIPE) * 4)
        for half in range(2):
            to = device.pointer(sums, half * self.vector)
            device.call("htvm_take", shared, first + half * _STRIPE * 4, to, template=str(self.vector))
        return sums

    def store(self, k: Kernel, sums: Buffer, row: Expr, column: Expr) -> None:
        op, vector = self.op, self.vector
        with k.when(tirx.all(row < op.m, column < op.n)):
            if self.bias is not None:
                bias = k.scratch((2 * vector,))
                for half in range(2):
                    at = device.pointer(self.bias, column + half * op.n)
                    device.call("htvm_load", at, device.pointer(bias, half * vector), template=str(vector))
                with k.unroll(2 * vector) as e:
                    k.store(sums, k.load(sums, [e]) + k.load(bias, [e]), [e])
            with k.unroll(vector) as e:
                value = ACTIVATIONS[op.activation](k.load(sums, [e])) * k.load(sums, [e + vector])
                k.store(sums, value, [e])
            to = device.pointer(self.out, row * op.n + column)
            device.call("htvm_store", to, device.pointer(sums), template=str(vector))


def _kernel(op: GatedMatmul, tile: Tile, element: Element) -> PrimFunc:
    """The PrimFunc: X [*lead, k], W packed [2 n, k], the bias, Y [*lead, n]."""
    k = Kernel("gated_matmul")
    columns, depth = 2 * whole(op.n, _STRIPE), whole(op.k, tile.depth)
    with k:
        x, w, *bias, y = flat_arguments(k, op, (weight_rows(columns, tile), depth))
        with blocks(k, op.m, columns, tile) as block:
            gate = _Gate(op, y, bias[0] if bias else None)
            sources = packed_sources(k, x, w, op.m, op.k, block, tile, element.size)
            steps = (int32(0), depth // tile.depth)
            emit_tile(k, tile, element, sources, steps, gate, block, rounded=True)
    return k.function
