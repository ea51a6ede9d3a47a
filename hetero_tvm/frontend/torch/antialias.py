"""Antialiased resizes as products with matrices of weights, where ONNX's operator has other places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import Node

_LINEAR, _CUBIC = 2, 4
"""Taps of the two filters."""


def decompositions(torch: ModuleType) -> dict[Any, Callable[..., Any]]:
    """Antialiased resizes with aligned corners, or with scales that are not the ratios of the sizes."""
    aten = torch.ops.aten

    def with_filter(taps: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
        def resized(
            x: Tensor,
            output_size: Sequence[int],
            align_corners: bool,
            scales_h: float | None = None,
            scales_w: float | None = None,
        ) -> Any:
            extents = (*x.shape[2:], *output_size)
            if not all(type(extent) is int for extent in extents):
                return NotImplemented
            scales = (scales_h, scales_w)
            pairs = list(zip(x.shape[2:], output_size, scales, strict=True))
            uneven = [s is not None and abs(n * s - count) > 1e-9 * count for n, count, s in pairs]
            if not align_corners and not any(uneven):
                return NotImplemented
            steps = [_step(*pair, align_corners) for pair in pairs]
            rows, columns = (
                _weights(torch, n, count, step, taps).to(x.dtype)
                for (n, count, _), step in zip(pairs, steps, strict=True)
            )
            return rows @ x @ columns.T

        def by_factors(
            x: Tensor, output_size: Sequence[int] | None, align_corners: bool, factors: Sequence[float] | None
        ) -> Any:
            if output_size is not None or factors is None:
                return NotImplemented if output_size is None else resized(x, output_size, align_corners)
            if not all(type(extent) is int for extent in x.shape[2:]):
                return NotImplemented
            sizes = [int(n * factor) for n, factor in zip(x.shape[2:], factors, strict=True)]
            return resized(x, sizes, align_corners, *factors)

        return resized, by_factors

    table = {}
    families = {aten._upsample_bilinear2d_aa: _LINEAR, aten._upsample_bicubic2d_aa: _CUBIC}
    for family, taps in families.items():
        table[family.default], table[family.vec] = with_filter(taps)
    return table


def in_part(torch: ModuleType) -> dict[Any, Callable[[Node], bool]]:
    """Operators of the table that PyTorch's exporter takes, except in such calls."""
    return dict.fromkeys(decompositions(torch), _has_other_places)


def _has_other_places(node: Node) -> bool:
    return bool(node.args[2]) or any(argument is not None for argument in node.args[3:])


def _step(size: int, count: int, scale: float | None, align_corners: bool) -> float:
    """Distance of two results, in elements of the input."""
    if align_corners:
        return (size - 1) / (count - 1) if count > 1 else 0.0
    return 1.0 / scale if scale else size / count


def _weights(torch: ModuleType, size: int, count: int, step: float, taps: int) -> Tensor:
    """Weights [count, size] of an axis: a filter that is as wide as a step, its part within the image."""
    wide = max(step, 1.0)
    reach = taps / 2 * wide
    centers = (torch.arange(count).to(torch.float64).unsqueeze(1) + 0.5) * step
    places = torch.arange(size).to(torch.float64)
    far = ((places - centers + 0.5) / wide).abs()
    if taps == _LINEAR:
        weights = (1.0 - far).clamp(min=0.0)
    else:
        near = (1.5 * far - 2.5) * far * far + 1.0
        outer = ((-0.5 * far + 2.5) * far - 4.0) * far + 2.0
        weights = torch.where(far < 1.0, near, torch.where(far < 2.0, outer, 0.0))
    first, end = (centers - reach + 0.5).clamp(min=0.0).floor(), (centers + reach + 0.5).floor()
    weights = torch.where((places >= first) & (places < end), weights, 0.0)
    return weights / weights.sum(1, keepdim=True)
