"""Factors of small matrices against PyTorch's own, with LAPACK's signs."""

import pytest
import torch

from hetero_tvm.frontend.torch.decompositions import decomposed, decompositions

ATEN = torch.ops.aten
TABLE = decompositions()


def matrices(*shape, seed=0):
    torch.manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64)


def positive(*lead, rows):
    a = matrices(*lead, rows, rows)
    return a @ a.mT + torch.eye(rows, dtype=torch.float64)


@pytest.mark.parametrize("rows", [1, 2, 5, 16])
@pytest.mark.parametrize("upper", [False, True])
def test_cholesky(rows, upper):
    a = positive(3, 2, rows=rows)
    expected = torch.linalg.cholesky(a, upper=upper)
    torch.testing.assert_close(TABLE[ATEN.linalg_cholesky.default](a, upper=upper), expected)
    factor, info = TABLE[ATEN.linalg_cholesky_ex.default](a, upper=upper)
    torch.testing.assert_close((factor, info), tuple(torch.linalg.cholesky_ex(a, upper=upper)))


def test_matrices_that_are_not_positive_are_told():
    a = torch.stack([torch.eye(3), torch.diag(torch.tensor([1.0, -1.0, 1.0])), torch.zeros(3, 3)]).double()
    factor, info = TABLE[ATEN.linalg_cholesky_ex.default](a)
    torch.testing.assert_close(info, torch.linalg.cholesky_ex(a).info)
    assert factor[1].isnan().any() and factor[2].isnan().any()


@pytest.mark.parametrize("upper", [False, True])
def test_systems_by_their_factor(upper):
    a, b = positive(2, rows=4), matrices(2, 4, 3, seed=1)
    factor = torch.linalg.cholesky(a, upper=upper)
    found = TABLE[ATEN.cholesky_solve.default](b, factor, upper)
    torch.testing.assert_close(found, torch.cholesky_solve(b, factor, upper))
    found = TABLE[ATEN.cholesky_inverse.default](factor, upper)
    torch.testing.assert_close(found, torch.cholesky_inverse(factor, upper))


@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (6, 3), (3, 6), (2, 5, 4), (5, 1), (1, 5)])
@pytest.mark.parametrize("mode", ["reduced", "complete", "r"])
def test_orthogonal_factors(shape, mode):
    a = matrices(*shape)
    found, expected = TABLE[ATEN.linalg_qr.default](a, mode), torch.linalg.qr(a, mode)
    torch.testing.assert_close(found, tuple(expected))


def test_orthogonal_factors_of_zeros_and_triangles():
    a = torch.stack([torch.zeros(3, 3), torch.eye(3), torch.ones(3, 3).triu()]).double()
    torch.testing.assert_close(TABLE[ATEN.linalg_qr.default](a), tuple(torch.linalg.qr(a)))


@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (2, 3, 5, 5), (6, 3), (3, 6)])
def test_triangles(shape):
    a = matrices(*shape)
    torch.testing.assert_close(TABLE[ATEN.linalg_lu.default](a), tuple(torch.linalg.lu(a)))
    found, expected = TABLE[ATEN.linalg_lu_factor_ex.default](a), torch.linalg.lu_factor_ex(a)
    torch.testing.assert_close(found, tuple(expected))


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_determinants(rows):
    a = matrices(4, rows, rows)
    a[0] = 0
    expected = torch.linalg.slogdet(a)
    torch.testing.assert_close(TABLE[ATEN.linalg_slogdet.default](a), tuple(expected))
    torch.testing.assert_close(TABLE[ATEN._linalg_slogdet.default](a)[:2], tuple(expected))
    torch.testing.assert_close(TABLE[ATEN.logdet.default](a), torch.logdet(a), equal_nan=True)
    large = torch.eye(40, dtype=a.dtype)[:30, :30] * 1e20
    torch.testing.assert_close(TABLE[ATEN.logdet.default](large), torch.linalg.slogdet(large)[1])


