"""Product of rows that are rounded to bfloat16 on the way in with packed bfloat16 weights.

The loops are those of ``dynamic_matmul.py``: a block of rows is rounded once per block of panels, into L2,
and multiplied by tiles (AMX, 16 times the products of a vector instruction of float32) or by pairs in vectors
(vdpbf16ps, twice as many).  Sums, bias, activations and residuals are float32; nothing is scaled, so that the
numbers keep float32's range.  Weights take half of the memory's traffic.
"""

from __future__ import annotations

import numpy as np

from hetero_tvm.codegen.amx import BF16
from hetero_tvm.codegen.bf16_vectors import bf16_bits, bf16_ir
from hetero_tvm.host.peaks import BFLOAT16
from hetero_tvm.host.tvm import Buffer, Expr, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.integers.stored_matmul import StoredMatmul
from hetero_tvm.schedules.cpu.activation_code import ActivationCode
from hetero_tvm.schedules.cpu.dots import Dot, halves_for
from hetero_tvm.schedules.cpu.integers.dynamic_matmul import DynamicMatmulSpace
from hetero_tvm.schedules.cpu.integers.integer_tile import HalfPanels
from hetero_tvm.schedules.cpu.integers.matrix_unit import has_matrix_unit
from hetero_tvm.schedules.cpu.integers.product_kernel import (
    IntegerDecisions,
    IntegerProductKernel,
    Place,
)
from hetero_tvm.schedules.emit import Index, vector_pieces

_WIDE = 16
LEAST_ROWS = 4
"""Rows of a product from which X is rounded."""


class Bf16MatmulKernel(IntegerProductKernel):
    """Emits one product."""

    op: StoredMatmul
    instruction = BF16
    panels_of = HalfPanels

    def __init__(self, op: StoredMatmul, decisions: IntegerDecisions, machine: CpuModel):
        super().__init__(op, decisions, machine)
        self.activations = ActivationCode([*op.epilogue, op.gate], machine)

    @classmethod
    def way(cls, op: StoredMatmul, machine: CpuModel) -> Dot:
        dot = halves_for(machine)
        assert dot is not None
        return dot

    @property
    def imports(self) -> tuple[str, ...]:
        return (*super().imports, bf16_ir(), *self.activations.imports)

    def pack(self, w: np.ndarray) -> np.ndarray:
        """bfloat16 [columns, k] as the panels have it."""
        return self.panels.pack(np.ascontiguousarray(w.view(np.uint16).T))

    def bind(self, extra: list[Buffer]) -> None:
        self.take_epilogue(extra, self.op.inputs[2:])

    def begin(self, rows: int) -> Buffer:
        self.block = self.k.scratch((rows, self.length), "uint16")
        return self.block

    def take(self, inside: Expr, row: Expr) -> None:
        k, extent = self.k, self.op.k
        full = extent // _WIDE

        def put(column: Index, width: int) -> None:
            value = k.load(self.x, [row, k.ramp(column, width)])
            k.store(self.block, bf16_bits(value, width), [inside, k.ramp(column, width)])

        with k.serial(full) as vector:
            put(vector * _WIDE, _WIDE)
        for column in range(full * _WIDE, extent):
            put(column, 1)
        # What lies behind would be multiplied with zeros, which NaN does not mind.
        for start, width in vector_pieces(self.length - extent, _WIDE):
            nothing = k.splat(tirx.const(0, "uint16"), width)
            k.store(self.block, nothing, [inside, k.ramp(extent + start, width)])

    def result(self, totals: list[Expr], inside: Index, row: Index, place: Place, width: int) -> Expr:
        (value,) = totals
        return self.finished(value, row, place.column, width)


class Bf16GatedMatmulKernel(Bf16MatmulKernel):
    """Emits one gated product: a panel holds columns of the gate, then the same ones of the other."""

    parts = 2

    def pack(self, w: np.ndarray) -> np.ndarray:
        op, count = self.op, self.panels.count
        split = w.view(np.uint16).T.reshape(op.k, 2, op.n)
        split = np.pad(split, ((0, 0), (0, 0), (0, count * self.columns - op.n)))
        split = split.reshape(op.k, 2, count, self.columns).transpose(0, 2, 1, 3)
        return self.panels.pack(split.reshape(op.k, -1))

    def result(self, totals: list[Expr], inside: Index, row: Index, place: Place, width: int) -> Expr:
        gate = self.finished(totals[0], row, place.column, width)
        up = self.finished(totals[1], row, place.column + self.op.n, width)
        return self.activations.apply(self.op.gate, gate, width) * up


class Bf16MatmulSpace(DynamicMatmulSpace):
    """Knobs of the product that quantises its rows itself."""

    name = "cpu.bf16_matmul"
    version = 1
    kernel = Bf16MatmulKernel

    def arithmetic(self, op: FusedOp, machine: CpuModel) -> str:
        return BFLOAT16

    def kernel_for(self, op: FusedOp) -> type[IntegerProductKernel]:
        return Bf16GatedMatmulKernel if op.gate else Bf16MatmulKernel

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, StoredMatmul):
            return "not a product with stored weights"
        if op.form != "bf16" or not op.x_bits:
            return "X is not rounded to bfloat16"
        if halves_for(machine) is None:
            return "the machine does not multiply bfloat16"
        return "an extent is zero" if 0 in (op.m, op.n, op.k) else None

    def row_cycles(self, op: StoredMatmul, machine: CpuModel) -> float:
        return 20 + 2 * op.k / machine.lanes


def rounds_rows(form: str, rows: int, machine: CpuModel) -> bool:
    """Whether products of ``rows`` rows with weights of ``form`` take X in bfloat16: where that is faster,
    and not those that wait for their weights anyway."""
    if form != "bf16" or rows < LEAST_ROWS:
        return False
    pairs = halves_for(machine)
    return pairs is not None and (has_matrix_unit(machine, BF16) or pairs.cycles < pairs.group)
