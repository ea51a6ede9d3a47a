"""What NPU design spaces have beyond any design space."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_tvm.ops.base import FusedOp
from hetero_tvm.schedules.base import DesignSpace, Point

ROW_MAJOR = "row"
CHANNELS_LAST = "nhwc"
"""Of a tensor [N, C, H, W] in contracts: it lies as [N, H, W, C]."""


class NpuSpace(DesignSpace):
    """A space whose kernels the NPU runs.

    The kernel's parameters are the operands in order (packed where :meth:`pack` says so), then the
    :meth:`tables`, then the result.  Tensors are in the machine's 2-byte type; constants in the type
    that the kernel declares.
    """

    def tables(self, op: FusedOp, point: Point, machine: Any) -> list[np.ndarray]:
        """Constants of the kernel's own."""
        return []

    def layouts(self, op: FusedOp) -> tuple[tuple[str, ...], str]:
        """Layout of every operand, and of the result."""
        return (ROW_MAJOR,) * len(op.inputs), ROW_MAJOR
