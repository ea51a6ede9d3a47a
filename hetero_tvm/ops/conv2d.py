"""Two-dimensional convolution with its epilogue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hetero_tvm.ops.activations import ACTIVATIONS
from hetero_tvm.ops.base import FusedOp, Operand, suffix
from hetero_tvm.ops.layout import PLAIN, Layout
from hetero_tvm.ops.matmul import BIAS, TENSORS, joined, steps_with_operands

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import PrimFunc, TETensor


@dataclass(frozen=True)
class Conv2d(FusedOp):
    """``Y[n, o] = epilogue(sum over c, i, j of W[o, c, i, j] * X[n, c, y + i, x + j])``.

    Parameters
    ----------
    batch, channels, height, width : extents of X.
    filters : channels of Y.
    kernel, strides, dilation : (vertical, horizontal).
    padding : zeros added (top, left, bottom, right).
    groups : number of independent groups of channels and filters; ``groups == channels == filters`` is a
        depthwise convolution.
    epilogue : steps in order, as for :class:`hetero_tvm.ops.matmul.Matmul`; the bias is a vector
        [filters] (constant), a residual or a gate has Y's extents.
    x_layout, y_layout, residual_layout : layouts of the images (:class:`hetero_tvm.ops.layout.Layout` as
        text); residuals and gates have one together.
    dtype : type of X, W, residuals, gates and Y; the bias is float32, and so is all arithmetic.
    constant_weight : whether W is known when the model is compiled; else it is computed at run time.

    Operands: X, W [filters, channels / groups, *kernel], then those of the epilogue.
    """

    kind: ClassVar[str] = "conv2d"
    _OMITTED_AT_DEFAULT: ClassVar[tuple[str, ...]] = ("constant_weight",)

    batch: int
    channels: int
    height: int
    width: int
    filters: int
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    epilogue: tuple[str, ...] = ()
    x_layout: str = PLAIN
    y_layout: str = PLAIN
    residual_layout: str = PLAIN
    dtype: str = "float32"
    constant_weight: bool = True

    @property
    def out_height(self) -> int:
        reach = self.dilation[0] * (self.kernel[0] - 1) + 1
        return (self.height + self.padding[0] + self.padding[2] - reach) // self.strides[0] + 1

    @property
    def out_width(self) -> int:
        reach = self.dilation[1] * (self.kernel[1] - 1) + 1
        return (self.width + self.padding[1] + self.padding[3] - reach) // self.strides[1] + 1

    @property
    def least_batch(self) -> int:
        """Fewest images of Y that there may be."""
        return 1

    @property
    def depthwise(self) -> bool:
        return self.groups == self.channels == self.filters

    @property
    def per_filter(self) -> int:
        """Channels that a filter multiplies."""
        return self.channels // self.groups

    @property
    def inputs(self) -> tuple[Operand, ...]:
        weight = (self.filters, self.per_filter, *self.kernel)
        operands = [
            Operand("X", Layout.parse(self.x_layout).shape(self.image), self.dtype),
            Operand("W", weight, self.dtype, constant=self.constant_weight),
        ]
        for step in self.epilogue:
            if step == BIAS:
                operands.append(Operand("bias", (self.filters,), constant=True))
            elif step in TENSORS:
                shape = Layout.parse(self.residual_layout).shape(self.out_image)
                operands.append(Operand(step, shape, self.dtype))
        return tuple(operands)

    @property
    def output(self) -> Operand:
        return Operand("Y", Layout.parse(self.y_layout).shape(self.out_image), self.dtype)

    @property
    def image(self) -> tuple[int, int, int, int]:
        """Extents of X, whatever its layout."""
        return (self.batch, self.channels, self.height, self.width)

    @property
    def out_image(self) -> tuple[int, int, int, int]:
        """Extents of Y, whatever its layout."""
        return (self.batch, self.filters, self.out_height, self.out_width)

    @property
    def plain(self) -> bool:
        """Whether all images are NCHW."""
        return self.x_layout == self.y_layout == self.residual_layout == PLAIN

    @property
    def flops(self) -> int:
        taps = self.kernel[0] * self.kernel[1] * self.per_filter
        return 2 * self.batch * self.filters * self.out_height * self.out_width * taps

    @property
    def label(self) -> str:
        kind = "depthwise" if self.depthwise else "conv2d"
        shape = f"{self.channels}x{self.height}x{self.width}_{self.filters}"
        kernel = f"k{self.kernel[0]}x{self.kernel[1]}s{self.strides[0]}"
        weight = [] if self.constant_weight else ["computed"]
        return "_".join([kind, shape, kernel, *weight, *self.epilogue, *suffix(self.dtype)])

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        x, w, *extra = arrays
        x_layout, y_layout, residual_layout = (
            Layout.parse(text) for text in (self.x_layout, self.y_layout, self.residual_layout)
        )
        x = self.multiplied_images(x_layout.unpack(x, self.channels))
        top, left, bottom, right = self.padding
        x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
        (sh, sw), (dh, dw), (kh, kw) = self.strides, self.dilation, self.kernel
        oh, ow, per = self.out_height, self.out_width, self.per_filter
        windows = np.stack(
            [
                x[:, :, i * dh : i * dh + (oh - 1) * sh + 1 : sh, j * dw : j * dw + (ow - 1) * sw + 1 : sw]
                for i in range(kh)
                for j in range(kw)
            ],
            axis=2,
        ).reshape(self.batch, self.groups, per * kh * kw, oh * ow)
        weights = w.reshape(self.groups, self.filters // self.groups, per * kh * kw)
        y = (weights @ windows).reshape(self.out_image)
        for step, operand in steps_with_operands(self.epilogue, extra):
            if step == BIAS:
                y = y + operand[:, None, None]
            elif step in TENSORS:
                y = joined(step, y, residual_layout.unpack(operand, self.filters))
            else:
                y = ACTIVATIONS[step](y)
        return y_layout.pack(y)

    def admissible(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        forms = dict.fromkeys(TENSORS, (self.residual_layout, self.filters))
        forms["X"] = (self.x_layout, self.channels)
        return [
            Layout.parse(forms[operand.name][0]).with_zeros(array, forms[operand.name][1])
            if operand.name in forms
            else array
            for operand, array in zip(self.inputs, arrays, strict=True)
        ]

    def workload(self) -> PrimFunc:
        from hetero_tvm.ops.te_workload import prim_func

        return prim_func(self, self.result)

    def result(self, x: TETensor, w: TETensor, *extra: TETensor) -> TETensor:
        """Give Y of the operands, as a tensor expression."""
        from hetero_tvm.host.tvm import te, topi
        from hetero_tvm.ops.te_workload import activation, image, image_as, wide

        def elementwise(step, y, operand):
            if step == BIAS:
                return te.compute(y.shape, lambda n, c, i, j: y[n, c, i, j] + operand[c], name=step)
            if step in TENSORS:
                operand = image(operand, self.residual_layout, self.out_image)
                return te.compute(y.shape, lambda *i: joined(step, y(*i), wide(operand(*i))), name=step)
            return te.compute(y.shape, lambda *i: activation(step, y(*i)), name=step)

        x, w = self.multiplied(x, w)
        y = topi.nn.conv(
            self.multiplied_tensor(image(x, self.x_layout, self.image)),
            w,
            stride=list(self.strides),
            padding=list(self.padding),
            dilation=list(self.dilation),
            groups=self.groups,
            data_layout="NCHW",
            kernel_layout="OIHW",
            out_dtype="float32",
        )
        for step, operand in steps_with_operands(self.epilogue, extra):
            y = elementwise(step, y, operand)
        y, dtype = image_as(y, self.y_layout), self.output.dtype
        return y if dtype == "float32" else te.compute(y.shape, lambda *i: y(*i).astype(dtype))

    def multiplied(self, x: TETensor, w: TETensor) -> tuple[TETensor, TETensor]:
        """Give the tensors that are multiplied, from the operands X and W."""
        return x, w

    def multiplied_images(self, x: np.ndarray) -> np.ndarray:
        """Give the images that are multiplied, from plain ones."""
        return x

    def multiplied_tensor(self, x: TETensor) -> TETensor:
        """Give the tensor of the images that are multiplied, from that of plain ones."""
        return x
