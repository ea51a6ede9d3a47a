"""Convolutions as tiled products: rows are pixels of the result, the reduction is (tap, channel)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hetero_tvm.machines.gpu import GpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.layout import Layout
from hetero_tvm.schedules.base import DesignSpace, Knob, Packer, Point
from hetero_tvm.schedules.cuda.products.fragments import Element, element_for
from hetero_tvm.schedules.cuda.products.matmul import INDEX_LIMIT, features_of, tf32, whole
from hetero_tvm.schedules.cuda.products.tiles import CHUNK, Problem, Tile, choices, tiles

_GRID_Z = 65535


class CudaConv2dSpace(DesignSpace):
    """:class:`Conv2d` as an implicit product (see :mod:`.product`): no image is unfolded in memory.

    Knob ``tile``: (pixels, filters, depth, warps down, warps across, stages).  Where channels lie together
    (layout NCHW8c), each copy takes 16 bytes of channels of one pixel at one tap, zeros beyond the border;
    from a plain image values are gathered one by one.  W is packed [group, filters, taps, channels].
    """

    name = "cuda.conv2d"

    def refuses(self, op: FusedOp, machine: GpuModel) -> str | None:
        if not isinstance(op, Conv2d):
            return f"it serves conv2d, not {op.kind}"
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
        if op.groups > _GRID_Z:
            return f"{op.groups} groups are more than a grid has"
        if max(math.prod(x.shape) for x in (*op.inputs, op.output)) >= INDEX_LIMIT:
            return "an operand has more than 2^31 values"
        return None

    def knobs(self, op: Conv2d, machine: GpuModel) -> tuple[Knob, ...]:
        return (Knob("tile", choices(tiles(problem_of(op, machine), machine))),)

    def default(self, op: Conv2d, machine: GpuModel) -> Point:
        return {"tile": tiles(problem_of(op, machine), machine)[0].choice}

    def emit(self, op: Conv2d, point: Point, machine: GpuModel) -> Any:
        from hetero_tvm.schedules.cuda.images.conv2d_kernel import conv2d

        return conv2d(op, Tile.of(point["tile"]), _element(op, machine))

    def pack(self, op: Conv2d, point: Point, machine: GpuModel) -> dict[int, Packer]:
        tile, element = Tile.of(point["tile"]), _element(op, machine)
        return {1: lambda w: _packed(w, op, tile, element)}

    def features(self, op: Conv2d, point: Point, machine: GpuModel) -> list[float]:
        return [
            *features_of(problem_of(op, machine), Tile.of(point["tile"]), machine),
            float(op.kernel[0] * op.kernel[1]), float(Layout.parse(op.x_layout).blocked),
        ]  # fmt: skip


def _element(op: Conv2d, machine: GpuModel) -> Element:
    element = element_for(op.dtype, machine.features)
    assert element is not None  # refused otherwise
    return element


def pixels(op: Conv2d) -> int:
    return op.batch * op.out_height * op.out_width


def reduction(op: Conv2d, size: int) -> int:
    """Values of the reduction; blocked channels count to whole chunks at each tap."""
    taps, channels = op.kernel[0] * op.kernel[1], op.channels // op.groups
    blocked = Layout.parse(op.x_layout).blocked
    return taps * (whole(channels, CHUNK // size) if blocked else channels)


def columns(op: Conv2d) -> int:
    """Filters of a group, with the lanes past them that the result's last block has."""
    y = Layout.parse(op.y_layout)
    return y.blocks(op.filters) * y.block if op.groups == 1 else op.filters // op.groups


def problem_of(op: Conv2d, machine: GpuModel) -> Problem:
    element = _element(op, machine)
    length = reduction(op, element.size)
    return Problem(pixels(op), columns(op), length, element.size, bool(element.mma), op.groups)


def _packed(w: np.ndarray, op: Conv2d, tile: Tile, element: Element) -> np.ndarray:
    """[groups, filters to whole tiles, reduction to whole steps]."""
    filters, channels = op.filters // op.groups, op.channels // op.groups
    w = w.reshape(op.groups, filters, channels, *op.kernel)
    if Layout.parse(op.x_layout).blocked:
        padded = whole(channels, CHUNK // element.size)
        wide = np.zeros((op.groups, filters, *op.kernel, padded), w.dtype)
        wide[..., :channels] = w.transpose(0, 1, 3, 4, 2)
        w = wide
    flat = w.reshape(op.groups, filters, -1)
    shape = (op.groups, whole(columns(op), tile.columns), whole(flat.shape[2], tile.depth))
    result = np.zeros(shape, w.dtype)
    result[:, :filters, : flat.shape[2]] = flat
    return tf32(result) if element.rounds else result
