"""Kernels on channel blocks for images whose sizes are known only when they come.

They are those of fixed sizes (``images/``), with expressions of the sizes in place of numbers: rows and
columns that fill no register tile are taken in powers of two, and how many pieces threads share follows from
the sizes of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hetero_tvm.codegen.pipeline import EXACT_BUFFERS
from hetero_tvm.host.tvm import Buffer, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.cpu.images.blocked import PixelTile
from hetero_tvm.schedules.cpu.images.conv2d_blocked import WINOGRAD
from hetero_tvm.schedules.cpu.images.conv2d_blocked_kernel import BlockedConvKernel
from hetero_tvm.schedules.cpu.images.conv2d_winograd_kernel import WinogradKernel
from hetero_tvm.schedules.cpu.images.depthwise import DepthwiseKernel
from hetero_tvm.schedules.cpu.images.pool2d import PoolKernel
from hetero_tvm.schedules.cpu.images.relayout import relayout
from hetero_tvm.schedules.emit import FLOAT, Index, Kernel
from hetero_tvm.schedules.symbolic import Witnesses, shape_variables


class _OpenKernel(Kernel):
    """A kernel whose images have the shapes that the witnesses tell."""

    def __init__(self, shapes: dict[str, tuple[Index, ...]]):
        super().__init__()
        self._shapes = shapes

    def argument(
        self, name: str, shape: Sequence[Index], dtype: str = FLOAT, scope: str = "global"
    ) -> Buffer:
        return super().argument(name, self._shapes.get(name, shape), dtype, scope)


Emit = Callable[[Any, Kernel], PrimFunc]
"""Emits a contract, of which sizes are expressions, to a kernel."""


def _opened(witnesses: Witnesses, emit: Emit) -> PrimFunc | None:
    """The kernel for all sizes; None where rows and columns are the same at all of them.

    Raises
    ------
    Unfit : something else than sizes differs.
    """
    if len({op.image[2:] for op in witnesses.ops}) == 1:
        return None
    variables = shape_variables(witnesses.symbols)
    narrow = {name: tirx.Cast("int32", variable) for name, variable in variables.items()}
    op = witnesses.value(lambda op: op, narrow)
    largest = witnesses.largest
    operands = (*largest.inputs, largest.output)
    shapes = {
        operand.name: shape
        for operand, shape in zip(operands, witnesses.shapes(variables), strict=True)
        if not operand.constant
    }
    return emit(op, _OpenKernel(shapes)).with_attr(EXACT_BUFFERS, True)


def conv2d_blocked(witnesses: Witnesses, point: Point, machine: CpuModel) -> PrimFunc | None:
    """A convolution on channel blocks, with weights that are packed as ``cpu.conv2d_blocked`` does."""
    tile, size = PixelTile.of(point["tile"]), WINOGRAD.get(point["method"])
    blocks, groups = point["blocks"], point["groups"]

    def emit(op: Any, k: Kernel) -> PrimFunc:
        if size is None:
            return BlockedConvKernel(op, tile, blocks, groups, machine, k).emit()
        return WinogradKernel(op, size, tile.registers, blocks, groups, machine, k).emit()

    return _opened(witnesses, emit)


def depthwise(witnesses: Witnesses, point: Point, machine: CpuModel) -> PrimFunc | None:
    """A depthwise convolution on channel blocks."""
    tile = PixelTile.of(point["tile"])
    return _opened(witnesses, lambda op, k: DepthwiseKernel(op, tile, point["blocks"], machine, k).emit())


def pool2d(witnesses: Witnesses, point: Point, machine: CpuModel) -> PrimFunc | None:
    """A pooling on channel blocks."""
    return _opened(witnesses, lambda op, k: PoolKernel(op, point["accumulators"], k).emit())


def change_of_layout(witnesses: Witnesses, point: Point, machine: CpuModel) -> PrimFunc | None:
    """A change between plain images and blocks of channels, or of the zeros around planes."""
    return _opened(witnesses, lambda op, k: relayout(op, machine.lanes, k))

