"""An image that lies whole in L1, from which a kernel takes the patches of some output pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hetero_tvm.host.tvm import tirx
from hetero_tvm.schedules.npu.emit import At, Kernel


@dataclass(frozen=True)
class Image:
    """[height, width, channels], compact, and the window that slides over it.  Rows of a matrix are an
    image of one pixel per row."""

    height: int
    width: int
    channels: int
    kernel: tuple[int, int] = (1, 1)
    strides: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    """Above and to the left."""
    out_width: int = 1
    pitch: int = 0
    """Channels from pixel to pixel, where there are more than the ``channels`` of the patches."""

    def patches(
        self, k: Kernel, dst: Any, box: tuple[Any, Any], pixel: Any, element: Any, held: Any,
        channel: Any = 0,
    ) -> None:  # fmt: skip
        """Rows ``pixel ...``, columns ``element ...`` of the patch matrix of the channels from ``channel`` on
        into ``dst`` of L0A.

        Only the rows of the image under those pixels count as read, so the first tiles need not wait for
        the last rows of the kernel before.
        """
        m, d = box
        stride = self.strides[0]
        reach = (self.kernel[0] - 1) * self.dilation[0] + 1
        first_row, last_row = pixel // self.out_width, (pixel + m - 1) // self.out_width
        top = first_row * stride - self.padding[0]
        low = _max(top, 0)
        rows = _min(last_row * stride - self.padding[0] + reach, self.height) - low
        step = 2 * (self.pitch or self.channels)
        pitch = step * self.width
        geometry = {
            "height": rows, "width": self.width, "channels": self.channels, "row_pitch": pitch,
            "pixel_pitch": step, "kernel_h": self.kernel[0], "kernel_w": self.kernel[1],
            "stride_h": stride, "stride_w": self.strides[1], "dilation_h": self.dilation[0],
            "dilation_w": self.dilation[1], "pad_top": low - top, "pad_left": self.padding[1],
            "out_width": self.out_width, "m_start": pixel - first_row * self.out_width,
            "k_start": element, "image_bytes": rows * pitch, "origin": low * pitch + 2 * channel,
        }  # fmt: skip
        rank, width = len(held.shape), self.width

        def index(y: Any, x: Any, q: Any) -> tuple[Any, ...]:
            if rank == 4:
                return (0, low + y, x, channel + q)
            return (*(0,) * (rank - 2), (low + y) * width + x, channel + q)

        k.im2col((m, d), At(dst, lambda i, j: (i, j)), At(held, index), geometry)


def _max(value: Any, bound: int) -> Any:
    return max(value, bound) if isinstance(value, int) else tirx.max(value, bound)


def _min(value: Any, bound: int) -> Any:
    return min(value, bound) if isinstance(value, int) else tirx.min(value, bound)