@pytest.mark.parametrize("scale", [0.0, 1e-3, 0.3, 1.0, 8.0])
@pytest.mark.parametrize("rows", [1, 3, 6])
def test_exponentials(scale, rows):
    a = matrices(2, rows, rows) * scale
    torch.testing.assert_close(TABLE[ATEN.linalg_matrix_exp.default](a), torch.linalg.matrix_exp(a))


@pytest.mark.parametrize("count", [None, 0, 1, 5])
def test_powers_of_vectors(count):
    x = torch.tensor([[1.0, -2.0, 0.0], [3.0, 0.5, float("inf")]])
    if count not in (0, 1):  # PyTorch refuses them
        found = TABLE[ATEN.linalg_vander.default](x, N=count)
        torch.testing.assert_close(found, torch.linalg.vander(x, N=count), equal_nan=True)
    found = TABLE[ATEN.vander.default](x[0], count, count == 5)
    torch.testing.assert_close(found, torch.vander(x[0], count, count == 5))


def test_large_matrices_are_left_alone():
    for name in ("linalg_cholesky", "linalg_qr", "linalg_lu", "linalg_matrix_exp"):
        assert TABLE[getattr(ATEN, name).default](torch.eye(33)) is NotImplemented


@pytest.mark.parametrize("rows", [5, 9])
def test_products_of_triangles(rows):
    a, b = matrices(3, rows, rows), matrices(3, rows, 2, seed=1)
    a[0, :, 0] = 0
    torch.testing.assert_close(TABLE[ATEN.linalg_det.default](a), torch.linalg.det(a))
    assert TABLE[ATEN.linalg_det.default](a[:, :4, :4]) is NotImplemented
    factors = torch.linalg.lu_factor(a[1:])
    torch.testing.assert_close(TABLE[ATEN.linalg_lu_factor.default](a[1:]), tuple(factors))
    found = TABLE[ATEN.linalg_lu_solve.default](*factors, b[1:])
    torch.testing.assert_close(found, torch.linalg.lu_solve(*factors, b[1:]))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("shape", [(9, 9), (3, 8, 8), (1, 1)])
def test_factors_of_a_determinant_are_those_that_gradients_read(shape, turned):
    """PyTorch takes a contiguous matrix turned, and its gradients read the factors accordingly."""
    a = matrices(*shape).mT if turned else matrices(*shape)
    found, expected = (f(a) for f in (TABLE[ATEN._linalg_slogdet.default], ATEN._linalg_slogdet.default))
    torch.testing.assert_close(found, tuple(expected))


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("adjoint", [True, False])
def test_systems_by_triangles_from_both_sides(left, adjoint):
    a, b = matrices(2, 5, 5), matrices(2, 5, 5, seed=1)
    factors = torch.linalg.lu_factor(a)
    found = TABLE[ATEN.linalg_lu_solve.default](*factors, b, left=left, adjoint=adjoint)
    torch.testing.assert_close(found, torch.linalg.lu_solve(*factors, b, left=left, adjoint=adjoint))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("left", [True, False])
def test_systems_with_the_factors_that_gradients_read(turned, left):
    a, b = matrices(2, 5, 5), matrices(2, 5, 5, seed=1)
    a = a.mT if turned else a
    found = TABLE[ATEN._linalg_solve_ex.default](a, b, left=left)
    torch.testing.assert_close(found, tuple(ATEN._linalg_solve_ex.default(a, b, left=left)))
    found = TABLE[ATEN._linalg_det.default](a)
    torch.testing.assert_close(found, tuple(ATEN._linalg_det.default(a)))
    vectors = TABLE[ATEN._linalg_solve_ex.default](a[0], b[0, 0])[0]
    torch.testing.assert_close(vectors, torch.linalg.solve(a[0], b[0, 0]))


class Composites(torch.nn.Module):
    def forward(self, a):
        return torch.matrix_exp(a * 0.1), torch.slogdet(a)[1]


@pytest.mark.thorough
def test_composite_operators_of_programs_are_made_of_ours():
    a = matrices(5, 5).float()
    program = decomposed(torch.export.export(Composites(), (a,)))
    torch.testing.assert_close(program.module()(a), Composites()(a))
    targets = {str(node.target) for node in program.graph.nodes}
    assert not any("slogdet" in name or "matrix_exp" in name for name in targets)
