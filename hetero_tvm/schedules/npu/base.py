"""Design spaces of the NPU: what they say beyond any design space, and parts that several share."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.layout import PLAIN
from hetero_tvm.ops.matmul import BIAS, RESIDUAL
from hetero_tvm.ops.pool2d import Pool2d
from hetero_tvm.schedules.base import DesignSpace, Knob, Point

ROW_MAJOR = "row"
CHANNELS_LAST = "nhwc"
"""Layout of a tensor that contracts call [N, C, H, W] and that lies as [N, H, W, C]."""

_STORED = {"int64": "int32", "int32": "int32", "int8": "int8", "uint8": "int8", "bool": "int8"}


def stored_as(dtype: str, machine_dtype: str) -> str:
    """The type in which the NPU keeps a tensor that the host has as ``dtype``.

    Truth values are int8 0 and 1; uint8 is kept as int8, less 128; int64 as its lower half, which is all
    of an index or a token.  Raises ``KeyError`` for what it cannot keep.
    """
    return machine_dtype if dtype in ("float32", machine_dtype) else _STORED[dtype]


def image_layouts(op: Conv2d) -> tuple[tuple[str, ...], str]:
    """Layouts of a convolution's operands, and of its result: images, and residuals, lie channels last."""
    extra = (CHANNELS_LAST if s == RESIDUAL else ROW_MAJOR for s in op.epilogue if s in (BIAS, RESIDUAL))
    return (CHANNELS_LAST, ROW_MAJOR, *extra), CHANNELS_LAST


def other_layout(op: Conv2d | Pool2d) -> str | None:
    """Reason to refuse images in the layouts of other targets; None where they are in no such layout."""
    residual = {op.residual_layout} if isinstance(op, Conv2d) else set()
    if {op.x_layout, op.y_layout} | residual == {PLAIN}:
        return None
    return f"images lie as {op.x_layout} and {op.y_layout}, not as {PLAIN}"


class NpuSpace(DesignSpace):
    """A space whose kernels the NPU runs.

    The kernel's parameters are the operands in order (packed where :meth:`pack` says so), then the
    :meth:`tables`, the :meth:`scratch`, then the result.  Tensors are in the types of :meth:`dtypes`;
    constants in the type that the kernel declares.
    """

    operator: ClassVar[type[FusedOp]]
    """The one class of operators that the space serves, unless it has a :meth:`refuses` of its own."""
    by_rows = False
    """Whether a kernel may make some rows of an image at a time, from rows of the image that it reads."""

    def refuses(self, op: FusedOp, machine: NpuMachine) -> str | None:
        if not isinstance(op, self.operator):
            return f"is for {self.operator.kind}, not {op.kind}"
        return self.unsupported(op, machine)

    def unsupported(self, op: FusedOp, machine: NpuMachine) -> str | None:
        """Reason why ``op``, of class :attr:`operator`, has no kernel here; None when it has one."""
        return None

    def tables(self, op: FusedOp, point: Point, machine: NpuMachine) -> list[np.ndarray]:
        """Constants of the kernel's own."""
        return []

    def scratch(self, op: FusedOp, point: Point, machine: NpuMachine) -> list[tuple[tuple[int, ...], str]]:
        """Shapes and dtypes of tensors in DRAM that the kernel needs for itself: parameters between the
        :meth:`tables` and the result."""
        return []

    def dtypes(self, op: FusedOp, machine: NpuMachine) -> tuple[str, ...]:
        """The type of every operand as the kernel reads it."""
        return tuple(stored_as(operand.dtype, machine.dtype) for operand in op.inputs)

    def family(self, point: Point) -> Hashable:
        """Family of ``point``, whose points resemble each other: a search tries the best of each early.

        By default, tiles of one family have as many numbers and the same words among them.
        """
        tiles = [value for value in point.values() if isinstance(value, tuple)]
        return tuple((len(value), *(x for x in value if isinstance(x, str))) for value in tiles)

    def layouts(self, op: FusedOp) -> tuple[tuple[str, ...], str]:
        """Layout of every operand, and of the result."""
        return (ROW_MAJOR,) * len(op.inputs), ROW_MAJOR

    def is_identity(self, op: FusedOp, machine: NpuMachine) -> bool:
        """Whether the result has the very bytes of the operand, as the NPU keeps both: it needs no kernel."""
        return False

    # Kernels by rows.

    def matrix_cycles(self, op: FusedOp, spec: NPUSpec) -> float:
        """Cycles for which the matrix unit is busy: whole blocks."""
        raise NotImplementedError(f"{self.name} does not work by rows")

    def weight_elements(self, op: FusedOp, machine: NpuMachine) -> int:
        """Elements of the packed weights, without those by which tiles round up."""
        raise NotImplementedError(f"{self.name} does not work by rows")

    # Chains that stay on chip: ``held`` are indices of operands (the result's is ``len(op.inputs)``) that
    # lie in L1 instead of DRAM.

    def on_chip(self, op: FusedOp) -> frozenset[int]:
        """Indices of operands that the kernel can take from L1, and of the result if it can stay there."""
        return frozenset()

    def on_chip_at(self, op: FusedOp, point: Point | None) -> frozenset[int]:
        """Indices among :meth:`on_chip` with which a recorded point can be kept."""
        return self.on_chip(op)

    def fitted(
        self, op: FusedOp, point: Point | None, machine: NpuMachine, held: frozenset[int], l1: int
    ) -> Point | None:
        """A point for these operands in L1 whose own part of L1 is at most ``l1`` bytes: ``point``, or
        something near to it, if one is given; None when there is none."""
        return point or self.default(op, machine)

    def in_place(
        self, op: FusedOp, machine: NpuMachine, held: frozenset[int], l1: int, most: int
    ) -> list[Point]:
        """Points that a search may try where these operands lie in L1 and the kernel has ``l1`` bytes of it
        for itself: the best ``most`` by estimate, beside what :meth:`knobs` offers anyway."""
        return []

    def cost(self, op: FusedOp, point: Point, machine: NpuMachine, held: frozenset[int]) -> float | None:
        """Estimated cycles of the kernel with these operands in L1; None when the space cannot say."""
        return None

    def emit(self, op: FusedOp, point: Point, machine: NpuMachine) -> PrimFunc:
        return self.emit_held(op, point, machine, frozenset())

    def emit_held(self, op: FusedOp, point: Point, machine: NpuMachine, held: frozenset[int]) -> PrimFunc:
        """The kernel with the operands ``held`` in L1.  A space that keeps nothing there has :meth:`emit`
        alone."""
        raise NotImplementedError(f"{self.name} keeps nothing in L1")


