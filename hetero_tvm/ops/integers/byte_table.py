"""Functions of one byte, as a table of what each of its 256 values gives."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hetero_tvm.ops.base import FusedOp, Operand

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import PrimFunc

ENTRIES = 256


@dataclass(frozen=True)
class ByteTable(FusedOp):
    """``Y = table[X]`` for each value, where X counts as the unsigned byte that it is stored as.

    Parameters
    ----------
    shape : extents of X and Y.
    x_dtype, y_dtype : int8 or uint8.

    Operands: X, and the constant table [256].
    """

    kind: ClassVar[str] = "byte_table"

    shape: tuple[int, ...]
    x_dtype: str = "int8"
    y_dtype: str = "int8"

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def inputs(self) -> tuple[Operand, ...]:
        table = Operand("table", (ENTRIES,), self.y_dtype, constant=True)
        return (Operand("X", self.shape, self.x_dtype), table)

    @property
    def output(self) -> Operand:
        return Operand("Y", self.shape, self.y_dtype)

    @property
    def flops(self) -> int:
        return self.size

    @property
    def label(self) -> str:
        return f"byte_table_{'x'.join(map(str, self.shape))}_{self.x_dtype}_{self.y_dtype}"

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        x, table = arrays
        return np.asarray(table)[np.asarray(x).astype(self.x_dtype).view(np.uint8)]

    def workload(self) -> PrimFunc:
        from hetero_tvm.host.tvm import te, tirx
        from hetero_tvm.ops.te_workload import prim_func

        def compute(x, table):
            def value(*index):
                byte = x(*index).astype("int32")
                return table[tirx.bitwise_and(byte, tirx.const(ENTRIES - 1, "int32"))]

            return te.compute(x.shape, value, name="Y")

        return prim_func(self, compute, "int64")
