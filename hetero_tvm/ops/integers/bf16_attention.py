"""Attention whose products are of bfloat16: queries, keys, values and weights are rounded on the way in."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hetero_tvm.ops.attention import Attention
from hetero_tvm.ops.integers.bf16_conv2d import HALVES
from hetero_tvm.runtime.arrays import numpy_dtype

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import Expr


@dataclass(frozen=True)
class Bf16Attention(Attention):
    """An :class:`hetero_tvm.ops.attention.Attention` of float32 whose two products multiply bfloat16.

    Sums, scale, mask and softmax are float32.
    """

    kind: ClassVar[str] = "bf16_attention"
    rounds_between: ClassVar[str] = HALVES

    @classmethod
    def of(cls, op: Attention) -> Bf16Attention:
        """The form of a float32 attention."""
        return cls(**{field.name: getattr(op, field.name) for field in fields(Attention)})

    @property
    def plain_form(self) -> Attention:
        """The float32 attention that it stands for."""
        return Attention(**{field.name: getattr(self, field.name) for field in fields(Attention)})

    @property
    def label(self) -> str:
        return f"bf16_{super().label}"

    def multiplied(self, x: np.ndarray) -> np.ndarray:
        return x.astype(np.float32).astype(numpy_dtype(HALVES)).astype(x.dtype)

    def multiplied_element(self, x: Expr) -> Expr:
        return x.astype(HALVES).astype("float32")
