"""Convolution whose image and constant weights are rounded to bfloat16 before they are multiplied."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hetero_tvm.ops.base import Operand
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.volumes.conv3d import Conv3d
from hetero_tvm.runtime.arrays import numpy_dtype

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import TETensor

HALVES = "bfloat16"


@dataclass(frozen=True)
class Bf16Conv2d(Conv2d):
    """A :class:`hetero_tvm.ops.conv2d.Conv2d` of float32 images whose W is bfloat16, and X rounded to it.

    Sums, bias and residual are float32: weights take half of the memory, and products are those that a
    machine has for pairs of bfloat16.

    Parameters
    ----------
    x_dtype, y_dtype : float32, or bfloat16 of an image that such convolutions alone read: it is rounded where
        it is written, once for all of them, and its memory is half as large.
    """

    kind: ClassVar[str] = "bf16_conv2d"
    float_form: ClassVar[type[Conv2d]] = Conv2d
    _OMITTED_AT_DEFAULT: ClassVar[tuple[str, ...]] = ("constant_weight", "x_dtype", "y_dtype")

    x_dtype: str = "float32"
    y_dtype: str = "float32"

    @classmethod
    def of(cls, op: Conv2d) -> Bf16Conv2d:
        """The form of a float32 convolution."""
        form = Bf16Conv3d if isinstance(op, Conv3d) else Bf16Conv2d
        return form(**{field.name: getattr(op, field.name) for field in fields(op)})

    @property
    def plain_form(self) -> Conv2d:
        """The float32 convolution that it stands for."""
        names = [field.name for field in fields(self.float_form)]
        return self.float_form(**{name: getattr(self, name) for name in names})

    @property
    def inputs(self) -> tuple[Operand, ...]:
        x, w, *extra = super().inputs
        return (replace(x, dtype=self.x_dtype), replace(w, dtype=HALVES), *extra)

    @property
    def output(self) -> Operand:
        return replace(super().output, dtype=self.y_dtype)

    @property
    def label(self) -> str:
        images = ((self.x_dtype, "of_halves"), (self.y_dtype, "to_halves"))
        return "_".join([f"bf16_{super().label}", *(name for dtype, name in images if dtype == HALVES)])

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        x, w, *extra = arrays
        half = numpy_dtype(HALVES)
        computed = np.dtype(np.float64 if x.dtype == np.float64 else np.float32)
        x, w = (array.astype(np.float32).astype(half).astype(computed) for array in (x, w))
        y = super().reference(x, w, *extra)
        return y.astype(half) if self.y_dtype == HALVES else y

    def multiplied(self, x: TETensor, w: TETensor) -> tuple[TETensor, TETensor]:
        from hetero_tvm.host.tvm import te

        rounded = te.compute(x.shape, lambda *i: x(*i).astype(HALVES).astype("float32"), name="rounded")
        return rounded, te.compute(w.shape, lambda *i: w(*i).astype("float32"), name="weights")


@dataclass(frozen=True)
class Bf16Conv3d(Bf16Conv2d, Conv3d):
    """A :class:`hetero_tvm.ops.volumes.conv3d.Conv3d` of float32 slices whose W is bfloat16, and X rounded
    to it."""

    kind: ClassVar[str] = "bf16_conv3d"
    float_form: ClassVar[type[Conv2d]] = Conv3d
