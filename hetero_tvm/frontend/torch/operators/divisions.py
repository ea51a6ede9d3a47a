"""Quotients of integers and remainders of floats, which PyTorch's exporter rounds on the way."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def decompositions(torch: ModuleType) -> dict[Any, Callable[..., Any]]:
    """Rounded quotients of integers in integers, and remainders that are exact for any quotient."""
    aten = torch.ops.aten

    def rounded(x: Tensor, y: Any, *, rounding_mode: str | None = None) -> Any:
        """The exporter's own quotient is one of float32, which has 24 bits."""
        kind = torch.result_type(x, y)
        if rounding_mode is None or kind.is_floating_point or kind.is_complex or kind == torch.bool:
            return NotImplemented
        x = x.to(kind)
        y = y.to(kind) if isinstance(y, torch.Tensor) else torch.full((), y, dtype=kind)
        down = torch.floor_divide(x, y)
        if rounding_mode == "floor":
            return down
        return torch.where((down < 0) & (down * y != x), down + 1, down)

    def remainder(x: Any, y: Any) -> Any:
        """The exporter's ``x - floor(x / y) * y`` loses all digits where the quotient is large."""
        kind = torch.result_type(x, y)
        if not kind.is_floating_point:
            return NotImplemented
        x, y = (
            side.to(kind) if isinstance(side, torch.Tensor) else torch.full((), side, dtype=kind)
            for side in (x, y)
        )
        rest = torch.fmod(x, y)
        return torch.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)

    return {
        aten.div.Tensor_mode: rounded,
        aten.div.Scalar_mode: rounded,
        aten.remainder.Tensor: remainder,
        aten.remainder.Scalar: remainder,
        aten.remainder.Scalar_Tensor: remainder,
    }
