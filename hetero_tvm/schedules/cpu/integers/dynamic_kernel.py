"""The kernels of products that quantise their rows; ``dynamic_matmul.py`` tells why and how."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetero_tvm.host.tvm import Buffer, Expr
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.integers.dynamic_matmul import DynamicGatedMatmul, DynamicMatmul
from hetero_tvm.schedules.cpu.activation_code import ActivationCode
from hetero_tvm.schedules.cpu.integers.product_kernel import IntegerDecisions, IntegerProductKernel, Place
from hetero_tvm.schedules.cpu.integers.row_quantizer import QuantizedRows
from hetero_tvm.schedules.emit import Index


class DynamicMatmulKernel(IntegerProductKernel):
    """Emits one product."""

    op: DynamicMatmul | DynamicGatedMatmul

    def __init__(
        self, op: DynamicMatmul | DynamicGatedMatmul, decisions: IntegerDecisions, machine: CpuModel
    ):
        super().__init__(op, decisions, machine)
        self.activations = ActivationCode(self.steps(), machine)

    @property
    def imports(self) -> tuple[str, ...]:
        return (*super().imports, *self.activations.imports)

    def steps(self) -> Sequence[str]:
        """Names of the epilogue's steps."""
        return self.op.epilogue

    def bind(self, extra: list[Buffer]) -> None:
        self.scale, *extra = extra
        self.smooth = extra.pop(0) if self.op.smoothed else None
        self.bind_epilogue(extra)

    def bind_epilogue(self, extra: Sequence[Buffer]) -> None:
        """Take the operands of the epilogue."""
        self.take_epilogue(extra, self.op.inputs[self.op.own :])

    def begin(self, rows: int) -> Buffer:
        self.rows = QuantizedRows.of(self.k, rows, self.length, self.dot.x_dtype)
        return self.rows.values

    def take(self, inside: Expr, row: Expr) -> None:
        k = self.k

        def value(column: Index, width: int) -> Expr:
            at = k.ramp(column, width)
            plain = k.load(self.x, [row, at])
            return plain if self.smooth is None else plain * k.load(self.smooth, [at])

        self.rows.take(k, inside, self.op.k, self.lanes, value)

    def result(self, totals: list[Expr], inside: Index, row: Index, place: Place, width: int) -> Expr:
        k, values = self.k, []
        for part, total in enumerate(totals):
            zero = k.splat(k.load(self.rows.zero, [inside]), width)
            total = total - zero * self.column_sums(part, place, width)
            steps = k.load(self.scale, [k.ramp(part * self.op.n + place.column, width)])
            step = k.splat(k.load(self.rows.scale, [inside]), width) * steps
            values.append(total.astype("float32" if width == 1 else f"float32x{width}") * step)
        return self.finish(values, row, place.column, width)

    def finish(self, values: list[Expr], row: Index, column: Index, width: int) -> Expr:
        """The result at (row, column) from the scaled sums of each part."""
        (value,) = values
        return self.finished(value, row, column, width)


class DynamicGatedMatmulKernel(DynamicMatmulKernel):
    """Emits one gated product: a panel holds columns of the gate, then the same ones of the other."""

    parts = 2

    def pack(self, w: np.ndarray) -> np.ndarray:
        op, count = self.op, self.panels.count
        split = np.pad(w.reshape(op.k, 2, op.n), ((0, 0), (0, 0), (0, count * self.columns - op.n)))
        split = split.reshape(op.k, 2, count, self.columns).transpose(0, 2, 1, 3)
        return self.panels.pack(split.reshape(op.k, -1))

    def steps(self) -> Sequence[str]:
        return (self.op.activation,)

    def bind_epilogue(self, extra: Sequence[Buffer]) -> None:
        self.bias = extra[0] if self.op.biased else None

    def finish(self, values: list[Expr], row: Index, column: Index, width: int) -> Expr:
        k, (gate, up) = self.k, values
        if self.bias is not None:
            gate = gate + k.load(self.bias, [k.ramp(column, width)])
            up = up + k.load(self.bias, [k.ramp(column + self.op.n, width)])
        return self.activations.apply(self.op.activation, gate, width) * up
