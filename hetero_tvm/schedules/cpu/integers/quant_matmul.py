"""Product of an 8-bit matrix with packed 8-bit weights, requantised on the way out.

The loops are those of ``dynamic_matmul.py``; rows come in 8 bits and are only shifted to 0 to 255 (and
widened where the multiplier takes 16 bits), once per block of rows and into L2.  The sums get their bias,
scale, rounding and saturation in registers: no int32 and no float is ever stored, unless it is the result.
"""

from __future__ import annotations

from hetero_tvm.host.tvm import Buffer, Expr, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.integers.quantized import QuantMatmul
from hetero_tvm.schedules.cpu.integers.dynamic_matmul import DynamicMatmulSpace
from hetero_tvm.schedules.cpu.integers.product_kernel import IntegerProductKernel, Place
from hetero_tvm.schedules.cpu.integers.requantize import Steps
from hetero_tvm.schedules.emit import Index, int32, vector_loop

_MIDDLE = 128
"""Distance of the values that are multiplied, 0 to 255, from those that the contract counts."""


class QuantMatmulKernel(IntegerProductKernel):
    """Emits one product."""

    op: QuantMatmul

    def bind(self, extra: list[Buffer]) -> None:
        self.bias, self.scale = extra if self.op.scaled else (extra[0], None)

    def begin(self, rows: int) -> Buffer:
        self.block = self.k.scratch((rows, self.length), self.dot.x_dtype)
        return self.block

    def take(self, inside: Expr, row: Expr) -> None:
        k, dtype = self.k, self.dot.x_dtype

        def move(column: Index, width: int) -> None:
            many = f"x{width}" if width > 1 else ""
            value = k.load(self.x, [row, k.ramp(column, width)])
            if self.op.x_dtype == "int8":
                value = tirx.reinterpret(f"uint8{many}", value)
                value = tirx.bitwise_xor(value, k.splat(tirx.const(_MIDDLE, "uint8"), width))
            k.store(self.block, value.astype(f"{dtype}{many}"), [inside, k.ramp(column, width)])

        vector_loop(k, self.op.k, 2 * self.lanes, move, unroll=2)

    def result(self, totals: list[Expr], inside: Index, row: Index, place: Place, width: int) -> Expr:
        k, at = self.k, [self.k.ramp(place.column, width)]
        total = totals[0] - k.splat(int32(_MIDDLE), width) * self.column_sums(0, place, width)
        total = total + k.load(self.bias, at)
        scales = None if self.scale is None else [k.load(self.scale, at)]
        return Steps(k, self.op, [width]).requantized([total], scales)[0]


class QuantMatmulSpace(DynamicMatmulSpace):
    """Knobs of the product that quantises its rows itself."""

    name = "cpu.quant_matmul"
    version = 1
    kernel = QuantMatmulKernel
    contract = QuantMatmul

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, QuantMatmul):
            return "not a quantised matmul"
        return "an extent is zero" if 0 in (op.m, op.n, op.k) else None

    def row_cycles(self, op: QuantMatmul, machine: CpuModel) -> float:
        return 10 + op.k / machine.lanes
