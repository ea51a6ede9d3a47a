"""Small systems of linear equations, by elimination."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_MOST_ROWS = 32
"""Rows of a system, each of which is a step of its own: matrices of cameras, poses, control points."""


def decompositions(torch: ModuleType) -> dict[Any, Callable[..., Any]]:
    """Inverses and solutions; of a singular matrix infinite or NaN, where PyTorch raises an error."""
    aten = torch.ops.aten

    def eliminated(a: Tensor, b: Tensor) -> Any:
        """Solutions X [..., n, k] of A [..., n, n] X = B, by Gauss and Jordan with the largest pivot."""
        rows = a.shape[-1]
        if rows > _MOST_ROWS or not a.dtype.is_floating_point:
            return NotImplemented
        lead = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        system = torch.cat([a.expand(*lead, *a.shape[-2:]), b.expand(*lead, *b.shape[-2:])], -1)
        places = torch.arange(rows, device=a.device)
        for step in range(rows):
            sizes = torch.where(places >= step, system[..., step].abs(), -1.0)
            pivot = sizes.argmax(-1, keepdim=True)
            order = torch.where(places == pivot, step, places)
            order = torch.where(places == step, pivot, order)
            system = system.gather(-2, order.unsqueeze(-1).expand(system.shape))
            row = system[..., step : step + 1, :] / system[..., step : step + 1, step : step + 1]
            rest = system - system[..., step : step + 1] * row
            system = torch.where((places == step).unsqueeze(-1), row, rest)
        return system[..., rows:]

    def inverse(a: Tensor) -> Any:
        return eliminated(a, torch.eye(a.shape[-1], dtype=a.dtype, device=a.device))

    def solution(a: Tensor, b: Tensor, *, left: bool = True) -> Any:
        if not left:
            found = eliminated(a.mT, b.mT)
            return found if found is NotImplemented else found.mT
        if b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1]):  # vectors
            found = eliminated(a, b.unsqueeze(-1))
            return found if found is NotImplemented else found.squeeze(-1)
        return eliminated(a, b)

    def of_triangle(
        a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
    ) -> Any:
        a = a.triu() if upper else a.tril()
        if unitriangular:
            a = torch.where(torch.eye(a.shape[-1], dtype=torch.bool, device=a.device), 1.0, a)
        return solution(a, b, left=left)

    return {
        aten.linalg_inv.default: inverse,
        aten.inverse.default: inverse,
        aten.linalg_solve.default: solution,
        aten.linalg_solve_triangular.default: of_triangle,
    }