Tile = TypeVar("Tile", bound="KnobTile")


class KnobTile:
    """A dataclass of tile sizes that one knob chooses: its choices list the fields in order."""

    knob: ClassVar[str] = "tiles"

    @classmethod
    def of(cls: type[Tile], point: Point) -> Tile:
        """The tile sizes of a point."""
        return cls(*point[cls.knob])

    def choice(self) -> tuple[int | str, ...]:
        """The choice of the knob that stands for this tile."""
        return dataclasses.astuple(self)


class RankedSpace(NpuSpace):
    """A space with one knob, whose choices are listed by their estimated cycles."""

    knob: ClassVar[str] = "tiles"

    @abstractmethod
    def ranked(self, op: FusedOp, machine: NpuMachine) -> Sequence[Any]:
        """Choices of the knob, the best by estimate first; none where nothing fits."""

    def knobs(self, op: FusedOp, machine: NpuMachine) -> tuple[Knob, ...]:
        return (Knob(self.knob, tuple(self.ranked(op, machine))),)

    def default(self, op: FusedOp, machine: NpuMachine) -> Point:
        return {self.knob: self.ranked(op, machine)[0]}


class DerivedSpace(NpuSpace):
    """A space whose points are those of another one, for an operator whose tiles fit this one as well."""

    @abstractmethod
    def base_space(self) -> NpuSpace:
        """The space that chooses the tiles."""

    @abstractmethod
    def base_operator(self, op: FusedOp) -> FusedOp:
        """The operator of :meth:`base_space` that takes as much of every scratchpad as ``op``."""

    def unsupported(self, op: FusedOp, machine: NpuMachine) -> str | None:
        return self.base_space().refuses(self.base_operator(op), machine)

    def knobs(self, op: FusedOp, machine: NpuMachine) -> tuple[Knob, ...]:
        return self.base_space().knobs(self.base_operator(op), machine)

    def default(self, op: FusedOp, machine: NpuMachine) -> Point:
        return self.base_space().default(self.base_operator(op), machine)

    def check(self, op: FusedOp, point: Point, machine: NpuMachine) -> None:
        self.base_space().check(self.base_operator(op), point, machine)

    def features(self, op: FusedOp, point: Point, machine: NpuMachine) -> list[float]:
        return self.base_space().features(self.base_operator(op), point, machine)

    def estimate(self, op: FusedOp, point: Point, machine: NpuMachine) -> float | None:
        return self.base_space().estimate(self.base_operator(op), point, machine)
