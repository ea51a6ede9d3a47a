"""Epilogues of products: bias, residual, activations, scale, on the sums of one row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hetero_tvm.host.tvm import tirx
from hetero_tvm.ops.matmul import BIAS, RESIDUAL
from hetero_tvm.schedules.cuda import device
from hetero_tvm.schedules.cuda.activations import ACTIVATIONS
from hetero_tvm.schedules.cuda.products.product import Epilogue
from hetero_tvm.schedules.cuda.values import vector_of
from hetero_tvm.schedules.emit import Kernel


class Steps:
    """The steps of an epilogue with their operands.

    Parameters
    ----------
    steps : as :class:`hetero_tvm.ops.matmul.Matmul` has them.
    operands : flat buffers, one per ``bias`` or ``residual``.
    """

    def __init__(self, steps: Sequence[str], operands: Sequence[Any]):
        rest = iter(operands)
        self.steps = [(step, next(rest) if step in (BIAS, RESIDUAL) else None) for step in steps]

    def apply(self, k: Kernel, values: Any, vector: int, bias_at: Any, residual_at: Any) -> None:
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
                    k.store(values, k.load(values, [e]) + k.load(other, [e]), [e])
            else:
                with k.unroll(vector) as e:
                    k.store(values, ACTIVATIONS[step](k.load(values, [e])), [e])


class RowMajor(Epilogue):
    """Results [rows, columns] from element ``offset`` of a flat buffer, ``stride`` elements from row to row.

    ``strides`` are those between products; vectors begin at multiples of all of them.
    """

    def __init__(
        self, out: Any, dtype: str, rows: int, columns: int, steps: Steps, offset: Any = 0,
        stride: int | None = None, strides: Sequence[int] = (),
    ):  # fmt: skip
        self.out, self.rows, self.columns, self.steps = out, rows, columns, steps
        self.offset, self.stride = offset, columns if stride is None else stride
        self.vector = vector_of(dtype, columns, self.stride, *strides)

    def store(self, k: Kernel, sums: Any, row: Any, column: Any) -> None:
        with k.when(tirx.all(row < self.rows, column < self.columns)):
            at = device.fixed(k, row * self.stride + column)
            self.steps.apply(k, sums, self.vector, column, at)
            to = device.pointer(self.out, self.offset + at)
            device.call("htvm_store", to, device.pointer(sums), template=str(self.vector))
