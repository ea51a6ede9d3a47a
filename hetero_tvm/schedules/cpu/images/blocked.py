"""Parts that kernels on channel blocks share: tiles of pixels, epilogue, store, zeros around the result."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hetero_tvm.codegen.bf16_vectors import bf16_bits
from hetero_tvm.host.tvm import Buffer, Expr, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.activations import ACTIVATIONS, moves_zero
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.integers.bf16_conv2d import HALVES
from hetero_tvm.ops.layout import Layout
from hetero_tvm.ops.matmul import BIAS, TENSORS, joined, steps_with_operands
from hetero_tvm.schedules.cpu.activation_code import ActivationCode
from hetero_tvm.schedules.cpu.register_tile import RegisterTile
from hetero_tvm.schedules.emit import (
    LINE_FLOATS,
    Index,
    Kernel,
    as_index,
    in_powers_of_two,
    int32,
    vector_loop,
)

FEW_PASSES = 16
"""More passes over a weight panel than this make its first, cold one unimportant."""


@dataclass(frozen=True)
class PixelTile:
    """A register tile of ``rows`` x ``columns`` output pixels and ``vectors`` vectors of filters."""

    rows: int
    columns: int
    vectors: int = 1

    @classmethod
    def of(cls, choice: Sequence[int]) -> PixelTile:
        """The tile that a knob's choice (rows, columns[, vectors]) stands for."""
        rows, columns, *vectors = choice
        return cls(rows=rows, columns=columns, vectors=vectors[0] if vectors else 1)

    @property
    def pixels(self) -> int:
        """Output pixels of the tile."""
        return self.rows * self.columns

    @property
    def registers(self) -> RegisterTile:
        """This tile with its pixels as rows."""
        return RegisterTile(rows=self.pixels, vectors=self.vectors)


class Plane:
    """Positions in an image tensor in blocks, plane by plane, and the zeros around them.

    A *plane* is one channel block of one image of the batch, numbered through.
    """

    def __init__(self, k: Kernel, layout: Layout, height: Index, width: Index):
        self.k, self.layout, self.height, self.width = k, layout, height, width

    def first(self, plane: Index, y: Index, x: Index) -> list[Index]:
        """Indices of one pixel's first channel."""
        pixel = (y + self.layout.halo[0]) * self.layout.pitch(self.width) + x + self.layout.halo[1]
        return [plane, pixel * self.layout.block]

    def at(self, plane: Index, y: Index, x: Index) -> list[Index]:
        """Indices of one pixel's vector."""
        plane, channel = self.first(plane, y, x)
        return [plane, self.k.ramp(channel, self.layout.block)]

    def view(self, buffer: Buffer) -> Buffer:
        """The buffer as [planes, elements of a plane]."""
        plane = self.layout.rows(self.height) * self.layout.pitch(self.width) * self.layout.block
        known = [int(e) if isinstance(e, tirx.IntImm) else tirx.Cast("int32", e) for e in buffer.shape[:2]]
        return self.k.view(buffer, (math.prod(known), plane))

    def copy_between_zeros(self, plain: Buffer, to: Buffer, planes: Index, lanes: int, flops: int) -> None:
        """Copy the rows of plain images to ``to``, whose planes have zeros around them, in parallel."""
        k, height, width, pitch = self.k, self.height, self.width, self.layout.pitch(self.width)
        source = k.view(plain, (planes, height * width))

        def put(plane: Expr, start: Index, count: Index, first: Expr | None) -> None:
            def piece(at: Index, lanes: int) -> None:
                value = k.splat(0.0, lanes)
                if first is not None:
                    value = k.load(source, [plane, k.ramp(first + at, lanes)])
                k.store(to, value, [plane, k.ramp(start + at, lanes)])

            vector_loop(k, count, lanes, piece)

        top, left, bottom, right = self.layout.halo
        with k.parallel(planes * height, flops) as item:
            plane, row = tirx.floordiv(item, height), tirx.floormod(item, height)
            start = (row + top) * pitch
            put(plane, start, left, None)
            put(plane, start + left, width, row * width)
            put(plane, start + left + width, right, None)
            with k.when(row == 0):
                put(plane, 0, top * pitch, None)
            with k.when(row == height - 1):
                put(plane, (height + top) * pitch, bottom * pitch, None)

    def clear_halo(
        self, buffer: Buffer, plane: Index, first_row: Index, rows: Index, is_first: Expr, is_last: Expr
    ) -> None:
        """Write zeros beside ``rows`` rows from ``first_row``, above the first block and below the last."""
        k, lanes = self.k, self.layout.block
        top, left, bottom, right = self.layout.halo
        pitch = self.layout.pitch(self.width)

        def clear(pixel: Index, count: Index) -> None:
            if not isinstance(count, int) or count:
                with k.serial(count) as i:
                    zeros = k.splat(tirx.const(0, str(buffer.dtype)), lanes)
                    k.store(buffer, zeros, [plane, k.ramp((pixel + i) * lanes, lanes)])

        if left or right:
            with k.serial(rows) as r:
                start = (first_row + r + top) * pitch
                clear(start, left)
                clear(start + left + self.width, right)
        if top:
            with k.when(is_first):
                clear(int32(0), top * pitch)
        if bottom:
            with k.when(is_last):
                clear(as_index((top + self.height) * pitch), bottom * pitch)


