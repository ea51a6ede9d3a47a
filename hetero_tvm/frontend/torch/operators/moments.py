"""Means, variances and truths of no values, or of no more than are taken off their count."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import Node


def decompositions(torch: ModuleType) -> dict[Any, Callable[..., Any]]:
    """``mean``, ``var``, ``std``, and their pairs where PyTorch divides by zero; ``any`` of nothing."""
    aten = torch.ops.aten

    def mean(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        if _count(x.shape, dim) != 0:
            return NotImplemented
        return (x.to(dtype or x.dtype).sum(_axes(dim, x.dim()), keepdim=keepdim)) / 0.0

    def var(x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
        count = _count(x.shape, dim)
        if count is None or count > (1 if correction is None else correction):
            return NotImplemented
        axes = _axes(dim, x.dim())
        if count == 0:
            return x.sum(axes, keepdim=keepdim) / 0.0
        return (x - x.mean(axes, keepdim=True)).square().sum(axes, keepdim=keepdim) / 0.0

    def std(x: Tensor, dim: Any = None, **options: Any) -> Any:
        found = var(x, dim, **options)
        return found if found is NotImplemented else found.sqrt()

    def with_mean(spread: Callable[..., Any]) -> Callable[..., Any]:
        def both(x: Tensor, dim: Any = None, **options: Any) -> Any:
            found = spread(x, dim, **options)
            if found is NotImplemented:
                return found
            return found, x.mean(_axes(dim, x.dim()), keepdim=options.get("keepdim", False))

        return both

    def any_of(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
        """False of no values: the exporter takes the greatest integer, which is the least one there is."""
        if _count(x.shape, dim) != 0:
            return NotImplemented
        return x.bool().sum(_axes(dim, x.dim()), keepdim=keepdim) != 0

    table: dict[Any, Callable[..., Any]] = {
        **dict.fromkeys((aten.any.default, aten.any.dim, aten.any.dims), any_of),
        aten.mean.default: lambda x, *, dtype=None: mean(x, dtype=dtype),
        aten.mean.dim: mean,
    }
    spreads = {aten.var: var, aten.std: std, aten.var_mean: with_mean(var), aten.std_mean: with_mean(std)}
    for operator, formula in spreads.items():
        table[operator.correction] = formula
        table[operator.default], table[operator.dim] = _with_flag(formula)
    return table


def _with_flag(formula: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Forms of a formula that say whether it is unbiased: of all values, and along axes."""

    def of_all(x: Tensor, unbiased: bool = True) -> Any:
        return formula(x, None, correction=int(unbiased))

    def along(x: Tensor, dim: Any, unbiased: bool = True, keepdim: bool = False) -> Any:
        return formula(x, dim, correction=int(unbiased), keepdim=keepdim)

    return of_all, along


def in_part(torch: ModuleType) -> dict[Any, Callable[[Node], bool]]:
    """Operators of the table that PyTorch's exporter takes, except in such calls."""
    return dict.fromkeys(decompositions(torch), is_degenerate)


def is_degenerate(node: Node) -> bool:
    """Whether a mean or a variance is one of so few values that it divides by zero, or a truth of none."""
    value = getattr(node.args[0], "meta", {}).get("val") if node.args else None
    if value is None:
        return False
    second = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    count = _count(value.shape, None if isinstance(second, bool) else second)
    taken = 0 if node.target._schema.name in ("aten::mean", "aten::any") else node.kwargs.get("correction")
    return count is not None and count <= (1 if taken is None else taken)


def _axes(dim: Any, rank: int) -> list[int]:
    named = [dim] if isinstance(dim, int) else list(dim or ())
    return named or list(range(rank))


def _count(shape: Sequence[Any], dim: Any) -> int | None:
    """Number of values that are reduced to one, or None where that is open."""
    extents = [shape[axis] for axis in _axes(dim, len(shape))] if len(shape) else []
    return math.prod(extents) if all(type(extent) is int for extent in extents) else None
