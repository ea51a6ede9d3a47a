"""The product that a convolution is: rows are pixels of the result, the reduction is (tap, channel)."""

from __future__ import annotations

import numpy as np

from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.layout import Layout
from hetero_tvm.schedules.cuda.products.fragments import Element
from hetero_tvm.schedules.cuda.products.packing import round_to_tf32
from hetero_tvm.schedules.cuda.products.tiles import CHUNK, Tile
from hetero_tvm.schedules.cuda.values import whole


def pixels(op: Conv2d) -> int:
    """Rows of the product: pixels of all images of the result."""
    return op.batch * op.out_height * op.out_width


def columns(op: Conv2d) -> int:
    """Columns of the product: filters of a group, and the lanes past them in the result's last block."""
    y = Layout.parse(op.y_layout)
    return y.blocks(op.filters) * y.block if op.groups == 1 else op.filters // op.groups


def reduction(op: Conv2d, size: int) -> int:
    """Values of the reduction; blocked channels of ``size`` bytes count to whole chunks at each tap."""
    taps, channels = op.kernel[0] * op.kernel[1], op.channels // op.groups
    blocked = Layout.parse(op.x_layout).blocked
    return taps * (whole(channels, CHUNK // size) if blocked else channels)


def packed_shape(op: Conv2d, tile: Tile, size: int) -> tuple[int, int, int]:
    """Shape of the packed W: groups, filters to whole tiles, reduction to whole steps."""
    return op.groups, whole(columns(op), tile.columns), whole(reduction(op, size), tile.depth)


def packed(w: np.ndarray, op: Conv2d, tile: Tile, element: Element) -> np.ndarray:
    """W [filters, channels, height, width] as :func:`packed_shape`, zeros where there is none of it."""
    filters, channels = op.filters // op.groups, op.channels // op.groups
    w = w.reshape(op.groups, filters, channels, *op.kernel)
    if Layout.parse(op.x_layout).blocked:
        padded = whole(channels, CHUNK // element.size)
        wide = np.zeros((op.groups, filters, *op.kernel, padded), w.dtype)
        wide[..., :channels] = w.transpose(0, 1, 3, 4, 2)
        w = wide
    flat = w.reshape(op.groups, filters, -1)
    result = np.zeros(packed_shape(op, tile, element.size), w.dtype)
    result[:, :filters, : flat.shape[2]] = flat
    return round_to_tf32(result) if element.rounds else result
