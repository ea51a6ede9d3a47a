"""Parts that all ways to multiply with a stored weight share: buffers of a kernel, stored floats, results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hetero_tvm.codegen import vector_math
from hetero_tvm.host.tvm import Buffer, Expr, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.decoding.contracts import SQUARED_RELU, Linear
from hetero_tvm.schedules.cpu.activation_code import ActivationCode
from hetero_tvm.schedules.cpu.decoding.layout import PanelLayout
from hetero_tvm.schedules.cpu.decoding.symbolic import SymbolicKernel, quotient, remainder
from hetero_tvm.schedules.emit import Index, int32, vector_pieces


@dataclass
class Parts:
    """Buffers and helpers that the pieces of one kernel share.

    Attributes
    ----------
    x_bits : bits of the integers that X is rounded to beside weights of 8 bits, 0 for 16; beside bfloat16
        weights 16 where many rows are rounded to that, else 0.
    """

    op: Linear
    machine: CpuModel
    layout: PanelLayout
    k: SymbolicKernel
    x: Buffer
    weight: list[Buffer]
    bias: Buffer | None
    residual: Buffer | None
    y: Buffer
    activation: ActivationCode
    x_bits: int = 0

    @property
    def lanes(self) -> int:
        return self.layout.lanes

    def floats(self, panel: Index, at: Expr, column: Expr) -> Expr:
        """A vector of stored floats as float32."""
        if self.layout.pairs:
            word = self.k.load(self.weight[0], [panel, quotient(at, 2), column])
            return half_of_pair(self.k, word, at, self.lanes)
        value = self.k.load(self.weight[0], [panel, at, column])
        return value if self.op.storage.dtype == "float32" else tirx.Cast(f"float32x{self.lanes}", value)

    def finish(
        self,
        row: Expr,
        panel: Expr,
        value_at: Callable[[Index, int], Expr],
        stored: Expr | None = None,
    ) -> None:
        """Store the results of a panel for a row; ``value_at(column, width)`` are its sums.

        ``stored`` is the panel's number among those of several matrices; None where there is one.
        """
        columns = self.layout.columns
        whole, rest = divmod(self.op.n, columns)
        k = self.k

        def some(count: int) -> None:
            self.put(row, panel, value_at, count, panel if stored is None else stored)

        def last() -> None:
            if rest:
                with k.when(tirx.EQ(panel, whole)):
                    some(rest)

        if whole == self.layout.panels:
            some(columns)
        elif rest:
            k.branch(panel < whole, lambda: some(columns), last)
        else:
            with k.when(panel < whole):
                some(columns)

    def put(
        self, row: Expr, panel: Expr, value_at: Callable[[Index, int], Expr], count: int, stored: Expr
    ) -> None:
        """Store ``count`` results of a panel for a row; biases are those of panel ``stored``."""
        k, op, lanes = self.k, self.op, self.lanes

        def sums(start: Index, width: int) -> Expr:
            value = value_at(start, width)
            return value if self.bias is None else value + k.load(self.bias, [stored, k.ramp(start, width)])

        for start, width in vector_pieces(count, lanes):
            value = sums(start, width)
            if op.limit:
                value = tirx.min(value, k.splat(op.limit, width))
            if op.activation == SQUARED_RELU:
                positive = k.let(tirx.max(value, k.splat(0.0, width)))
                value = positive * positive
            elif op.activation:
                value = self.activation.apply(op.activation, value, width)
            if op.gated:
                value = value * self._other_half(sums(lanes + start, width), width)
            if op.softcap:
                scaled = vector_math.tanh(value * k.splat(1.0 / op.softcap, width))
                value = scaled * k.splat(op.softcap, width)
            at = [row, k.ramp(panel * self.layout.columns + start, width)]
            if self.residual is not None:
                value = value + k.load(self.residual, at)
            k.store(self.y, value, at)

    def _other_half(self, value: Expr, width: int) -> Expr:
        """Factor of the activation of a gated product."""
        k, limit = self.k, self.op.limit
        if not limit:
            return value
        bounded = tirx.max(tirx.min(value, k.splat(limit, width)), k.splat(-limit, width))
        return bounded + k.splat(1.0, width)


def half_of_pair(k: SymbolicKernel, word: Expr, at: Expr, lanes: int) -> Expr:
    """The bfloat16 of place ``at`` in words of two neighbours, as float32."""
    up = (int32(1) - remainder(at, 2)) * 16
    kept = tirx.bitwise_and(tirx.shift_left(word, k.splat(up, lanes)), k.splat(int32(-65536), lanes))
    return tirx.reinterpret(f"float32x{lanes}" if lanes > 1 else "float32", kept)
