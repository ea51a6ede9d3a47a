"""Rows of an image in L1: those under a tile of output rows, for kernels that make patches of them."""

from __future__ import annotations

from dataclasses import dataclass

from hetero_tvm.host.tvm import Buffer
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.schedules.emit import Index
from hetero_tvm.schedules.npu.emit import L1, At, Kernel
from hetero_tvm.schedules.npu.tiles import greatest, least


@dataclass(frozen=True)
class ImageRows:
    """Rows in L1: the buffer, how many there are, and the rows of padding above the first."""

    buffer: Buffer
    count: Index
    pad_top: Index


def rows_below(op: Conv2d, out_rows: int) -> int:
    """Input rows under ``out_rows`` output rows, padding included."""
    return (out_rows - 1) * op.strides[0] + (op.kernel[0] - 1) * op.dilation[0] + 1


def load_rows(
    k: Kernel,
    op: Conv2d,
    x: Buffer,
    image: Index,
    out_row: Index,
    out_rows: int,
    first: Index,
    count: Index,
    channels: int,
) -> ImageRows:
    """Load the rows under ``out_rows`` output rows from ``out_row`` on, of the image with index ``image`` in
    ``x``: ``count`` channels from ``first`` on, into a buffer of ``channels``."""
    below = rows_below(op, out_rows)
    buffer = k.alloc(L1, (min(op.height, below), op.width, channels), str(x.dtype))
    top = out_row * op.strides[0] - op.padding[0]
    low = greatest(top, 0)
    rows = least(top + below, op.height) - low
    source = At(x, lambda y, z, c: (image, low + y, z, first + c))
    k.load((rows, op.width, count), At(buffer, lambda y, z, c: (y, z, c)), source)
    return ImageRows(buffer, rows, low - top)
