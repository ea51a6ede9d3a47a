"""A 1x1 convolution and the depthwise one behind it, as one operator: what lies between is not stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hetero_tvm.ops.base import FusedOp, Operand
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.layout import PLAIN
from hetero_tvm.ops.matmul import BIAS

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import PrimFunc


@dataclass(frozen=True)
class ExpandDepthwise(FusedOp):
    """``Y = depthwise(expand(X))``, the beginning of an inverted residual (Sandler et al., 2018).

    Parameters
    ----------
    batch, channels, height, width : extents of X.
    filters : channels of Y, and of the image between.
    kernel, strides, padding : of the depthwise convolution.
    expand_epilogue, epilogue : steps behind each of the two, as for
        :class:`hetero_tvm.ops.conv2d.Conv2d`: a bias, activations.
    x_layout, y_layout : layouts of the images.

    Operands: X, the weights of the 1x1 convolution [filters, channels, 1, 1] and its bias if it has one, the
    weights of the depthwise one [filters, 1, *kernel] and its bias if it has one.
    """

    kind: ClassVar[str] = "expand_depthwise"

    batch: int
    channels: int
    height: int
    width: int
    filters: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    expand_epilogue: tuple[str, ...] = ()
    epilogue: tuple[str, ...] = ()
    x_layout: str = PLAIN
    y_layout: str = PLAIN
    dtype: str = "float32"

    @classmethod
    def of(cls, expand: Conv2d, depthwise: Conv2d) -> ExpandDepthwise:
        """The two convolutions as one."""
        return cls(
            *expand.image,
            expand.filters,
            depthwise.kernel,
            depthwise.strides,
            depthwise.padding,
            expand.epilogue,
            depthwise.epilogue,
            expand.x_layout,
            depthwise.y_layout,
        )

    @property
    def expand(self) -> Conv2d:
        """The 1x1 convolution, whose result is plain."""
        return Conv2d(
            *self.image, self.filters, (1, 1), epilogue=self.expand_epilogue, x_layout=self.x_layout
        )

    @property
    def depthwise(self) -> Conv2d:
        """The depthwise convolution, of a plain image."""
        image = (self.batch, self.filters, self.height, self.width)
        return Conv2d(
            *image,
            self.filters,
            self.kernel,
            self.strides,
            self.padding,
            groups=self.filters,
            epilogue=self.epilogue,
            y_layout=self.y_layout,
        )

    @property
    def inputs(self) -> tuple[Operand, ...]:
        x, *weights = self.expand.inputs
        _, *others = self.depthwise.inputs
        named = [Operand(f"expand_{w.name}", w.shape, w.dtype, w.constant) for w in weights]
        return (x, *named, *others)

    @property
    def output(self) -> Operand:
        return self.depthwise.output

    @property
    def image(self) -> tuple[int, int, int, int]:
        """Extents of X, whatever its layout."""
        return (self.batch, self.channels, self.height, self.width)

    @property
    def out_image(self) -> tuple[int, int, int, int]:
        """Extents of Y, whatever its layout."""
        return self.depthwise.out_image

    @property
    def flops(self) -> int:
        return self.expand.flops + self.depthwise.flops

    @property
    def label(self) -> str:
        shape = f"{self.channels}x{self.height}x{self.width}_{self.filters}"
        kernel = f"k{self.kernel[0]}x{self.kernel[1]}s{self.strides[0]}"
        return "_".join(["expand_depthwise", shape, *self.expand_epilogue, kernel, *self.epilogue])

    @property
    def expand_operands(self) -> int:
        """Number of operands of the 1x1 convolution, which come first."""
        return 2 + (BIAS in self.expand_epilogue)

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        first = self.expand_operands
        between = self.expand.reference(*arrays[:first])
        return self.depthwise.reference(between, *arrays[first:])

    def admissible(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        first = self.expand_operands
        return [*self.expand.admissible(arrays[:first]), *arrays[first:]]

    def workload(self) -> PrimFunc:
        from hetero_tvm.ops.te_workload import prim_func

        def compute(*tensors):
            first = self.expand_operands
            return self.depthwise.result(self.expand.result(*tensors[:first]), *tensors[first:])

        return prim_func(self, compute)
