"""Rotary position embedding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hetero_tvm.ops.base import FusedOp, Operand, strided_view, suffix

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import PrimFunc


@dataclass(frozen=True)
class Rope(FusedOp):
    """``y = x * cos + rotated(x) * sin`` along the last axis (Su et al., RoFormer, 2021).

    Parameters
    ----------
    shape : extents of y, [..., D].
    rotary : R, number of the D elements that are rotated (even); the others are copied.
    interleaved : pairs are elements (2i, 2i + 1), as in GPT-J; otherwise (i, i + R / 2), as in Llama.
        In a pair, ``rotated`` is (-second, first).
    table : extents of cos and sin, [..., R], each leading one 1 or that of y; or [..., R / 2] with one
        value per pair.
    source, place : extents of the operand that holds x, and the place of x in it, taken as flat memory:
        offset, then the stride of each leading axis of y.  The last axis has stride 1.
    dtype : type of X and Y; cos and sin are float32, and so is all arithmetic.

    Operands: X, cos, sin.
    """

    kind: ClassVar[str] = "rope"

    shape: tuple[int, ...]
    rotary: int
    interleaved: bool
    table: tuple[int, ...]
    source: tuple[int, ...]
    place: tuple[int, ...]
    dtype: str = "float32"

    @property
    def per_pair(self) -> bool:
        """Whether cos and sin hold one value per pair."""
        return self.table[-1] * 2 == self.rotary

    @property
    def inputs(self) -> tuple[Operand, ...]:
        tables = (Operand("cos", self.table), Operand("sin", self.table))
        return (Operand("X", self.source, self.dtype), *tables)

    @property
    def output(self) -> Operand:
        return Operand("Y", self.shape, self.dtype)

    @property
    def flops(self) -> int:
        return 3 * math.prod(self.shape[:-1]) * self.rotary

    @property
    def nbytes(self) -> int:
        """Bytes that one call must at least move: x, maybe a part of its operand, counts as much as y."""
        return 2 * self.output.nbytes + 2 * self.inputs[1].nbytes

    @property
    def label(self) -> str:
        name = f"rope_{'x'.join(map(str, self.shape))}r{self.rotary}"
        return "_".join([name + "_interleaved" * self.interleaved, *suffix(self.dtype)])

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        source, cos, sin = arrays
        x = strided_view(source, self.shape, (*self.place, 1))
        half = self.rotary // 2
        if self.interleaved:
            first, second = x[..., 0 : self.rotary : 2], x[..., 1 : self.rotary : 2]
            rotated = np.stack([-second, first], -1).reshape(*self.shape[:-1], self.rotary)
        else:
            rotated = np.concatenate([-x[..., half : self.rotary], x[..., :half]], -1)
        if self.per_pair:
            cos, sin = (
                np.repeat(t, 2, -1) if self.interleaved else np.concatenate([t, t], -1) for t in (cos, sin)
            )
        turned = x[..., : self.rotary] * cos + rotated * sin
        return np.concatenate([turned, x[..., self.rotary :]], -1)

    def workload(self) -> PrimFunc:
        from hetero_tvm.host.tvm import te, tirx
        from hetero_tvm.ops.te_workload import at_flat, prim_func, wide

        half = self.rotary // 2

        def compute(source, cos, sin):
            def element(lead, d):
                steps = sum(i * s for i, s in zip(lead, self.place[1:], strict=True))
                return wide(at_flat(source, self.place[0] + steps + d))

            def value(*index):
                *lead, d = index
                at = [0 if extent == 1 else i for i, extent in zip(lead, self.table[:-1], strict=True)]
                safe = tirx.min(d, self.rotary - 1) if self.rotary < self.shape[-1] else d
                if self.interleaved:
                    is_first, pair = tirx.EQ(tirx.floormod(safe, 2), 0), tirx.floordiv(safe, 2)
                    partner = tirx.if_then_else(is_first, safe + 1, safe - 1)
                else:
                    is_first, pair = safe < half, tirx.floormod(safe, half)
                    partner = tirx.if_then_else(is_first, safe + half, safe - half)
                column = pair if self.per_pair else safe
                other = element(lead, partner)
                turned = element(lead, safe) * cos[(*at, column)] + (
                    tirx.Select(is_first, -other, other) * sin[(*at, column)]
                )
                if self.rotary != self.shape[-1]:
                    turned = tirx.if_then_else(d < self.rotary, turned, element(lead, d))
                return turned if self.dtype == "float32" else turned.astype(self.dtype)

            return te.compute(self.shape, value, name="Y")

        return prim_func(self, compute)
