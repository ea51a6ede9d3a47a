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


def test_forms_of_two_vectors():
    operator = torch.ops.aten._trilinear.default
    a, b, c = torch.randn(6, 4), torch.randn(3, 4, 5), torch.randn(6, 5)
    arguments = a, b, c, [1, 3], [0], [1, 2], [2, 3]
    torch.testing.assert_close(decompositions()[operator](*arguments), operator(*arguments))


@pytest.mark.parametrize("dim", [0, 2])
def test_gradients_of_weights_in_direction_and_length(dim):
    v, shape = torch.randn(4, 3, 5), [1, 1, 1]
    shape[dim] = v.shape[dim]
    g, grad = torch.rand(shape) + 0.5, torch.randn(4, 3, 5)
    _, norms = torch.ops.aten._weight_norm_interface(v, g, dim)
    operator = torch.ops.aten._weight_norm_interface_backward.default
    found = decompositions()[operator](grad, v, g, norms, dim)
    for one, other in zip(found, operator(grad, v, g, norms, dim), strict=True):
        torch.testing.assert_close(one, other)
