"""Patches of an image in L1 as operands of the matrix unit (``im2col``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hetero_tvm.host.tvm import Buffer
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.schedules.emit import Index
from hetero_tvm.schedules.npu.emit import At, Kernel
from hetero_tvm.schedules.npu.tiles import greatest, least


@dataclass(frozen=True)
class Image:
    """An image [height, width, channels], compact, and the window that slides over it.

    Rows of a matrix are an image of one pixel per row: ``Image(rows, 1, columns)``.

    Parameters
    ----------
    height, width, channels : extents; ``channels`` are those of the patches.
    kernel, strides, dilation : of the window, (vertical, horizontal).
    padding : zeros above and to the left.
    out_width : windows per row.
    pitch : channels from pixel to pixel, where they are more than ``channels``; else 0.
    """

    height: int
    width: int
    channels: Index
    kernel: tuple[int, int] = (1, 1)
    strides: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    out_width: int = 1
    pitch: int = 0

    @classmethod
    def of(cls, conv: Conv2d, channels: Index | None = None, pitch: int = 0) -> Image:
        """The image that a convolution reads, or ``channels`` of its channels."""
        return cls(
            conv.height,
            conv.width,
            conv.channels if channels is None else channels,
            conv.kernel,
            conv.strides,
            conv.dilation,
            conv.padding[:2],
            conv.out_width,
            pitch,
        )

    def fields(self, rows: Index, pad_top: Index, pixel_bytes: int) -> dict[str, Any]:
        """Fields of ``im2col`` for ``rows`` rows of the image with ``pad_top`` rows of padding above them and
        ``pixel_bytes`` from pixel to pixel."""
        row_pitch = pixel_bytes * self.width
        return {
            "height": rows,
            "width": self.width,
            "channels": self.channels,
            "row_pitch": row_pitch,
            "pixel_pitch": pixel_bytes,
            "kernel_h": self.kernel[0],
            "kernel_w": self.kernel[1],
            "stride_h": self.strides[0],
            "stride_w": self.strides[1],
            "dilation_h": self.dilation[0],
            "dilation_w": self.dilation[1],
            "pad_top": pad_top,
            "pad_left": self.padding[1],
            "out_width": self.out_width,
            "image_bytes": rows * row_pitch,
        }

    def patches(
        self,
        k: Kernel,
        dst: Buffer,
        box: tuple[Index, Index],
        pixel: Index,
        element: Index,
        held: Buffer,
        channel: Index = 0,
    ) -> None:
        """Copy a box of the patch matrix, from row ``pixel`` and column ``element`` on, into ``dst`` in L0A.

        ``held`` is the whole image in L1; ``channel`` the first of its channels that the patches have.  Only
        the rows under those pixels count as read, so the first tiles need not wait for the last rows of the
        kernel before.
        """
        stride = self.strides[0]
        reach = (self.kernel[0] - 1) * self.dilation[0] + 1
        first_row, last_row = pixel // self.out_width, (pixel + box[0] - 1) // self.out_width
        top = first_row * stride - self.padding[0]
        low = greatest(top, 0)
        rows = least(last_row * stride - self.padding[0] + reach, self.height) - low
        step = 2 * (self.pitch or self.channels)
        fields = self.fields(rows, low - top, step) | {
            "m_start": pixel - first_row * self.out_width,
            "k_start": element,
            "origin": low * (step * self.width) + 2 * channel,
        }
        rank, width = len(held.shape), self.width

        def index(y: Index, x: Index, q: Index) -> tuple[Index, ...]:
            if rank == 4:
                return (0, low + y, x, channel + q)
            return (*(0,) * (rank - 2), (low + y) * width + x, channel + q)

        k.im2col(box, At(dst, lambda i, j: (i, j)), At(held, index), fields)
