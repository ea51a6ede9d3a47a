"""Two products of one input and their gate, in the register tile of the plain product.

The loops are those of ``schedules/cpu/products/matmul.py``.  A packed panel holds NR / 2 columns of the
gate's weight and the same NR / 2 columns of the other::

    W[panel, k] = gate[k, c : c + NR / 2], up[k, c : c + NR / 2]

so one register tile ends with both values of every element of the result: the epilogue computes
``activation(gate) * up`` from registers, and the product of twice the width is never stored (for
SwiGLU 3 times less traffic than two products and an elementwise kernel).
"""

from __future__ import annotations

from typing import Any

from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.gated_matmul import GatedMatmul
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.schedules.cpu.activations import Activations
from hetero_tvm.schedules.cpu.products.matmul import Finish, MatmulSpace
from hetero_tvm.schedules.emit import Kernel


class GatedMatmulSpace(MatmulSpace):
    """Knobs of the plain product; tiles have an even number of vectors."""

    name = "cpu.gated_matmul"
    version = 1
    parts = 2

    def product(self, op: GatedMatmul) -> Matmul:
        return Matmul(op.lead, 2 * op.n, op.k)

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, GatedMatmul):
            return "not a gated matmul"
        return "an extent is zero" if 0 in (op.m, op.n, op.k) else None

    def activations(self, op: GatedMatmul, machine: CpuModel) -> Activations:
        return Activations((op.activation,), machine)

    def epilogue(self, k: Kernel, op: GatedMatmul, extra: list[Any], activations: Activations) -> Finish:
        def finish(values: list[Any], row: Any, column: Any, width: int, steps: slice) -> Any:
            gate, up = values
            if op.biased:
                (bias,) = extra
                gate = gate + k.load(bias, [k.ramp(column, width)])
                up = up + k.load(bias, [k.ramp(column + op.n, width)])
            return activations.apply(op.activation, gate, width) * up

        return finish
