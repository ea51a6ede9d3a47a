"""Normalisations of images in blocks of channels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hetero_tvm.ops.base import FusedOp, Operand
from hetero_tvm.ops.group_norm import GroupNorm
from hetero_tvm.ops.layout import Layout
from hetero_tvm.ops.normalization import Normalization

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import PrimFunc, TETensor


@dataclass(frozen=True)
class BlockedNorm(FusedOp):
    """A normalisation of an image whose X and Y lie in layouts of their own.

    Parameters
    ----------
    batch, channels, height, width : extents of the image.
    x_layout, y_layout : layouts as text (:class:`hetero_tvm.ops.layout.Layout`).

    Operands: X, and the vectors [C] of the plain form (constants).
    """

    batch: int
    channels: int
    height: int
    width: int
    x_layout: str
    y_layout: str

    @property
    def image(self) -> tuple[int, int, int, int]:
        return (self.batch, self.channels, self.height, self.width)

    @property
    @abstractmethod
    def plain_form(self) -> Any:
        """The normalisation of the plain image."""

    @abstractmethod
    def result(self, x: TETensor, *vectors: TETensor) -> TETensor:
        """Give the plain Y of a plain X, as a tensor expression."""

    @property
    def inputs(self) -> tuple[Operand, ...]:
        _, *vectors = self.plain_form.inputs
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
        x, *vectors = arrays
        plain = Layout.parse(self.x_layout).unpack(x, self.channels)
        return Layout.parse(self.y_layout).pack(self.plain_form.reference(plain, *vectors))

    def admissible(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        x, *vectors = arrays
        return [Layout.parse(self.x_layout).with_zeros(x, self.channels), *vectors]

    def workload(self) -> PrimFunc:
        from hetero_tvm.ops.te_workload import image, image_as, prim_func

        def compute(x, *vectors):
            return image_as(self.result(image(x, self.x_layout, self.image), *vectors), self.y_layout)

        return prim_func(self, compute)


@dataclass(frozen=True)
class BlockedGroupNorm(BlockedNorm):
    """A :class:`hetero_tvm.ops.group_norm.GroupNorm` in blocks; ``groups``, ``eps`` and ``activation`` are
    its own."""

    kind: ClassVar[str] = "blocked_group_norm"

    groups: int
    eps: float
    activation: str = ""

    @property
    def plain_form(self) -> GroupNorm:
        return GroupNorm(self.image, self.groups, self.eps, self.activation)

    def result(self, x: TETensor, *vectors: TETensor) -> TETensor:
        return self.plain_form.result(x, *vectors)


@dataclass(frozen=True)
class BlockedNormalization(BlockedNorm):
    """A :class:`hetero_tvm.ops.normalization.Normalization` of each pixel over its channels, in blocks;
    ``eps``, ``centered`` and ``shifted`` are its own."""

    kind: ClassVar[str] = "blocked_normalize"

    eps: float
    centered: bool = True
    shifted: bool = True

    @property
    def plain_form(self) -> Normalization:
        lead, trail = (self.batch,), (self.height, self.width)
        return Normalization(lead, self.channels, self.eps, self.centered, self.shifted, trail=trail)

    def result(self, x: TETensor, *vectors: TETensor) -> TETensor:
        return self.plain_form.compute(x, *vectors)
