"""Pooling over windows of an image, and changes of an image's layout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hetero_tvm.ops.base import FusedOp, Operand, suffix
from hetero_tvm.ops.layout import PLAIN, Layout

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import PrimFunc

MAX, AVERAGE = "max", "avg"


@dataclass(frozen=True)
class Pool2d(FusedOp):
    """``Y[n, c, y, x]``, the largest value or mean of X in the window at ``(y, x) * strides - padding``.

    Parameters
    ----------
    batch, channels, height, width : extents of X.
    kernel, strides : (vertical, horizontal); a global pooling has the whole image as its kernel.
    padding : (top, left, bottom, right) of the window positions; padded places count in no maximum.
    out : rows and columns of Y (rounded up or down when the contract was made).
    mode : ``max`` or ``avg``.
    count_padding : the mean divides by the padded places inside the window as well (those beyond the
        declared padding never count).
    x_layout, y_layout : layouts as text (:class:`hetero_tvm.ops.layout.Layout`).
    dtype : type of both images; all arithmetic is in float32.

    A window that lies wholly outside gives ``-inf`` (max; the least integer of whole numbers) or 0 (avg).
    """

    kind: ClassVar[str] = "pool2d"

    batch: int
    channels: int
    height: int
    width: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    out: tuple[int, int]
    mode: str
    count_padding: bool = False
    x_layout: str = PLAIN
    y_layout: str = PLAIN
    dtype: str = "float32"

    @property
    def image(self) -> tuple[int, int, int, int]:
        return (self.batch, self.channels, self.height, self.width)

    @property
    def out_image(self) -> tuple[int, int, int, int]:
        return (self.batch, self.channels, *self.out)

    @property
    def inputs(self) -> tuple[Operand, ...]:
        return (Operand("X", Layout.parse(self.x_layout).shape(self.image), self.dtype),)

    @property
    def output(self) -> Operand:
        return Operand("Y", Layout.parse(self.y_layout).shape(self.out_image), self.dtype)

    @property
    def flops(self) -> int:
        return math.prod(self.out_image) * self.kernel[0] * self.kernel[1]

    @property
    def label(self) -> str:
        shape = f"{self.channels}x{self.height}x{self.width}"
        parts = (f"{self.mode}_pool_{shape}_k{self.kernel[0]}x{self.kernel[1]}s{self.strides[0]}",)
        return "_".join((*parts, *suffix(self.dtype)))

    def window(self, axis: int, index: int) -> tuple[int, int]:
        """Input rows (``axis`` 0) or columns in the window of output ``index``: first, last + 1."""
        first = index * self.strides[axis] - self.padding[axis]
        extent = (self.height, self.width)[axis]
        low = min(max(first, 0), extent)
        return low, max(low, min(first + self.kernel[axis], extent))

    def counted(self, axis: int, index: int) -> int:
        """Number of rows or columns of that window that a mean divides by."""
        low, high = self.window(axis, index)
        if self.count_padding:
            first = index * self.strides[axis] - self.padding[axis]
            last = min(first + self.kernel[axis], (self.height, self.width)[axis] + self.padding[2 + axis])
            return last - first
        return high - low

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        x = Layout.parse(self.x_layout).unpack(arrays[0], self.channels)
        empty = 0.0
        if self.mode == MAX:
            empty = np.iinfo(self.dtype).min if "int" in self.dtype else -np.inf
        y = np.full(self.out_image, empty, x.dtype)
        for i in range(self.out[0]):
            for j in range(self.out[1]):
                (top, bottom), (left, right) = self.window(0, i), self.window(1, j)
                if top == bottom or left == right:
                    continue
                seen = x[:, :, top:bottom, left:right]
                if self.mode == MAX:
                    y[:, :, i, j] = seen.max((2, 3))
                else:
                    y[:, :, i, j] = seen.sum((2, 3)) / (self.counted(0, i) * self.counted(1, j))
        return Layout.parse(self.y_layout).pack(y)

    def admissible(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [Layout.parse(self.x_layout).with_zeros(arrays[0], self.channels)]

    def workload(self) -> PrimFunc:
        from hetero_tvm.host.tvm import te
        from hetero_tvm.ops.te_workload import image, image_as, prim_func, wide

        def narrow(y):
            if self.dtype == "float32":
                return y
            return te.compute(self.out_image, lambda *at: y(*at).astype(self.dtype), name="narrow")

        def compute(x):
            plain = image(x, self.x_layout, self.image)
            (kh, kw), (sh, sw), (top, left) = self.kernel, self.strides, self.padding[:2]
            i, j = te.reduce_axis((0, kh), "i"), te.reduce_axis((0, kw), "j")

            def value(n, c, y, x, outside):
                row, column = y * sh - top + i, x * sw - left + j
                inside = te.all(row >= 0, row < self.height, column >= 0, column < self.width)
                return te.if_then_else(inside, wide(plain[n, c, row, column]), te.const(outside, "float32"))

            def counted(axis, index):
                first = index * self.strides[axis] - self.padding[axis]
                low, high = first, first + self.kernel[axis]
                extent = (self.height, self.width)[axis]
                if self.count_padding:
                    return te.min(high, extent + self.padding[2 + axis]) - low
                return te.min(high, extent) - te.max(low, 0)

            if self.mode == MAX:
                whole = "int" in self.dtype
                lowest = te.min_value(self.dtype if whole else "float32")
                y = te.compute(
                    self.out_image, lambda *at: te.max(value(*at, float(lowest.value)), [i, j]), name="pool"
                )
                return image_as(narrow(y), self.y_layout)
            total = te.compute(self.out_image, lambda *at: te.sum(value(*at, 0.0), [i, j]), name="pool")
            mean = te.compute(
                self.out_image,
                lambda n, c, y, x: (
                    total[n, c, y, x] / te.max(counted(0, y) * counted(1, x), 1).astype("float32")
                ),
                name="mean",
            )
            return image_as(narrow(mean), self.y_layout)

        return prim_func(self, compute)


@dataclass(frozen=True)
class Relayout(FusedOp):
    """A copy of the image X [N, C, H, W] in another layout.

    Parameters
    ----------
    batch, channels, height, width : extents of the image.
    x_layout, y_layout : layouts as text (:class:`hetero_tvm.ops.layout.Layout`); rows of channels (NHWC) are
        one block of all channels.
    """

    kind: ClassVar[str] = "relayout"

    batch: int
    channels: int
    height: int
    width: int
    x_layout: str
    y_layout: str
    dtype: str = "float32"

    @property
    def image(self) -> tuple[int, int, int, int]:
        return (self.batch, self.channels, self.height, self.width)

    out_image = image

    @property
    def inputs(self) -> tuple[Operand, ...]:
        return (Operand("X", Layout.parse(self.x_layout).shape(self.image), self.dtype),)

    @property
    def output(self) -> Operand:
        return Operand("Y", Layout.parse(self.y_layout).shape(self.image), self.dtype)

    @property
    def from_rows(self) -> bool:
        """Whether X has one block of all channels, of which Y has more."""
        x, y = Layout.parse(self.x_layout), Layout.parse(self.y_layout)
        return x.block == self.channels > y.block > 1

    @property
    def to_rows(self) -> bool:
        """Whether Y has one block of all channels, of which X has more."""
        return replace(self, x_layout=self.y_layout, y_layout=self.x_layout).from_rows

    @property
    def flops(self) -> int:
        return 0

    @property
    def label(self) -> str:
        blocks = "block" if Layout.parse(self.y_layout).blocked else "unblock"
        if self.to_rows or self.from_rows:
            blocks = "rows_of_blocks" if self.to_rows else "blocks_of_rows"
        return "_".join((f"{blocks}_{self.channels}x{self.height}x{self.width}", *suffix(self.dtype)))

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        plain = Layout.parse(self.x_layout).unpack(arrays[0], self.channels)
        return Layout.parse(self.y_layout).pack(plain)

    def admissible(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [Layout.parse(self.x_layout).with_zeros(arrays[0], self.channels)]

    def workload(self) -> PrimFunc:
        from hetero_tvm.ops.te_workload import image, image_as, prim_func

        def compute(x):
            return image_as(image(x, self.x_layout, self.image), self.y_layout)

        return prim_func(self, compute)
