"""Group normalisation of images on channel blocks (NCHW[x]c): a lane is a channel.

Loop structure::

    parallel over blocks of channels, in pieces of rows where these are few:
        pass 1: the mean of each lane, from the first pixel on, row by row
        pass 2: the sum of (x - mean)**2 of each lane
    one after the other, over all groups:
        the means of the group's channels and pieces -> its mean, and their sums of squares -> its deviation
    parallel over the same pieces:
        pass 3: (x - mean) * (rstd * scale) + shift, the activation, stored; zeros around the image

Groups need not fill blocks: what their channels share are a few numbers, which cost nothing beside the images
(Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979).
"""

from __future__ import annotations

from collections.abc import Callable

from hetero_tvm.host.tvm import Buffer, Expr, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.activations import moves_zero
from hetero_tvm.ops.images.norms import BlockedGroupNorm
from hetero_tvm.schedules.cpu.activation_code import ActivationCode
from hetero_tvm.schedules.cpu.image_norms.space import BlockedNormSpace, Operands
from hetero_tvm.schedules.cpu.images.blocked import without_lanes_past
from hetero_tvm.schedules.cpu.images.relayout import pieces_of_planes
from hetero_tvm.schedules.cpu.rows.row_reduction import add, reduce_row
from hetero_tvm.schedules.emit import Index, Kernel, constant, int32, share

_UNROLLED = 4
"""Pixels of a row that are added up side by side."""


class BlockedGroupNormSpace(BlockedNormSpace):
    """Space of ``BlockedGroupNorm``."""

    name = "cpu.blocked_group_norm"
    version = 1
    takes = BlockedGroupNorm

    @staticmethod
    def write(k: Kernel, op: BlockedGroupNorm, room: BlockedGroupNorm, machine: CpuModel) -> None:
        _Norm(k, op, room, machine).write()


