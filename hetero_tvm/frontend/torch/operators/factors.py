"""Factors of small matrices, column by column: Cholesky, QR, LU; determinants; powers of e; Vandermonde.

Where a matrix has no such factors they are NaN or infinite; PyTorch raises an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_MOST_ROWS = 32
"""Rows or columns of a matrix, each of which is a step of its own."""
_LEAST_ROWS = 4
"""Rows up to which ONNX's own determinant is written out."""
_TERMS = 12
"""Terms of the series of e, which for a matrix of a norm below 1/2 are exact to float64's last bits."""
_HALVINGS = 24
"""Times that a matrix may be halved, so that its norm is below 1/2: results of larger ones overflow."""


def decompositions(torch: ModuleType) -> dict[Any, Callable[..., Any]]:
    """Factors by elimination and reflection; matrices of more rows are left alone."""
    aten = torch.ops.aten

    def fits(a: Tensor) -> bool:
        return a.dtype.is_floating_point and 0 < min(a.shape[-2:]) <= _MOST_ROWS

    def unit(extent: int, place: int, like: Tensor) -> Tensor:
        """Vector that is one at ``place``, and zero elsewhere."""
        return (torch.arange(extent, device=like.device) == place).to(like.dtype)

    def outer(x: Tensor, y: Tensor) -> Tensor:
        return x.unsqueeze(-1) * y.unsqueeze(-2)

    def cholesky(a: Tensor, *, upper: bool = False, check_errors: bool = False) -> Any:
        if not fits(a):
            return NotImplemented
        rows = a.shape[-1]
        places = torch.arange(rows, device=a.device)
        rest = a.mT if upper else a
        factor, info = torch.zeros_like(rest), torch.zeros(a.shape[:-2], dtype=torch.int32)
        for step in range(rows):
            pivot = rest[..., step, step]
            info = torch.where((info == 0) & ~(pivot > 0), step + 1, info)
            column = torch.where(places >= step, rest[..., step] / pivot.sqrt().unsqueeze(-1), 0.0)
            factor = factor + outer(column, unit(rows, step, a))
            rest = rest - outer(column, column)
        return (factor.mT if upper else factor), info.to(torch.int32)

    def cholesky_alone(a: Tensor, *, upper: bool = False) -> Any:
        found = cholesky(a, upper=upper)
        return found if found is NotImplemented else found[0]

    def cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
        """Solutions of A X = B by A's factor."""
        lower = factor.mT if upper else factor
        half = aten.linalg_solve_triangular.default(lower, b, upper=False)
        return aten.linalg_solve_triangular.default(lower.mT, half, upper=True)

    def cholesky_inverse(factor: Tensor, upper: bool = False) -> Tensor:
        one = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
        return cholesky_solve(one.expand(factor.shape), factor, upper)

    def qr(a: Tensor, mode: str = "reduced") -> Any:
        """Orthogonal factor and triangle, by Householder's reflections, of the signs that LAPACK gives."""
        if not fits(a):
            return NotImplemented
        rows, columns = a.shape[-2:]
        places = torch.arange(rows, device=a.device)
        triangle, reflections = a, []
        for step in range(min(rows - 1, columns)):
            column = torch.where(places >= step, triangle[..., step], 0.0)
            below = torch.where(places > step, column, 0.0).abs().amax(-1, keepdim=True) > 0
            length = column.square().sum(-1, keepdim=True).sqrt()
            first = column[..., step : step + 1]
            end = torch.where(first < 0, length, -length)
            vector = column - end * unit(rows, step, a)
            square = vector.square().sum(-1, keepdim=True)
            vector = torch.where(below, vector * (2.0 / torch.where(below, square, 1.0)).sqrt(), 0.0)
            reflections.append(vector)
            triangle = triangle - outer(vector, (vector.unsqueeze(-2) @ triangle).squeeze(-2))
        kept = rows if mode == "complete" else min(rows, columns)
        upper = triangle.triu()[..., :kept, :]
        if mode == "r":
            return a.new_empty(0), upper
        q = torch.eye(rows, kept, dtype=a.dtype, device=a.device).expand(*a.shape[:-2], rows, kept)
        for vector in reversed(reflections):
            q = q - outer(vector, (vector.unsqueeze(-2) @ q).squeeze(-2))
        return q, upper

    def lu_factor(a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Both triangles in one matrix, the swaps of rows from 1 on, their sign, and their order."""
        rows, columns = a.shape[-2:]
        places = torch.arange(rows, device=a.device)
        order = places.expand(*a.shape[:-1])
        sign, pivots = torch.ones(a.shape[:-2], dtype=a.dtype), []
        for step in range(min(rows, columns)):
            sizes = torch.where(places >= step, a[..., step].abs(), -1.0)
            pivot = sizes.argmax(-1, keepdim=True)
            swap = torch.where(places == pivot, step, places)
            swap = torch.where(places == step, pivot, swap)
            a = a.gather(-2, swap.unsqueeze(-1).expand(a.shape))
            order = order.gather(-1, swap)
            sign = torch.where(pivot.squeeze(-1) == step, sign, -sign)
            pivots.append(pivot + 1)
            found = a[..., step : step + 1, step]
            factors = a[..., step] / torch.where(found == 0, 1.0, found)
            factors = torch.where(places > step, factors, 0.0)
            right = torch.arange(columns, device=a.device) > step
            row = torch.where(right, a[..., step, :], 0.0)
            a = a - outer(factors, row)
            here = outer((places > step).to(a.dtype), unit(columns, step, a)) > 0
            a = torch.where(here, factors.unsqueeze(-1), a)
        return a, torch.cat(pivots, -1).to(torch.int32), sign, order

    def lu_factor_ex(a: Tensor, *, pivot: bool = True, check_errors: bool = False) -> Any:
        if not pivot or not fits(a):
            return NotImplemented
        both, pivots, _, _ = lu_factor(a)
        zero = both.diagonal(dim1=-2, dim2=-1) == 0
        first = zero.to(torch.int32).argmax(-1) + 1
        return both, pivots, torch.where(zero.any(-1), first, 0).to(torch.int32)

    def lu(a: Tensor, *, pivot: bool = True) -> Any:
        """Permutation P, lower L and upper U with A = P L U."""
        if not pivot or not fits(a):
            return NotImplemented
        both, _, _, order = lu_factor(a)
        rows, columns = a.shape[-2:]
        least = min(rows, columns)
        lower = both[..., :least].tril(-1) + torch.eye(rows, least, dtype=a.dtype)
        moved = (torch.arange(rows).unsqueeze(-1) == order.unsqueeze(-2)).to(a.dtype)
        return moved, lower, both[..., :least, :].triu()

    def slogdet(a: Tensor) -> Any:
        """Sign and logarithm of the determinant's size, and the factors."""
        if not fits(a) or a.shape[-1] != a.shape[-2]:
            return NotImplemented
        if a.is_contiguous():  # as PyTorch does: gradients read the factors as those of the transposed matrix
            a = a.mT
        both, pivots, sign, _ = lu_factor(a)
        ends = both.diagonal(dim1=-2, dim2=-1)
        sign = sign * torch.where(ends > 0, 1.0, torch.where(ends < 0, -1.0, ends)).prod(-1)
        return sign, ends.abs().log().sum(-1), both, pivots

    def determinant(a: Tensor) -> Any:
        """Product of the ends of the triangle; small matrices have an operator in ONNX."""
        if a.shape[-1] <= _LEAST_ROWS or not fits(a) or a.shape[-1] != a.shape[-2]:
            return NotImplemented
        both, _, sign, _ = lu_factor(a)
        return sign * both.diagonal(dim1=-2, dim2=-1).prod(-1)

    def determinant_and_factors(a: Tensor) -> Any:
        if not fits(a) or a.shape[-1] != a.shape[-2]:
            return NotImplemented
        both, pivots, sign, _ = lu_factor(a.mT if a.is_contiguous() else a)  # as of slogdet
        return sign * both.diagonal(dim1=-2, dim2=-1).prod(-1), both, pivots

    def logdet(a: Tensor) -> Any:
        """Logarithm of the determinant, which may be too large itself; NaN where it is negative."""
        found = slogdet(a)
        if found is NotImplemented:
            return found
        return torch.where(found[0] < 0, torch.nan, found[1])

    def lu_solve(both: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False) -> Any:
        """Solutions X of A X = B by the factors of A; of X A = B; ``adjoint`` transposes A."""
        if not fits(both):
            return NotImplemented
        if not left:
            return lu_solve(both, pivots, b.mT, adjoint=not adjoint).mT
        lead = torch.broadcast_shapes(both.shape[:-2], b.shape[:-2])
        b = b.expand(*lead, *b.shape[-2:])
        rows = torch.arange(both.shape[-1], device=both.device)

        def swapped(b: Tensor, step: int) -> Tensor:
            pivot = (pivots[..., step : step + 1] - 1).to(torch.int64)
            swap = torch.where(rows == pivot, step, rows)
            swap = torch.where(rows == step, pivot, swap)
            return b.gather(-2, swap.unsqueeze(-1).expand(b.shape))

        if adjoint:
            half = aten.linalg_solve_triangular.default(both.mT, b, upper=False)
            b = aten.linalg_solve_triangular.default(both.mT, half, upper=True, unitriangular=True)
            return functools.reduce(swapped, reversed(range(both.shape[-1])), b)
        b = functools.reduce(swapped, range(both.shape[-1]), b)
        half = aten.linalg_solve_triangular.default(both, b, upper=False, unitriangular=True)
        return aten.linalg_solve_triangular.default(both, half, upper=True)

    def solve(a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False) -> Any:
        """Solutions, the factors that gradients read, and where there are none."""
        if not fits(a):
            return NotImplemented
        both, pivots, info = lu_factor_ex(a)
        vectors = b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])
        found = lu_solve(both, pivots, b.unsqueeze(-1) if vectors else b, left=left)
        return (found.squeeze(-1) if vectors else found), both, pivots, info

    def exponential(a: Tensor) -> Any:
        """e to the power of a matrix: a series of its part, squared as often as it was halved."""
        if not fits(a) or a.shape[-1] != a.shape[-2]:
            return NotImplemented
        norm = a.abs().sum(-2).amax(-1)
        halvings = (norm.clamp(min=2.0**-2).log2().ceil() + 1.0).clamp(0, _HALVINGS)
        part = a * torch.exp2(-halvings)[..., None, None]
        one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand(a.shape)
        power = total = one
        for term in range(1, _TERMS + 1):
            power = power @ part / term
            total = total + power
        for step in range(_HALVINGS):
            total = torch.where((halvings > step)[..., None, None], total @ total, total)
        return total

    def vander(x: Tensor, *, N: int | None = None) -> Tensor:
        power, powers = torch.ones_like(x), []
        for _ in range(x.shape[-1] if N is None else N):
            powers.append(power)
            power = power * x
        return torch.stack(powers, -1) if powers else x.new_zeros(*x.shape, 0)

    def vander_falling(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
        rising = vander(x, N=N)
        return rising if increasing else rising.flip(-1)

    return {
        aten.linalg_cholesky.default: cholesky_alone,
        aten.linalg_cholesky_ex.default: cholesky,
        aten.cholesky.default: lambda a, upper=False: cholesky_alone(a, upper=upper),
        aten.cholesky_solve.default: cholesky_solve,
        aten.cholesky_inverse.default: cholesky_inverse,
        aten.linalg_qr.default: qr,
        aten.linalg_lu.default: lu,
        aten.linalg_lu_factor_ex.default: lu_factor_ex,
        aten.linalg_lu_factor.default: lambda a, *, pivot=True: (
            found if (found := lu_factor_ex(a, pivot=pivot)) is NotImplemented else found[:2]
        ),
        aten.linalg_lu_solve.default: lu_solve,
        aten._linalg_solve_ex.default: solve,
        aten.linalg_det.default: determinant,
        aten._linalg_det.default: determinant_and_factors,
        aten.logdet.default: logdet,
        aten._linalg_slogdet.default: slogdet,
        aten.linalg_slogdet.default: lambda a: (
            found if (found := slogdet(a)) is NotImplemented else found[:2]
        ),
        aten.linalg_matrix_exp.default: exponential,
        aten.linalg_vander.default: vander,
        aten.vander.default: vander_falling,
    }