def without_lanes_past(k: Kernel, value: Expr, block: Index, channels: int, lanes: int) -> Expr:
    """A vector of a block of channels, with zeros in the lanes past the last channel."""
    if channels % lanes == 0:
        return value
    exist = k.ramp(block * lanes, lanes) < k.splat(int32(channels), lanes)
    return tirx.Select(exist, value, tirx.const(0, str(value.ty.dtype)))


class BlockedOutput:
    """Writes the result of a convolution, vector by vector."""

    def __init__(self, k: Kernel, op: Conv2d, machine: CpuModel):
        self.k, self.op, self.lanes = k, op, machine.lanes
        self.plane, self.residual = (
            Plane(k, Layout.parse(text), op.out_height, op.out_width)
            for text in (op.y_layout, op.residual_layout)
        )
        self._activations = ActivationCode(op.epilogue, machine)
        self._halves = op.output.dtype == HALVES
        self.imports = self._activations.imports

    def declare(self, bias_length: int) -> None:
        """Declare the arguments after X and W: the epilogue's (a packed bias of that length), and Y."""
        op, k = self.op, self.k
        self._operands = []
        for operand in op.inputs[2:]:
            if operand.name == BIAS:
                self._operands.append(k.argument(BIAS, (bias_length,)))
            else:
                self._operands.append(k.argument(operand.name, operand.shape))
        y = k.argument("Y", op.output.shape, op.output.dtype)
        self._operands = [
            buffer if operand.name == BIAS else self.residual.view(buffer)
            for buffer, operand in zip(self._operands, op.inputs[2:], strict=True)
        ]
        self.y = self.plane.view(y)
        if self._halves:
            self.y = k.bits_of(self.y)

    def start(self, filter_block: Index) -> Expr:
        """Start value of an accumulator: the bias when it is the first step, else zero."""
        k = self.k
        if self.op.epilogue[:1] != (BIAS,):
            return k.splat(0.0, self.lanes)
        return k.let(k.load(self._operands[0], [k.ramp(filter_block * self.lanes, self.lanes)]))

    def ask_ahead(self, plane: Index, y: Index, x: Index) -> None:
        """Ask for what :meth:`put` will read and write for one pixel (y, x) of one plane."""
        for step, operand in steps_with_operands(self.op.epilogue, self._operands):
            if step in TENSORS:
                self.k.prefetch(operand, self.residual.first(plane, y, x), into=1)
        self.k.prefetch(self.y, self.plane.first(plane, y, x), into=1, to_write=True)

    def put(self, value: Expr, plane: Index, filter_block: Index, y: Index, x: Index) -> None:
        """Apply the epilogue to one pixel (y, x) of one plane, and store it."""
        op, k, lanes = self.op, self.k, self.lanes
        for index, (step, operand) in enumerate(steps_with_operands(op.epilogue, self._operands)):
            if step == BIAS:
                if index:  # the first step is in the accumulator already
                    value = value + k.load(operand, [k.ramp(filter_block * lanes, lanes)])
            elif step in TENSORS:
                value = joined(step, value, k.load(operand, self.residual.at(plane, y, x)))
            else:
                value = self._activations.apply(step, value, lanes)
        value = self._without_tail(value, filter_block)
        k.store(self.y, bf16_bits(value, lanes) if self._halves else value, self.plane.at(plane, y, x))

    def _without_tail(self, value: Expr, filter_block: Index) -> Expr:
        """``value`` with zeros past the last filter, also where an activation of zero is not zero."""
        if not any(step in ACTIVATIONS and moves_zero(step) for step in self.op.epilogue):
            return value
        return without_lanes_past(self.k, value, filter_block, self.op.filters, self.lanes)

    def clear_halo(self, plane: Index, first_row: Index, rows: Index, is_first: Expr, is_last: Expr) -> None:
        """See :meth:`Plane.clear_halo`."""
        self.plane.clear_halo(self.y, plane, first_row, rows, is_first, is_last)


