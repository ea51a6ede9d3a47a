"""Systems of linear equations, small ones by elimination, triangles by substitution; products of three
tensors and lengths of weights."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_MOST_ROWS = 32
"""Rows of a system, each of which is a step of its own: matrices of cameras, poses, control points."""
_BLOCK = 8
"""Rows of a triangle that are solved one by one; of larger ones, all blocks on the diagonal are at once."""
_MOST_BLOCKS = 32
"""Blocks of a triangle, each of which is a step: chunks of gated delta rules have 64 rows."""


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

    def substituted(a: Tensor, b: Tensor) -> Tensor:
        """Solutions by a lower triangle, row by row."""
        places = torch.arange(a.shape[-1], device=a.device)
        for step in range(a.shape[-1]):
            row = b[..., step : step + 1, :] / a[..., step : step + 1, step : step + 1]
            below = torch.where(places > step, a[..., step], 0.0).unsqueeze(-1)
            b = torch.where((places == step).unsqueeze(-1), row, b - below * row)
        return b

    def by_blocks(a: Tensor, b: Tensor) -> Tensor:
        """Solutions by a lower triangle of many rows, by the inverses of the blocks on its diagonal."""
        rows, one = a.shape[-1], torch.eye(_BLOCK, dtype=a.dtype, device=a.device)
        starts = range(0, rows, _BLOCK)
        blocks = [a[..., i : i + _BLOCK, i : i + _BLOCK] for i in starts]
        last = blocks[-1].shape[-1]
        if last < _BLOCK:
            more = torch.nn.functional.pad(blocks[-1], (0, _BLOCK - last, 0, _BLOCK - last))
            blocks[-1] = more + torch.where(torch.arange(_BLOCK, device=a.device) >= last, one, 0.0)
        inverses = substituted(torch.stack(blocks, -3), one)
        found: list[Tensor] = []
        for step, start in enumerate(starts):
            rest = b[..., start : start + _BLOCK, :]
            if found:
                rest = rest - a[..., start : start + _BLOCK, :start] @ torch.cat(found, -2)
            extent = rest.shape[-2]
            found.append(inverses[..., step, :extent, :extent] @ rest)
        return torch.cat(found, -2)

    def of_triangle(
        a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
    ) -> Any:
        if a.shape[-1] > _BLOCK * _MOST_BLOCKS or not a.dtype.is_floating_point:
            return NotImplemented
        if not left:
            return of_triangle(a.mT, b.mT, upper=not upper, unitriangular=unitriangular).mT
        if upper:
            turned, other = a.flip(-2, -1), b.flip(-2)
            return of_triangle(turned, other, upper=False, unitriangular=unitriangular).flip(-2)
        a = a.tril()
        if unitriangular:
            a = torch.where(torch.eye(a.shape[-1], dtype=torch.bool, device=a.device), 1.0, a)
        lead = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        b = b.expand(*lead, *b.shape[-2:])
        return substituted(a, b) if a.shape[-1] <= _BLOCK else by_blocks(a, b)

    def inverse_ex(a: Tensor, *, check_errors: bool = False) -> Any:
        """The inverse, and whether there is none: 1 where anything in it is no number."""
        found = inverse(a)
        if found is NotImplemented:
            return found
        return found, (~found.isfinite()).any(-1).any(-1).to(torch.int32)

    def power(a: Tensor, n: int) -> Any:
        if n >= 0:
            return NotImplemented
        base = found = inverse(a)
        if found is NotImplemented:
            return found
        for _ in range(-n - 1):
            found = found @ base
        return found

    def condition(a: Tensor, p: Any = None) -> Any:
        """Norm of a matrix times that of its inverse; norms of singular values are left alone."""
        other = inverse(a)
        if p in (None, 2, -2, "nuc") or other is NotImplemented:
            return NotImplemented
        return torch.linalg.matrix_norm(a, p) * torch.linalg.matrix_norm(other, p)

    def trilinear(
        a: Tensor, b: Tensor, c: Tensor, expand1: list[int], expand2: list[int], expand3: list[int],
        sumdim: list[int], unroll_dim: int = 1,
    ) -> Any:  # fmt: skip
        """Sum of products of three tensors that get axes first: ``nn.Bilinear`` and its gradients."""
        rank = a.dim() + len(expand1)
        first, second, third = (
            "".join(chr(ord("a") + axis) for axis in range(rank) if axis not in axes)
            for axes in (expand1, expand2, expand3)
        )
        kept = [chr(ord("a") + axis) for axis in range(rank) if axis not in sumdim]
        if not {*kept} <= {*first, *second, *third}:
            return NotImplemented
        both = "".join(sorted(({*first} | {*second}) & {*third, *kept}))
        product = torch.einsum(f"{first},{second}->{both}", a, b)
        return torch.einsum(f"{both},{third}->{''.join(kept)}", product, c)

    def weight_norm_backward(
        grad: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int
    ) -> tuple[Tensor, Tensor]:
        """Gradients of a weight's direction and length, which is along all axes but ``dim``."""
        axes = [axis for axis in range(v.dim()) if axis != dim % v.dim()]
        norms = norms.reshape(g.shape).to(v.dtype)
        along = (grad * v).sum(axes, keepdim=True)
        return g / norms * (grad - v * (along / (norms * norms))), along / norms

    return {
        aten._weight_norm_interface_backward.default: weight_norm_backward,
        aten._trilinear.default: trilinear,
        aten.linalg_cond.default: condition,
        aten.linalg_cond.p_str: condition,
        aten.linalg_inv_ex.default: inverse_ex,
        aten.linalg_matrix_power.default: power,
        aten.linalg_inv.default: inverse,
        aten.inverse.default: inverse,
        aten.linalg_solve.default: solution,
        aten.linalg_solve_triangular.default: of_triangle,
    }