class _Norm:
    def __init__(self, k: Kernel, op: BlockedGroupNorm, room: BlockedGroupNorm, machine: CpuModel):
        self.k, self.op, self.lanes = k, op, machine.lanes
        self.blocks = -(-op.channels // machine.lanes)
        self.pieces = pieces_of_planes(op.batch * self.blocks, self.blocks, op.height, machine.threads)
        self.activations = ActivationCode((op.activation,), machine)
        self.operands = Operands.declare(k, op, machine)
        self.scale, self.shift = self.operands.vectors
        channels = self.blocks * self.lanes
        self.means, self.squares = (k.scratch((room.batch * self.pieces, channels)) for _ in range(2))
        """Means and sums of squares of each piece, by channel."""
        self.mean, self.factor = (k.scratch((room.batch, channels)) for _ in range(2))
        """Mean and factor of the whole image, by channel."""

    def write(self) -> None:
        """Emit the three passes."""
        k, op = self.k, self.op
        items = op.batch * self.blocks * self.pieces
        with k.imported(*self.activations.imports):
            with k.parallel(items, op.flops) as item:
                self._measure(*self._place(item))
            with k.serial(op.batch) as image:
                if op.channels % self.lanes:
                    last = k.ramp((self.blocks - 1) * self.lanes, self.lanes)
                    for buffer in (self.mean, self.factor):
                        k.store(buffer, k.splat(0.0, self.lanes), [image, last])
                with k.serial(op.groups) as group:
                    self._combine(image, group)
            with k.parallel(items, op.flops) as item:
                self._normalize(*self._place(item))

    def _place(self, item: Expr) -> tuple[Expr, Expr, Expr]:
        """Image, block and piece of an item."""
        plane = self.k.let(tirx.floordiv(item, int32(self.pieces)))
        piece = self.k.let(tirx.floormod(item, int32(self.pieces)))
        image = self.k.let(tirx.floordiv(plane, int32(self.blocks)))
        return image, self.k.let(tirx.floormod(plane, int32(self.blocks))), piece

    def _rows(self, piece: Expr) -> tuple[Index, Index]:
        return share(piece, self.op.height, self.pieces)

    def _measure(self, image: Expr, block: Expr, piece: Expr) -> None:
        """Emit the mean and the sum of squares of each channel of a piece."""
        k, lanes, every = self.k, self.lanes, self.k.ramp(0, self.lanes)
        plane = image * self.blocks + block
        place = [image * self.pieces + piece, k.ramp(block * lanes, lanes)]
        first, rows = self._rows(piece)
        count = tirx.Cast("float32", tirx.max(int32(1) * rows * self.op.width, int32(1)))
        middle = k.scratch((lanes,))
        k.store(middle, self._load(plane, tirx.min(first, int32(1) * self.op.height - 1), int32(0)), [every])

        def centered(value: Expr) -> Expr:
            return value - k.load(middle, [every])

        total = self._sum(plane, first, rows, centered)
        mean = k.load(middle, [every]) + k.load(total, [every]) * k.splat(constant(1.0) / count, lanes)
        k.store(middle, mean, [every])
        k.store(self.means, k.load(middle, [every]), place)
        total = self._sum(plane, first, rows, lambda value: centered(value) * centered(value))
        k.store(self.squares, k.load(total, [every]), place)

    def _load(self, plane: Expr, row: Expr, column: Expr) -> Expr:
        return self.k.load(self.operands.x, self.operands.x_form.at(plane, row, column))

    def _sum(self, plane: Expr, first: Index, rows: Index, term: Callable[[Expr], Expr]) -> Buffer:
        """Sums of ``term(value)`` by lane: of each row, then of all."""
        k, lanes, width, every = self.k, self.lanes, self.op.width, self.k.ramp(0, self.lanes)
        total, parts = k.scratch((lanes,)), k.scratch((_UNROLLED, lanes))
        k.store(total, k.splat(0.0, lanes), [every])
        whole = width // _UNROLLED if isinstance(width, int) else tirx.truncdiv(width, int32(_UNROLLED))

        def add_to(part: int, row: Expr, column: Expr) -> None:
            value = k.let(self._load(plane, row, column))
            k.store(parts, k.load(parts, [part, every]) + term(value), [part, every])

        with k.serial(rows) as r:
            row = first + r
            for part in range(_UNROLLED):
                k.store(parts, k.splat(0.0, lanes), [part, every])
            with k.serial(whole) as column:
                for part in range(_UNROLLED):
                    add_to(part, row, column * _UNROLLED + part)
            with k.serial(width - whole * _UNROLLED) as rest:
                add_to(0, row, whole * _UNROLLED + rest)
            of_row = k.load(parts, [0, every])
            for part in range(1, _UNROLLED):
                of_row = of_row + k.load(parts, [part, every])
            k.store(total, k.load(total, [every]) + of_row, [every])
        return total

    def _combine(self, image: Expr, group: Expr) -> None:
        """Emit the mean and the deviation of a group, for each of its channels."""
        k, op, lanes = self.k, self.op, self.lanes
        per_group = op.channels // op.groups
        start = group * per_group
        stats = k.scratch((3,))  # mean, sum of squares, 1 / deviation
        pixels = tirx.Cast("float32", int32(1) * op.height * op.width)
        share_of = constant(1.0) / (pixels * constant(float(per_group)))

        def over_pieces(slot: int, term: Callable[[list[Expr], int, Expr], Expr]) -> None:
            k.store(stats, constant(0.0), [slot])
            with k.serial(self.pieces) as piece:
                count = tirx.Cast("float32", int32(1) * self._rows(piece)[1] * op.width)

                def of_channel(c: Index, width: int) -> Expr:
                    return term([image * self.pieces + piece, k.ramp(start + c, width)], width, count)

                part = reduce_row(k, per_group, lanes, of_channel, add, 0.0)
                k.store(stats, k.load(stats, [slot]) + part, [slot])

        over_pieces(0, lambda at, width, count: k.load(self.means, at) * k.splat(count, width))
        k.store(stats, k.load(stats, [0]) * share_of, [0])

        def squares(at: list[Expr], width: int, count: Expr) -> Expr:
            apart = k.load(self.means, at) - k.splat(k.load(stats, [0]), width)
            return k.load(self.squares, at) + k.splat(count, width) * apart * apart

        over_pieces(1, squares)
        deviation = tirx.sqrt(k.load(stats, [1]) * share_of + constant(op.eps))
        k.store(stats, constant(1.0) / deviation, [2])
        with k.serial(per_group) as c:
            k.store(self.mean, k.load(stats, [0]), [image, start + c])
            k.store(self.factor, k.load(stats, [2]) * k.load(self.scale, [start + c]), [image, start + c])

    def _normalize(self, image: Expr, block: Expr, piece: Expr) -> None:
        """Emit a piece of the result, and the zeros around it."""
        k, op, lanes, y_form = self.k, self.op, self.lanes, self.operands.y_form
        plane, channels = image * self.blocks + block, k.ramp(block * lanes, lanes)
        mean, factor = (k.let(k.load(buffer, [image, channels])) for buffer in (self.mean, self.factor))
        shift = k.let(k.load(self.shift, [channels]))
        first, rows = self._rows(piece)
        with k.serial(rows) as r, k.serial(op.width) as column:
            value = (self._load(plane, first + r, column) - mean) * factor + shift
            if op.activation:
                value = self.activations.apply(op.activation, value, lanes)
                if moves_zero(op.activation):
                    value = without_lanes_past(k, value, block, op.channels, lanes)
            k.store(self.operands.y, value, y_form.at(plane, first + r, column))
        ends = [tirx.EQ(piece, int32(end)) for end in (0, self.pieces - 1)]
        y_form.clear_halo(self.operands.y, plane, first, rows, *ends)
