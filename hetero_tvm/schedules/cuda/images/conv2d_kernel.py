"""The kernel of one point of the convolution space: sources of pixels, and the places of results."""

from __future__ import annotations

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.layout import Layout
from hetero_tvm.ops.matmul import tensors_of
from hetero_tvm.schedules.cuda import device
from hetero_tvm.schedules.cuda.buffers import flat_arguments
from hetero_tvm.schedules.cuda.images.conv2d_product import columns, packed_shape, pixels, reduction
from hetero_tvm.schedules.cuda.products.epilogue import EpilogueSteps
from hetero_tvm.schedules.cuda.products.fragments import Element
from hetero_tvm.schedules.cuda.products.operands import Matrix, Part, Reduction, Rows, Source
from hetero_tvm.schedules.cuda.products.product import Epilogue, blocks, emit_tile
from hetero_tvm.schedules.cuda.products.tiles import CHUNK, Tile
from hetero_tvm.schedules.cuda.values import bytes_of, vector_of
from hetero_tvm.schedules.emit import Kernel, int32

Pixel = tuple[Expr, Expr, Expr, Expr]
"""Offset of a window's corner, its row and column in the image, chunk of the reduction."""


class Windows(Source):
    """Rows of the unfolded image: for pixel ``first + line``, the values that its filter taps see.

    ``group`` is the group of channels; the image is X as it lies in memory.
    """

    def __init__(self, k: Kernel, x: Buffer, op: Conv2d, first: Expr, group: Expr, tile: Tile, size: int):
        super().__init__(k, size)
        self.x, self.op, self.first, self.group = x, op, first, group
        self.layout = Layout.parse(op.x_layout)
        self.lines, self.pitch = tile.rows, tile.depth * size
        self.depth, self.vector = tile.depth, CHUNK // size
        self.length = reduction(op, size)
        self.channels = op.channels // op.groups
        _, _, self.rows, self.row_pixels = self.layout.shape(op.image)[:4]
        # Whether any tap of any pixel lies beyond the image.
        self.border = any(op.padding)

    def _base(self, line: Expr, chunk: Expr) -> Expr:
        return chunk

    def _prepare(self, line: Expr, chunk: Expr, base: Expr, further: int) -> Pixel:
        k, op, chunk = self.k, self.op, base
        pixel = device.fixed(k, tirx.min(self.first + line + further, int32(pixels(op) - 1)))
        area = op.out_height * op.out_width
        image, place = device.fixed(k, pixel // area), device.fixed(k, pixel % area)
        y = device.fixed(k, place // op.out_width * op.strides[0] - op.padding[0])
        x = device.fixed(k, place % op.out_width * op.strides[1] - op.padding[1])
        top, left = self.layout.halo[:2]
        blocks = self.layout.blocks(op.channels)
        at = image * (blocks * self.rows) + (y + top)
        base = device.fixed(k, (at * self.row_pixels + (x + left)) * self.layout.block)
        return base, y, x, chunk

    @property
    def predicated(self) -> bool:
        return False  # one branch around all the arithmetic of a copy

    def _copy(self, shared: Expr, at: Expr, prepared: Pixel, step: Expr, when: Expr | None) -> None:
        if self.layout.blocked:
            self._copy_channels(shared, at, prepared, step)
        else:
            self._gather(shared, at, prepared, step)

    def _copy_channels(self, shared: Expr, at: Expr, prepared: Pixel, step: Expr) -> None:
        """Copy 16 bytes of the channels of one pixel."""
        base, y, x, chunk = prepared
        k, vector = self.k, self.vector
        index = device.fixed(k, step * (self.depth // vector) + chunk)
        per_tap = -(-self.channels // vector)
        tap, part = device.fixed(k, index // per_tap), device.fixed(k, index % per_tap)
        inside, moved = self._tap(tap, y, x)
        channel = device.fixed(k, part * vector + self.group * self.channels)
        block = self.layout.block
        plane = self.rows * self.row_pixels * block
        offset = base + moved * block + channel // block * plane + channel % block
        if self.length % self.depth:
            inside = [*inside, index < self.length // vector]
        valid: Expr = int32(CHUNK)
        if inside:
            valid = device.fixed(k, tirx.Select(tirx.all(*inside), int32(CHUNK), int32(0)))
            offset = tirx.Select(valid > 0, offset, int32(0))
        self._chunk(shared, at, self.x, offset, valid, CHUNK, None)

    def _gather(self, shared: Expr, at: Expr, prepared: Pixel, step: Expr) -> None:
        """Copy values of a plain image, each from its own plane or row."""
        base, y, x, chunk = prepared
        k, op = self.k, self.op
        taps = op.kernel[0] * op.kernel[1]
        values = k.scratch((self.vector,), op.dtype)
        first = device.fixed(k, step * self.depth + chunk * self.vector)
        plane = self.rows * self.row_pixels
        for e in range(self.vector):
            index = device.fixed(k, first + e)
            channel, tap = device.fixed(k, index // taps), device.fixed(k, index % taps)
            inside, moved = self._tap(tap, y, x)
            if self.length % self.depth:
                inside = [*inside, index < self.length]
            offset = base + moved + (channel + self.group * self.channels) * plane
            zero = tirx.const(0, op.dtype)

            def read(offset: Expr = offset, e: int = e) -> None:
                k.store(values, k.load(self.x, [offset]), [int32(e)])

            def clear(e: int = e, zero: Expr = zero) -> None:
                k.store(values, zero, [int32(e)])

            if inside:
                k.branch(tirx.all(*inside), read, clear)
            else:
                read()
        device.call("htvm_put", shared, at, device.pointer(values), template=str(self.vector))

    def _tap(self, tap: Expr, y: Expr, x: Expr) -> tuple[list[Expr], Expr]:
        """Conditions under which a tap is inside of the image, and pixels from the window's corner to it."""
        k, op = self.k, self.op
        if op.kernel == (1, 1) and not self.border:
            return [], int32(0)
        down = device.fixed(k, tap // op.kernel[1] * op.dilation[0])
        right = device.fixed(k, tap % op.kernel[1] * op.dilation[1])
        moved = down * self.row_pixels + right
        if not self.border:
            return [], moved
        row, column = y + down, x + right
        return [row >= 0, row < op.height, column >= 0, column < op.width], moved


class ImageResult(Epilogue):
    """Epilogue whose rows are pixels and columns filters: bias, residual, activations, store to the image."""

    def __init__(self, op: Conv2d, out: Buffer, extra: list[Buffer], group: Expr):
        self.op, self.out, self.group = op, out, group
        self.layout, other = Layout.parse(op.y_layout), Layout.parse(op.residual_layout)
        self.residual_layout = other
        self.steps = EpilogueSteps(op.epilogue, extra)
        self.filters = op.filters // op.groups
        widths = [self.layout.block, self.filters]
        if tensors_of(op.epilogue):
            widths.append(other.block)
        self.vector = vector_of(op.dtype, *widths)
        # Pixels of one channel block lie together: so do the lanes that write them.
        self.along_rows = self.layout.block * bytes_of(op.dtype) < 64

    def store(self, k: Kernel, sums: Buffer, row: Expr, column: Expr) -> None:
        op, vector = self.op, self.vector
        wide = columns(op)
        with k.when(tirx.all(row < pixels(op), column < wide)):
            area = op.out_height * op.out_width
            image, place = device.fixed(k, row // area), device.fixed(k, row % area)
            filter_ = device.fixed(k, column + self.group * self.filters)
            at = device.fixed(k, self._at(self.layout, image, filter_, place))

            def finish() -> None:
                residual = self._at(self.residual_layout, image, filter_, place)
                self.steps.apply(k, sums, vector, filter_, residual)

            def clear() -> None:  # lanes past the filters are zero
                with k.unroll(vector) as e:
                    k.store(sums, tirx.const(0, "float32"), [e])

            if wide > self.filters:
                k.branch(column < self.filters, finish, clear)
            else:
                finish()
            device.call(
                "htvm_store", device.pointer(self.out, at), device.pointer(sums), template=str(vector)
            )

    def _at(self, layout: Layout, image: Expr, channel: Expr, place: Expr) -> Expr:
        """Index of a pixel's element in an image without halo."""
        area = self.op.out_height * self.op.out_width
        blocks, block = layout.blocks(self.op.filters), layout.block
        return ((image * blocks + channel // block) * area + place) * block + channel % block


def conv2d(op: Conv2d, tile: Tile, element: Element) -> PrimFunc:
    """The PrimFunc: X, W packed [groups, filters, taps, channels], the epilogue's operands, Y."""
    k, size = Kernel("conv2d"), element.size
    shape = packed_shape(op, tile, size)
    _, filters, depth = shape
    with k:
        x, w, *extra, y = flat_arguments(k, op, shape)
        with blocks(k, pixels(op), columns(op), tile, op.groups) as block:

            def sources() -> tuple[Source, Source]:
                weights = Matrix(w, block.product * (filters * depth), depth)
                across = Part(block.column, None, tile.columns)
                return (
                    Windows(k, x, op, block.row, block.product, tile, size),
                    Rows(k, weights, across, Reduction(depth, tile.depth), size),
                )

            result = ImageResult(op, y, extra, block.product)
            steps = (int32(0), depth // tile.depth)
            emit_tile(k, tile, element, sources, steps, result, block, rounded=True)
    return k.function
