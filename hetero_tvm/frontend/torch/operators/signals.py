"""Fourier transforms as products with matrices of cosines and sines, and distances."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def decompositions(torch: ModuleType) -> dict[Any, Callable[..., Any]]:
    """Distances between rows."""
    aten = torch.ops.aten

    def cdist(x: Tensor, y: Tensor, p: float, mode: int | None = None) -> Any:
        apart = (x.unsqueeze(-2) - y.unsqueeze(-3)).abs()
        if p == 2.0:
            return apart.square().sum(-1).sqrt()
        if p == 1.0:
            return apart.sum(-1)
        if p == float("inf"):
            return apart.amax(-1)
        if p == 0.0:
            return (apart != 0).to(x.dtype).sum(-1)
        return apart.pow(p).sum(-1).pow(1.0 / p)

    return {aten._cdist_forward.default: cdist}
