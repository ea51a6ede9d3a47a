"""The kernel of convolutions of bfloat16 on channel blocks; ``conv2d.py`` tells its loop structure."""

from __future__ import annotations

from hetero_tvm.codegen.bf16_vectors import bf16_bits, bf16_ir
from hetero_tvm.host.tvm import Buffer, Expr, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.integers.bf16_conv2d import HALVES, Bf16Conv2d
from hetero_tvm.schedules.cpu.dots import halves_for
from hetero_tvm.schedules.cpu.images.blocked import PixelTile, without_lanes_past
from hetero_tvm.schedules.cpu.images.conv2d_blocked_kernel import BlockedConvKernel
from hetero_tvm.schedules.cpu.images.conv2d_blocked_shape import BlockedShape
from hetero_tvm.schedules.emit import Index, as_index, int32


class HalfShape(BlockedShape):
    """Extents of one convolution whose channels are multiplied two by two.

    What the products read is a copy of a block of X: whole rows, or where a filter has one row (one column)
    only those rows (columns) that its stride reaches.
    """

    per_word = 2
    shares_row = False  # of which each thread would round all

    @property
    def copied_planes(self) -> int:
        """Planes of the copy for one image of Y."""
        return self.slices * self.x.blocks(self.op.channels)

    @property
    def pixel_bytes(self) -> int:
        """Bytes of a pixel of the copy, of one plane."""
        return 2 * self.x.block

    @property
    def fetched(self) -> tuple[int, int]:
        """Rows and columns of X from one row and column of the copy to the next."""
        down, across = (
            stride if taps == 1 else 1 for taps, stride in zip(self.op.kernel, self.op.strides, strict=True)
        )
        return down, across

    @property
    def copied_steps(self) -> tuple[int, int]:
        """Rows and columns of the copy from one output pixel to the next."""
        down, across = (
            1 if taps == 1 else stride for taps, stride in zip(self.op.kernel, self.op.strides, strict=True)
        )
        return down, across

    def copied(self, axis: int, count: Index) -> Index:
        """Rows (columns) of the copy for ``count`` rows (columns) of the output."""
        op = self.op
        return (count - 1) * self.copied_steps[axis] + (op.kernel[axis] - 1) * op.dilation[axis] + 1

    def copied_pixels(self, units: int) -> int:
        """Pixels of the copy for ``units`` output rows (of a flat image: pixels)."""
        return units if self.flat else int(self.copied(0, units) * self.copied(1, self.width))


class Bf16ConvKernel(BlockedConvKernel):
    """Emits one convolution."""

    op: Bf16Conv2d
    shape: HalfShape
    weight_dtype = "int32"
    reads_input = False

    def __init__(self, op: Conv2d, tile: PixelTile, blocks: int, groups: int, machine: CpuModel):
        super().__init__(op, tile, blocks, groups, machine)
        dot = halves_for(machine)
        assert dot is not None
        self.dot = dot
        self.masked = op.channels % self.shape.per_word != 0
        """Whether what lies behind the last channel is multiplied."""
        self.unit = self.columns if self.shape.flat else self.rows
        """Rows (of a flat image: pixels) of a tile."""
        if not self.shape.flat:
            self.steps, self.pitch = self.shape.copied_steps, int(self.shape.copied(1, self.shape.width))

    @classmethod
    def shape_of(cls, op: Conv2d, machine: CpuModel) -> HalfShape:
        return HalfShape(op, machine.lanes)

    @property
    def imports(self) -> tuple[str, ...]:
        return (*super().imports, *self.dot.imports, bf16_ir())

    def read(self, x: Buffer) -> Buffer:
        planes = super().read(x)
        return self.k.bits_of(planes) if self.op.x_dtype == HALVES else planes

    @property
    def extent(self) -> int:
        """Rows (of a flat image: pixels) of the output."""
        return self.shape.width if self.shape.flat else self.shape.height

    @property
    def copied_pixels(self) -> int:
        """Pixels of the copy of a block."""
        return self.shape.copied_pixels(min(-(-self.tiles // self.blocks) * self.unit, self.extent))

    def begin(self, first_tile: Index, tiles: Index) -> None:
        self.copy = self.k.scratch((self.shape.copied_planes, self.copied_pixels * self.lanes), "uint16")
        self.copy_block(first_tile, tiles)

    def copy_block(self, first_tile: Index, tiles: Index) -> None:
        """Emit the rounding of all that the products of a block of tiles read."""
        k, shape = self.k, self.shape
        self.first = first_tile * self.unit
        count = tirx.min(as_index(tiles * self.unit), self.extent - self.first)
        begin, some = self.slice_planes.inside(int32(0), int32(shape.copied_planes))
        with k.serial(some) as number:
            block = begin + number
            plane = self.slice_planes.first + block
            if shape.flat:
                self._copy_pixels(block, int32(0), plane, self.first, count, 1)
                return
            down, across = shape.fetched
            top, left = shape.taps[0]
            with k.serial(shape.copied(0, count)) as r:
                row = self.first * self.op.strides[0] + top + r * down
                source = row * shape.pitch + left
                self._copy_pixels(block, r * self.pitch, plane, source, self.pitch, across)

    def _copy_pixels(self, block: Expr, to: Expr, plane: Expr, source: Expr, count: Index, step: int) -> None:
        """Emit the rounding of ``count`` pixels of a plane, ``step`` apart from pixel ``source``."""
        k, lanes = self.k, self.lanes
        with k.serial(count) as pixel:
            value = k.load(self.x, [plane, k.ramp((source + pixel * step) * lanes, lanes)])
            if self.op.x_dtype != HALVES:
                value = bf16_bits(value, lanes)
            if self.masked:  # zero times what lies behind the last channel may not be zero
                own = tirx.floormod(block, self.shape.x.blocks(self.op.channels))
                value = without_lanes_past(k, value, own, self.op.channels, lanes)
            self.put(value, block, to + pixel)

    def put(self, value: Expr, block: Expr, pixel: Expr) -> None:
        """Store the channels of a pixel of the copy."""
        self.k.store(self.copy, value, [block, self.k.ramp(pixel * self.lanes, self.lanes)])

    def first_plane(self, panel: Expr) -> Expr:
        return self.first_block(panel) if self.op.groups > 1 else int32(0)

    def place(self, y: Index, x: Index) -> Expr:
        if self.shape.flat:
            return x - self.first
        down, across = self.steps
        return (y - self.first) * (down * self.pitch) + x * across

    def value(self, plane: Expr, at: Expr) -> Expr:
        pair = self.shape.per_word
        return self.dot.x_word(self.k.load(self.copy, [plane, self.k.ramp(at * pair, pair)]))

    def added(self, total: Expr, value: Expr, weights: Expr) -> Expr:
        return self.dot.add(total, self.lanes, value, weights)
