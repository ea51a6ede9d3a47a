"""Helpers that converters of all kinds share: inputs, extents, types."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hetero_tvm.host.tvm import Expr, relax, tvm

Inputs = Sequence["Expr | None"]
"""Inputs of a node in order; None for those that are left out."""


def is_float(x: Expr) -> bool:
    """Whether a tensor holds floating-point numbers."""
    return "float" in str(x.ty.dtype)


def static_shape(value: Expr) -> tuple[int, ...] | None:
    """Dimensions of a tensor as numbers, or None when one is unknown."""
    ty = getattr(value, "ty", None)
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return None
    return fixed_extents(ty.shape.values)


def fixed_extents(values: Iterable[Any] | None) -> tuple[int, ...] | None:
    """Values of a Relax shape as numbers; None when there are none, or when one is symbolic."""
    if values is None or not all(isinstance(dim, int | tvm.tirx.IntImm) for dim in values):
        return None
    return tuple(int(dim) for dim in values)
