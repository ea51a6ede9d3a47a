"""Epilogues of products: bias, residual, activations, scale, on the sums of one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hetero_tvm.host.tvm import Buffer, Expr, tirx
from hetero_tvm.ops.matmul import BIAS, joined, steps_with_operands
from hetero_tvm.schedules.cuda import device
from hetero_tvm.schedules.cuda.activations import ACTIVATIONS
from hetero_tvm.schedules.cuda.products.product import Epilogue
from hetero_tvm.schedules.cuda.values import vector_of
from hetero_tvm.schedules.emit import Kernel


class EpilogueSteps:
    """The steps of an epilogue with their operands.

    Parameters
    ----------
    steps : as :class:`hetero_tvm.ops.matmul.Matmul` has them.
    operands : flat buffers, one per ``bias``, ``residual`` or ``gate``.
    """

    def __init__(self, steps: Sequence[str], operands: Sequence[Buffer]):
        self.steps = steps_with_operands(steps, operands)

    def apply(self, k: Kernel, values: Buffer, vector: int, bias_at: Expr, residual_at: Expr) -> None:
        """Apply the steps in place to ``vector`` float32 values.

        ``bias_at`` and ``residual_at`` are the offsets of the first one into bias and residuals.
        """
        for step, operand in self.steps:
            if operand is not None:
                other = k.scratch((vector,))
                at = bias_at if step == BIAS else residual_at
                device.call(
                    "htvm_load", device.pointer(operand, at), device.pointer(other), template=str(vector)
                )
                with k.unroll(vector) as e:
                    k.store(values, joined(step, k.load(values, [e]), k.load(other, [e])), [e])
            else:
                with k.unroll(vector) as e:
                    k.store(values, ACTIVATIONS[step](k.load(values, [e])), [e])


@dataclass(frozen=True)
class Place:
    """Memory of a result [rows, columns].

    Parameters
    ----------
    out : flat buffer; ``offset`` is the first element.
    stride : elements from row to row.
    strides : elements between products, of which vectors begin at multiples.
    """

    out: Buffer
    offset: Expr | int
    stride: int
    strides: Sequence[int] = ()


class RowMajor(Epilogue):
    """Results [rows, columns] in rows."""

    def __init__(self, place: Place, dtype: str, rows: int, columns: int, steps: EpilogueSteps | None = None):
        self.place, self.rows, self.columns = place, rows, columns
        self.steps = steps or EpilogueSteps((), ())
        self.vector = vector_of(dtype, columns, place.stride, *place.strides)

    def store(self, k: Kernel, sums: Buffer, row: Expr, column: Expr) -> None:
        with k.when(tirx.all(row < self.rows, column < self.columns)):
            at = device.fixed(k, row * self.place.stride + column)
            self.steps.apply(k, sums, self.vector, column, at)
            to = device.pointer(self.place.out, self.place.offset + at)
            device.call("htvm_store", to, device.pointer(sums), template=str(self.vector))
