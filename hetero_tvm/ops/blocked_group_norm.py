"""Group and instance normalisation of images in blocks of channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hetero_tvm.ops.base import FusedOp, Operand
from hetero_tvm.ops.group_norm import GroupNorm
from hetero_tvm.ops.layout import Layout

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import PrimFunc


@dataclass(frozen=True)
class BlockedGroupNorm(FusedOp):
    """A :class:`hetero_tvm.ops.group_norm.GroupNorm` whose X and Y lie in layouts of their own.

    Parameters
    ----------
    batch, channels, height, width : extents of the image.
    groups, eps, activation : as those of the plain form.
    x_layout, y_layout : layouts as text (:class:`hetero_tvm.ops.layout.Layout`).

    Operands: X, scale [C] and shift [C] (constants).
    """

    kind: ClassVar[str] = "blocked_group_norm"

    batch: int
    channels: int
    height: int
    width: int
    groups: int
    eps: float
    activation: str
    x_layout: str
    y_layout: str

    @property
    def image(self) -> tuple[int, int, int, int]:
        return (self.batch, self.channels, self.height, self.width)

    out_image = image

    @property
    def plain_form(self) -> GroupNorm:
        """The normalisation of the plain image."""
        return GroupNorm(self.image, self.groups, self.eps, self.activation)

    @property
    def inputs(self) -> tuple[Operand, ...]:
        vectors = (Operand(name, (self.channels,), constant=True) for name in ("scale", "shift"))
        return (Operand("X", Layout.parse(self.x_layout).shape(self.image)), *vectors)

    @property
    def output(self) -> Operand:
        return Operand("Y", Layout.parse(self.y_layout).shape(self.image))

    @property
    def flops(self) -> int:
        return self.plain_form.flops

    @property
    def label(self) -> str:
        return f"blocked_{self.plain_form.label}"

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        x, scale, shift = arrays
        plain = Layout.parse(self.x_layout).unpack(x, self.channels)
        return Layout.parse(self.y_layout).pack(self.plain_form.reference(plain, scale, shift))

    def admissible(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        x, *vectors = arrays
        return [Layout.parse(self.x_layout).with_zeros(x, self.channels), *vectors]

    def workload(self) -> PrimFunc:
        from hetero_tvm.ops.te_workload import image, image_as, prim_func

        def compute(x, scale, shift):
            y = self.plain_form.result(image(x, self.x_layout, self.image), scale, shift)
            return image_as(y, self.y_layout)

        return prim_func(self, compute)
