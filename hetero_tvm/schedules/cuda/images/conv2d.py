"""Convolutions as tiled products: rows are pixels of the result, the reduction is (tap, channel)."""

from __future__ import annotations

from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.machines.gpu import GpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.layout import Layout
from hetero_tvm.schedules.base import Packer, Point
from hetero_tvm.schedules.cuda.images.conv2d_kernel import conv2d
from hetero_tvm.schedules.cuda.images.conv2d_product import columns, packed, pixels, reduction
from hetero_tvm.schedules.cuda.products.fragments import element_for, element_of
from hetero_tvm.schedules.cuda.products.product import GRID_Z
from hetero_tvm.schedules.cuda.products.space import TiledProductSpace
from hetero_tvm.schedules.cuda.products.tiles import CHUNK, Problem, Tile
from hetero_tvm.schedules.cuda.values import oversized


class CudaConv2dSpace(TiledProductSpace):
    """:class:`Conv2d` as an implicit product (see :mod:`.product`): no image is unfolded in memory.

    Knob ``tile``: see :class:`TiledProductSpace`; rows are pixels, columns filters.  Where channels lie
    together (layout NCHW8c), each copy takes 16 bytes of channels of one pixel at one tap, zeros beyond the
    border; from a plain image values are gathered one by one.  W is packed [group, filters, taps, channels].
    """

    name = "cuda.conv2d"

    def refuses(self, op: FusedOp, machine: GpuModel) -> str | None:
        if not isinstance(op, Conv2d):
            return f"it serves conv2d, not {op.kind}"
        if not op.constant_weight:
            return "the weight is not constant"
        element = element_for(op.dtype, machine.features)
        if element is None or op.dtype == "int8":
            return f"it multiplies float16, bfloat16 and float32, not {op.dtype}"
        if any(Layout.parse(op.y_layout).halo) or any(Layout.parse(op.residual_layout).halo):
            return "results with zeros around them are not written"
        x, y = Layout.parse(op.x_layout), Layout.parse(op.y_layout)
        chunk = CHUNK // element.size
        if x.blocked and x.block % chunk:
            return f"blocks of {x.block} channels are no multiple of 16 bytes"
        if op.groups > 1 and x.blocked and (op.channels // op.groups) % chunk:
            return "groups do not begin at multiples of 16 bytes"
        if op.groups > 1 and y.blocked and op.filters % y.block:
            return "groups do not fill the last block of the result"
        if op.groups > GRID_Z:
            return f"{op.groups} groups are more than a grid has"
        return oversized(op)

    def problem(self, op: Conv2d, machine: GpuModel) -> Problem:
        element = element_of(op.dtype, machine)
        length = reduction(op, element.size)
        cores = bool(element.mma)
        return Problem(pixels(op), columns(op), length, element.size, cores, batch=op.groups)

    def emit(self, op: Conv2d, point: Point, machine: GpuModel) -> PrimFunc:
        return conv2d(op, Tile.of(point["tile"]), element_of(op.dtype, machine))

    def pack(self, op: Conv2d, point: Point, machine: GpuModel) -> dict[int, Packer]:
        tile, element = Tile.of(point["tile"]), element_of(op.dtype, machine)
        return {1: lambda w: packed(w, op, tile, element)}

    def features(self, op: Conv2d, point: Point, machine: GpuModel) -> list[float]:
        layout = Layout.parse(op.x_layout)
        plain = super().features(op, point, machine)
        return [*plain, float(op.kernel[0] * op.kernel[1]), float(layout.blocked)]
