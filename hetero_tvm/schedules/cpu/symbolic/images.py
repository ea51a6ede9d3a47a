"""Kernels on channel blocks for images whose sizes are known only when they come.

They are those of fixed sizes (``images/``), with expressions of the sizes in place of numbers: rows and
columns that fill no register tile are taken in powers of two, and how many pieces threads share follows from
the sizes of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hetero_tvm.codegen.pipeline import EXACT_BUFFERS
from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.cpu.image_norms.channel_norm import BlockedNormalizeSpace
from hetero_tvm.schedules.cpu.image_norms.group_norm import BlockedGroupNormSpace
from hetero_tvm.schedules.cpu.images.blocked import PixelTile
from hetero_tvm.schedules.cpu.images.conv2d_blocked import kernel_of
from hetero_tvm.schedules.cpu.images.depthwise import DepthwiseKernel
from hetero_tvm.schedules.cpu.images.pool2d import PoolKernel
from hetero_tvm.schedules.cpu.images.relayout import relayout
from hetero_tvm.schedules.cpu.symbolic.tails import told_sizes
from hetero_tvm.schedules.emit import FLOAT, Index, Kernel
from hetero_tvm.schedules.extents import Unfit
from hetero_tvm.schedules.symbolic import Witnesses, shape_variables


class _OpenKernel(Kernel):
    """A kernel whose images have the shapes that the witnesses tell, and operands that only tell sizes."""

    def __init__(self, witnesses: Witnesses, variables: dict[str, Any]):
        super().__init__()
        self._witnesses, inputs = witnesses, witnesses.largest.inputs
        shapes = witnesses.shapes(variables)
        operands = zip((*inputs, witnesses.largest.output), (*shapes[: len(inputs)], shapes[-1]), strict=True)
        self._shapes = {operand.name: shape for operand, shape in operands if not operand.constant}
        self._told = shapes[len(inputs) : -1]

    def argument(
        self, name: str, shape: Sequence[Index], dtype: str = FLOAT, scope: str = "global"
    ) -> Buffer:
        if name == self._witnesses.largest.output.name:
            told, self._told = self._told, []
            told_sizes(self, self._witnesses, told)
        return super().argument(name, self._shapes.get(name, shape), dtype, scope)

    def let(self, value: Expr) -> Expr:
        scalar = str(value.ty.dtype) == "int32"
        return self.named(value) if scalar else super().let(value)


Write = Callable[[Any, Any, Kernel], None]
"""Writes a contract, of which sizes are named values and expressions, to a kernel."""


def _opened(witnesses: Witnesses, write: Write) -> PrimFunc | None:
    """The kernel for all sizes; None where rows and columns are the same at all of them.

    Raises
    ------
    Unfit : something else than sizes differs.
    """
    if len({op.image[2:] for op in witnesses.ops}) == 1:
        return None
    if len({getattr(op, "padding", None) for op in witnesses.ops}) > 1:
        raise Unfit("zeros around the images are more or fewer at other sizes")
    variables = shape_variables(witnesses.symbols)
    narrow = {name: tirx.Cast("int32", variable) for name, variable in variables.items()}
    k = _OpenKernel(witnesses, variables)
    with k:
        room = witnesses.value(lambda op: op, narrow)
        write(witnesses.value(lambda op: op, narrow, k.named), room, k)
    return k.function.with_attr(EXACT_BUFFERS, True)


def conv2d_blocked(witnesses: Witnesses, point: Point, machine: CpuModel) -> PrimFunc | None:
    """A convolution on channel blocks, with weights that are packed as ``cpu.conv2d_blocked`` does."""
    return _opened(witnesses, lambda op, room, k: kernel_of(op, point, machine, k, room).write())


def depthwise(witnesses: Witnesses, point: Point, machine: CpuModel) -> PrimFunc | None:
    """A depthwise convolution on channel blocks."""
    tile, blocks = PixelTile.of(point["tile"]), point["blocks"]
    return _opened(witnesses, lambda op, room, k: DepthwiseKernel(op, tile, blocks, machine, k).write())


def pool2d(witnesses: Witnesses, point: Point, machine: CpuModel) -> PrimFunc | None:
    """A pooling on channel blocks."""
    return _opened(witnesses, lambda op, room, k: PoolKernel(op, point["accumulators"], k).write())


def change_of_layout(witnesses: Witnesses, point: Point, machine: CpuModel) -> PrimFunc | None:
    """A change between plain images and blocks of channels, or of the zeros around planes."""
    return _opened(witnesses, lambda op, room, k: relayout(op, machine, k))


def group_norm(witnesses: Witnesses, point: Point, machine: CpuModel) -> PrimFunc | None:
    """A normalisation over groups of channels in blocks."""
    return _opened(witnesses, lambda op, room, k: BlockedGroupNormSpace.write(k, op, room, machine))


def channel_norm(witnesses: Witnesses, point: Point, machine: CpuModel) -> PrimFunc | None:
    """A normalisation of pixels over channels in blocks."""
    return _opened(witnesses, lambda op, room, k: BlockedNormalizeSpace.write(k, op, room, machine))
