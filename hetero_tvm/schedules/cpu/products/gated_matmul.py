"""Two products of one input and their gate, in the register tile of the plain product.

The loops are those of ``schedules/cpu/products/matmul.py``.  A packed panel holds NR / 2 columns of the
gate's weight and the same NR / 2 columns of the other::

    W[panel, k] = gate[k, c : c + NR / 2], up[k, c : c + NR / 2]

so one register tile ends with both values of every element of the result: the epilogue computes
``activation(gate) * up`` from registers, and the product of twice the width is never stored (for
SwiGLU 3 times less traffic than two products and an elementwise kernel).
"""

from __future__ import annotations

from collections.abc import Sequence

from hetero_tvm.host.tvm import Buffer, Expr
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.gated_matmul import GatedMatmul
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.schedules.cpu.products.matmul import MatmulSpace
from hetero_tvm.schedules.cpu.products.matmul_kernel import MatmulKernel
from hetero_tvm.schedules.emit import Index


class GatedMatmulKernel(MatmulKernel):
    """Emits one gated product."""

    parts = 2

    def steps(self) -> Sequence[str]:
        return (self.op.activation,)

    def bind_epilogue(self, extra: list[Buffer]) -> None:
        self.bias = extra[0] if self.op.biased else None

    def finish(self, values: list[Expr], row: Index, column: Index, width: int, steps: slice) -> Expr:
        k, (gate, up) = self.k, values
        if self.bias is not None:
            gate = gate + k.load(self.bias, [k.ramp(column, width)])
            up = up + k.load(self.bias, [k.ramp(column + self.op.n, width)])
        return self.activations.apply(self.op.activation, gate, width) * up


class GatedMatmulSpace(MatmulSpace):
    """Knobs of the plain product; tiles have an even number of vectors."""

    name = "cpu.gated_matmul"
    version = 1
    kernel = GatedMatmulKernel

    def product(self, op: GatedMatmul) -> Matmul:
        return Matmul(op.lead, 2 * op.n, op.k)

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, GatedMatmul):
            return "not a gated matmul"
        return "an extent is zero" if 0 in (op.m, op.n, op.k) else None
