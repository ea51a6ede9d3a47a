"""Small linear systems against PyTorch's own."""

import pytest
import torch

from hetero_tvm.frontend.torch.decompositions import decompositions

ATEN = torch.ops.aten
TABLE = decompositions()


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 8, 23])
def test_inverses(rows):
    torch.manual_seed(rows)
    a = torch.randn(3, 2, rows, rows, dtype=torch.float64)
    a[0, 0].diagonal().zero_()  # pivots elsewhere
    a[0, 0] += torch.eye(rows, dtype=torch.float64).roll(1, 0)
    torch.testing.assert_close(TABLE[ATEN.linalg_inv.default](a), torch.linalg.inv(a))


@pytest.mark.parametrize("shape", [(2, 4, 3), (4, 3), (4,), (2, 4)])
def test_solutions(shape):
    torch.manual_seed(0)
    a, b = torch.randn(2, 4, 4, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
    torch.testing.assert_close(TABLE[ATEN.linalg_solve.default](a, b), torch.linalg.solve(a, b))
    right = torch.randn(2, 3, 4, dtype=torch.float64)
    found = TABLE[ATEN.linalg_solve.default](a, right, left=False)
    torch.testing.assert_close(found, torch.linalg.solve(a, right, left=False))


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("rows", [1, 4, 9, 64])
def test_triangles(upper, unit, left, rows):
    torch.manual_seed(0)
    a, b = torch.randn(2, rows, rows, dtype=torch.float64) / rows**0.5, torch.randn(3, 1, rows, 3).double()
    a.diagonal(dim1=-2, dim2=-1).add_(2.0)
    b = b if left else b.mT
    settings = {"upper": upper, "unitriangular": unit, "left": left}
    found = TABLE[ATEN.linalg_solve_triangular.default](a, b, **settings)
    torch.testing.assert_close(found, torch.linalg.solve_triangular(a, b, **settings))


def test_large_systems_are_left_alone():
    assert TABLE[ATEN.linalg_inv.default](torch.eye(33)) is NotImplemented
    one = torch.eye(257)
    for left in (False, True):
        found = TABLE[ATEN.linalg_solve_triangular.default](one, one, upper=True, left=left)
        assert found is NotImplemented


def test_inverses_with_a_number_for_errors():
    torch.manual_seed(0)
    a = torch.randn(3, 4, 4, dtype=torch.float64)
    a[1] = 0
    found, info = TABLE[ATEN.linalg_inv_ex.default](a)
    assert info.tolist() == [0, 1, 0]
    torch.testing.assert_close(found[::2], torch.linalg.inv(a[::2]))


def test_powers_and_conditions():
    torch.manual_seed(0)
    a = torch.randn(2, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(
        TABLE[ATEN.linalg_matrix_power.default](a, -3), torch.linalg.matrix_power(a, -3)
    )
    assert TABLE[ATEN.linalg_matrix_power.default](a, 3) is NotImplemented
    for norm in (1, -1, float("inf"), "fro"):
        torch.testing.assert_close(TABLE[ATEN.linalg_cond.default](a, norm), torch.linalg.cond(a, norm))
    assert TABLE[ATEN.linalg_cond.default](a) is NotImplemented
