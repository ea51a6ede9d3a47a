"""Activation that stands alone: no product or convolution before it could take it in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hetero_tvm.ops.activations import ACTIVATIONS
from hetero_tvm.ops.base import FusedOp, Operand

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import PrimFunc


@dataclass(frozen=True)
class Elementwise(FusedOp):
    """``Y = function(X)`` for each value, in float32.

    Parameters
    ----------
    shape : extents of X and Y.
    function : a name in :data:`hetero_tvm.ops.activations.ACTIVATIONS`.

    Operands: X.
    """

    kind: ClassVar[str] = "elementwise"

    shape: tuple[int, ...]
    function: str

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def inputs(self) -> tuple[Operand, ...]:
        return (Operand("X", self.shape),)

    @property
    def output(self) -> Operand:
        return Operand("Y", self.shape)

    @property
    def flops(self) -> int:
        return 16 * self.size

    @property
    def label(self) -> str:
        return f"{self.function}_{'x'.join(map(str, self.shape))}"

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        return ACTIVATIONS[self.function](arrays[0])

    def workload(self) -> PrimFunc:
        from hetero_tvm.host.tvm import te
        from hetero_tvm.ops.te_workload import plain_activation, prim_func

        def compute(x):
            return te.compute(x.shape, lambda *i: plain_activation(self.function, x(*i)), name=self.function)

        # Relax's generic fusion (pattern 0 is "elementwise") may join it to its neighbours.
        return prim_func(self, compute, "int64").with_attr("op_pattern", 0)
