"""What NPU design spaces have beyond any design space."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.layout import PLAIN
from hetero_tvm.ops.matmul import BIAS, RESIDUAL
from hetero_tvm.schedules.base import DesignSpace, Point

ROW_MAJOR = "row"
CHANNELS_LAST = "nhwc"
"""Of a tensor [N, C, H, W] in contracts: it lies as [N, H, W, C]."""


_STORED = {"int64": "int32", "int32": "int32", "int8": "int8", "uint8": "int8", "bool": "int8"}


def stored_as(dtype: str, machine_dtype: str) -> str:
    """The type in which the NPU keeps a tensor that the host has as ``dtype``.

    Truth values are int8 0 and 1; uint8 is kept as int8, less 128; int64 as its lower half, which is all
    of an index or a token.  Raises ``KeyError`` for what it cannot keep.
    """
    return machine_dtype if dtype in ("float32", machine_dtype) else _STORED[dtype]


def image_layouts(op: Any) -> tuple[tuple[str, ...], str]:
    """Of a convolution's operands and result: images, and residuals, lie channels last."""
    extra = (CHANNELS_LAST if s == RESIDUAL else ROW_MAJOR for s in op.epilogue if s in (BIAS, RESIDUAL))
    return (CHANNELS_LAST, ROW_MAJOR, *extra), CHANNELS_LAST


def other_layout(op: Any) -> str | None:
    """Why images in the layouts of other targets are refused; None: they are in no such layout."""
    if {op.x_layout, op.y_layout, getattr(op, "residual_layout", PLAIN)} == {PLAIN}:
        return None
    return f"images lie as {op.x_layout} and {op.y_layout}, not as {PLAIN}"


class NpuSpace(DesignSpace):
    """A space whose kernels the NPU runs.

    The kernel's parameters are the operands in order (packed where :meth:`pack` says so), then the
    :meth:`tables`, the :meth:`scratch`, then the result.  Tensors are in the types of :meth:`dtypes`;
    constants in the type that the kernel declares.
    """

    by_rows = False
    """Whether a kernel may make some rows of an image at a time, from rows of the image that it reads."""

    def tables(self, op: FusedOp, point: Point, machine: Any) -> list[np.ndarray]:
        """Constants of the kernel's own."""
        return []

    def scratch(self, op: FusedOp, point: Point, machine: Any) -> list[tuple[tuple[int, ...], str]]:
        """Shapes and dtypes of tensors in DRAM that the kernel needs for itself: parameters between the
        :meth:`tables` and the result."""
        return []

    def dtypes(self, op: FusedOp, machine: Any) -> tuple[str, ...]:
        """The type of every operand as the kernel reads it."""
        return tuple(stored_as(operand.dtype, machine.dtype) for operand in op.inputs)

    def family(self, point: Point) -> Hashable:
        """Points of one family resemble each other: a search tries the best of each early.

        By default, tiles of one family have as many numbers and the same words among them.
        """
        tiles = [value for value in point.values() if isinstance(value, tuple)]
        return tuple((len(value), *(x for x in value if isinstance(x, str))) for value in tiles)

    def layouts(self, op: FusedOp) -> tuple[tuple[str, ...], str]:
        """Layout of every operand, and of the result."""
        return (ROW_MAJOR,) * len(op.inputs), ROW_MAJOR

    def is_identity(self, op: FusedOp, machine: Any) -> bool:
        """Whether the result has the very bytes of the operand, as the NPU keeps both: it needs no kernel."""
        return False

    # Kernels by rows.

    def matrix_cycles(self, op: FusedOp, spec: Any) -> float:
        """Whole blocks of the matrix unit."""
        raise NotImplementedError(f"{self.name} does not work by rows")

    def weight_elements(self, op: FusedOp, machine: Any) -> int:
        """Of the packed weights, but for what tiles round up."""
        raise NotImplementedError(f"{self.name} does not work by rows")

    # Chains that stay on chip: ``held`` are indices of operands (the result's is ``len(op.inputs)``) that
    # lie in L1 instead of DRAM.

    def on_chip(self, op: FusedOp) -> frozenset[int]:
        """Which operands the kernel takes from L1, and whether it can leave its result there."""
        return frozenset()

    def on_chip_at(self, op: FusedOp, point: Point | None) -> frozenset[int]:
        """Those of :meth:`on_chip` with which a recorded point can be kept."""
        return self.on_chip(op)

    def fitted(
        self, op: FusedOp, point: Point | None, machine: Any, held: frozenset[int], l1: int
    ) -> Point | None:
        """A point for these operands in L1 whose own part of L1 is at most ``l1`` bytes: ``point``, or
        something near to it, if one is given; None when there is none."""
        return point or self.default(op, machine)

    def in_place(
        self, op: FusedOp, machine: Any, held: frozenset[int], l1: int, most: int
    ) -> list[Point]:
        """Points that a search may try where these operands lie in L1 and the kernel has so much of it for
        itself: the best ``most`` by estimate, beside what :meth:`knobs` offers anyway."""
        return []

    def cost(self, op: FusedOp, point: Point, machine: Any, held: frozenset[int]) -> float | None:
        """Estimated cycles of the kernel with these operands in L1; None when the space cannot say."""
        return None

    def emit_held(self, op: FusedOp, point: Point, machine: Any, held: frozenset[int]) -> Any:
        """:meth:`emit` with parameters in L1."""
        raise NotImplementedError(f"{self.name} keeps nothing in L1")
