"""Design space of normalisations of images on channel blocks: the base of this folder's."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hetero_tvm.host.tvm import Buffer, PrimFunc
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.images.norms import BlockedNorm
from hetero_tvm.ops.layout import Layout
from hetero_tvm.schedules.base import DesignSpace, Knob, Packer, Point
from hetero_tvm.schedules.cpu.images.blocked import Plane
from hetero_tvm.schedules.emit import Kernel


@dataclass(frozen=True)
class Operands:
    """Arguments of a kernel: X and Y, how they lie, and the vectors, whole blocks of channels."""

    x_form: Plane
    x: Buffer
    vectors: list[Buffer]
    y_form: Plane
    y: Buffer

    @classmethod
    def declare(cls, k: Kernel, op: BlockedNorm, machine: CpuModel) -> Operands:
        """Declare the arguments."""
        channels = -(-op.channels // machine.lanes) * machine.lanes
        x, *vectors = (k.argument(o.name, (channels,) if o.constant else o.shape) for o in op.inputs)
        y = k.argument(op.output.name, op.output.shape)
        x_form, y_form = (
            Plane(k, Layout.parse(text), op.height, op.width) for text in (op.x_layout, op.y_layout)
        )
        return cls(x_form, x_form.view(x), vectors, y_form, y_form.view(y))


class BlockedNormSpace(DesignSpace):
    """Base of spaces without knobs: such a kernel is bound by memory.

    Attributes
    ----------
    takes : the operator.
    """

    takes: ClassVar[type[BlockedNorm]]

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, self.takes):
            return f"not a {self.takes.kind}"
        if any(Layout.parse(text).block != machine.lanes for text in (op.x_layout, op.y_layout)):
            return f"{op.x_layout} to {op.y_layout} is not in blocks of {machine.lanes} channels"
        return "an extent is zero" if min(*op.image) < 1 else None

    def knobs(self, op: BlockedNorm, machine: CpuModel) -> tuple[Knob, ...]:
        return ()

    def default(self, op: BlockedNorm, machine: CpuModel) -> Point:
        return {}

    def pack(self, op: BlockedNorm, point: Point, machine: CpuModel) -> dict[int, Packer]:
        def padded(vector: np.ndarray) -> np.ndarray:
            return np.pad(vector, (0, -op.channels % machine.lanes))

        return {index: padded for index in range(1, len(op.inputs))}

    def emit(self, op: BlockedNorm, point: Point, machine: CpuModel) -> PrimFunc:
        k = Kernel()
        with k:
            self.write(k, op, op, machine)
        return k.function

    @staticmethod
    @abstractmethod
    def write(k: Kernel, op: BlockedNorm, room: BlockedNorm, machine: CpuModel) -> None:
        """Write arguments and loops to ``k``, with expressions for what is known at run time; ``room`` has
        the extents that buffers may have."""