def each_tile(
    k: Kernel, first: Index, count: Index, extent: Index, step: int, body: Callable[[Index, int], None]
) -> None:
    """``body(start, size)`` for tiles ``first .. first + count`` of ``extent``; the last may be smaller, and
    is several of powers of two where the extent is known at run time."""
    if isinstance(extent, int):
        full, rest = divmod(extent, step)
    with k.serial(count) as t:
        tile = first + t
        if not isinstance(extent, int):
            whole = tile * step + step <= extent
            last = functools.partial(in_powers_of_two, k, tile * step, extent - tile * step, step, body)
            k.branch(whole, functools.partial(body, tile * step, step), last)
        elif not rest:
            body(tile * step, step)
        elif full:
            k.branch(tile < full, lambda: body(tile * step, step), lambda: body(int32(full * step), rest))
        else:
            body(int32(0), rest)


def each_column_tile(k: Kernel, width: Index, columns: int, body: Callable[[Index, int], None]) -> None:
    """``body(start, size)`` for the tiles of one row of pixels, the last as in :func:`each_tile`."""
    if not isinstance(width, int):
        whole = tirx.truncdiv(width, int32(columns))
        with k.serial(whole) as column:
            body(column * columns, columns)
        in_powers_of_two(k, whole * columns, width - whole * columns, columns, body)
        return
    wide, narrow = divmod(width, columns)
    if wide:
        with k.serial(wide) as column:
            body(column * columns, columns)
    if narrow:
        body(int32(wide * columns), narrow)


def each_filter_block(
    k: Kernel, panel: Index, vectors: int, filter_blocks: int, body: Callable[[int], None]
) -> None:
    """``body(v)`` for the blocks of a panel that exist (the last panel may reach past the filters)."""
    for v in range(vectors):
        if v and filter_blocks % vectors:
            with k.when(panel * vectors + v < filter_blocks):
                body(v)
        else:
            body(v)


def prefetch_lines(
    k: Kernel, buffer: Buffer, prefix: list[Index], first_row: Index, rows: int, part: Expr, parts: int
) -> None:
    """Fetch part ``part`` of ``parts`` of ``rows`` rows of a weight panel, for the next one to be warm.

    Weights are cold in a network, and the hardware's prefetcher stops at every page.
    """
    per_row = -(-int(buffer.shape[-1]) // LINE_FLOATS)
    count = -(-rows * per_row // parts)
    for line in range(count):
        at = part * count + line
        row = first_row + tirx.floordiv(at, per_row)
        k.prefetch(buffer, [*prefix, row, tirx.floormod(at, per_row) * LINE_FLOATS])
